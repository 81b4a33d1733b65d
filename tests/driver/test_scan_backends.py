"""`scan --backend`: what back ends say to each node, beside TVM and onnxruntime."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.graph.build import model, node, values
from tvmstack import driver
from tvmstack.backends.base import Capability, NodeVerdict, Support, Target
from tvmstack.backends.openvino import OpenVino
from tvmstack.cli.boundary import run
from tvmstack.core.errors import BackendError, SetupError

pytestmark = pytest.mark.null


class Picky:
    """A back end that takes Relu, runs Sigmoid on the CPU, is silent about Tanh and HardSwish and refuses the rest."""

    name, in_process = "openvino", True

    def probe(self) -> Capability:
        return Capability("7.1", True, False)

    def targets(self) -> tuple[Target, ...]:
        return (Target("cpu", "cpu", False), Target("npu", "npu", False))

    def query(self, data: bytes, target: Target) -> Mapping[str, NodeVerdict]:
        found = {}
        for n in onnx.load_from_string(data).graph.node:
            if n.op_type == "Relu":
                found[n.name] = NodeVerdict(Support.SUPPORTED)
            elif n.op_type == "Sigmoid":
                found[n.name] = NodeVerdict(Support.VENDOR_CPU, "no table for it")
            elif n.op_type not in ("Tanh", "HardSwish"):
                found[n.name] = NodeVerdict(Support.UNSUPPORTED, f"the {target.name} has no {n.op_type}", "fold it")
        return found

    def estimate(self, *_: Any) -> None:
        return None

    def compile(self, *_: Any) -> Any:
        raise BackendError("not asked for")


@pytest.fixture
def picky(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("probe", "targets", "query", "in_process"):
        monkeypatch.setattr(OpenVino, name, vars(Picky)[name])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    kinds = {"Relu": "x", "Sigmoid": "x", "Tanh": "x", "Det": "x", "Det2": "z"}
    nodes = [node(kind.rstrip("2"), [x], f"y{i}") for i, (kind, x) in enumerate(kinds.items())]
    proto = model(nodes, {"x": (2, 3, 3), "z": (2, 3, 3)}, [f"y{i}" for i in range(5)])
    onnx.save(proto, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.mark.usefixtures("picky")
def test_each_node_has_an_answer_with_reason_and_hint(path: Path) -> None:
    report = driver.scan(path, backends=["openvino:npu", "tvm"])
    (answers,) = report.backends
    assert (answers.backend, answers.target, answers.version) == ("openvino", "npu", "7.1")
    assert answers.totals == {"supported": 1, "vendor_cpu": 1, "unsupported": 3}
    assert [a.name for a in answers.answers] == [row.name for row in report.rows]
    first, *rest = answers.refused
    assert (first["op"], len(first["nodes"]), first["reason"], first["hint"]) == (
        "Det",
        2,
        "the npu has no Det",
        "fold it",
    )
    assert {row["reason"] for row in rest} == {"no table for it", "it gives no answer for this node"}
    assert report.totals == {"tvm": 3, "onnxruntime": 2, "none": 0}


@pytest.mark.usefixtures("picky")
def test_the_page_and_the_json_hold_all_back_ends(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["scan", str(path), "--backend", "openvino:cpu,onnxruntime", "--backend", "openvino:npu"]
    assert run([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["backends"]
    assert [(b["backend"], b["target"], b["totals"]["supported"]) for b in data] == [
        ("openvino", "cpu", 1),
        ("onnxruntime", "cpu", 5),
        ("openvino", "npu", 1),
    ]
    assert all(len(b["nodes"]) == 5 for b in data)
    assert run(words) == 0
    page = capsys.readouterr().out
    assert "openvino:npu 7.1 takes 1 of 5 nodes; 1 would run on the CPU in the vendor's code" in page
    assert "2: Det_y3, …" in page
    assert run([*words, "--all"]) == 0
    assert "takes it" in capsys.readouterr().out


@pytest.mark.usefixtures("picky")
def test_what_a_build_can_write_out_for_an_npu_says_so() -> None:
    proto = model([node("HardSwish", ["x"], "y")], {"x": (2, 3)})
    for target, hint in (("npu", "a build writes it out in simpler operators"), ("cpu", "")):
        (answer,) = driver.scan(proto, backends=[f"openvino:{target}"]).backends[0].answers
        assert answer.support == "unsupported"
        assert answer.hint.startswith(hint)
        assert bool(answer.hint) == bool(hint)


def test_one_that_is_not_installed_is_one_sentence_with_what_gets_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tvmstack.backends.openvino.installed_version", lambda _: "")
    assert run(["scan", str(path), "--backend", "openvino"]) == SetupError.exit_code
    captured = capsys.readouterr()
    assert captured.err == "error: back end openvino: openvino is not installed: pip install 'tvmstack[openvino]'\n"
    assert captured.out == ""


def test_a_misspelt_name_gets_the_nearest(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scan", str(path), "--backend", "openvno"]) == 2
    assert "did you mean openvino" in capsys.readouterr().err


@pytest.mark.cpu
def test_openvino_itself_answers_about_open_dims(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    proto = model([node("MatMul", ["x", "w"], "y")], {"x": ("n", 3)}, weights={"w": values(3, 4)})
    onnx.save(proto, tmp_path / "m.onnx")
    assert run(["scan", str(tmp_path / "m.onnx"), "--backend", "openvino"]) == 0
    page = capsys.readouterr().out
    assert "takes 1 of 1 node" in page
    assert "Back ends were asked as with --shape x=1,3." in page
