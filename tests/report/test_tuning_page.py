"""The page about a tuning run: whole HTML, nothing loaded, every number of the run on it."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.conftest import mlp
from tvmstack.cli.boundary import run
from tvmstack.report.tuning_html import tuning_html
from tvmstack.tuning.report import TaskReport, TuningReport

STEPS = ((0.0, 0, 4e-3), (1.5, 3, 2e-3), (8.0, 9, 1e-3))
TASKS = (
    TaskReport("small", 1, 2, 1e-3, 1e-3, share=0.1),
    TaskReport("big <1>", 2, 9, 4e-3, 1e-3, share=0.9, known=7, seeds=2, failed=1, steps=STEPS),
)
DATA = {
    **TuningReport(11, 10.0, TASKS, {"build": 1}, {"build": 4.0}).to_json(),
    "boards": [{"key": "a72", "name": "left", "state": "quarantine: it hung"}],
}


class _Balance(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.points: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert tag not in {"script", "link", "img", "iframe"}
        assert not {"src", "href"} & {name for name, _ in attrs}
        if tag != "meta":
            self.opened.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.points += [value for name, value in attrs if name == "points"]

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag


@pytest.mark.null
def test_the_page_is_whole_and_shows_curves_shares_hits_seeds_failures_and_boards() -> None:
    page, parser = tuning_html(DATA, "a & b.onnx"), _Balance()
    parser.feed(page)
    assert parser.opened == []
    for words in ("a &amp; b.onnx", "big &lt;1&gt;", "90.0%", "7 store hits and 2 seeds", "quarantine: it hung"):
        assert words in page
    assert page.index("big &lt;1&gt;") < page.index(">small<")


@pytest.mark.null
def test_a_curve_holds_a_best_time_until_the_next_and_goes_on_to_the_end() -> None:
    parser = _Balance()
    parser.feed(tuning_html(DATA, "m"))
    by_trials, by_seconds = [[tuple(map(float, p.split(","))) for p in text.split()] for text in parser.points]
    for corners, end in ((by_trials, 408.0), (by_seconds, 828.0)):
        assert len(corners) == 6
        assert corners[-1][0] == end
        assert [y for _, y in corners] == [12.0, 12.0, 64.0, 64.0, 90.0, 90.0]


@pytest.mark.cpu
def test_tune_writes_its_page_and_refuses_a_place_it_cannot_write_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, page = tmp_path / "m.onnx", tmp_path / "m.html"
    assert run(["tune", "no-such.onnx", "--trials", "1", "--report", str(tmp_path / "gone" / "m.html")]) == 4
    onnx.save(mlp(), model)
    assert run(["-q", "tune", str(model), "--trials", "4", "--report", str(page)]) == 0, capsys.readouterr().err
    assert "<polyline" in page.read_text()
    assert run(["-q", "tune", str(model), "--trials", "2", "--report", str(page)]) == 0
    assert " 0 store hits" not in page.read_text()
    assert run(["compile", str(model), "-o", str(tmp_path / "m.so"), "--report", str(page)]) == 2


@pytest.mark.cpu
def test_compile_writes_the_page_of_its_tuning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, page = tmp_path / "m.onnx", tmp_path / "m.html"
    onnx.save(mlp(), model)
    words = ["-q", "compile", str(model), "-o", str(tmp_path / "m.so"), "--trials", "3", "--report", str(page)]
    assert run(words) == 0, capsys.readouterr().err
    assert "3 trials in" in page.read_text()
