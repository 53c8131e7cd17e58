"""What both halves of the seed document test_inductor_collectives compare and compile with."""

from __future__ import annotations

import functools
from typing import Any

import torch


def same(a: Any, b: Any, tol: float = 1e-5) -> bool:
    torch.testing.assert_close(a, b, atol=tol, rtol=tol)
    return True


litz = functools.partial(torch.compile, backend="litz", options={"debug": True})
