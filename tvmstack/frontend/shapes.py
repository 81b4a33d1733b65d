"""Fixing the dims of the inputs. A program is built for numbers; a dim without one is the user's to give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir

from tvmstack.core.errors import ModelError, UsageError, nearest

__all__ = ["assume_dims", "dynamic_dims", "fix_shapes", "option_for"]

# What `assume_dims` takes: a batch of one, pictures of 3x224x224, everything else 32 long.
_BATCH, _CHANNELS, _PICTURE, _LENGTH = 1, 3, 224, 32


def fix_shapes(
    model: onnx_ir.Model, shapes: Mapping[str, Sequence[int]], source: str, allow_dynamic: bool = False
) -> list[str]:
    """Write the given dims into the inputs and bind symbolic names everywhere; return one line for each input changed.

    Raises:
        UsageError: a name, rank or dim does not fit, or (unless `allow_dynamic`) dynamic dims are left.
    """
    inputs = {v.name or "": v for v in model.graph.inputs}
    symbols: dict[str, int] = {}
    changes = []
    for name, dims in shapes.items():
        if name not in inputs:
            raise UsageError(f"{source} has no input {name}; {nearest(name, inputs) or 'it has no inputs'}")
        if _fix(inputs[name], tuple(dims), symbols):
            changes.append(f"fixed input {name} to {list(dims)}")
    _bind(model, symbols)
    _check_empty(model, source)
    if not allow_dynamic:
        _refuse_dynamic(model, source)
    return changes


def dynamic_dims(model: onnx_ir.Model) -> dict[str, list[tuple[int, str]]]:
    """Return input name to the (index, name) of each dim without a number; "?" where it has no name either."""
    found = {}
    for value in model.graph.inputs:
        dims = [(i, d.value or "?") for i, d in enumerate(value.shape or ()) if not isinstance(d, int)]
        if dims:
            found[value.name or ""] = dims
    return found


def assume_dims(model: onnx_ir.Model) -> tuple[str, ...]:
    """Give each open dim a usual number, to look at a model; return the --shape options that say the same."""
    symbols: dict[str, int] = {}
    for value in model.graph.inputs:
        for index, dim in enumerate(value.shape or ()):
            if not isinstance(dim, int) and dim.value is not None:
                symbols.setdefault(dim.value, _usual(index, len(value.shape or ())))
    _bind(model, symbols)
    options = []
    for value in model.graph.inputs:
        rank = len(value.shape) if value.shape is not None else 4
        dims = [d if isinstance(d, int) else _usual(i, rank) for i, d in enumerate(value.shape or [None] * 4)]
        value.shape = onnx_ir.Shape(dims)
        options.append(option_for(value))
    return tuple(options)


def _usual(index: int, rank: int) -> int:
    if index == 0:
        return _BATCH
    if rank != 4:
        return _LENGTH
    return _CHANNELS if index == 1 else _PICTURE


# What exporters write for "some number": no name, so two such dims need not be equal.
_NAMELESS = (None, "", "?", "*", "-1", "None")


def _fix(value: onnx_ir.Value, dims: tuple[int, ...], symbols: dict[str, int]) -> bool:
    option = f"--shape {value.name}={','.join(map(str, dims))}"
    if any(int(d) != d or d < 1 for d in dims):
        raise UsageError(f"{option}: every dim must be a whole number of 1 or more")
    if value.shape is None:
        value.shape = onnx_ir.Shape(dims)
        return True
    if len(dims) != len(value.shape):
        raise UsageError(f"{option}: {len(dims)} dims, but input {value.name} has {len(value.shape)}: {_text(value)}")
    for index, (given, dim) in enumerate(zip(dims, value.shape, strict=True)):
        if isinstance(dim, int):
            if dim != given and dim > 0:
                raise UsageError(f"{option}: dim {index} of {value.name} is {dim} in the model, not {given}")
        elif dim.value not in _NAMELESS and symbols.setdefault(str(dim.value), given) != given:
            raise UsageError(
                f"{option}: dim {index} of {value.name} is {dim.value}, already fixed to {symbols[dim.value]}"
            )
    changed = any(not isinstance(d, int) for d in value.shape)
    value.shape = onnx_ir.Shape(dims)
    return changed


def _bind(model: onnx_ir.Model, symbols: Mapping[str, int]) -> None:
    """Give a symbolic name its number wherever it stands."""
    if not symbols:
        return
    for graph in model.graphs():
        for value in {*graph.inputs, *graph.outputs, *(v for n in graph for v in n.outputs)}:
            if value.shape is not None and any(not isinstance(d, int) and d.value in symbols for d in value.shape):
                value.shape = onnx_ir.Shape(
                    [d if isinstance(d, int) else symbols.get(d.value or "", d) for d in value.shape]
                )


def _check_empty(model: onnx_ir.Model, source: str) -> None:
    for value in model.graph.inputs:
        if value.shape is not None and any(isinstance(d, int) and d < 1 for d in value.shape):
            raise ModelError(
                f"{source}: input {value.name} is empty, its shape is {_text(value)}; nothing can be compiled for it"
            )


def _refuse_dynamic(model: onnx_ir.Model, source: str) -> None:
    unranked = [v.name for v in model.graph.inputs if v.shape is None]
    if unranked:
        names = ", ".join(str(n) for n in unranked)
        raise UsageError(
            f"{source}: the model gives no shape for {names}; give it, for example --shape {unranked[0]}=1,3,224,224"
        )
    dynamic = dynamic_dims(model)
    if not dynamic:
        return
    inputs = {v.name: v for v in model.graph.inputs}
    lines = [
        f"  {name} {_text(inputs[name])}: {_dims(dims)}; {option_for(inputs[name])}" for name, dims in dynamic.items()
    ]
    raise UsageError(
        f"{source} has dynamic dims; a program is built for fixed ones, so give them:\n" + "\n".join(lines)
    )


def option_for(value: onnx_ir.Value) -> str:
    """Return the --shape option that fixes an input, with its open dims by name to be replaced by numbers."""
    dims = ",".join(
        str(d) if isinstance(d, int) else (d.value or f"DIM{i}").upper() for i, d in enumerate(value.shape or ())
    )
    return f"--shape {value.name}={dims}"


def _dims(dims: Sequence[tuple[int, str]]) -> str:
    words = [f"dim {i} ({name})" if name != "?" else f"dim {i}" for i, name in dims]
    return f"{' and '.join(words)} {'is' if len(words) == 1 else 'are'} open"


def _text(value: onnx_ir.Value) -> str:
    return "[" + ",".join(str(d) if isinstance(d, int) else (d.value or "?") for d in value.shape or ()) + "]"
