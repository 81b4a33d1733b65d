"""Published figures of NVIDIA's streaming multiprocessors (SM): what a kernel may use, and what an estimate needs.

Limits are those of the CUDA C++ Programming Guide's table of technical specifications per compute capability. SM count,
clock and bandwidth are of one usual card with that SM, named in `card`; a build runs on the others too.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GPUS", "Gpu"]


@dataclass(frozen=True)
class Gpu:
    """One SM generation.

    Attributes:
        arch: the compiler's name, like "sm_80".
        card: a usual card with it, whose figures `sms`, `clock_ghz`, `bandwidth_gbs` and `l2_bytes` are.
        sms: how many SMs the card has.
        clock_ghz: boost clock.
        fp32_lanes: fp32 multiply-adds an SM starts in a cycle.
        bandwidth_gbs: memory bandwidth in GB/s.
        l2_bytes: size of the L2 cache.
        shared_per_sm: shared memory of an SM in bytes.
        threads_per_sm: threads an SM holds.
        blocks_per_sm: blocks an SM holds.
        shared_per_block: shared memory a block may declare statically, in bytes.
        threads_per_block: threads a block may have.
        registers_per_sm: 32-bit registers of an SM.
        registers_per_thread: 32-bit registers a thread may have.
        warp: threads that run in step.
    """

    arch: str
    card: str
    sms: int
    clock_ghz: float
    fp32_lanes: int
    bandwidth_gbs: float
    l2_bytes: int
    shared_per_sm: int
    threads_per_sm: int
    blocks_per_sm: int
    shared_per_block: int = 48 << 10
    threads_per_block: int = 1024
    registers_per_sm: int = 65536
    registers_per_thread: int = 255
    warp: int = 32

    @property
    def flops(self) -> float:
        """Peak fp32 operations of the card in a second."""
        return 2e9 * self.sms * self.fp32_lanes * self.clock_ghz

    @property
    def compute(self) -> str:
        """The virtual architecture whose PTX later cards can still take, like "compute_80"."""
        return self.arch.replace("sm_", "compute_")


GPUS: dict[str, Gpu] = {
    g.arch: g
    for g in (
        Gpu("sm_75", "T4", 40, 1.59, 64, 320, 4 << 20, 64 << 10, 1024, 16),
        Gpu("sm_80", "A100 SXM 40 GB", 108, 1.41, 64, 1555, 40 << 20, 164 << 10, 2048, 32),
        Gpu("sm_86", "A10", 72, 1.695, 128, 600, 6 << 20, 100 << 10, 1536, 16),
        Gpu("sm_87", "Jetson AGX Orin 64 GB", 16, 1.3, 128, 204.8, 4 << 20, 164 << 10, 1536, 16),
        Gpu("sm_89", "L4", 58, 2.04, 128, 300, 48 << 20, 100 << 10, 1536, 24),
        Gpu("sm_90", "H100 SXM", 132, 1.98, 128, 3350, 50 << 20, 228 << 10, 2048, 32),
        Gpu("sm_100", "B200", 148, 1.965, 128, 8000, 126 << 20, 228 << 10, 2048, 32),
        Gpu("sm_120", "RTX PRO 6000 Blackwell", 188, 2.617, 128, 1792, 128 << 20, 100 << 10, 1536, 24),
    )
}
