"""A thread for each output: elementwise kernels, windows, and the schedules that take any kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvmstack._tvm import gpu_rules, launch_once, tvm
from tvmstack.core.device import Device
from tvmstack.schedules.cpu.blocks import Fixed, Work, extent
from tvmstack.schedules.cuda.blocks import bind_flat, gpu_of, inline_producers, is_reduction, require, split_loops

__all__ = ["Dlight", "Elementwise", "Outputs", "Plain", "Serial"]

_THREADS = (64, 128, 256, 512)


class Elementwise:
    """A thread for every `vector` elements, `threads` of them a block."""

    name = "elementwise"

    def space(self, work: Work, device: Device) -> dict[str, list[int]]:
        """Return block sizes and vector widths; a vector stays within a row of memory."""
        return {"threads": list(_THREADS), "vector": [1, 2, 4] if _may_be_vectors(work) else [1]}

    def fits(self, decisions: Mapping[str, int], device: Device) -> bool:
        """Whether a block has no more threads than the GPU allows."""
        return decisions["threads"] <= gpu_of(device).threads_per_block

    def default(self, work: Work, device: Device) -> dict[str, int]:
        """Return vectors where enough threads are left to fill the GPU without them."""
        gpu = gpu_of(device)
        total = 1
        for loop in work.sch.get_loops(work.blocks[-1]):
            total *= extent(work.sch, loop)
        wide = _may_be_vectors(work) and total >= 4 * gpu.sms * gpu.threads_per_sm
        few = total <= 128 * gpu.sms
        return {"threads": 64 if few else 256, "vector": 4 if wide else 1}

    def schedule(self, work: Work, decisions: Mapping[str, Any], device: Device) -> None:
        """Inline everything into the last block and bind its loops."""
        require(self.fits(decisions, device), f"{decisions['threads']} threads a block")
        inline_producers(work, ())
        last = work.blocks[-1]
        loops = list(work.sch.get_loops(last)) or [work.sch.add_unit_loop(last)]
        bind_flat(work, loops, decisions["threads"], decisions["vector"])


def _may_be_vectors(work: Work) -> bool:
    """Whether all the kernel reads and writes runs along its last axis, in numbers of 4 bytes, without a choice."""
    sch = work.sch
    loops = list(sch.get_loops(work.blocks[-1])) if work.blocks else []
    text = sch.mod["main"].script()
    plain = "if_then_else" not in text and "Select" not in text and "int64" not in text and "bool" not in text
    return bool(loops) and plain and extent(sch, loops[-1]) % 4 == 0 and "//" not in text and "%" not in text


class Outputs:
    """A thread for each output, which does the sums it needs itself: windows of a few numbers."""

    name = "outputs"

    def space(self, work: Work, device: Device) -> dict[str, list[int]]:
        """Return block sizes, and whether the sums are unrolled."""
        return {"threads": list(_THREADS), "unroll": [0, 1]}

    def fits(self, decisions: Mapping[str, int], device: Device) -> bool:
        """Whether a block has no more threads than the GPU allows."""
        return decisions["threads"] <= gpu_of(device).threads_per_block

    def default(self, work: Work, device: Device) -> dict[str, int]:
        """Return small blocks, which spread over the SMs."""
        return {"threads": 128, "unroll": 1}

    def schedule(self, work: Work, decisions: Mapping[str, Any], device: Device) -> None:
        """Bind the last block's loops and compute the sums at each thread, in registers."""
        require(self.fits(decisions, device), f"{decisions['threads']} threads a block")
        sch, last = work.sch, work.blocks[-1]
        sums = [b for b in work.blocks if is_reduction(work, b)]
        inline_producers(work, ())
        spatial, reduced = split_loops(work, last)
        thread = bind_flat(work, spatial or [sch.add_unit_loop(last)], decisions["threads"])
        if decisions["unroll"] and reduced:
            sch.annotate(reduced[0], "pragma_auto_unroll_max_step", 32)
            sch.annotate(reduced[0], "pragma_unroll_explicit", 0)
        for block in reversed([b for b in sums if b is not last]):
            count = len(split_loops(work, block)[1])
            for index in range(len(sch.get(block).writes)):
                sch.set_scope(block, index, "local")
            sch.compute_at(block, thread)
            if decisions["unroll"]:
                loop = sch.get_loops(block)[-count]
                sch.annotate(loop, "pragma_auto_unroll_max_step", 32)
                sch.annotate(loop, "pragma_unroll_explicit", 0)


class _Whole(Fixed):
    """A schedule that a pass over the module makes."""

    name = ""

    def run(self, mod: Any, device: Device) -> Any:
        raise NotImplementedError

    def schedule(self, work: Work, decisions: Mapping[str, Any], device: Device) -> None:
        """Let the pass schedule the function, and refuse what it leaves unbound."""
        made = self.run(work.sch.mod, device)["main"]
        work.finished = made.with_attr("global_symbol", "main")

    def fits(self, decisions: Mapping[str, int], device: Device) -> bool:
        """There is nothing to decide."""
        return True


class Dlight(_Whole):
    """TVM's rules for GPUs (DLight), the first that takes the kernel."""

    name = "dlight"

    def run(self, mod: Any, device: Device) -> Any:
        """Apply the rules."""
        try:
            with tvm.target.Target(device.target()):
                return gpu_rules()(mod)
        except Exception as err:  # rules fail in whatever way on kernels they did not expect; the next step takes those
            raise ValueError(f"DLight failed: {err}") from err


class Plain(Fixed):
    """A kernel for each block, a thread for each of its outputs: slow, and right for all that is made of blocks."""

    name = "plain"

    def fits(self, decisions: Mapping[str, int], device: Device) -> bool:
        """There is nothing to decide."""
        return True

    def schedule(self, work: Work, decisions: Mapping[str, Any], device: Device) -> None:
        """Bind the loops of each block; what passes between them stays in memory."""
        if not work.blocks:
            raise ValueError("it is not made of blocks")
        for block in work.blocks:
            spatial, reduced = split_loops(work, block)
            work.sch.reorder(*spatial, *reduced)
            bind_flat(work, spatial or [work.sch.add_unit_loop(block)], gpu_of(device).threads_per_block // 4)


class Serial(_Whole):
    """The function as it is written, run by one thread: slow, and right for anything."""

    name = "serial"

    def run(self, mod: Any, device: Device) -> Any:
        """Put the whole body under one thread."""
        return tvm.IRModule({"main": launch_once(mod["main"])})
