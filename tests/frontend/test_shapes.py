"""Dims: fixed by the user, bound by name, and asked for when they are open."""

import pytest

from tests.graph.build import model, node
from tvmstack.core.errors import ModelError, UsageError
from tvmstack.frontend import load_model

pytestmark = pytest.mark.null


def two_inputs(a: tuple = ("batch", "seq"), b: tuple = ("batch", "seq")):
    return model([node("Add", ["a", "b"], "y")], {"a": a, "b": b})


def test_static_models_need_nothing():
    assert load_model(two_inputs((2, 3), (2, 3))).inputs[0].is_static


def test_open_dims_are_all_listed_with_the_option_that_fixes_each():
    with pytest.raises(UsageError) as caught:
        load_model(two_inputs(("batch", 3), (None, "seq")))
    text = str(caught.value)
    assert "a [batch,3]: dim 0 (batch) is open; --shape a=BATCH,3" in text
    assert "b [?,seq]: dim 0 and dim 1 (seq) are open; --shape b=DIM0,SEQ" in text


def test_a_question_mark_is_no_name():
    loaded = load_model(model([node("Relu", ["a"], "y")], {"a": ("?", 3, "?", "?")}), {"a": (1, 3, 4, 5)})
    assert loaded.inputs[0].shape == (1, 3, 4, 5)


def test_a_symbol_is_bound_wherever_it_stands():
    loaded = load_model(two_inputs(), {"a": (2, 5)})
    assert [s.shape for s in loaded.inputs] == [(2, 5), (2, 5)]
    assert loaded.changes == ("fixed input a to [2, 5]",)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"a": (2,)}, r"1 dims, but input a has 2: \[batch,4\]"),
        ({"a": (2, 5)}, "dim 1 of a is 4 in the model, not 5"),
        ({"aa": (2, 4)}, r"no input aa; did you mean a\?"),
        ({"a": (0, 4)}, "every dim must be a whole number of 1 or more"),
        ({"a": (-1, 4)}, "every dim must be a whole number of 1 or more"),
        ({"a": (2, 4), "b": (3, 4)}, "dim 0 of b is batch, already fixed to 2"),
    ],
    ids=["rank", "static dim", "name", "zero", "negative", "one symbol, two numbers"],
)
def test_refuses(shapes, words):
    with pytest.raises(UsageError, match=words):
        load_model(two_inputs(("batch", 4), ("batch", 4)), shapes)


def test_an_input_without_a_shape_is_asked_for():
    proto = two_inputs()
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UsageError, match="gives no shape for a"):
        load_model(proto, {"b": (2, 3)})
    assert load_model(proto, {"a": (2, 3), "b": (2, 3)}).inputs[0].shape == (2, 3)


def test_an_empty_input_is_refused():
    with pytest.raises(ModelError, match=r"input a is empty, its shape is \[0,3\]"):
        load_model(two_inputs((0, 3), (0, 3)))
