"""Rules in Python by which ops are traced under autograd, and a trace that has other rules.

torch writes some ops in smaller ones before autograd sees them, and then autograd differentiates the smaller ones. An
op without such a rule is differentiated by its own formula, and decomposed after that.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._C import DispatchKey
from torch._ops import OpOverload

from .shapes import suggested_format

aten = torch.ops.aten
Rules = Sequence[tuple[OpOverload, Callable[..., Any] | None]]
"""Ops, and the function that each is traced by; None for torch's own C++."""

RESAMPLING = (
    *(f"{name}{ndim}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for ndim in (1, 2, 3)),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
)
"""The names of all ops that resample, for which torch has rules."""


def rules_of_resampling() -> Rules:
    """Returns rules that keep resampling of constant sizes whole. The gradient of torch's rules adds at computed
    positions, four times for bilinear resampling; the gradient's own op gathers. Sizes that are symbols keep torch's
    rules, as torch's C++ would make constants of the symbols."""
    importlib.import_module("torch._decomp.decompositions")  # has torch's rules
    found: list[tuple[OpOverload, Callable[..., Any] | None]] = []
    for name in RESAMPLING:
        packet = getattr(aten, name)
        usual = packet.vec.py_kernels.get(DispatchKey.Autograd)
        if usual is not None:
            found += [(packet.default, None), (packet.vec, functools.partial(_whole, packet.default, usual))]
    return tuple(found)


def _whole(
    op: OpOverload, usual: Callable[..., Any], x: torch.Tensor, output_size: Any, *corners_and_factors: Any
) -> torch.Tensor:
    from torch._decomp.decompositions import upsample_compute_output_size

    *corners, factors = corners_and_factors
    if not all(isinstance(value, (int, float)) for value in (*x.shape, *(output_size or ()), *(factors or ()))):
        # On a GPU torch's rules give few channels contiguous, and its kernels give them as the input lies.
        result: torch.Tensor = usual(x, output_size, *corners_and_factors)
        return result.contiguous(memory_format=suggested_format(x))
    size = upsample_compute_output_size(x.size(), output_size, factors)
    whole: torch.Tensor = op(x, size, *corners, *(factors or [None] * len(size)))
    return whole


@contextlib.contextmanager
def traced_by(rules: Rules) -> Iterator[None]:
    """Ops are traced by other rules while the context is entered."""
    keys = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)
    before = [{key: op.py_kernels.pop(key) for key in keys if key in op.py_kernels} for op, _ in rules]
    for (op, rule), old in zip(rules, before, strict=True):
        op.py_kernels.update({} if rule is None else dict.fromkeys((DispatchKey.Autograd, *old), rule))
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for (op, _), old in zip(rules, before, strict=True):
            for key in keys:
                op.py_kernels.pop(key, None)
            op.py_kernels.update(old)
            op._dispatch_cache.clear()
        # torch.export keeps which ops have rules: asked inside, what it keeps would contradict the rules.
        collected = getattr(
            sys.modules.get("torch._export.utils"), "_collect_all_valid_cia_ops_for_aten_namespace", None
        )
        if collected is not None:
            collected.cache_clear()


__all__ = ["RESAMPLING", "Rules", "rules_of_resampling", "traced_by"]
