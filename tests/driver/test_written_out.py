"""Operators are written out only where that lets a back end take more, and only with equal numbers."""

import numpy as np
import onnx
import pytest

from tests.graph.build import model, node, random_feeds
from tvmstack.backends.base import NodeVerdict, Support, Target
from tvmstack.driver.takers import Taker
from tvmstack.driver.written_out import written_out
from tvmstack.frontend import load_model
from tvmstack.graph import repair

pytestmark = pytest.mark.null


class Simple:
    """A back end that knows some operators."""

    name, in_process = "simple", True

    def __init__(self, *known: str) -> None:
        self.known = set(known)

    def query(self, data: bytes, target: Target) -> dict[str, NodeVerdict]:
        yes, no = NodeVerdict(Support.SUPPORTED), NodeVerdict(Support.UNSUPPORTED, "not known")
        return {n.name: yes if n.op_type in self.known else no for n in onnx.load_from_string(data).graph.node}


def taker(*known: str) -> Taker:
    return Taker("simple:chip", Simple(*known), Target("chip", "npu", runs_here=False), 1, None)


def with_norm():
    weights = {"s": np.ones(8, np.float32), "b": np.zeros(8, np.float32)}
    nodes = [node("Relu", ["x"], "r"), node("LayerNormalization", ["r", "s", "b"], "y", axis=-1)]
    return repair(load_model(model(nodes, {"x": (2, 5, 8)}, weights=weights)))


BODY = ("Add", "Cast", "Concat", "Div", "Flatten", "Mul", "ReduceMean", "Reciprocal", "Relu", "Reshape", "Sqrt", "Sub")


def kinds(whole):
    return {n.op_type for n in whole.graph.graph}


def test_a_norm_is_written_out_for_a_back_end_that_knows_what_it_is_made_of():
    whole = with_norm()
    simple = written_out(whole, taker(*BODY), random_feeds(whole))
    assert "LayerNormalization" not in kinds(simple)
    assert "LayerNormalization" in kinds(whole)


def test_it_stays_where_the_back_end_would_refuse_a_part_of_it():
    whole = with_norm()
    known = [k for k in BODY if k != "Sqrt"]
    assert written_out(whole, taker(*known), random_feeds(whole)) is whole


def test_it_stays_where_the_back_end_takes_it_as_it_is():
    whole = with_norm()
    assert written_out(whole, taker(*BODY, "LayerNormalization"), random_feeds(whole)) is whole
