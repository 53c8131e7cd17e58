"""The machine code of CUDA kernels, as text. In: a cubin. Out: what `nvdisasm` says, which comes with Triton."""

from __future__ import annotations

import tempfile
from pathlib import Path

from litz.runtime.builders import run_program

SUFFIX = ".sass.txt"
SECONDS = 20
"""The most that one kernel may take: the largest of litz's take half a second."""


def disassembler() -> str | None:
    """Returns the path of `nvdisasm`, None where Triton has none."""
    try:
        from triton import knobs

        return str(knobs.nvidia.nvdisasm.path)
    except (ImportError, AttributeError, RuntimeError):
        return None


def assembly_of(cubin: bytes) -> str | None:
    """Returns the instructions of a cubin (SASS), None where they cannot be had."""
    tool = disassembler()
    if tool is None:
        return None
    with tempfile.TemporaryDirectory(prefix="litz-sass-") as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        done = run_program([tool, "-c", str(file)], SECONDS)
    return None if done.problem else done.output
