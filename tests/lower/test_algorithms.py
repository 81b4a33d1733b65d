"""The algorithm of a convolution: estimated, overridden, and equal in value whichever it is."""

from __future__ import annotations

import numpy as np
import onnx_ir
import pytest

from tests.lower.test_layout import Graph, check
from tvmstack.core.device import detect_device
from tvmstack.core.model import Model
from tvmstack.lower.algorithms import ALGORITHMS, Site, estimate_algorithm, in_name, only_direct
from tvmstack.lower.importer import import_graph
from tvmstack.lower.pipeline import lower_module

LARGE = Site(1, 128, 28, 28, 128, (1, 1, 1, 1))


@pytest.mark.null
@pytest.mark.parametrize("site", [LARGE, Site(2, 5, 7, 9, 33, (0, 1, 2, 12))])
def test_a_site_survives_its_text_and_a_kernel_name(site):
    assert Site.parse(site.text) == site
    assert in_name(f"fused_winograd4_{site.text}_add1_relu12") == ("winograd4", site.text)
    assert in_name("fused_conv2d_nchwc12_add") == ("", "")


@pytest.mark.null
def test_the_estimate_prefers_winograd_where_multiplications_rule_and_direct_where_weights_do():
    assert estimate_algorithm(LARGE) == "winograd4"
    assert estimate_algorithm(Site(1, 512, 7, 7, 512, (1, 1, 1, 1))) == "direct"
    assert only_direct(LARGE) == "direct"


def graph():
    g = Graph(x=[1, 16, 20, 23])
    y = g("Relu", g("Conv", "x", g.weight(40, 16, 3, 3), g.weight(40), pads=[1, 1, 1, 1]))
    z = g("Conv", y, g.weight(40, 40, 3, 3, scale=0.1), pads=[1, 1, 1, 1])
    return g.model(g("Relu", g("Add", y, z)))


@pytest.mark.cpu
def test_the_default_algorithms_give_the_right_values():
    lowered = check(graph())
    assert {k.algorithm for k in lowered.kernels if k.site} & {"winograd2", "winograd4"}


@pytest.mark.cpu
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_caller_decides_and_operations_count_as_direct_ones(algorithm):
    module = import_graph(Model(onnx_ir.from_proto(graph()), (), (), "", "test"))
    lowered = lower_module(module, detect_device(), lambda site: algorithm)
    kernels = [k for k in lowered.kernels if k.site]
    assert {k.algorithm for k in kernels} == {algorithm}
    assert np.isclose(sum(k.flops for k in kernels), 18 * 20 * 23 * (16 * 40 + 40 * 40))
