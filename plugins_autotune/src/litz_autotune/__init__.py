"""litz-autotune: for each matrix product, the library call or the Triton kernel that is measurably faster.

    torch.compile(model, backend="litz", mode="max-autotune-no-cudagraphs")

`templates/` offers kernels for a contraction, with the pointwise operations that use its result fused into them;
`tune.py` measures the best few against the library call with those operations as kernels of their own, and keeps the
library unless a kernel wins by more than the measurements' noise. What was measured is kept on disk.
"""

from .errors import NoValidChoicesError
from .plugin import Autotune

__all__ = ["Autotune", "NoValidChoicesError"]
