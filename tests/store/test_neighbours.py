"""What a search starts from: this kernel under another key, then the shapes nearest to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.store.test_store import CONTEXT, kernel, record
from tvmstack.core import device as device_module
from tvmstack.core.device import detect_device
from tvmstack.store.key import shape_distance, shape_signature, structure_digest

pytestmark = pytest.mark.null

TEXT = """# from tvm.script import tirx as T

@T.prim_func(private=True, s_tir=True)
def main(x: T.Buffer((T.int64(1), T.int64({rows}), T.int64(64)), "float32"), y: T.Buffer((T.int64(64),), "float32")):
    T.func_attr({{"tirx.noalias": True}})
    for i, j in T.grid(T.int64({rows}), T.int64(64)):
        with T.sblock("dense"):
            v_i, v_j = T.axis.remap("SS", [i, j])
            T.reads(x[T.int64(0), v_i, v_j])
            y[v_j] = x[T.int64(0), v_i, v_j] + T.float32(1.0)
"""


def text(rows=32):
    return TEXT.format(rows=rows)


def test_after_an_upgrade_of_tvm_old_records_become_seeds(store):
    store.add([replace(record(2.0, decisions={"m": 1}), versions="tvm 0.26.0, ffi 0.1.9")])
    store.add([replace(record(1.0, decisions={"m": 2}), versions="tvm 0.26.0, ffi 0.1.9", pipeline="older")])
    assert store.best(kernel(), CONTEXT) is None
    assert [r.choice.decisions["m"] for r in store.neighbours(kernel(), CONTEXT)] == [1, 2]
    assert store.explain(kernel(), CONTEXT).differs == ("versions",)


def test_an_upgrade_that_renames_variables_hides_nothing(store):
    renamed = text().replace("v_i", "vi").replace("(x:", "(lv7:").replace("x[", "lv7[").replace("noalias", "no_alias")
    assert renamed != text()
    store.add([replace(record(1.0, workload=renamed, is_final=True), versions="tvm 0.26.0, ffi 0.1.9")])
    [found] = store.neighbours(kernel(text()), CONTEXT)
    assert found.workload == renamed
    answer = store.explain(kernel(text()), CONTEXT)
    assert answer.differs == ("workload", "versions")
    assert answer.reason.startswith("same kernel, other names in its text; other versions: tvm 0.26.0")


@pytest.mark.parametrize(("old", "new"), [("64", "65"), ("float32", "float64"), ("+", "*"), ("dense", "other")])
def test_another_shape_type_operation_or_block_is_another_structure(old, new):
    assert structure_digest(text()) != structure_digest(text().replace(old, new))


def test_the_nearest_shapes_on_this_device_come_first(store):
    for rows in (8, 512, 48, 33):
        store.add([record(1.0, workload=text(rows), is_final=True, decisions={"m": rows})])
    store.add([record(1.0, workload=text(31), decisions={"m": 31})])
    store.add([replace(record(1.0, workload=text(34), is_final=True), device="other")])
    near = store.neighbours(kernel(text()), CONTEXT, limit=3)
    assert [r.choice.decisions["m"] for r in near] == [33, 48, 8]
    assert store.explain(kernel(text()), CONTEXT).differs == ("workload",)


def test_of_one_neighbour_winners_come_before_the_default_the_fastest_first(store):
    default = replace(record(1.0, workload=text(33), is_final=True, decisions={"m": 1}), is_default=True)
    slow, fast = (record(t, workload=text(33), is_final=True, decisions={"m": m}) for t, m in ((3.0, 2), (2.0, 3)))
    store.add([slow, default, fast])
    assert [r.choice.decisions["m"] for r in store.neighbours(kernel(text()), CONTEXT)] == [3, 2, 1]


def test_failed_and_quarantined_records_are_no_seeds(store):
    other = {"versions": "tvm 0.26.0"}
    store.add([replace(record(float("inf"), status="run: crash"), **other)])
    store.add([replace(record(1.0, decisions={"m": 2}), **other)])
    store.quarantine(store.neighbours(kernel(), CONTEXT)[0], "run: crash")
    assert store.neighbours(kernel(), CONTEXT) == []


def test_a_signature_is_dtypes_and_shapes():
    assert shape_signature(text()) == "float32[1,32,64] float32[64]"
    assert shape_distance("float32[4,8]", "float32[8,8]") == 1.0
    assert shape_distance("float32[4,8]", "float16[4,8]") == float("inf")
    assert shape_distance("float32[4,8]", "float32[4,8,1]") == float("inf")


CPU = """processor : 0
model name : Intel(R) Xeon(R) Processor @ 2.10GHz
microcode : {microcode}
cpu MHz : {speed}
flags : fpu avx2 fma bmi2 f16c sse4_2 popcnt {more}
bogomips : {speed}
"""


def test_a_device_is_the_same_after_a_reboot_and_another_with_other_instructions(tmp_path, monkeypatch):
    def seen(**facts):
        (tmp_path / "cpuinfo").write_text(CPU.format(**facts))
        real = device_module.Path
        monkeypatch.setattr(
            device_module, "Path", lambda p: real(tmp_path / "cpuinfo" if str(p) == "/proc/cpuinfo" else p)
        )
        found = detect_device()
        monkeypatch.setattr(device_module, "Path", real)
        return found

    first = seen(microcode="0x1", speed="2099.9", more="")
    assert first.mcpu == "haswell"
    assert seen(microcode="0x2b", speed="3100.1", more="ibrs arch_capabilities").id == first.id
    assert seen(microcode="0x1", speed="2099.9", more="avx512f avx512bw avx512vl avx512dq").id != first.id
