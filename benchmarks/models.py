"""Well-known networks written down as ONNX graphs with seeded weights: the shapes that benchmarks are quoted for.

Weights are random, so the answers mean nothing; the work is that of the trained network. Batch norms are folded, as
exporters leave them. `python -m benchmarks.models NAME FILE` writes one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["MODELS", "write"]


class Net:
    """A graph under construction: each method adds nodes and returns the name of their result."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, shape: Sequence[int], kind: int = TensorProto.FLOAT) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        name = f"{kind.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [name + "_out"], name=name, **attributes))
        return name + "_out"

    def fixed(self, value: object, dtype: type = np.float32) -> str:
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape: int, fan: int) -> str:
        return self.fixed(self._rng.standard_normal(shape, np.float32) * np.float32((2 / fan) ** 0.5))

    def conv(
        self, x: str, into: int, out: int, kernel: int, stride: int = 1, group: int = 1, pad: int | None = None
    ) -> str:
        fan = into // group * kernel * kernel
        w, b = self.weight(out, into // group, kernel, kernel, fan=fan), self.fixed(np.zeros(out))
        pads = [kernel // 2 if pad is None else pad] * 4
        return self.op("Conv", x, w, b, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads, group=group)

    def dense(self, x: str, into: int, out: int) -> str:
        """A matrix product over the last axis and a bias."""
        return self.op("Add", self.op("MatMul", x, self.weight(into, out, fan=2 * into)), self.fixed(np.zeros(out)))

    def silu(self, x: str) -> str:
        return self.op("Mul", x, self.op("Sigmoid", x))

    def norm(self, x: str, width: int, epsilon: float) -> str:
        return self.op(
            "LayerNormalization", x, self.fixed(np.ones(width)), self.fixed(np.zeros(width)), axis=-1, epsilon=epsilon
        )

    def gelu(self, x: str) -> str:
        erf = self.op("Erf", self.op("Div", x, self.fixed(2**0.5)))
        return self.op("Mul", self.op("Mul", x, self.op("Add", erf, self.fixed(1.0))), self.fixed(0.5))

    def attention(self, x: str, tokens: int, width: int, heads: int, mask: str | None = None) -> str:
        split = self.fixed([1, tokens, heads, width // heads], np.int64)
        q, k, v = (self.op("Reshape", self.dense(x, width, width), split) for _ in range(3))
        q, v = (self.op("Transpose", t, perm=[0, 2, 1, 3]) for t in (q, v))
        scores = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 2, 3, 1]))
        scores = self.op("Mul", scores, self.fixed((width // heads) ** -0.5))
        if mask:
            scores = self.op("Add", scores, mask)
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        joined = self.op(
            "Reshape", self.op("Transpose", mixed, perm=[0, 2, 1, 3]), self.fixed([1, tokens, width], np.int64)
        )
        return self.dense(joined, width, width)

    def feed_forward(self, x: str, width: int) -> str:
        return self.dense(self.gelu(self.dense(x, width, 4 * width)), 4 * width, width)

    def model(self, name: str, outputs: Sequence[str]) -> onnx.ModelProto:
        values = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs]
        graph = helper.make_graph(self._nodes, name, self._inputs, values, self._weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def resnet50(size: int = 224) -> onnx.ModelProto:
    """He et al. 2015, with the stride on the 3x3 convolution."""
    net = Net()
    x = net.op("Relu", net.conv(net.input("input", (1, 3, size, size)), 3, 64, 7, 2))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    into = 64
    for width, blocks, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(blocks):
            stride = first if index == 0 else 1
            y = net.op("Relu", net.conv(x, into, width, 1))
            y = net.op("Relu", net.conv(y, width, width, 3, stride))
            y = net.conv(y, width, 4 * width, 1)
            skip = net.conv(x, into, 4 * width, 1, stride) if index == 0 else x
            x, into = net.op("Relu", net.op("Add", y, skip)), 4 * width
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    return net.model("resnet50", [net.dense(x, 2048, 1000)])


def mobilenet_v2(size: int = 224) -> onnx.ModelProto:
    """Sandler et al. 2018, width 1.0."""
    net = Net()

    def relu6(x: str) -> str:
        return net.op("Clip", x, net.fixed(0.0), net.fixed(6.0))

    x, into = relu6(net.conv(net.input("input", (1, 3, size, size)), 3, 32, 3, 2)), 32
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for widen, out, blocks, first in rows:
        for index in range(blocks):
            stride, hidden = first if index == 0 else 1, into * widen
            y = relu6(net.conv(x, into, hidden, 1)) if widen > 1 else x
            y = relu6(net.conv(y, hidden, hidden, 3, stride, group=hidden))
            y = net.conv(y, hidden, out, 1)
            x = net.op("Add", x, y) if stride == 1 and into == out else y
            into = out
    x = relu6(net.conv(x, into, 1280, 1))
    return net.model("mobilenet_v2", [net.dense(net.op("Flatten", net.op("GlobalAveragePool", x)), 1280, 1000)])


def deit_tiny(size: int = 224) -> onnx.ModelProto:
    """Touvron et al. 2020: 12 layers, width 192, 3 heads, patches of 16."""
    net, width, tokens = Net(), 192, (size // 16) ** 2 + 1
    x = net.conv(net.input("input", (1, 3, size, size)), 3, width, 16, 16, pad=0)
    x = net.op("Transpose", net.op("Reshape", x, net.fixed([1, width, tokens - 1], np.int64)), perm=[0, 2, 1])
    x = net.op("Concat", net.weight(1, 1, width, fan=width), x, axis=1)
    x = net.op("Add", x, net.weight(1, tokens, width, fan=width))
    for _ in range(12):
        x = net.op("Add", x, net.attention(net.norm(x, width, 1e-6), tokens, width, 3))
        x = net.op("Add", x, net.feed_forward(net.norm(x, width, 1e-6), width))
    first = net.op("Gather", net.norm(x, width, 1e-6), net.fixed(0, np.int64), axis=1)
    return net.model("deit_tiny", [net.dense(first, width, 1000)])


def bert(layers: int, width: int, heads: int, tokens: int, words: int = 30522) -> onnx.ModelProto:
    """Devlin et al. 2018: embeddings, an additive mask, post-norm layers."""
    net = Net()
    ids, mask, kinds = (
        net.input(name, (1, tokens), TensorProto.INT64) for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    x = net.op("Gather", net.weight(words, width, fan=2 * width), ids)
    x = net.op("Add", x, net.op("Gather", net.weight(2, width, fan=2 * width), kinds))
    x = net.norm(net.op("Add", x, net.weight(1, tokens, width, fan=2 * width)), width, 1e-12)
    wide = net.op("Unsqueeze", net.op("Cast", mask, to=TensorProto.FLOAT), net.fixed([1, 2], np.int64))
    shade = net.op("Mul", net.op("Sub", net.fixed(1.0), wide), net.fixed(-10000.0))
    for _ in range(layers):
        x = net.norm(net.op("Add", x, net.attention(x, tokens, width, heads, shade)), width, 1e-12)
        x = net.norm(net.op("Add", x, net.feed_forward(x, width)), width, 1e-12)
    first = net.op("Gather", x, net.fixed(0, np.int64), axis=1)
    return net.model("bert", [x, net.op("Tanh", net.dense(first, width, width))])


def yolo_like(size: int = 320) -> onnx.ModelProto:
    """A detector in the manner of YOLOv5n: CSP stages with SiLU, one upsampling neck, two heads."""
    net = Net()

    def unit(x: str, into: int, out: int, kernel: int = 1, stride: int = 1) -> str:
        return net.silu(net.conv(x, into, out, kernel, stride))

    def stage(x: str, into: int, out: int, blocks: int, skip: bool = True) -> str:
        half = out // 2
        left, right = unit(x, into, half), unit(x, into, half)
        for _ in range(blocks):
            y = unit(unit(left, half, half), half, half, 3)
            left = net.op("Add", left, y) if skip else y
        return unit(net.op("Concat", left, right, axis=1), out, out)

    x = unit(net.input("images", (1, 3, size, size)), 3, 16, 3, 2)
    x = stage(unit(x, 16, 32, 3, 2), 32, 32, 1)
    x = stage(unit(x, 32, 64, 3, 2), 64, 64, 2)
    middle = stage(unit(x, 64, 128, 3, 2), 128, 128, 3)
    deep = stage(unit(middle, 128, 256, 3, 2), 256, 256, 1)
    pools = [unit(deep, 256, 128)]
    for _ in range(3):
        pools.append(net.op("MaxPool", pools[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2, 2, 2, 2]))
    deep = unit(unit(net.op("Concat", *pools, axis=1), 512, 256), 256, 128)
    scales = net.fixed([1, 1, 2, 2])
    up = net.op(
        "Resize", deep, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    )
    neck = stage(net.op("Concat", up, middle, axis=1), 256, 128, 1, skip=False)
    heads = []
    for x, into, cells in ((neck, 128, (size // 16) ** 2), (deep, 128, (size // 32) ** 2)):
        raw = net.op("Reshape", net.conv(x, into, 3 * 85, 1), net.fixed([1, 3, 85, cells], np.int64))
        heads.append(
            net.op("Reshape", net.op("Transpose", raw, perm=[0, 1, 3, 2]), net.fixed([1, 3 * cells, 85], np.int64))
        )
    return net.model("yolo_like", [net.op("Sigmoid", net.op("Concat", *heads, axis=1))])


def one_relu() -> onnx.ModelProto:
    """One node on four numbers: what is left is the cost of a call."""
    net = Net()
    return net.model("one_relu", [net.op("Relu", net.input("x", (1, 4)))])


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "resnet50": resnet50,
    "mobilenet_v2": mobilenet_v2,
    "deit_tiny": deit_tiny,
    "bert_base_1x128": lambda: bert(12, 768, 12, 128),
    "yolo_like_320": yolo_like,
    "minilm_l6_1x32": lambda: bert(6, 384, 12, 32),
    "one_relu": one_relu,
}


def write(name: str, path: Path) -> Path:
    """Write a model unless it is there already; its shapes are inferred so that the file is complete."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        onnx.save(onnx.shape_inference.infer_shapes(MODELS[name]()), part)
        part.replace(path)
    return path


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
