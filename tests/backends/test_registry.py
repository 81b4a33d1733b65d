"""Back ends by name."""

from __future__ import annotations

import logging
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from tvmstack.backends.registry import available, choose, open_backend
from tvmstack.core.errors import SetupError, UsageError
from tvmstack.core.plugins import Plugins

pytestmark = pytest.mark.null


class _Dist:
    def __init__(self, name: str) -> None:
        self.name = name


def point(name: str, value: str, owner: str) -> Any:
    return EntryPoint(name, value, "group")._for(_Dist(owner))  # type: ignore[attr-defined]


def plugins(*points: Any) -> Plugins:
    return Plugins("engine", "group", {"ours": "json:dumps"}, lambda _: points)


def test_a_name_that_two_packages_claim_names_both() -> None:
    with pytest.raises(SetupError, match="claimed by two packages, one and two"):
        plugins(point("x", "json:loads", "one"), point("x", "json:load", "two")).load("x")


def test_ours_keeps_its_name(caplog: pytest.LogCaptureFixture) -> None:
    import json

    with caplog.at_level(logging.WARNING):
        assert plugins(point("ours", "json:loads", "stranger")).load("ours") is json.dumps
    assert "'ours' of package stranger is left out" in caplog.text


def test_a_broken_plug_in_is_one_warning_and_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    found = plugins(point("bad", "no_such_module_at_all:X", "stranger"))
    with caplog.at_level(logging.WARNING):
        assert list(found.load_all()) == list(found.load_all()) == ["ours"]
    assert caplog.text.count("cannot be loaded") == 1
    with pytest.raises(SetupError, match="package stranger cannot be loaded"):
        found.load("bad")


def test_a_misspelt_name_gets_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean openvino"):
        choose("openvno")
    with pytest.raises(UsageError, match=r"openvino has no target 'gpuu'; did you mean gpu"):
        choose("openvino:gpuu")
    with pytest.raises(UsageError, match="write NAME or NAME:TARGET"):
        choose("openvino:")


def test_the_first_target_is_the_default() -> None:
    assert choose("openvino").target.name == "cpu"
    assert choose("openvino:npu").target.kind == "npu"


def test_what_runs_here_begins_with_the_floor() -> None:
    assert available()[0] == "onnxruntime:cpu"


def test_a_missing_library_is_said_with_what_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvmstack.backends.openvino.installed_version", lambda _: "")
    with pytest.raises(SetupError, match=r"openvino is not installed: pip install 'tvmstack\[openvino\]'"):
        open_backend("openvino")
    assert "openvino:cpu" not in available()
