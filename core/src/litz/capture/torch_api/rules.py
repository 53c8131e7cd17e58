"""Rules in Python by which ops are traced under autograd, and a trace that has other rules.

torch writes some ops in smaller ones before autograd sees them, and then autograd differentiates the smaller ones. An
op without such a rule is differentiated by its own formula, and decomposed after that.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
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


def traced_by(rules: Rules) -> contextlib.AbstractContextManager[None]:
    """Ops are traced by other rules while the context is entered."""
    keys = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)

    def used(op: OpOverload, rule: Callable[..., Any] | None) -> dict[Any, Any]:
        return {key: rule if key == DispatchKey.Autograd or key in op.py_kernels else None for key in keys}

    return _replaced([(op, op.py_kernels, used(op, rule)) for op, rule in rules])


def faked_by(rules: Mapping[OpOverload, Callable[..., Any]]) -> contextlib.AbstractContextManager[None]:
    """Fake results of ops are those of their decompositions while the context is entered. AOTAutograd looks at an op's
    own fake results to find out which output is a view of which, and then makes the views anew of what the graph
    returns: what it found must hold for the graph, which has the decompositions."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    of = {op: functools.partial(_faked, op, rule) for op, rule in rules.items()}
    return _replaced([(op, op.python_key_table, {FakeTensorMode: function}) for op, function in of.items()])


@contextlib.contextmanager
def _replaced(changes: Sequence[tuple[OpOverload, Any, dict[Any, Any]]]) -> Iterator[None]:
    """Tables of ops have other entries while the context is entered; None: none. In: op, table, entries."""
    before = [(op, table, {key: table.get(key) for key in entries}) for op, table, entries in changes]

    def put(op: OpOverload, table: Any, entries: dict[Any, Any]) -> None:
        for key in entries:
            table.pop(key, None)
        table.update({key: function for key, function in entries.items() if function is not None})
        op._dispatch_cache.clear()

    try:
        for change in changes:
            put(*change)
        yield
    finally:
        for change in before:
            put(*change)
        # torch.export keeps which ops have rules: asked inside, what it keeps would contradict the rules.
        exporting: Any = sys.modules.get("torch._export.utils")
        if (collected := getattr(exporting, "_collect_all_valid_cia_ops_for_aten_namespace", None)) is not None:
            collected.cache_clear()


_FAKED = ContextVar[frozenset[OpOverload]]("_FAKED", default=frozenset())
"""The ops whose rules compute a fake result at the moment."""


def _faked(op: OpOverload, rule: Callable[..., Any], mode: Any, *args: Any, **kwargs: Any) -> Any:
    if op not in _FAKED.get():
        token = _FAKED.set(_FAKED.get() | {op})
        try:
            with mode:
                result = rule(*args, **kwargs)
        finally:
            _FAKED.reset(token)
        if result is not NotImplemented:
            return result
    with mode:
        return op._op_dk(DispatchKey.Python, *args, **kwargs)


__all__ = ["RESAMPLING", "Rules", "faked_by", "rules_of_resampling", "traced_by"]
