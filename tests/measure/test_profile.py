"""What a profile says of kernels, as data, on a terminal and as a page."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tvmstack.measure.peaks import Peaks
from tvmstack.measure.profile import ProfileReport, profile_rows
from tvmstack.report.html import profile_html
from tvmstack.report.timing import profile_page

pytestmark = pytest.mark.null
PEAKS = Peaks(gflops=100.0, gbytes=10.0, threads=1, method="fma kernel")


def kernel(name: str, flops: float, size: float, source: str) -> dict[str, Any]:
    return {"name": name, "template": "t", "source": source, "flops": flops, "bytes": size, "nodes": [f"{name}_node"]}


def report(peaks: Peaks | None = PEAKS) -> ProfileReport:
    """A compute-bound kernel at half its roof, a memory-bound one at a tenth, a tuned one, and a region."""
    kernels = [
        kernel("conv<1>", 1e9, 1e6, "default"),
        kernel("copy", 0.0, 1e7, "default"),
        kernel("dense", 1e9, 1e6, "tuned"),
    ]
    times = [("conv<1>", 0.02, 1), ("copy", 0.01, 1), ("dense", 0.04, 1), ("tvmstack.region.abc", 0.03, 1)]
    session = SimpleNamespace(
        manifest=SimpleNamespace(kernels=kernels),
        profile=lambda inputs, repeats: [SimpleNamespace(name=n, seconds=s, calls=c) for n, s, c in times],
        run=lambda inputs: None,
    )
    return profile_rows(session, {}, peaks, 3)


def test_each_kernel_is_bound_by_the_peak_it_meets_first() -> None:
    rows = {row.name: row for row in report().rows}
    assert (rows["conv<1>"].bound, rows["conv<1>"].peak_share) == ("compute", pytest.approx(0.5))
    assert (rows["copy"].bound, rows["copy"].peak_share) == ("memory", pytest.approx(0.1))
    assert rows["region abc"].bound == ""
    assert rows["region abc"].peak_share is None


def test_worth_tuning_is_share_times_distance_and_leaves_out_what_is_tuned() -> None:
    found = report().worth_tuning
    assert [row.name for row in found] == ["conv<1>", "copy"]
    assert found[0].headroom == pytest.approx(0.2 * 0.5)
    assert found[1].headroom == pytest.approx(0.1 * 0.9)


def test_without_peaks_nothing_is_said_of_roofs() -> None:
    data = report(None).to_json()
    assert data["worth_tuning"] == []
    assert {row["bound"] for row in data["kernels"]} == {""}
    assert "<svg" not in profile_html(data, "m.so")


def test_the_terminal_shows_numbers_whole_and_what_to_tune() -> None:
    console = Console(width=140, file=io.StringIO())
    console.print(profile_page(report().to_json(), None))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "GFLOP/s" in text
    assert "20 ms" in text
    assert "conv<1>: up to 10% of the time; it takes 20% at 50% of its roof" in text


def test_the_page_is_whole_html_that_loads_nothing() -> None:
    page = profile_html(report().to_json(), "a & b.so")
    opened: list[str] = []

    class Balance(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            assert tag not in {"script", "link", "img", "iframe"}
            assert not {"src", "href"} & {name for name, _ in attrs}
            if tag not in {"meta", "line", "polyline"}:
                opened.append(tag)

        def handle_startendtag(self, tag: str, attrs: Any) -> None:
            assert tag in {"line", "polyline"}

        def handle_endtag(self, tag: str) -> None:
            assert opened.pop() == tag

    Balance().feed(page)
    assert opened == []
    assert not re.search(r"https?://|url\(|@import", page)
    assert "a &amp; b.so" in page
    assert "conv&lt;1&gt;" in page
    assert page.count("<circle") == 2, "a copy computes nothing that a roofline in GFLOP/s could show"
