"""MetaSchedule's own databases: a bad line costs one record, hostile traces stay out, good ones start a search."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tuning.test_tuning import DEVICE
from tvmstack import schedules
from tvmstack._tvm import evolutionary_search, plain_trace, te, topi, tvm
from tvmstack.cli.boundary import run
from tvmstack.core.errors import TuningError
from tvmstack.core.kernel import Choice, Kernel
from tvmstack.driver.metaschedule import RECORDS, WORKLOADS, import_metaschedule
from tvmstack.lower.pipeline import workload_text
from tvmstack.store import KeyContext, Store
from tvmstack.store.record import check_choice
from tvmstack.tuning import tune

pytestmark = pytest.mark.cpu
CONTEXT = KeyContext.current(DEVICE, "p")


def convolution(data: str = "x", weight: str = "w") -> Any:
    """A kernel that no template serves, with names of one's own choice."""
    x, w = te.placeholder((1, 4, 6, 10, 10), name=data), te.placeholder((8, 4, 3, 3, 3), name=weight)
    return te.create_prim_func([x, w, topi.nn.conv3d_ncdhw(x, w, 1, 1, 1, 1)])


def our_kernel() -> Kernel:
    func = convolution().with_attr("global_symbol", "kernel")
    return Kernel("kernel", func, workload_text(func), 1, 1e6, 1.0, "generic")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What MetaSchedule itself writes for a kernel of ours under other names."""
    from tvm.s_tir import meta_schedule as ms

    folder = tmp_path_factory.mktemp("metaschedule")
    func = convolution("data", "kernel_weight").with_attr("global_symbol", "main")
    held = ms.database.JSONDatabase(str(folder / WORKLOADS), str(folder / RECORDS))
    workload = held.commit_workload(tvm.IRModule({"main": func}))
    target = tvm.target.Target(DEVICE.target())
    candidates = evolutionary_search(func, DEVICE.target(), 16, 3).generate_measure_candidates()
    for index, candidate in enumerate(candidates):
        seconds = [1e-5 * (index + 1), 1.1e-5 * (index + 1)]
        record = ms.database.TuningRecord(candidate.sch.trace, workload, seconds, target, candidate.args_info)
        held.commit_tuning_record(record)
    return folder


@pytest.fixture
def store(tmp_path: Path, opened: Callable[[str], Store]) -> Store:
    """A file: nothing here asks what kind of store it is."""
    return opened(str(tmp_path / "records" / "store.db"))


@pytest.fixture
def damaged(database: Path, tmp_path: Path) -> Callable[..., Path]:
    def call(workloads: Callable[[list[str]], list[str]], records: Callable[[list[str]], list[str]]) -> Path:
        for name, change in ((WORKLOADS, workloads), (RECORDS, records)):
            lines = change((database / name).read_text().splitlines())
            (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
        return tmp_path

    return call


def same(lines: list[str]) -> list[str]:
    return lines


def test_records_come_in_and_start_the_search_of_a_kernel_of_the_same_structure(store: Store, database: Path) -> None:
    kernel = our_kernel()
    taken = import_metaschedule(store, database)
    assert (taken.read, taken.new, taken.refused) == (3, 3, [])
    assert import_metaschedule(store, database).new == 0
    assert store.best(kernel, CONTEXT) is None
    near = store.neighbours(kernel, CONTEXT)
    assert [r.choice.template for r in near] == ["meta_schedule"] * 3
    assert near[0].median_s == pytest.approx(1.05e-5)
    assert "other protocol: metaschedule" in store.explain(kernel, CONTEXT).reason
    tune([kernel], DEVICE, "p", store, trials=4)
    measured = {r.choice.text: r.status for r in store.trials(kernel, CONTEXT)}
    assert set(measured) == {schedules.default_choice(kernel.func, DEVICE).text, *(r.choice.text for r in near)}
    assert list(measured.values()).count("ok") >= 2


def test_a_bad_line_costs_one_record(store: Store, damaged: Callable[..., Path]) -> None:
    def spoil(lines: list[str]) -> list[str]:
        index, record = json.loads(lines[0])
        failed = json.dumps([index, [record[0], [1e10], *record[2:]]])
        record[0][0].append(["Annotate", ["l1", '"evil.ll"'], ["pragma_import_llvm"], []])
        hostile = json.dumps([index, record])
        odd = ["not json", "[]", '[7, [[[], []], [1.0], {"kind": "llvm"}, []]]', failed, hostile, lines[1][:-40]]
        return [lines[0], *odd, lines[2]]

    taken = import_metaschedule(store, damaged(same, spoil))
    assert (taken.read, taken.new) == (2, 2)
    reasons = (
        "is no record",
        "is no record",
        "names workload 7",
        "failed when it was measured",
        "its trace sets",
        "no",
    )
    for number, (line, reason) in enumerate(zip(taken.refused, reasons, strict=True), 2):
        assert line.startswith(f"{RECORDS} line {number}: ")
        assert reason in line


def test_broken_workloads_cost_their_own_records(store: Store, damaged: Callable[..., Path]) -> None:
    nested = base64.b64encode(b"12345678" + b"[" * 200_000).decode()
    broken = ["not json", '["1", "!!!!"]', json.dumps(["1", base64.b64encode(b"12345678{}").decode()])]
    broken.append(json.dumps(["1", nested]))

    def one_each(lines: list[str]) -> list[str]:
        return [json.dumps([index, json.loads(lines[0])[1]]) for index in range(5)]

    taken = import_metaschedule(store, damaged(lambda lines: [*broken, *lines], one_each))
    assert taken.read == 1
    assert len(taken.refused) == 4
    for number, line in enumerate(taken.refused, 1):
        assert f"line {number} of {WORKLOADS}, cannot be read" in line


@pytest.mark.parametrize(
    "instruction",
    [
        pytest.param(["Annotate", ["l1", '"evil.ll"'], ["pragma_import_llvm"], []], id="code for LLVM"),
        pytest.param(["Annotate", ["l1", '"int x;"'], ["pragma_import_c"], []], id="code for a C compiler"),
        pytest.param(["TransformLayout", ["b0"], [0, 1, "{}", None, True], []], id="another serialised object"),
        pytest.param(["CallPacked", ["os.system"], [], []], id="a function"),
        pytest.param(["Annotate", [], [], []], id="an annotation without a name"),
        pytest.param("no list", id="no instruction"),
    ],
)
def test_a_trace_that_could_carry_code_is_refused(instruction: Any, database: Path) -> None:
    trace = json.loads((database / RECORDS).read_text().splitlines()[0])[1][0]
    check_choice(Choice("meta_schedule", {"trace": trace}))
    with pytest.raises(TuningError, match="its trace"):
        check_choice(Choice("meta_schedule", {"trace": [[*trace[0], instruction], trace[1]]}))


def test_every_trace_that_our_own_search_writes_may_be_carried() -> None:
    func = convolution().with_attr("global_symbol", "main")
    for candidate in evolutionary_search(func, DEVICE.target(), 16, 8).generate_measure_candidates():
        check_choice(Choice("meta_schedule", {"trace": plain_trace(candidate.sch.trace)}))


def test_a_folder_without_a_database_is_one_sentence(store: Store, tmp_path: Path) -> None:
    with pytest.raises(TuningError, match=r"cannot read .*database_tuning_record.json: No such file"):
        import_metaschedule(store, tmp_path)


def test_the_command_takes_a_folder(database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cache", "import", str(database), "--store", str(tmp_path / "s.db"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 3


def test_names_of_variables_do_not_hide_a_kernel_and_names_of_blocks_do(store: Store, database: Path) -> None:
    import_metaschedule(store, database)
    kernel = our_kernel()
    renamed = replace(kernel, workload=kernel.workload.replace('T.sblock("pad_temp")', 'T.sblock("other")'))
    assert renamed.workload != kernel.workload
    assert store.neighbours(renamed, CONTEXT) == []
