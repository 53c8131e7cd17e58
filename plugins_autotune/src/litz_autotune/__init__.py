"""litz-autotune: for each matrix product, the library call or the Triton kernel that is measurably faster.

    torch.compile(model, backend="litz", mode="max-autotune-no-cudagraphs")

`templates/` offers kernels for a contraction, with the pointwise operations that use its result fused into them;
`tune.py` measures the best few against the library call with those operations as kernels of their own, and keeps the
library unless a kernel wins by more than the measurements' noise. What was measured is kept on disk.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {"Autotune": "plugin", "NoValidChoicesError": "errors"}

__all__ = ["Autotune", "NoValidChoicesError"]


def __getattr__(name: str) -> Any:
    """Names are imported when they are asked for: a measuring process should import no more than it needs."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
