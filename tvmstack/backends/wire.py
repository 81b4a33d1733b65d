"""Values of the protocol as bytes, between our process and a worker's: JSON with the arrays behind it.

No pickle: only the types in a closed table are ever made, whatever the bytes say. Layout: 8 bytes little-endian length
of the JSON, the JSON, then each buffer; the JSON says where each lies.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from tvmstack.backends.base import Blob, Capability, Cost, NodeVerdict, Options, Support, Target
from tvmstack.core.errors import BackendError
from tvmstack.core.model import TensorSpec
from tvmstack.core.region import Region

__all__ = ["pack", "unpack"]

_LENGTH = struct.Struct("<Q")
_KINDS = {k.__name__: k for k in (Blob, Capability, Cost, NodeVerdict, Options, Region, Target, TensorSpec)}
_PLAIN = (str, int, float, bool, type(None))


def pack(value: Any) -> bytes:
    """Return a value of the protocol's types as bytes.

    Raises:
        BackendError: it holds something that is no such type.
    """
    buffers: list[bytes] = []
    text = json.dumps({"value": _out(value, buffers), "sizes": [len(b) for b in buffers]}).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *buffers])


def unpack(data: bytes) -> Any:
    """Return the value that `pack` made bytes of; sequences come back as tuples.

    Raises:
        BackendError: these bytes are cut short or no such value.
    """
    try:
        (length,) = _LENGTH.unpack_from(data)
        head = json.loads(data[_LENGTH.size : _LENGTH.size + length])
        at, buffers = _LENGTH.size + length, []
        for size in head["sizes"]:
            buffers.append(data[at : at + size])
            at += size
        whole = at == len(data)
        value = _in(head["value"], buffers) if whole else None
    except (struct.error, ValueError, KeyError, TypeError, IndexError, AttributeError) as err:
        raise BackendError(f"a message between processes is damaged: {err!r}") from err
    if not whole:
        raise BackendError(f"a message between processes is damaged: {len(data)} bytes where {at} are told of")
    return value


def _out(value: Any, buffers: list[bytes]) -> Any:
    if isinstance(value, (np.integer, np.floating, np.bool_)):
        value = value.item()
    if isinstance(value, enum.Enum):
        return {"$": "Support", "value": value.value}
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        buffers.append(bytes(value))
        return {"$": "bytes", "at": len(buffers) - 1}
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise BackendError("tensors of strings cannot pass to another process")
        buffers.append(np.ascontiguousarray(value).tobytes())
        return {"$": "array", "at": len(buffers) - 1, "dtype": value.dtype.name, "shape": list(value.shape)}
    if dataclasses.is_dataclass(value) and type(value).__name__ in _KINDS:
        fields = {f.name: _out(getattr(value, f.name), buffers) for f in dataclasses.fields(value)}
        return {"$": type(value).__name__, "fields": fields}
    if isinstance(value, Mapping):
        return {"$": "map", "items": [[_out(k, buffers), _out(v, buffers)] for k, v in value.items()]}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_out(v, buffers) for v in value]
    raise BackendError(f"a {type(value).__name__} cannot pass to another process")


def _in(data: Any, buffers: list[bytes]) -> Any:
    if isinstance(data, list):
        return tuple(_in(v, buffers) for v in data)
    if not isinstance(data, dict):
        return data
    kind = data["$"]
    if kind == "bytes":
        return buffers[data["at"]]
    if kind == "array":
        return np.frombuffer(buffers[data["at"]], _dtype(data["dtype"])).reshape(data["shape"]).copy()
    if kind == "map":
        return {_in(k, buffers): _in(v, buffers) for k, v in data["items"]}
    if kind == "Support":
        return Support(data["value"])
    return _KINDS[kind](**{k: _in(v, buffers) for k, v in data["fields"].items()})


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
