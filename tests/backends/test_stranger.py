"""A stranger's package, installed as pip installs it: a toy NPU with its own compiler, cost table and C runtime."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvmstack import driver
from tvmstack.artifact.manifest import read_manifest
from tvmstack.backends.base import Options, Support
from tvmstack.backends.registry import available, choose, open_backend, owner_of
from tvmstack.core.model import TensorSpec
from tvmstack.core.region import Region
from tvmstack.driver.contract import check_backend
from tvmstack.runtime import load
from tvmstack.runtime.engines import engine_names

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("stranger")
    source = shutil.copytree(Path(__file__).parent / "toy_npu", folder / "source")
    quiet = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *quiet, "--target", str(folder / "site"), str(source)]
    subprocess.run(command, check=True, timeout=120)
    sys.path.append(str(folder / "site"))
    yield
    sys.path.remove(str(folder / "site"))
    for name in [n for n in sys.modules if n.split(".")[0] == "toy_npu"]:
        del sys.modules[name]


def chain(channels: int = 16) -> Region:
    generator = np.random.default_rng(1)
    weight = generator.integers(-100, 100, (channels, 16, 3, 3)).astype(np.int8)
    held = {
        "xs": np.float32(0.05),
        "xz": np.int8(3),
        "w": weight,
        "ws": generator.uniform(0.001, 0.004, channels).astype(np.float32),
        "wz": np.zeros(channels, np.int8),
        "ys": np.float32(0.2),
        "yz": np.int8(-5),
        "b": generator.integers(-2000, 2000, channels).astype(np.int32),
    }
    nodes = [
        helper.make_node("QLinearConv", ["x", *held], ["c"], "conv", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["y"], "relu"),
    ]
    shapes = {"x": (1, 16, 9, 9), "y": (1, channels, 5, 5)}
    values = [helper.make_tensor_value_info(n, TensorProto.INT8, s) for n, s in shapes.items()]
    weights = [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()]
    graph = helper.make_graph(nodes, "chain", values[:1], values[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data = bytes(model.SerializeToString(deterministic=True))
    specs = [(TensorSpec(n, "int8", s),) for n, s in shapes.items()]
    return Region(hashlib.sha256(data).hexdigest()[:16], data, specs[0], specs[1], ("conv", "relu"), ())


def test_a_strangers_back_end_keeps_the_contract() -> None:
    rows = check_backend("toy_npu", regions={"int8 chain": chain()})
    assert [row for row in rows if not row.ok] == []
    assert any("equals onnxruntime" in row.words for row in rows)


def test_it_is_found_by_its_entry_points() -> None:
    assert owner_of("toy_npu").owner == "toy-npu"
    assert "toy_npu" in engine_names()
    assert "toy_npu:npu1" in available()
    assert choose("toy_npu:npu1").target.kind == "npu"


def test_it_says_per_node_what_it_refuses() -> None:
    backend, target = open_backend("toy_npu")
    verdicts = backend.query(chain(20).model, target)
    assert verdicts["conv"].support is Support.UNSUPPORTED
    assert verdicts["conv"].reason == "16 to 20 channels: both must be multiples of 16"
    assert verdicts["relu"].support is Support.SUPPORTED


def test_its_cost_table_answers() -> None:
    backend, target = open_backend("toy_npu")
    cost = backend.estimate(chain(), target, Options())
    assert cost is not None
    assert cost.source == "estimated"
    assert 4e-6 < cost.seconds < 1e-4


def two_chains(channels: int = 16) -> onnx.ModelProto:
    model = onnx.load_from_string(chain(channels).model)
    graph = model.graph
    graph.initializer.append(numpy_helper.from_array(np.arange(channels, dtype=np.int8).reshape(1, -1, 1, 1), "add"))
    nodes = [
        helper.make_node("Add", ["y", "add"], ["a"], "add1"),
        helper.make_node("Max", ["a", "add"], ["m"], "between"),
        helper.make_node("Relu", ["m"], ["r"], "relu2"),
        helper.make_node("Add", ["r", "add"], ["z"], "add2"),
    ]
    graph.node.extend(nodes)
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("z", TensorProto.INT8, (1, channels, 5, 5)))
    return onnx.shape_inference.infer_shapes(model)


def test_two_regions_around_an_operator_that_it_does_not_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMSTACK_STORE", str(tmp_path / "store.db"))
    path, model = tmp_path / "m.so", two_chains()
    driver.compile(model, backends=["toy_npu"], shipped=False).save(path)
    rows = [r for r in read_manifest(path).plan["regions"] if r["backend"] == "toy_npu"]
    before, after = ({"conv", "relu", "add1"}, {"relu2", "add2"})
    held = [set(r["nodes"]) for r in rows]
    assert set().union(*held) == before | after, held
    assert all(nodes <= before or nodes <= after for nodes in held), held
    x = np.random.default_rng(3).integers(-128, 128, (1, 16, 9, 9)).astype(np.int8)
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    with load(path) as session:
        got = session.run({"x": x})["z"]
    assert np.abs(got.astype(int) - want.astype(int)).max() <= 1
    assert np.unique(want).size > 20


def test_adds_of_odd_channels_are_refused() -> None:
    backend, target = open_backend("toy_npu")
    verdicts = backend.query(two_chains(20).SerializeToString(), target)
    assert verdicts["add1"].reason == "20 channels: they must be a multiple of 16"
