from __future__ import annotations

import logging
import sys
from types import SimpleNamespace

import pytest

from tvmstack.cli.progress import progress_line, tuning_display

pytestmark = pytest.mark.null


@pytest.fixture(autouse=True)
def talkative(caplog: pytest.LogCaptureFixture) -> None:
    """As without --quiet."""
    caplog.set_level(logging.INFO, "tvmstack")


STATE = SimpleNamespace(elapsed_s=30.0, trials=12, start_s=8e-3, best_s=4e-3, failed=1, task="conv2d_3")


def test_the_line_tells_trials_gain_failures_and_the_kernel_at_work() -> None:
    assert progress_line(STATE) == "12 trials, kernels 4 ms, 2.00x faster than the start, 1 refused, now conv2d_3"


def test_the_line_names_the_fleet() -> None:
    state = SimpleNamespace(**{**vars(STATE), "models": ("a", "b")})
    assert progress_line(state).startswith("fleet of 2, 12 trials")


def test_before_anything_is_measured_no_gain_is_claimed() -> None:
    fresh = SimpleNamespace(elapsed_s=0.0, trials=0, start_s=0.0, best_s=0.0, failed=0, task="")
    assert progress_line(fresh) == "0 trials, kernels 0 µs"


def test_without_a_terminal_lines_are_plain_and_not_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    with tuning_display(60.0, None) as show:
        assert show is not None
        for _ in range(100):
            show(STATE)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["tuning 30 s: " + progress_line(STATE)]


def test_nothing_to_tune_shows_nothing() -> None:
    with tuning_display(None, None) as show:
        assert show is None


def test_a_terminal_gets_a_live_line_on_stderr_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with tuning_display(60.0, None) as show:
        assert show is not None
        show(STATE)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "tuning" in captured.err
