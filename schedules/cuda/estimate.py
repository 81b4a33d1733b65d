"""How long a tile of a matrix product takes by a GPU's published figures: nothing can be measured at build time.

The model of Williams, Waterman and Patterson (2009, "Roofline") for a block, times the waves of blocks that the SMs
need: a kernel of 109 blocks on 108 SMs takes as long as one of 216.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvmstack.core.gpu import Gpu

__all__ = ["Tile", "blocks_at_once", "product_seconds"]

# Warps an SM needs for its latencies to be hidden by others, and how much independent work in a thread helps.
_BUSY_WARPS = 16
# Registers a thread needs beside its accumulators and the operands it holds.
_OWN_REGISTERS = 32
# Cycles from memory to shared memory for one stage, hidden by what other blocks of the SM do meanwhile.
_STAGE_CYCLES = 600
# Instructions that bring a number to shared memory: a convolution's gather works out where it is.
_LOAD_INSTRUCTIONS = 8
# What adding the parts of a divided sum in a second kernel costs at least.
_SECOND_KERNEL_S = 3e-6


@dataclass(frozen=True)
class Tile:
    """A tile of a product: what a block and what a thread computes, and the steps that are staged at once."""

    rows: int
    columns: int
    thread_rows: int
    thread_columns: int
    steps: int
    buffers: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (self.rows // self.thread_rows) * (self.columns // self.thread_columns)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block for fp32 operands."""
        return 4 * self.buffers * self.steps * (self.rows + self.columns)

    @property
    def registers(self) -> int:
        """An estimate of the registers of a thread."""
        return self.thread_rows * (self.thread_columns + 1) + self.thread_columns + _OWN_REGISTERS

    def refusal(self, gpu: Gpu) -> str:
        """Return why the GPU cannot run it, or nothing."""
        if self.rows % self.thread_rows or self.columns % self.thread_columns:
            return "a block's tile is no multiple of a thread's"
        if not gpu.warp <= self.threads <= gpu.threads_per_block:
            return f"{self.threads} threads a block, allowed are {gpu.warp} to {gpu.threads_per_block}"
        if self.shared_bytes > gpu.shared_per_block:
            return f"{self.shared_bytes} bytes of shared memory a block, allowed are {gpu.shared_per_block}"
        if self.registers > gpu.registers_per_thread:
            return f"about {self.registers} registers a thread, allowed are {gpu.registers_per_thread}"
        if self.registers * self.threads > gpu.registers_per_sm:
            return f"about {self.registers * self.threads} registers a block, an SM has {gpu.registers_per_sm}"
        return ""


def blocks_at_once(tile: Tile, gpu: Gpu) -> int:
    """Return how many blocks of a tile an SM holds (its occupancy)."""
    return max(
        1,
        min(
            gpu.blocks_per_sm,
            gpu.threads_per_sm // tile.threads,
            gpu.shared_per_sm // max(1, tile.shared_bytes),
            gpu.registers_per_sm // (tile.registers * tile.threads),
        ),
    )


def product_seconds(sizes: tuple[int, int, int, int], tile: Tile, split: int, gpu: Gpu) -> float:
    """Estimate the time of a product of b, i, j, k under a tile, its sum divided into `split` parts."""
    batch, rows, columns, steps = sizes
    blocks = batch * math.ceil(rows / tile.rows) * math.ceil(columns / tile.columns) * split
    depth = math.ceil(steps / split / tile.steps) * tile.steps
    held = min(blocks_at_once(tile, gpu), math.ceil(blocks / gpu.sms))
    waves = math.ceil(blocks / (gpu.sms * held))
    warps = held * tile.threads / gpu.warp
    busy = min(1.0, warps * math.sqrt(tile.thread_rows * tile.thread_columns) / 4 / _BUSY_WARPS)
    work = tile.rows * tile.columns * depth * held
    loads = (tile.rows + tile.columns) * depth * held * _LOAD_INSTRUCTIONS
    compute = (work + loads) / (gpu.fp32_lanes * busy)
    # Shared memory gives a warp 32 words a cycle; each step of a thread reads thread_rows + thread_columns words.
    words = work / (tile.thread_rows * tile.thread_columns) * (tile.thread_rows + tile.thread_columns)
    cycles = max(compute, words / gpu.warp) + depth / tile.steps * _STAGE_CYCLES / tile.buffers
    traffic = 4.0 * (blocks * depth * (tile.rows + tile.columns) * 0.5 + batch * rows * columns * (2 * split - 1))
    seconds = max(waves * cycles / (gpu.clock_ghz * 1e9), traffic / (gpu.bandwidth_gbs * 1e9))
    return seconds + (_SECOND_KERNEL_S if split > 1 else 0.0)
