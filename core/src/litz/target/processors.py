"""Processors: what products of few rows take, by what torch's kernels may use.

In: torch's word for the processor, which names a data file (`figures/cpu-avx512.toml`). Out: a `FewRows`, or None for
one that nobody measured. A processor differs from the one that was measured, so these figures serve to compare two ways
of doing one product, which meet the same processor, and a margin is left between them
(`litz_contractions.products.few_rows`). The AVX-512 file has the library's bfloat16 with instructions for it, the
fastest there is short of AMX, which has no file.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path

import torch

from litz_plugins import FewRows

from .data import device_file, device_names, plain


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
    return None if has_tiles else few_rows_of(torch.backends.cpu.get_cpu_capability())


def file_here() -> str:
    """Returns the name of the data file of this processor; '' for none."""
    return _file(torch.backends.cpu.get_cpu_capability())


def few_rows_of(capability: str) -> FewRows | None:
    """Returns the figures for products of few rows of processors for which torch says `capability`; None if there are
    none."""
    file = _file(capability)
    row = device_file(file).get("few_rows") if file else None
    if row is None:
        return None
    library = {kind: plain(values) for kind, values in row["library_ns"].items()}
    names = ("multiply_add", "node", "written", "far", "packed")
    return FewRows(**{name: row[f"{name}_ns"] for name in names}, library=library, source=row["source"])


def _file(capability: str) -> str:
    file = f"cpu-{capability.lower()}"
    return file if file in device_names() else ""
