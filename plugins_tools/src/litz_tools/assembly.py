"""The machine code of CUDA kernels, as text. In: a cubin. Out: what `nvdisasm` says, which comes with Triton."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

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
        try:
            done = subprocess.run([tool, "-c", str(file)], capture_output=True, text=True, check=False, timeout=SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            return None
    return None if done.returncode else done.stdout
