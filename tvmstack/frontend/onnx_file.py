"""Reading ONNX: parse, find the external data, digest. Weights stay on disk until somebody asks for them."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir
from google.protobuf.message import DecodeError

from tvmstack.core.errors import ModelError, UsageError

__all__ = ["Loaded", "read_bytes", "read_path", "read_proto"]

# A protobuf message, and so the ONNX file without its external data, cannot be larger.
_PROTOBUF_LIMIT = (1 << 31) - 1
_MAGIC = {
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"PK\x03\x04": "a zip archive (a torch checkpoint is one; export it to ONNX or to .pt2 first)",
    b"\x7fELF": "a compiled library",
    b"\x1f\x8b": "a gzip archive",
    b"GGUF": "a GGUF file",
    b"version https://git-lfs": "a Git LFS pointer; fetch the file itself",
    b"<": "HTML or XML text",
    b"{": "JSON text",
}


@dataclass(frozen=True)
class Loaded:
    """A parsed model, where it came from and its digest."""

    graph: onnx_ir.Model
    source: str
    digest: str


def read_path(path: Path) -> Loaded:
    """Read an ONNX file; its external data is checked for presence and mapped lazily."""
    if not path.exists():
        raise UsageError(f"no such file: {path}")
    if path.is_dir():
        raise UsageError(f"{path} is a folder; give the ONNX file in it")
    try:
        size = path.stat().st_size
        if size > _PROTOBUF_LIMIT:
            raise ModelError(f"{path} is over 2 GB, which no ONNX file can be: save its weights as external data")
        data = path.read_bytes()
    except OSError as err:
        raise ModelError(f"cannot read {path}: {err.strerror or err}") from err
    proto = _parse(data, str(path))
    digest = hashlib.sha256(data)
    del data
    files = _external_files(proto, path.parent, str(path))
    for location, file in files.items():
        digest.update(location.encode())
        _hash_file(digest, file)
    return Loaded(_to_ir(proto, path.name, path.parent), path.name, digest.hexdigest())


def read_bytes(data: bytes, source: str = "<bytes>") -> Loaded:
    """Read an ONNX model from memory; its weights must be inside."""
    return _from_memory(_parse(data, source), data, source)


def read_proto(proto: onnx.ModelProto, source: str = "<ModelProto>") -> Loaded:
    """Take a ModelProto; its weights must be inside. It is not changed."""
    if not proto.graph.node and not proto.graph.output:
        raise ModelError(f"{source} holds no graph")
    try:
        data = proto.SerializeToString()
    except ValueError as err:
        raise ModelError(f"{source} is over 2 GB: save it with external data and give the path") from err
    return _from_memory(proto, data, source)


def _from_memory(proto: onnx.ModelProto, data: bytes, source: str) -> Loaded:
    if any(True for _ in _external_tensors(proto)):
        raise ModelError(
            f"{source} refers to external data, whose folder is unknown: give the path of the file instead"
        )
    return Loaded(_to_ir(proto, source, None), source, hashlib.sha256(data).hexdigest())


def _parse(data: bytes, source: str) -> onnx.ModelProto:
    if not data:
        raise ModelError(f"{source} is empty")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as err:
        raise ModelError(_not_onnx(data, source)) from err
    if not proto.graph.node and not proto.graph.output:
        raise ModelError(_not_onnx(data, source))
    return proto


def _not_onnx(data: bytes, source: str) -> str:
    for magic, what in _MAGIC.items():
        if data.lstrip()[: len(magic)] == magic or data[: len(magic)] == magic:
            return f"{source} is not an ONNX file: it looks like {what}"
    # An ONNX file starts with field 1 (ir_version), a small number.
    if len(data) > 2 and data[0] == 0x08 and 1 <= data[1] <= 32:
        return f"{source} starts like an ONNX file but cannot be parsed: truncated or damaged ({len(data)} bytes)"
    return f"{source} is not an ONNX file"


def _to_ir(proto: onnx.ModelProto, source: str, folder: Path | None) -> onnx_ir.Model:
    # Its warnings are about graphs that `validate` refuses with words of its own.
    serde_log = logging.getLogger("onnx_ir.serde")
    level = serde_log.level
    serde_log.setLevel(logging.ERROR)
    try:
        model = onnx_ir.serde.deserialize_model(proto)
    except Exception as err:
        raise ModelError(f"{source} is not valid ONNX: {_first_line(err)}") from err
    finally:
        serde_log.setLevel(level)
    if folder is not None:
        for graph in model.graphs():
            onnx_ir.external_data.set_base_dir(graph, folder)
    return model


def _first_line(err: BaseException) -> str:
    root = err
    while root.__cause__ is not None:
        root = root.__cause__
    return (str(root).strip().splitlines() or [type(root).__name__])[0]


def _external_files(proto: onnx.ModelProto, folder: Path, source: str) -> dict[str, Path]:
    """Return location to file of all external data, checked; sorted, so that the digest does not depend on order."""
    files: dict[str, Path] = {}
    missing: dict[str, str] = {}
    for tensor in _external_tensors(proto):
        entries = {e.key: e.value for e in tensor.external_data}
        location = entries.get("location", "")
        clean = os.path.normpath(location)
        if not location or os.path.isabs(location) or clean == ".." or clean.startswith(f"..{os.sep}"):
            raise ModelError(
                f"{source}: weight {tensor.name} points to {location!r}, outside the model's folder; refused"
            )
        file = folder / clean
        if not file.is_file():
            missing.setdefault(location, tensor.name)
            continue
        _check_extent(entries, file, tensor.name, source)
        files[location] = file
    if missing:
        names = ", ".join(f"{location} (weight {weight})" for location, weight in missing.items())
        raise ModelError(f"{source}: external data missing in {folder}: {names}; put the file beside the model")
    return dict(sorted(files.items()))


def _check_extent(entries: dict[str, str], file: Path, weight: str, source: str) -> None:
    end = int(entries.get("offset", 0) or 0) + int(entries.get("length", 0) or 0)
    if end > file.stat().st_size:
        raise ModelError(
            f"{source}: external data {file.name} is truncated: weight {weight} ends at byte {end} of "
            f"{file.stat().st_size}"
        )


def _external_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from _tensors_of_graph(proto.graph)
    for function in proto.functions:
        for node in function.node:
            yield from _tensors_of_node(node)


def _tensors_of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from (t for t in graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL)
    for node in graph.node:
        yield from _tensors_of_node(node)


def _tensors_of_node(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    for attr in node.attribute:
        tensors = [attr.t, *attr.tensors] if attr.type == onnx.AttributeProto.TENSOR else list(attr.tensors)
        yield from (t for t in tensors if t.data_location == onnx.TensorProto.EXTERNAL)
        for graph in [attr.g, *attr.graphs] if attr.type == onnx.AttributeProto.GRAPH else list(attr.graphs):
            yield from _tensors_of_graph(graph)


def _hash_file(digest: hashlib._Hash, file: Path) -> None:
    with file.open("rb") as stream:
        while block := stream.read(1 << 22):
            digest.update(block)
