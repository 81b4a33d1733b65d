"""The device a program is tuned for and bound to, identified by what matters for speed."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmstack.core.errors import UsageError, nearest
from tvmstack.core.gpu import GPUS, Gpu

__all__ = ["Device", "detect_device", "device_from_facts", "device_from_text", "instruction_levels", "physical_cores"]

# x86 levels from the widest to the plainest: (LLVM mcpu, the /proc/cpuinfo flags it needs). Chosen by features,
# because a
# hypervisor's model name says little ("Intel Xeon Processor") and LLVM's own guess is wrong on such machines.
_X86_LEVELS: tuple[tuple[str, frozenset[str]], ...] = (
    ("sapphirerapids", frozenset({"amx_tile", "amx_bf16", "avx512_fp16", "avx512_bf16", "avx_vnni"})),
    ("cooperlake", frozenset({"avx512_bf16", "avx512_vnni", "avx512f", "avx512bw", "avx512vl", "avx512dq"})),
    (
        "icelake-server",
        frozenset({"avx512_vnni", "avx512_vbmi2", "vaes", "avx512f", "avx512bw", "avx512vl", "avx512dq"}),
    ),
    ("cascadelake", frozenset({"avx512_vnni", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd"})),
    ("skylake-avx512", frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd"})),
    ("haswell", frozenset({"avx2", "fma", "bmi2", "f16c"})),
    ("nehalem", frozenset({"sse4_2", "popcnt"})),
    ("x86-64", frozenset()),
)
# ARM cores by LLVM's name: (the kernel's flags of what LLVM uses on it, cores and caches of a usual chip with it).
_ARM_CORES: dict[str, tuple[frozenset[str], int, tuple[int, int, int]]] = {
    "cortex-a72": (frozenset({"asimd"}), 4, (32 << 10, 1 << 20, 0)),
    "cortex-a53": (frozenset({"asimd"}), 4, (32 << 10, 512 << 10, 0)),
    "cortex-a55": (frozenset({"asimd", "asimddp", "fphp"}), 4, (32 << 10, 256 << 10, 2 << 20)),
    "cortex-a76": (frozenset({"asimd", "asimddp", "fphp"}), 4, (64 << 10, 512 << 10, 2 << 20)),
    "neoverse-n1": (frozenset({"asimd", "asimddp", "fphp"}), 4, (64 << 10, 1 << 20, 32 << 20)),
    "neoverse-v1": (
        frozenset({"asimd", "asimddp", "fphp", "i8mm", "bf16", "sve"}),
        4,
        (64 << 10, 1 << 20, 32 << 20),
    ),
}
# "CPU part" of /proc/cpuinfo.
_ARM_PARTS = {
    "0xd03": "cortex-a53",
    "0xd05": "cortex-a55",
    "0xd08": "cortex-a72",
    "0xd0b": "cortex-a76",
    "0xd0c": "neoverse-n1",
    "0xd40": "neoverse-v1",
}
# The flags that a build relies on, and that `check` therefore demands: the features of each level, level by level.
_SPEED_FEATURES = frozenset({"sve2"}).union(
    *(need for _, need in _X86_LEVELS), *(need for need, _, _ in _ARM_CORES.values())
)


@dataclass(frozen=True)
class Device:
    """A CPU, or an NVIDIA GPU with the CPU that drives it, as a compilation target.

    Attributes:
        kind: "cpu" or "cuda".
        name: the model name as the system gives it, for people.
        arch: "x86_64" or "aarch64".
        mcpu: LLVM's name for the instruction set level, derived from features.
        features: the ISA features that matter for speed, sorted.
        cores: physical cores this process may use; also the default thread count.
        caches: sizes of L1d, L2 and L3 in bytes (0 where unknown).
        sm: "sm_80" and the like where `kind` is "cuda", else "". The fields before it are then the host's.
    """

    kind: str
    name: str
    arch: str
    mcpu: str
    features: tuple[str, ...]
    cores: int
    caches: tuple[int, int, int]
    sm: str = ""

    @property
    def id(self) -> str:
        """A short id that is the same after a reboot and in a container of the same shape."""
        if self.sm:
            return f"cuda-{self.sm}-{self.arch}"
        facts = json.dumps([self.kind, self.name, self.arch, self.mcpu, self.features, self.cores, self.caches])
        return f"{self.mcpu}-{self.cores}c-{hashlib.sha256(facts.encode()).hexdigest()[:8]}"

    @property
    def gpu(self) -> Gpu | None:
        """The figures of the GPU, None for a CPU."""
        return GPUS[self.sm] if self.sm else None

    @property
    def vector_bits(self) -> int:
        """Width of a vector register in bits."""
        if self.arch == "x86_64":
            return 512 if "avx512f" in self.features else 256 if "avx2" in self.features else 128
        return 128

    @property
    def vector_registers(self) -> int:
        """Number of vector registers."""
        return 32 if self.arch != "x86_64" or self.vector_bits == 512 else 16

    def target(self) -> dict[str, Any]:
        """Return TVM's target in dict form, the only form TVM 0.27 parses."""
        base: dict[str, Any] = {"kind": "llvm", "mcpu": self.mcpu, "num-cores": self.cores}
        if self.arch != platform.machine():
            base["mtriple"] = f"{self.arch}-linux-gnu"
        if self.gpu is None:
            return base
        return {
            "kind": "cuda",
            "arch": self.sm,
            "max_threads_per_block": self.gpu.threads_per_block,
            "max_shared_memory_per_block": self.gpu.shared_per_block,
            "thread_warp_size": self.gpu.warp,
            "host": base,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the device as plain data, its id included for readers."""
        return {
            "id": self.id,
            "kind": self.kind,
            "name": self.name,
            "arch": self.arch,
            "mcpu": self.mcpu,
            "features": list(self.features),
            "cores": self.cores,
            "caches": list(self.caches),
            **({"sm": self.sm} if self.sm else {}),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Device:
        """Rebuild a device from `to_json`."""
        l1, l2, l3 = data["caches"]
        return Device(
            data["kind"],
            data["name"],
            data["arch"],
            data["mcpu"],
            tuple(data["features"]),
            data["cores"],
            (l1, l2, l3),
            data.get("sm", ""),
        )


def detect_device() -> Device:
    """Return the CPU this process runs on."""
    name, flags, part = _cpuinfo()
    return device_from_facts(platform.machine(), name, flags, physical_cores(), _caches(), part)


def device_from_facts(
    arch: str, name: str, flags: Collection[str], cores: int, caches: tuple[int, int, int], part: str = ""
) -> Device:
    """Return the device that a kernel describes so: its flags and its "CPU part" as /proc/cpuinfo gives them."""
    features = tuple(sorted(_SPEED_FEATURES & frozenset(flags)))
    mcpu = _x86_level(frozenset(flags)) if arch == "x86_64" else _arm_core(features, part)
    return Device("cpu", name, arch, mcpu, features, cores, caches)


def device_from_text(text: str | None) -> Device:
    """Return the device a user named: nothing, "host" or "cpu" for this machine, "cpu:MCPU" for a level or another CPU.

    A level of this machine's architecture keeps its cores and caches, so that a program for an older CPU can be built
    and run here. An ARM core gets the cores and caches of a usual chip with it; a board is asked for its own.
    "cuda:SM" is a GPU of that generation, driven by any CPU of this machine's architecture.
    """
    host = detect_device()
    if text in (None, "host", "cpu"):
        return host
    kind, _, level = str(text).partition(":")
    if kind == "cuda":
        return _cuda_device(str(text), level)
    if kind != "cpu" or not level:
        raise UsageError(
            f"unknown device {text!r}; accepted: host, cpu, cpu:MCPU (for example cpu:haswell), "
            "cuda:SM (for example cuda:sm_80)"
        )
    if level in _ARM_CORES:
        need, cores, caches = _ARM_CORES[level]
        return Device("cpu", level, "aarch64", level, tuple(sorted(need)), cores, caches)
    needs = dict(_X86_LEVELS) if host.arch == "x86_64" else {}
    if level not in needs:
        raise UsageError(f"unknown device {text!r}; {nearest(level, [*needs, *_ARM_CORES])}")
    index = [m for m, _ in _X86_LEVELS].index(level)
    allowed = frozenset().union(*(need for _, need in _X86_LEVELS[index:])) if level != "x86-64" else frozenset()
    features = tuple(sorted(allowed & _SPEED_FEATURES))
    return Device("cpu", f"generic {level}", host.arch, level, features, host.cores, host.caches)


def instruction_levels(arch: str) -> list[tuple[str, frozenset[str]]]:
    """Return LLVM's names of an architecture's levels and the features each needs, the widest first."""
    if arch == "x86_64":
        return list(_X86_LEVELS)
    cores = [(name, need) for name, (need, _, _) in _ARM_CORES.items()]
    return sorted(cores, key=lambda core: -len(core[1]))


def _cuda_device(text: str, sm: str) -> Device:
    """Return the GPU of a name; the host's code does next to nothing, so it is built for the plainest CPU."""
    if sm not in GPUS:
        raise UsageError(f"unknown device {text!r}; {nearest(sm, GPUS) if sm else 'known: ' + ', '.join(GPUS)}")
    arch = platform.machine()
    mcpu = _X86_LEVELS[-1][0] if arch == "x86_64" else "generic"
    return Device("cuda", f"{GPUS[sm].card} and others of {sm}", arch, mcpu, (), 1, (0, 0, 0), sm)


def physical_cores() -> int:
    """Return how many physical cores this process may use: by affinity, SMT siblings and cgroup quota."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = set()
    for cpu in allowed:
        sibling = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(sibling.read_text().strip() if sibling.exists() else str(cpu))
    count = max(1, len(cores))
    quota = _cgroup_quota()
    return max(1, min(count, quota)) if quota else count


def _cgroup_quota() -> int:
    limit = Path("/sys/fs/cgroup/cpu.max")
    if not limit.exists():
        return 0
    quota, _, period = limit.read_text().partition(" ")
    return 0 if quota == "max" else max(1, round(int(quota) / int(period)))


def _x86_level(flags: frozenset[str]) -> str:
    return next(mcpu for mcpu, need in _X86_LEVELS if need <= flags)


def _arm_core(features: Collection[str], part: str) -> str:
    """Return LLVM's name of an ARM core: by its part, else the plainest core with these features."""
    if part in _ARM_PARTS:
        return _ARM_PARTS[part]
    fitting = [name for name, (need, _, _) in _ARM_CORES.items() if need <= frozenset(features)]
    return max(fitting, key=lambda name: len(_ARM_CORES[name][0]), default="generic")


def _cpuinfo() -> tuple[str, frozenset[str], str]:
    name, flags, part = platform.processor() or platform.machine(), frozenset[str](), ""
    path = Path("/proc/cpuinfo")
    for line in path.read_text().splitlines() if path.exists() else ():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = " ".join(value.split())
        elif key.strip() in ("flags", "Features") and not flags:
            flags = frozenset(value.split())
        elif key.strip() == "CPU part":
            part = value.strip()
    return name, flags, part


def _caches() -> tuple[int, int, int]:
    sizes = {1: 0, 2: 0, 3: 0}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        if (index / "type").read_text().strip() == "Instruction":
            continue
        text = (index / "size").read_text().strip()
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1], 1)
        sizes[int((index / "level").read_text())] = int(text.rstrip("KMG")) * unit
    return sizes[1], sizes[2], sizes[3]
