"""Which torch the tests run with, for cases in which an older torch fails by itself."""

from __future__ import annotations

import torch

OLD_TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 13)
"""torch 2.11 or 2.12: the GPU machines have 2.11, CI has 2.13."""
