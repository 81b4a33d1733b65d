"""Which ONNX nodes a kernel computes."""

from __future__ import annotations

import pytest

from benchmarks.models import MODELS, Net
from tests.lower.import_tools import as_model
from tvmstack.core.device import detect_device
from tvmstack.lower import lower

pytestmark = pytest.mark.cpu


def nodes_of(proto: object) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return the nodes of each kernel, and the names of all nodes."""
    model = as_model(proto)
    return [k.nodes for k in lower(model, detect_device()).kernels], [n.name for n in model.graph.graph]


def test_a_fused_kernel_names_its_convolution_and_what_follows() -> None:
    net = Net()
    x = net.conv(net.input("x", (1, 8, 12, 12)), 8, 16, 3)
    kernels, names = nodes_of(net.model("m", [net.op("Relu", x)]))
    assert names == ["conv_0", "relu_1"]
    assert ("conv_0", "relu_1") in kernels


def test_a_kernel_called_at_several_places_names_them_all() -> None:
    net = Net()
    x = net.input("x", (1, 16, 12, 12))
    for _ in range(3):
        x = net.op("Relu", net.conv(x, 16, 16, 3))
    model = as_model(net.model("m", [x]))
    (kernel,) = (k for k in lower(model, detect_device()).kernels if k.calls == 3)
    assert kernel.nodes == ("conv_0", "relu_1", "conv_2", "relu_3", "conv_4", "relu_5")


def test_two_products_of_one_shape_on_one_input_are_told_apart() -> None:
    net = Net()
    x = net.input("x", (4, 32))
    left, right = net.op("Tanh", net.dense(x, 32, 48)), net.op("Sigmoid", net.dense(x, 32, 48))
    kernels, _ = nodes_of(net.model("m", [left, right]))
    assert ("matmul_0", "add_1", "tanh_2") in kernels
    assert ("matmul_3", "add_4", "sigmoid_5") in kernels


def test_a_node_that_a_kernel_looks_through_is_named_with_it() -> None:
    net = Net()
    x = net.input("x", (1, 10, 24))
    kernels, names = nodes_of(net.model("m", [net.attention(x, 10, 24, 3)]))
    (attention,) = (nodes for nodes in kernels if any(n.startswith("softmax") for n in nodes))
    assert {n.split("_")[0] for n in attention} == {"matmul", "mul", "softmax", "transpose"}
    assert {node for nodes in kernels for node in nodes} == set(names)


@pytest.mark.parametrize("name", ["mobilenet_v2", "minilm_l6_1x32"])
def test_every_node_of_a_network_is_named_by_a_kernel(name: str) -> None:
    from tvmstack.frontend import load_model
    from tvmstack.graph import repair

    model = repair(load_model(MODELS[name]()))
    served = {node for kernel in lower(model, detect_device()).kernels for node in kernel.nodes}
    assert {n.name for n in model.graph.graph if n.op_type != "Constant"} == served


def test_a_model_without_names_tells_nodes_by_their_results() -> None:
    net = Net()
    proto = net.model("m", [net.op("Relu", net.input("x", (1, 4)))])
    proto.graph.node[0].name = ""
    kernels, _ = nodes_of(proto)
    assert kernels == [("Relu of relu_0_out",)]
