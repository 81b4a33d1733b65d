"""Shared by all tests: small models built the same way everywhere, golden texts, and a store nobody else sees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

GOLDEN = Path(__file__).parent / "golden"
OPSET = 17


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden texts")


@pytest.fixture(autouse=True)
def private_store(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """No test reads or writes the user's records."""
    path = tmp_path_factory.mktemp("store") / "store.db"
    monkeypatch.setenv("TVMSTACK_STORE", str(path))
    return path


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Compare a text with tests/golden/<file>/<test>.txt; --update-golden rewrites it."""
    name = "".join(c if c.isalnum() or c in "-_" else "_" for c in request.node.name)
    path = GOLDEN / request.path.stem / f"{name}.txt"

    def compare(text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"no golden text {path}; run pytest --update-golden"
        assert text == path.read_text()

    return compare


class Weights:
    """Seeded initializers, collected while nodes are written."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self.tensors: list[onnx.TensorProto] = []

    def __call__(self, *shape: int, scale: float = 0.2) -> str:
        """Add normal values and return the initializer's name."""
        return self.fixed((self._rng.standard_normal(shape) * scale).astype(np.float32))

    def fixed(self, value: np.ndarray) -> str:
        """Add this value and return the initializer's name."""
        name = f"w{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(value, name))
        return name


def build(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int | str, ...]],
    outputs: dict[str, tuple[int | str, ...]],
    weights: Weights | None = None,
) -> onnx.ModelProto:
    """Return a checked fp32 model; nodes without a name get one after their operator."""
    for index, made in enumerate(nodes):
        made.name = made.name or f"{made.op_type.lower()}_{index}"
    values = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in side.items()]
        for side in (inputs, outputs)
    ]
    graph = helper.make_graph(nodes, "test", *values, initializer=weights.tensors if weights else [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def conv_block(batch: int | str = 1, channels: int = 16, size: int = 12) -> onnx.ModelProto:
    """Return a small CNN: convolution, batch norm, relu, depthwise, residual, pooling, dense, softmax."""
    w = Weights()
    ones = [w.fixed(v) for v in (np.ones(channels, np.float32), np.zeros(channels, np.float32))]
    spread = w.fixed(np.full(channels, 1.5, np.float32))
    n = helper.make_node
    nodes = [
        n("Conv", ["x", w(channels, 3, 3, 3), w(channels)], ["c1"], pads=[1, 1, 1, 1], strides=[2, 2]),
        n("BatchNormalization", ["c1", *ones, ones[1], spread], ["b1"]),
        n("Relu", ["b1"], ["r1"]),
        n("Conv", ["r1", w(channels, 1, 3, 3)], ["c2"], pads=[1, 1, 1, 1], group=channels),
        n("Add", ["c2", "r1"], ["a1"]),
        n("GlobalAveragePool", ["a1"], ["p1"]),
        n("Flatten", ["p1"], ["f1"]),
        n("Gemm", ["f1", w(channels, 10), w(10)], ["g1"]),
        n("Softmax", ["g1"], ["y"]),
    ]
    return build(nodes, {"x": (batch, 3, size, size)}, {"y": (batch, 10)}, w)


def mlp(batch: int | str = 2, width: int = 32) -> onnx.ModelProto:
    """Return two dense layers with a sigmoid between them."""
    w = Weights()
    n = helper.make_node
    nodes = [
        n("MatMul", ["x", w(width, 48)], ["h"]),
        n("Add", ["h", w(48)], ["h2"]),
        n("Sigmoid", ["h2"], ["s"]),
        n("MatMul", ["s", w(48, 8)], ["y"]),
    ]
    return build(nodes, {"x": (batch, width)}, {"y": (batch, 8)}, w)


def attention(length: int = 8, width: int = 32, heads: int = 4) -> onnx.ModelProto:
    """Return one transformer block: self-attention, layer norms, an erf gelu."""
    w = Weights()
    n = helper.make_node
    split = w.fixed(np.array([1, length, heads, width // heads]))
    join = w.fixed(np.array([1, length, width]))
    half, root, one = (w.fixed(np.float32(v)) for v in (0.5, 2**-0.5, 1.0))
    scale = w.fixed(np.float32((width // heads) ** -0.5))
    nodes = []
    for letter, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            n("MatMul", ["x", w(width, width)], [letter]),
            n("Reshape", [letter, split], [letter + "r"]),
            n("Transpose", [letter + "r"], [letter + "t"], perm=order),
        ]
    nodes += [
        n("MatMul", ["qt", "kt"], ["scores"]),
        n("Mul", ["scores", scale], ["scaled"]),
        n("Softmax", ["scaled"], ["shares"], axis=-1),
        n("MatMul", ["shares", "vt"], ["mixed"]),
        n("Transpose", ["mixed"], ["mt"], perm=[0, 2, 1, 3]),
        n("Reshape", ["mt", join], ["joined"]),
        n("Add", ["joined", "x"], ["res"]),
        n("LayerNormalization", ["res", w.fixed(np.ones(width, np.float32)), w(width)], ["norm"], axis=-1),
        n("MatMul", ["norm", w(width, 2 * width)], ["up"]),
        n("Mul", ["up", root], ["e0"]),
        n("Erf", ["e0"], ["e1"]),
        n("Add", ["e1", one], ["e2"]),
        n("Mul", ["up", "e2"], ["e3"]),
        n("Mul", ["e3", half], ["gelu"]),
        n("MatMul", ["gelu", w(2 * width, width)], ["down"]),
        n("Add", ["down", "norm"], ["y"]),
    ]
    return build(nodes, {"x": (1, length, width)}, {"y": (1, length, width)}, w)


def lstm(length: int = 6, width: int = 8, hidden: int = 8) -> onnx.ModelProto:
    """Return an LSTM over a fixed length, with a dense head on its last state."""
    w = Weights()
    n = helper.make_node
    nodes = [
        n(
            "LSTM",
            ["x", w(1, 4 * hidden, width), w(1, 4 * hidden, hidden), w(1, 8 * hidden)],
            ["all", "last", ""],
            hidden_size=hidden,
        ),
        n("Squeeze", ["last", w.fixed(np.array([0]))], ["state"]),
        n("Gemm", ["state", w(hidden, 4), w(4)], ["y"]),
    ]
    return build(nodes, {"x": (length, 1, width)}, {"y": (1, 4)}, w)


def unknown_operator() -> onnx.ModelProto:
    """Return a model with a node of a domain nobody knows."""
    odd = helper.make_node("Frobnicate", ["x"], ["y"], domain="example.invented", name="odd_one")
    graph = helper.make_graph(
        [odd],
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 4))],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("example.invented", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)
