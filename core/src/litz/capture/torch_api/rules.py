"""Rules in Python by which ops are traced under autograd, and a trace that has other rules.

torch writes some ops in smaller ones before autograd sees them, and then autograd differentiates the smaller ones. An
op without such a rule is differentiated by its own formula, and decomposed after that.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any
from unittest import mock

import torch
from torch._C import DispatchKey
from torch._dynamo.convert_frame import compile_lock
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
    return op(x, size, *corners, *(factors or [None] * len(size)))  # type: ignore[no-any-return]


def traced_by(rules: Rules) -> contextlib.AbstractContextManager[None]:
    """Ops are traced by other rules while the context is entered, in this thread."""
    keys = DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd
    at = [(op, key, rule) for op, rule in rules for key in keys if key == keys[0] or key in op.py_kernels]
    return _entered({(op, key): (rule or _cpp(op, key), op.py_kernels.get(key, _cpp(op, key))) for op, key, rule in at})


def faked_by(rules: Mapping[OpOverload, Callable[..., Any]]) -> contextlib.AbstractContextManager[None]:
    """Fake results of ops are those of their decompositions while the context is entered, in this thread. AOTAutograd
    looks at an op's own fake results to find out which output is a view of which, and then makes the views anew of what
    the graph returns: what it found must hold for the graph, which has the decompositions."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    entries = dict[Any, Any]()
    for op, rule in rules.items():
        torchs = functools.partial(_in_mode, functools.partial(op._op_dk, DispatchKey.Python), None)
        entries[op, FakeTensorMode] = functools.partial(_in_mode, rule, torchs), torchs
    return _entered(entries)


@contextlib.contextmanager
def in_this_thread(owner: Any, name: str, own: Callable[..., Any]) -> Iterator[None]:
    """Torch's function `name` of a module or class is `own` in this thread while the context is entered."""
    thread, usual = threading.get_ident(), getattr(owner, name)

    def chosen(*args: Any, **kwargs: Any) -> Any:
        return (own if threading.get_ident() == thread else usual)(*args, **kwargs)

    static = isinstance(inspect.getattr_static(owner, name), staticmethod)
    with mock.patch.object(owner, name, staticmethod(chosen) if static else chosen):
        yield


_ENTERED = ContextVar[frozenset[Any]]("_ENTERED", default=frozenset())
"""The entries that hold in this thread."""


@contextlib.contextmanager
def _entered(entries: dict[tuple[OpOverload, Any], tuple[Callable[..., Any], Callable[..., Any]]]) -> Iterator[None]:
    """Tables of ops have other entries while the context is entered, by one thread at a time (`compile_lock`). In: by
    op and key, what this thread calls, and what others do."""

    def put(op: OpOverload, key: Any, function: Callable[..., Any] | None) -> None:
        table: Any = op.py_kernels if isinstance(key, DispatchKey) else op.python_key_table
        table.pop(key, None)
        table.update({} if function is None else {key: function})
        op._dispatch_cache.clear()

    before = {(op, key): op.py_kernels.get(key) or op.python_key_table.get(key) for op, key in entries}
    token = _ENTERED.set(_ENTERED.get() | entries.keys())
    try:
        for at, functions in entries.items():
            put(*at, functools.partial(_called, at, *functions))
        yield
    finally:
        for at, function in before.items():
            put(*at, function)
        _ENTERED.reset(token)


def _called(at: Any, own: Callable[..., Any], usual: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if at not in _ENTERED.get():
        return usual(*args, **kwargs)
    token = _ENTERED.set(_ENTERED.get() - {at})  # a rule that calls its own op has torch's
    try:
        return own(*args, **kwargs)
    finally:
        _ENTERED.reset(token)


def _cpp(op: OpOverload, key: DispatchKey) -> Callable[..., Any]:
    """Torch's own C++ for an op; as `OpOverload.decompose` has it where there is none."""
    for one in (key, DispatchKey.CompositeImplicitAutograd):
        if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), one):
            return functools.partial(op._op_dk, one)
    return lambda *args, **kwargs: NotImplemented


def _in_mode(function: Callable[..., Any], otherwise: Any, mode: Any, *args: Any, **kwargs: Any) -> Any:
    with mode:
        result = function(*args, **kwargs)
    return otherwise(mode, *args, **kwargs) if result is NotImplemented else result


__all__ = ["RESAMPLING", "Rules", "compile_lock", "faked_by", "in_this_thread", "rules_of_resampling", "traced_by"]
