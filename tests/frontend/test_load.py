"""Every kind of source loads; every kind of broken source is refused in one sentence."""

import hashlib
import os

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.graph.build import FLOAT, INT64, model, node, run, values
from tvmstack.core.errors import ModelError, UsageError
from tvmstack.core.model import TensorSpec
from tvmstack.frontend import load_model, save_onnx

pytestmark = pytest.mark.null


def dense() -> onnx.ModelProto:
    return model(
        [node("MatMul", ["x", "w"], "m"), node("Relu", ["m"], "y")], {"x": (2, 3)}, weights={"w": values(3, 4)}
    )


@pytest.fixture
def external(tmp_path):
    """A model whose weight is in weights.bin beside it."""
    path = tmp_path / "model.onnx"
    onnx.save(dense(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def test_path_bytes_and_proto_give_the_same_model(tmp_path):
    proto = dense()
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    loaded = [load_model(path), load_model(str(path)), load_model(path.read_bytes()), load_model(proto)]
    assert {m.inputs for m in loaded} == {(TensorSpec("x", "float32", (2, 3)),)}
    assert {m.digest for m in loaded} == {hashlib.sha256(path.read_bytes()).hexdigest()}
    assert [m.source for m in loaded] == ["m.onnx", "m.onnx", "<bytes>", "<ModelProto>"]


def test_initializers_listed_as_inputs_are_not_inputs():
    proto = dense()
    proto.graph.input.append(helper.make_tensor_value_info("w", FLOAT, (3, 4)))
    loaded = load_model(proto)
    assert [s.name for s in loaded.inputs] == ["x"]
    assert loaded.changes == ("took 1 initializers off the list of inputs",)


def test_external_data_stays_on_disk_until_it_is_used(external):
    loaded = load_model(external)
    tensor = loaded.graph.graph.initializers["w"].const_value
    assert type(tensor).__name__ == "ExternalTensor"
    np.testing.assert_array_equal(tensor.numpy(), values(3, 4))


def test_the_digest_covers_external_data(external):
    before = load_model(external).digest
    data = external.parent / "weights.bin"
    data.write_bytes(bytes([data.read_bytes()[0] ^ 1]) + data.read_bytes()[1:])
    assert load_model(external).digest != before


def test_a_model_saved_from_any_stage_computes_the_same(tmp_path, external):
    saved = save_onnx(load_model(external), tmp_path / "saved.onnx")
    feeds = {"x": values(2, 3)}
    np.testing.assert_array_equal(run(saved.read_bytes(), feeds)[0], run(dense().SerializeToString(), feeds)[0])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(200)), "not an ONNX file: it looks like a PNG picture"),
        (b"PK\x03\x04" + bytes(50), "zip archive"),
        (b'{"a": 1}', "JSON text"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        (b"just some words\n" * 9, "is not an ONNX file"),
        (os.urandom(8).join([b"\x00"] * 9), "is not an ONNX file"),
    ],
    ids=["empty", "png", "zip", "json", "lfs pointer", "text", "noise"],
)
def test_refuses_what_is_not_onnx(tmp_path, data, words):
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=words) as caught:
        load_model(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_refuses_a_truncated_file(share):
    data = dense().SerializeToString()
    with pytest.raises(ModelError, match=r"truncated or damaged|not an ONNX file"):
        load_model(data[: int(len(data) * share)])


def test_refuses_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        load_model(tmp_path / "absent.onnx")
    with pytest.raises(UsageError, match="is a folder"):
        load_model(tmp_path)


def test_refuses_a_strange_object():
    with pytest.raises(UsageError, match="cannot import an object of type int; accepted"):
        load_model(5)


def test_names_missing_external_data(external):
    (external.parent / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"external data missing .* weights\.bin \(weight w\)"):
        load_model(external)


def test_names_truncated_external_data(external):
    (external.parent / "weights.bin").write_bytes(b"1234")
    with pytest.raises(ModelError, match=r"weights\.bin is truncated: weight w ends at byte 48 of 4"):
        load_model(external)


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/hostname", "a/../../secret.bin", ".."])
def test_refuses_external_data_outside_the_folder(external, location):
    proto = onnx.load(external, load_external_data=False)
    proto.graph.initializer[0].external_data[0].value = location
    (external.parent.parent / "secret.bin").write_bytes(bytes(48))
    external.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match="outside the model's folder"):
        load_model(external)


