"""The processor of this process: its data file, and what torch's library offers."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path

import torch

from .data import device_names


@lru_cache
def has_blas() -> bool:
    """Returns whether torch's library offers BLAS (`sgemm_`) to others. Builds with MKL do."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        return hasattr(ctypes.CDLL(str(library)), "sgemm_")
    except OSError:
        return False


def file_here() -> str:
    """Returns the name of this processor's data file, by torch's word for what its kernels may use; '' where there is
    none, as there is none for AMX."""
    has_tiles = getattr(torch.cpu, "_is_amx_tile_supported", lambda: True)()
    file = f"cpu-{torch.backends.cpu.get_cpu_capability().lower()}"
    return file if not has_tiles and file in device_names() else ""
