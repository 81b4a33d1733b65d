"""From scheduled kernels to a shared library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvmstack import schedules
from tvmstack._tvm import tvm
from tvmstack.core.kernel import Choice
from tvmstack.lower.pipeline import Lowered

__all__ = ["arena_bytes", "build_executable", "build_library", "scheduled_module"]


def scheduled_module(lowered: Lowered, choices: Mapping[str, Choice]) -> Any:
    """Return the module with each kernel scheduled by its choice, or by its template's default."""
    mod = tvm.IRModule(dict(lowered.mod.functions), attrs=lowered.mod.attrs)
    for kernel in lowered.kernels:
        choice = choices.get(kernel.name) or schedules.default_choice(kernel.func, lowered.device)
        mod[kernel.name] = schedules.apply(kernel.func, choice, lowered.device)
    return mod


def build_executable(lowered: Lowered, choices: Mapping[str, Choice]) -> Any:
    """Compile the scheduled module to TVM's VM executable."""
    with tvm.transform.PassContext(opt_level=3):
        return tvm.compile(scheduled_module(lowered, choices), target=tvm.target.Target(lowered.device.target()))


def build_library(lowered: Lowered, choices: Mapping[str, Choice], path: Path) -> int:
    """Compile and link the module into the shared library `path` without its weights; return the arena's bytes."""
    executable = build_executable(lowered, choices)
    executable.export_library(str(path))
    return arena_bytes(executable)


def arena_bytes(executable: Any) -> int:
    """Return the bytes of the storages that one run plans for intermediate results and outputs."""
    pool = _constant_pool(str(executable.stats()))
    total = 0
    for line in str(executable.as_text()).splitlines():
        found = re.search(r"vm\.builtin\.alloc_storage in: %vm, c\[(\d+)\]", line)
        size = re.fullmatch(r"shapetuple\[(\d+)\]", pool[int(found.group(1))]) if found else None
        total += int(size.group(1)) if size else 0
    return total


def _constant_pool(stats: str) -> list[str]:
    """Split the constant pool in the statistics of an executable at its top-level commas."""
    start = stats.index("Constant pool")
    # TVM prints the empty shape as "shapetupl]"
    text = stats[stats.index("[", start) + 1 :].replace("shapetupl]", "shapetuple[]")
    items, depth, quoted, item = [], 0, False, ""
    for char in text:
        quoted ^= char == '"'
        depth += 0 if quoted else (char in "[(") - (char in "])")
        if depth < 0:
            break
        if char == "," and depth == 0 and not quoted:
            items.append(item.strip())
            item = ""
        else:
            item += char
    return [*items, item.strip()]
