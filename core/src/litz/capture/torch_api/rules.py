"""Rules in Python by which ops are traced under autograd, and a trace that has other rules.

torch writes some ops in smaller ones before autograd sees them, and then autograd differentiates the smaller ones. An
op without such a rule is differentiated by its own formula, and decomposed after that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._C import DispatchKey
from torch._ops import OpOverload

aten = torch.ops.aten
Rules = Sequence[tuple[OpOverload, Callable[..., Any] | None]]
"""Ops, and the function that each is traced by; None for torch's own C++."""

RESAMPLING: Rules = tuple(
    (op, None)
    for name in (
        *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d"),
        *("_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d"),
        *("upsample_trilinear3d", "upsample_bicubic2d"),
    )
    for op in (getattr(aten, name).default, getattr(aten, name).vec)
)
"""The gradient of torch's rules adds at computed positions, four times for bilinear resampling; the gradient's own op
gathers."""


@contextlib.contextmanager
def traced_by(rules: Rules) -> Iterator[None]:
    """Ops are traced by other rules while the context is entered."""
    keys = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)
    before = [{key: op.py_kernels.pop(key) for key in keys if key in op.py_kernels} for op, _ in rules]
    for op, rule in rules:
        op.py_kernels.update({} if rule is None else {DispatchKey.Autograd: rule})
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for (op, _), old in zip(rules, before, strict=True):
            for key in keys:
                op.py_kernels.pop(key, None)
            op.py_kernels.update(old)
            op._dispatch_cache.clear()


__all__ = ["RESAMPLING", "Rules", "traced_by"]
