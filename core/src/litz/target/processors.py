"""The table of processors: what products of few rows take, by what torch's kernels may use.

In: torch's word for the processor. Out: a `FewRows`, or None for one that nobody measured. A processor differs from the
one that was measured, so these figures serve to compare two ways of doing one product, which meet the same processor,
and a margin is left between them (`litz_contractions.products.few_rows`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import torch

from litz_plugins import FewRows

_FLOAT = (0.074, 0.143, 0.24, 0.36, 0.55)
_SOURCE = "EPYC 9005 (Zen 5), one thread, 2048 x 2048 weights, torch 2.13, g++ 12, 2026-11-22"

PROCESSORS: Mapping[str, FewRows] = {
    "AVX512": FewRows(0.03, 0.013, 0.11, 0.075, 0.7, {"fp32": _FLOAT, "bf16": (0.08, 0.08, 0.07, 0.1, 0.13)}, _SOURCE),
    "AVX2": FewRows(
        0.03,
        0.013,
        0.11,
        0.075,
        0.7,
        {"fp32": _FLOAT, "bf16": (0.075, 0.148, 0.3, 0.7, 1.37)},
        f"{_SOURCE}, with ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA and MKL_ENABLE_INSTRUCTIONS at AVX2",
    ),
}
"""The figures of processors, by `torch.backends.cpu.get_cpu_capability()`. The AVX-512 row has the library's bfloat16
with instructions for it, the fastest there is short of AMX, which is not in the table."""


@lru_cache
def has_blas() -> bool:
    """Does torch's library offer BLAS (`sgemm_`) to others? Builds with MKL do."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        return hasattr(ctypes.CDLL(str(library)), "sgemm_")
    except OSError:
        return False


def few_rows_here() -> FewRows | None:
    """Returns the figures for products of few rows on this processor; None if it was not measured or has AMX."""
    has_tiles = getattr(torch.cpu, "_is_amx_tile_supported", lambda: True)()
    return None if has_tiles else PROCESSORS.get(torch.backends.cpu.get_cpu_capability())
