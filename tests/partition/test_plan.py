"""Regions are few, whole and convex; the planned graph computes what the model did."""

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import helper

from tests.graph.build import BOOL, FLOAT, INT64, model, node, random_feeds, run, values
from tvmstack.core.errors import ModelError, UsageError
from tvmstack.frontend import load_model
from tvmstack.graph import repair
from tvmstack.partition import Plan, make_plan
from tvmstack.partition.region import cut

pytestmark = pytest.mark.null


def plan_of(proto: onnx.ModelProto, force: tuple[str, ...] = ()) -> Plan:
    return make_plan(repair(load_model(proto)), force)


def run_plan(plan: Plan, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Compute the planned graph node by node, in its order, regions by their own models."""
    graph = plan.model.graph.graph
    regions = {r.digest: r for r in plan.regions}
    known = {**feeds, **{n: v.const_value.numpy() for n, v in graph.initializers.items()}}
    for one in graph:
        if one.op_type == "Region":
            region = regions[one.attributes["digest"].as_string()]
        else:
            region, _, _ = cut(plan.model, [one], [])
        results = run(region.model, {s.name: known[s.name] for s in region.inputs})
        for spec, result in zip(region.outputs, results, strict=True):
            assert str(result.dtype) == spec.dtype
            assert len(spec.shape) == result.ndim
            assert all(d == r for d, r in zip(spec.shape, result.shape, strict=True) if isinstance(d, int))
            known[spec.name] = result
    return [known[v.name] for v in graph.outputs]


def planned_same(
    proto: onnx.ModelProto, force: tuple[str, ...] = (), feeds: dict[str, np.ndarray] | None = None
) -> Plan:
    plan = plan_of(proto, force)
    given = feeds or random_feeds(plan.model)
    for got, wanted in zip(run_plan(plan, given), run(proto.SerializeToString(), given), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    return plan


def kinds(plan: Plan) -> list[str]:
    return [n.op_type for n in plan.model.graph.graph]


def test_without_foreign_nodes_there_is_no_region():
    plan = planned_same(model([node("Relu", ["x"], "r"), node("Neg", ["r"], "y")], {"x": (2, 3)}))
    assert plan.regions == ()
    assert all(plan.verdicts.values())


def test_a_foreign_node_in_the_middle_is_one_region_between_tvm_nodes():
    nodes = [node("Relu", ["x"], "r"), node("Det", ["r"], "d"), node("MatMul", ["d", "w"], "y")]
    plan = planned_same(model(nodes, {"x": (2, 4, 3, 3)}, weights={"w": values(4, 5)}))
    assert kinds(plan) == ["Relu", "Region", "MatMul"]
    (region,) = plan.regions
    assert region.nodes == ("Det_d",)
    assert region.reasons == ("Det: no lowering for Det",)
    assert [s.name for s in region.inputs] == ["r"]
    assert [(s.name, s.dtype, s.shape) for s in region.outputs] == [("d", "float32", (2, 4))]
    (single,) = [n for n in plan.model.graph.graph if n.op_type == "Region"]
    assert single.domain == "tvmstack"
    assert single.attributes["digest"].as_string() == region.digest
    assert len(region.digest) == 16


def test_a_wholly_foreign_model_is_one_region():
    plan = planned_same(
        model([node("Det", ["x"], "d"), node("Det", ["z"], "y")], {"x": (2, 3, 3), "z": (2, 3, 3)}, ("d", "y"))
    )
    assert kinds(plan) == ["Region"]
    assert len(plan.regions) == 1


def test_foreign_nodes_that_do_not_need_each_other_share_a_region():
    nodes = [node("Det", ["x"], "a"), node("Relu", ["x"], "r"), node("Det", ["z"], "b"), node("Add", ["a", "b"], "y")]
    plan = planned_same(model(nodes, {"x": (2, 3, 3), "z": (2, 3, 3)}, ("y", "r")))
    assert [r.nodes for r in plan.regions] == [("Det_a", "Det_b")]


def test_a_region_never_needs_what_comes_of_itself():
    """Det -> large TVM work -> Det: one region would feed itself through the MatMul."""
    nodes = [
        node("Det", ["x"], "a"),
        node("MatMul", ["a", "w"], "m"),
        node("Reshape", ["m", "shape"], "s"),
        node("Det", ["s"], "b"),
        node("MatMul", ["a", "v"], "n"),
        node("Sub", ["n", "b"], "y"),
    ]
    weights = {"w": values(4, 18), "shape": np.array([2, 2, 3, 3]), "v": values(4, 2)}
    plan = planned_same(model(nodes, {"x": (2, 4, 3, 3)}, weights=weights))
    assert [r.nodes for r in plan.regions] == [("Det_a",), ("Det_b",)]


def test_small_arithmetic_between_two_regions_joins_them():
    nodes = [node("Det", ["x"], "a"), node("Reshape", ["a", "shape"], "s"), node("Det", ["s"], "y")]
    plan = planned_same(model(nodes, {"x": (9, 2, 2)}, weights={"shape": np.array([1, 3, 3])}))
    assert [r.nodes for r in plan.regions] == [("Det_a", "Reshape_s", "Det_y")]
    assert plan.verdicts["Reshape_s"].reason.startswith("TVM could take it")


def test_a_data_dependent_shape_drags_its_users_until_shapes_are_static():
    nodes = [
        node("NonZero", ["x"], "n"),
        node("Cast", ["n"], "f", to=FLOAT),
        node("ReduceSum", ["f", "axes"], "s", keepdims=0),
        node("MatMul", ["s", "w"], "y"),
    ]
    weights = {"axes": np.array([1]), "w": values(2, 5)}
    plan = planned_same(model(nodes, {"x": (3, 4)}, weights=weights))
    assert [r.nodes for r in plan.regions] == [("NonZero_n", "Cast_f", "ReduceSum_s")]
    assert kinds(plan) == ["Region", "MatMul"]


def test_a_data_dependent_value_takes_what_lies_between_along():
    """The TVM node between the two ends of a value TVM cannot carry must join, however large."""
    nodes = [
        node("NonZero", ["x"], "n"),
        node("Shape", ["n"], "count"),
        node("Cast", ["count"], "c", to=FLOAT),
        node("MatMul", ["c", "w"], "m"),
        node("ReduceSum", ["m"], "t", keepdims=0),
        node("Cast", ["n"], "f", to=FLOAT),
        node("Mul", ["f", "t"], "g"),
        node("ReduceSum", ["g"], "y", keepdims=0),
    ]
    plan = planned_same(model(nodes, {"x": (3, 4)}, weights={"w": values(2, 5000)}))
    assert len(plan.regions) == 1
    assert kinds(plan) == ["Region"]


def test_sequences_stay_inside_a_region():
    nodes = [
        node("SplitToSequence", ["x"], "q", axis=0),
        node("SequenceAt", ["q", "i"], "a"),
        node("Relu", ["a"], "y"),
    ]
    plan = planned_same(model(nodes, {"x": (3, 4)}, weights={"i": np.array(1)}))
    assert all(s.dtype == "float32" for r in plan.regions for s in r.outputs)


def if_model() -> onnx.ModelProto:
    def branch(op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"{op}_out", FLOAT, [2, 3])
        return helper.make_graph([node(op, ["r", "w"], f"{op}_out")], op, [], [out])

    nodes = [
        node("Relu", ["x"], "r"),
        node("If", ["c"], "i", then_branch=branch("Add"), else_branch=branch("Mul")),
        node("Neg", ["i"], "y"),
    ]
    return model(nodes, {"x": (2, 3), "c": ()}, weights={"w": values(3)}, types={"c": BOOL})


@pytest.mark.parametrize("flag", [True, False])
def test_what_a_body_captures_is_fed_and_its_weights_are_inside(flag):
    plan = planned_same(if_model(), feeds={"x": values(2, 3), "c": np.array(flag)})
    (region,) = plan.regions
    assert sorted(s.name for s in region.inputs) == ["c", "r"]
    assert [i.name for i in onnx.load_from_string(region.model).graph.initializer] == ["w"]
    assert "w" not in plan.model.graph.graph.initializers


def test_operators_of_other_domains_keep_their_opset_imports():
    nodes = [
        node("Relu", ["x"], "r"),
        helper.make_node("Inverse", ["r"], ["v"], domain="com.microsoft", name="inverse"),
        node("Neg", ["v"], "y"),
    ]
    plan = planned_same(model(nodes, {"x": (2, 3, 3)}, opsets=[helper.make_opsetid("com.microsoft", 1)]))
    (region,) = plan.regions
    assert {(o.domain, o.version) for o in onnx.load_from_string(region.model).opset_import} >= {("com.microsoft", 1)}


def test_external_weights_are_inside_the_region(tmp_path):
    proto = model(
        [node("Add", ["x", "w"], "a"), node("Det", ["a"], "y")], {"x": (2, 3, 3)}, weights={"w": values(3, 3)}
    )
    path = tmp_path / "m.onnx"
    onnx.save(
        onnx.ModelProto.FromString(proto.SerializeToString()),
        path,
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
    )
    plan = make_plan(repair(load_model(path)), ["Add_a"])
    feeds = {"x": values(2, 3, 3)}
    np.testing.assert_allclose(
        run(plan.regions[0].model, feeds)[0], run(proto.SerializeToString(), feeds)[0], rtol=1e-5
    )


def test_a_region_value_that_is_an_output_and_used_inside_is_given_once():
    nodes = [node("Det", ["x"], "y"), node("Neg", ["y"], "z")]
    plan = planned_same(model(nodes, {"x": (2, 3, 3)}, ("y", "z")), force=("Neg_z",))
    (region,) = plan.regions
    assert [s.name for s in region.outputs] == ["y", "z"]


def test_nodes_can_be_kept_from_tvm_and_an_unknown_name_is_refused():
    proto = model([node("Relu", ["x"], "r"), node("Neg", ["r"], "y")], {"x": (2, 3)})
    plan = planned_same(proto, ("Relu_r",))
    assert plan.verdicts["Relu_r"].reason == "given to onnxruntime on request"
    with pytest.raises(UsageError, match=r"no node Relu_q after repair; did you mean Relu_r\?"):
        plan_of(proto, ("Relu_q",))


def test_planning_leaves_the_model_as_it_was():
    repaired = repair(load_model(model([node("Relu", ["x"], "r"), node("Det", ["r"], "y")], {"x": (2, 3, 3)})))
    before = onnx_ir.to_proto(repaired.graph).SerializeToString(deterministic=True)
    first, second = make_plan(repaired), make_plan(repaired)
    assert onnx_ir.to_proto(repaired.graph).SerializeToString(deterministic=True) == before
    assert [r.digest for r in first.regions] == [r.digest for r in second.regions]


@pytest.mark.parametrize(
    ("operator", "domain", "words"),
    [
        ("Reluu", "", r"node odd \(Reluu\): ONNX has no operator Reluu; did you mean Relu\?"),
        ("Foo", "my.ops", r"node odd \(my\.ops\.Foo\): onnxruntime has no operator my\.ops\.Foo"),
    ],
)
def test_a_node_nobody_takes_is_named(operator, domain, words):
    odd = helper.make_node(operator, ["r"], ["y"], domain=domain, name="odd")
    opsets = [helper.make_opsetid(domain, 1)] if domain else []
    with pytest.raises(ModelError, match=words):
        plan_of(model([node("Relu", ["x"], "r"), odd], {"x": (2, 3)}, opsets=opsets))


def test_integer_outputs_keep_their_type():
    nodes = [node("NonZero", ["x"], "y")]
    plan = planned_same(model(nodes, {"x": (3, 4)}, types={"y": INT64}))
    assert plan.model.outputs[0].dtype == "int64"
    assert not plan.model.outputs[0].is_static
