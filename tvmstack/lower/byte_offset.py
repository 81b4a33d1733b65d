"""Kernels that accept tensors lying at an offset in their storage, which the memory plan makes.

TVM's calling convention refuses a `byte_offset` other than 0. Here it is added to the data pointer once, on entry;
offsets are multiples of 64, so what kernels assume of alignment still holds.
"""

from __future__ import annotations

from typing import Any

from tvmstack._tvm import tirx, tvm

__all__ = ["TIR_PIPELINE", "accept_byte_offsets"]

# Fields of a DLTensor in `tvm_struct_get`.
_DATA, _BYTE_OFFSET = 1, 8


def accept_byte_offsets(func: Any) -> Any:
    """Return a function in TVM's calling convention (`MakePackedAPI`) that adds each argument's byte offset.

    assert 0 == A.byte_offset              ->  (gone)
    decl_buffer(A, data=A.data)            ->  decl_buffer(A, data=A.data + A.byte_offset)

    Leaves alone: arguments that TVM does not refuse an offset for; their kernels add it themselves.
    """
    refusing: set[Any] = set()
    body = _without_refusals(func.body, refusing)
    return func.with_body(_adding_offsets(body, refusing))


def _without_refusals(stmt: Any, refusing: set[Any]) -> Any:
    """Drop the assertions that offsets are 0 and collect the arguments they are about."""
    if isinstance(stmt, tirx.AttrStmt):
        body = _without_refusals(stmt.body, refusing)
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, body, stmt.span)
    if not isinstance(stmt, tirx.SeqStmt):
        return stmt
    kept = []
    for item in stmt.seq:
        argument = _refused(item)
        if argument is None:
            kept.append(_without_refusals(item, refusing))
        else:
            refusing.add(argument)
    return tirx.SeqStmt(kept)


def _adding_offsets(stmt: Any, arguments: set[Any]) -> Any:
    """Rewrite where the data of these arguments is bound; loops and what is in them stay as they are."""
    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([_adding_offsets(item, arguments) for item in stmt.seq])
    if isinstance(stmt, tirx.AttrStmt):
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, _adding_offsets(stmt.body, arguments), stmt.span)
    if isinstance(stmt, tirx.DeclBuffer) and _is_call(stmt.data, "tirx.reinterpret"):
        source = stmt.data.args[0]
        if _reads(source, _DATA) and source.args[0] in arguments:
            offset = tirx.Cast("int64", tirx.tvm_struct_get(*source.args[:2], _BYTE_OFFSET, "uint64"))
            moved = tirx.handle_add_byte_offset(source, offset)
            data = tvm.ir.Call(stmt.data.op, [moved], stmt.data.attrs, stmt.data.ty_args, None, stmt.data.ty)
            return tirx.DeclBuffer(stmt.buffer, stmt.span, data=data)
    return stmt


def _refused(stmt: Any) -> Any:
    """Return the argument that a statement refuses an offset for, None for any other statement."""
    if not isinstance(stmt, tirx.AssertStmt) or not isinstance(stmt.condition, tirx.EQ):
        return None
    read = stmt.condition.b
    return read.args[0] if _reads(read, _BYTE_OFFSET) else None


def _reads(expr: Any, field: int) -> bool:
    return _is_call(expr, "tirx.tvm_struct_get") and int(expr.args[2]) == field


def _is_call(expr: Any, name: str) -> bool:
    return isinstance(expr, tvm.ir.Call) and isinstance(expr.op, tvm.ir.Op) and expr.op.name == name


def _pipeline() -> tuple[Any, Any, Any]:
    """Return TVM's own lowering, followed by ours, and its last passes for host and device code."""
    lowering, host, device = tvm.tirx.get_tir_pipeline("s_tir")
    ours = tvm.tirx.transform.prim_func_pass(lambda f, _m, _c: accept_byte_offsets(f), opt_level=0, name="ByteOffsets")
    return tvm.transform.Sequential([lowering, ours]), host, device


TIR_PIPELINE = "tvmstack"
"""The name of TVM's lowering from scheduled TIR with this change, for `tvm.compile`."""
tvm.tirx.register_tir_pipeline(TIR_PIPELINE, _pipeline)
