"""What must be equal for a record to be used as it stands, and what makes two kernels alike."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from tvmstack.core.device import Device

__all__ = [
    "FIELDS",
    "PROTOCOL",
    "KeyContext",
    "choice_digest",
    "context_digest",
    "shape_distance",
    "shape_signature",
    "structure_digest",
    "workload_digest",
]

PROTOCOL = "2"
"""How a kernel is measured; raised when times stop being comparable."""

FIELDS = ("device", "target", "versions", "pipeline", "schedules", "protocol")
"""The fields of a key besides the kernel, in the order in which they are told."""

_KEYWORDS = frozenset(
    {"def", "for", "in", "with", "if", "else", "while", "and", "or", "not", "True", "False", "None", "T"}
)
_STRING = r'"(?:[^"\\]|\\.)*"'
_NAME = re.compile(rf"{_STRING}|(?<![\w.])[A-Za-z_]\w*(?!\w)(?!=[^=])")
_BUFFER = re.compile(r"(\w+): T\.Buffer\(\(([^\"]*)\), \"(\w+)\"")


def workload_digest(workload: str) -> str:
    """Return sixteen hex digits of a workload's text."""
    return hashlib.sha256(workload.encode()).hexdigest()[:16]


def context_digest(fields: Mapping[str, str]) -> str:
    """Return sixteen hex digits of the key's fields."""
    return workload_digest(json.dumps([fields[name] for name in FIELDS]))


def choice_digest(text: str) -> str:
    """Return thirty-two hex digits of a choice's canonical JSON."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@functools.lru_cache(maxsize=4096)
def structure_digest(workload: str) -> str:
    """Return sixteen hex digits of what a kernel computes: its text without names of variables and attributes.

    Names of blocks stay, since traces refer to them. Kernels of other pipelines and TVM versions meet ours here.
    """
    lines = [
        line
        for line in workload.splitlines()
        if line.strip() and not line.lstrip().startswith(("#", "@", "T.func_attr("))
    ]
    names: dict[str, str] = {}

    def rename(found: re.Match[str]) -> str:
        word = found.group()
        if word[0] == '"' or word in _KEYWORDS:
            return word
        return names.setdefault(word, f"v{len(names)}")

    return workload_digest(_NAME.sub(rename, "\n".join(lines)))


def shape_signature(workload: str) -> str:
    """Return dtypes and shapes of a kernel's arguments, like "float32[1,64,56,56] float32[64]"."""
    head = next((line for line in workload.splitlines() if line.startswith("def ")), "")
    found = [
        (dtype, re.findall(r"\b(\d+)\b", re.sub(r"T\.int\d+", "", dims))) for _, dims, dtype in _BUFFER.findall(head)
    ]
    return " ".join(f"{dtype}[{','.join(dims)}]" for dtype, dims in found)


def shape_distance(one: str, other: str) -> float:
    """Return how far two signatures are apart: the sum of |log2| of the ratios of dims; infinite for other ranks."""
    (kinds, mine), (others, theirs) = _dims(one), _dims(other)
    if kinds != others:
        return math.inf
    return sum(abs(a - b) for a, b in zip(mine, theirs, strict=True))


@functools.lru_cache(maxsize=8192)
def _dims(signature: str) -> tuple[tuple[tuple[str, int], ...], tuple[float, ...]]:
    """Return (dtype, rank) of each argument, and log2 of all dims in one row."""
    found = [(dtype, dims.split(",") if dims else []) for dtype, dims in re.findall(r"(\w+)\[([\d,]*)\]", signature)]
    kinds = tuple((dtype, len(dims)) for dtype, dims in found)
    return kinds, tuple(math.log2(max(int(d), 1)) for _, dims in found for d in dims)


@dataclass(frozen=True)
class KeyContext:
    """Everything of a key but the kernel.

    Attributes:
        device: the device, by what matters for speed.
        target: TVM's target as canonical JSON.
        versions: of TVM and tvm-ffi (LLVM comes with TVM), as "tvm 0.27.0, ffi 0.1.14".
        pipeline: digest of the passes that prepared the kernel.
        schedules: version of the templates.
        protocol: version of the measuring method.
    """

    device: Device
    target: str
    versions: str
    pipeline: str
    schedules: str
    protocol: str = PROTOCOL

    @staticmethod
    def current(device: Device, pipeline_digest: str) -> KeyContext:
        """Return the context of measurements made now, with what is installed."""
        from tvmstack.schedules import VERSION

        versions = f"tvm {version('apache-tvm')}, ffi {version('apache-tvm-ffi')}"
        target = json.dumps(device.target(), sort_keys=True)
        return KeyContext(device, target, versions, pipeline_digest, VERSION)

    @functools.cached_property
    def fields(self) -> Mapping[str, Any]:
        """The fields of the key by name, as they stand in the database."""
        return {
            "device": self.device.id,
            "target": self.target,
            "versions": self.versions,
            "pipeline": self.pipeline,
            "schedules": self.schedules,
            "protocol": self.protocol,
        }

    @functools.cached_property
    def digest(self) -> str:
        """Sixteen hex digits of the fields."""
        return context_digest(self.fields)
