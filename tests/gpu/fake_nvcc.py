"""Stands for nvcc where a test needs its answers and not its code: the same options in, a report and a file out."""

from __future__ import annotations

import re
import sys
from pathlib import Path


def main() -> int:
    arguments = sys.argv[1:]
    source = Path(arguments[-3] if arguments[-2] == "-gencode" else arguments[-1]).read_text()
    out = Path(arguments[arguments.index("-o") + 1])
    refuse = (Path(__file__).parent / "refuse").read_text() if (Path(__file__).parent / "refuse").exists() else ""
    if refuse and refuse in source:
        sys.stderr.write(f"kernels.cu(1): error: no room for {refuse}\n")
        return 2
    arch = re.search(r"code=\[(sm_\d+)", arguments[-1]).group(1)  # type: ignore[union-attr]
    for name in sorted(set(re.findall(r"void __launch_bounds__\(\d+\) (\w+)\(", source))):
        sys.stderr.write(f"ptxas info    : Compiling entry function '{name}' for '{arch}'\n")
        sys.stderr.write("    0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n")
        sys.stderr.write("ptxas info    : Used 40 registers, used 1 barriers, 2048 bytes smem\n")
    out.write_bytes(b"not really a fat binary")
    return 0


if __name__ == "__main__":
    sys.exit(main())
