"""What is said to a wrong call, and how a board's words are read; nothing here starts a process."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tvmstack.board.errors import BoardLost, BoardRefused
from tvmstack.board.facts import facts_from
from tvmstack.board.health import Health
from tvmstack.board.serve import ServerOptions
from tvmstack.board.tracker import BoardSpec, address_from, board_from_text, read_secret, request
from tvmstack.cli.boundary import run
from tvmstack.core.device import device_from_facts, device_from_text
from tvmstack.core.errors import SetupError, UsageError

pytestmark = pytest.mark.null

FACTS: dict[str, Any] = {
    "name": "b",
    "server": "native",
    "protocol": 1,
    "arch": "aarch64",
    "tvm": "0.27.0",
    "ffi": "0.1.14",
    "cpu": "",
    "part": "0xd08",
    "features": "fp asimd evtstrm",
    "cores": 4,
    "caches": [32768, 1048576, 0],
}


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("a72", BoardSpec("a72", "127.0.0.1", 9190)),
        ("a72@10.0.0.2", BoardSpec("a72", "10.0.0.2", 9190)),
        ("a72@lab:9000", BoardSpec("a72", "lab", 9000)),
    ],
)
def test_a_board_is_named_by_key_and_tracker(text: str, spec: BoardSpec) -> None:
    assert board_from_text(text) == spec


@pytest.mark.parametrize("text", ["", "@lab", "a b", "a:1", "a72@lab:port", "a72@lab:0", "a72@:1"])
def test_other_texts_name_no_board(text: str) -> None:
    with pytest.raises(UsageError, match="write"):
        board_from_text(text)


def test_an_address_needs_a_port_in_range() -> None:
    assert address_from("lab") == ("lab", 9190)
    with pytest.raises(UsageError, match="is no address"):
        address_from("lab:65536")


def test_facts_become_the_device_that_code_is_built_for() -> None:
    device = facts_from(FACTS).device()
    assert (device.arch, device.mcpu, device.features, device.cores) == ("aarch64", "cortex-a72", ("asimd",), 4)
    assert device.target()["mtriple"] == "aarch64-linux-gnu"
    assert device.vector_bits == 128


@pytest.mark.parametrize(
    ("flags", "part", "mcpu"),
    [
        ("asimd", "", "cortex-a72"),
        ("asimd", "0xd03", "cortex-a53"),
        ("asimd asimddp fphp", "", "cortex-a55"),
        ("asimd asimddp fphp i8mm bf16 sve", "0x999", "neoverse-v1"),
        ("", "", "generic"),
    ],
)
def test_an_arm_core_is_known_by_part_or_features(flags: str, part: str, mcpu: str) -> None:
    assert device_from_facts("aarch64", "", flags.split(), 4, (0, 0, 0), part).mcpu == mcpu


def test_an_arm_core_can_be_named() -> None:
    device = device_from_text("cpu:cortex-a72")
    assert (device.arch, device.features) == ("aarch64", ("asimd",))
    with pytest.raises(UsageError, match="did you mean cortex-a72"):
        device_from_text("cpu:cortex-a722")


@pytest.mark.parametrize("data", ["", "[]", "{", json.dumps({**FACTS, "caches": [1]}), json.dumps({"name": "b"})])
def test_what_is_no_description_of_a_board_is_refused(data: str) -> None:
    with pytest.raises(BoardRefused, match="cannot be read"):
        facts_from(data)


def test_an_abi_is_refused_by_protocol_tvm_and_ffi(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    installed = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}
    monkeypatch.setattr(importlib.metadata, "version", installed.get)
    facts = facts_from(FACTS)
    assert facts.refusal() == ""
    assert "linked to TVM 0.26.0, here is 0.27.0.post1" in replace(facts, tvm="0.26.0").refusal()
    assert "linked to tvm-ffi 0.2.0" in replace(facts, ffi="0.2.0").refusal()
    assert "speaks protocol 2" in replace(facts, protocol=2).refusal()
    assert "install this machine's versions" in replace(facts, ffi="0.2.0", server="python").refusal()


@pytest.mark.parametrize(
    ("options", "allowed", "words"),
    [
        ({"host": "0.0.0.0"}, False, "any code here"),
        ({"host": "0.0.0.0"}, True, "needs --secret-file"),
        ({"host": "0.0.0.0", "secret_file": "s"}, False, "any code here"),
    ],
)
def test_outside_loopback_a_flag_and_a_secret_are_needed(options: dict[str, str], allowed: bool, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ServerOptions("k", "127.0.0.1:9190", **options).check(allowed)  # type: ignore[arg-type]


def test_with_both_it_may_listen_anywhere() -> None:
    ServerOptions("k", "127.0.0.1:9190", host="0.0.0.0", secret_file="s").check(True)
    ServerOptions("k", "127.0.0.1:9190").check(False)


def test_a_secret_is_a_files_first_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret"
    file.write_text("one\ntwo\n")
    assert read_secret(str(file)) == "one"
    monkeypatch.setenv("TVMSTACK_BOARD_SECRET_FILE", str(file))
    assert read_secret() == "one"
    file.write_text("\n")
    with pytest.raises(SetupError, match="is empty"):
        read_secret(str(file))
    with pytest.raises(SetupError, match="cannot read"):
        read_secret(str(tmp_path / "none"))


def test_quarantine_grows_with_each_failure_and_ends_with_a_return(tmp_path: Path) -> None:
    health = Health(tmp_path / "h.json")
    first, second = health.failed("a@t", "lost"), health.failed("a@t", "lost again")
    assert second.until - second.since == pytest.approx(2 * (first.until - first.since))
    assert not second.is_over
    assert replace(second, until=time.time() - 1).is_over
    assert Health(tmp_path / "h.json").of("a@t") == second
    for _ in range(20):
        longest = health.failed("a@t", "lost")
    assert longest.until - longest.since == 3600
    assert health.returned("a@t")
    assert not health.returned("a@t")


def test_a_damaged_health_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "h.json"
    file.write_text("{")
    with pytest.raises(SetupError, match=r"h\.json is damaged .* remove it"):
        Health(file).all()


def test_without_a_tracker_the_command_to_start_one_is_named() -> None:
    with pytest.raises(BoardLost, match="`tvmstack board serve` starts one"):
        request(BoardSpec("k", "127.0.0.1", 1), 1.0)


def test_serve_refuses_the_network_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["board", "serve", "--key", "k", "--host", "0.0.0.0"]) == 2
    assert capsys.readouterr().err.startswith("error: 0.0.0.0 is not loopback")