def test_refuses_external_data_without_a_folder(external):
    with pytest.raises(ModelError, match="give the path of the file instead"):
        load_model(external.read_bytes())


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([node("Add", ["x", "ww"], "y")], "node Add_y .* uses ww, which nothing defines"),
        ([node("Relu", ["x"], "z")], "output y is given by no node"),
        ([node("Add", ["x", "b"], "a"), node("Relu", ["a"], "b"), node("Neg", ["b"], "y")], "cycle through node Add_a"),
        ([node("Relu", ["x"], "y"), node("Neg", ["x"], "y")], "y.*(twice|redeclared)"),
    ],
    ids=["undefined value", "undefined output", "cycle", "defined twice"],
)
def test_refuses_an_invalid_graph(nodes, words):
    with pytest.raises(ModelError, match=words):
        load_model(model(nodes, {"x": (2, 3)}))


def test_an_undefined_value_hints_at_a_similar_name():
    with pytest.raises(ModelError, match=r"did you mean bias\?"):
        load_model(model([node("Add", ["x", "biass"], "y")], {"x": (2, 3)}, weights={"bias": values(3)}))


def test_nodes_in_any_order_are_sorted():
    loaded = load_model(model([node("Relu", ["a"], "y"), node("Neg", ["x"], "a")], {"x": (2, 3)}))
    assert [n.op_type for n in loaded.graph.graph] == ["Neg", "Relu"]
    assert loaded.changes == ("sorted the nodes",)


def test_nodes_get_names_of_their_own():
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="n"),
        helper.make_node("Relu", ["a"], ["b"], name="n"),
        helper.make_node("Neg", ["b"], ["y"]),
    ]
    names = [n.name for n in load_model(model(nodes, {"x": (2, 3)})).graph.graph]
    assert len(set(names)) == 3
    assert all(names)


@pytest.mark.parametrize(
    ("type_proto", "words"),
    [
        (helper.make_tensor_type_proto(onnx.TensorProto.STRING, [2]), "holds strings"),
        (helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, [2])), "is a sequence"),
    ],
)
def test_refuses_inputs_that_are_not_numbers(type_proto, words):
    proto = model([node("Identity", ["x"], "y")], {"x": (2,)})
    proto.graph.input[0].type.CopyFrom(type_proto)
    with pytest.raises(ModelError, match=words):
        load_model(proto)


def test_freezing_makes_an_input_a_constant():
    proto = model([node("Add", ["x", "k"], "y")], {"x": (2, 3), "k": ()})
    loaded = load_model(proto, freeze={"k": 2.5})
    assert [s.name for s in loaded.inputs] == ["x"]
    assert loaded.frozen_inputs["k"] == np.float32(2.5)
    assert "froze input k" in loaded.changes


@pytest.mark.parametrize(
    ("frozen", "words"),
    [
        ({"kk": 1}, r"no such input; did you mean k\?"),
        ({"k": 1.5}, "of type int64"),
        ({"k": "text"}, "give a number"),
        ({"k": [1, 2, 3]}, "has shape"),
    ],
)
def test_freezing_refuses(frozen, words):
    proto = model([node("Add", ["x", "k"], "y")], {"x": (2,), "k": (2,)}, types={"x": INT64, "k": INT64, "y": INT64})
    with pytest.raises(UsageError, match=words):
        load_model(proto, freeze=frozen)


@pytest.mark.slow
def test_weights_over_2_gb_load_repair_and_plan(tmp_path):
    from tvmstack.graph import repair
    from tvmstack.partition import make_plan

    rows = (1 << 31) // 4096 + 1000
    proto = model(
        [node("Gather", ["w", "x"], "y")], {"x": (2,)}, types={"x": INT64}, weights={"w": np.zeros((1, 1), np.float32)}
    )
    tensor = proto.graph.initializer[0]
    tensor.CopyFrom(
        onnx.TensorProto(name="w", data_type=FLOAT, dims=[rows, 1024], data_location=onnx.TensorProto.EXTERNAL)
    )
    for key, value in (("location", "big.bin"), ("offset", "0"), ("length", str(rows * 4096))):
        tensor.external_data.append(onnx.StringStringEntryProto(key=key, value=value))
    with (tmp_path / "big.bin").open("wb") as stream:
        stream.truncate(rows * 4096)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    plan = make_plan(repair(load_model(tmp_path / "m.onnx")))
    assert plan.model.outputs[0].shape == (2, 1024)
    assert not plan.regions


def test_integer_weights_survive_the_round_trip():
    proto = model([node("Gather", ["w", "x"], "y")], {"x": (2,)}, types={"x": INT64})
    proto.graph.initializer.append(numpy_helper.from_array(values(5, 2), "w"))
    assert load_model(proto).inputs[0].dtype == "int64"
