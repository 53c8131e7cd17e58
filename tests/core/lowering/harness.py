"""capture -> lower -> verify -> interpret, against eager."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_map

from litz.capture.decompositions import decompositions
from litz.capture.graph import Graph, make_graph
from litz.capture.promised import checked
from litz.ir import Extern, Program
from litz.ir.interpret import interpret
from litz.ir.verify import verify
from litz.lower import lower
from litz_plugins.manager import Plugins
from litz_testing.tensors import eager_or_exact

_core_rules = functools.cache(decompositions)


def capture(function: Callable[..., Any], *inputs: Any, dynamic: bool = False, plugins: Plugins | None = None) -> Graph:
    """The functional ATen graph of `function`, decomposed as by litz; every size a symbol if dynamic. plugins: core
    alone if None."""
    rules = {} if plugins is None else plugins.decompositions(core=False)
    own = {op: None if rule is None else checked(op, rule) for op, rule in rules.items()}
    table = decompositions(own) if own else _core_rules()

    def flat(*args: Any) -> list[Any]:
        return tree_flatten(function(*args))[0]

    functional = torch.func.functionalize(flat, remove="mutations")
    mode = "symbolic" if dynamic else "fake"
    with torch.no_grad():
        module = make_fx(functional, decomposition_table=table, tracing_mode=mode, _allow_non_fake_inputs=True)(*inputs)
    module.graph.eliminate_dead_code()
    return make_graph("test", module, "inference")


def program_of(
    function: Callable[..., Any], *inputs: Any, dynamic: bool = False, plugins: Plugins | None = None
) -> Program:
    graph = capture(function, *inputs, dynamic=dynamic, plugins=plugins)
    program = lower(graph, None if plugins is None else plugins.lowerings())
    verify(program)
    str(program)
    return program


def check(
    function: Callable[..., Any],
    *inputs: Any,
    dynamic: bool = False,
    native: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    strides: bool = True,
    by_float64: bool = False,
    plugins: Plugins | None = None,
) -> Program:
    """Fail unless the program's outputs equal eager's in value, dtype, shape and stride, and so do written inputs.

    native: no Extern may be in the program. by_float64: the values are those of eager in float64, rounded. plugins:
    core alone if None.
    """
    ours, theirs = tree_map(copied, list(inputs)), tree_map(copied, list(inputs))
    expected = tree_flatten(function(*theirs))[0]
    program = program_of(function, *inputs, dynamic=dynamic, plugins=plugins)
    if native:
        externs = [operation.target_name for operation in program.operations if isinstance(operation, Extern)]
        assert not externs, f"not lowered: {externs}"
    actual = interpret(program, ours)
    if by_float64:
        exact = in_float64(function, inputs)
        expected = [judge.to(theirs.dtype) for judge, theirs in zip(exact, expected, strict=True)]
    elif any(isinstance(value, torch.Tensor) and not value.isfinite().all() for value in expected):
        expected = judged(actual, expected, function, inputs)
    compare(actual, expected, rtol=rtol, atol=atol, strides=strides, program=program)
    compare(ours, theirs, rtol=rtol, atol=atol, strides=strides, program=program)
    return program


def in_float64(function: Callable[..., Any], inputs: Sequence[Any]) -> list[Any]:
    """Eager's results for the inputs as float64."""
    double = [x.double() if isinstance(x, torch.Tensor) and x.dtype.is_floating_point else x for x in inputs]
    return tree_flatten(function(*tree_map(copied, double)))[0]


def judged(
    actual: Sequence[Any], expected: Sequence[Any], function: Callable[..., Any], inputs: Sequence[Any]
) -> Sequence[Any]:
    """Eager's results, by float64 where eager has other infinities or NaN (`litz_testing.tensors.eager_or_exact`)."""
    try:
        exact = in_float64(function, inputs)
    except (RuntimeError, TypeError, NotImplementedError):
        return expected  # an op that has no float64, or is particular about mixed types
    return [
        eager_or_exact(ours, theirs, judge)
        if isinstance(theirs, torch.Tensor) and theirs.dtype.is_floating_point and ours.shape == theirs.shape
        else theirs
        for ours, theirs, judge in zip(actual, expected, exact, strict=True)
    ]


def compare(
    actual: Sequence[Any],
    expected: Sequence[Any],
    *,
    rtol: float | None,
    atol: float | None,
    strides: bool,
    program: Program,
) -> None:
    """Fail with the program's text, which takes a tenth of a check's time and is made of a failure alone."""
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        if not isinstance(theirs, torch.Tensor):
            assert ours == theirs
            continue
        assert ours.dtype == theirs.dtype, f"{ours.dtype} for {theirs.dtype}\n{program}"
        assert ours.shape == theirs.shape, f"{ours.shape} for {theirs.shape}\n{program}"
        if strides:
            pairs = zip(theirs.shape, ours.stride(), theirs.stride(), strict=True)
            same = theirs.numel() == 0 or all(n == 1 or a == b for n, a, b in pairs)
            assert same, f"stride {ours.stride()} for {theirs.stride()}\n{program}"
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{m}\n{program}")


def copied(value: Any) -> Any:
    """A tensor of the same values, strides and offset in memory of its own."""
    if not isinstance(value, torch.Tensor):
        return value
    storage = torch.empty(0, dtype=value.dtype)
    storage.set_(value.untyped_storage().clone(), 0, (value.untyped_storage().nbytes() // value.itemsize,), (1,))
    return storage.as_strided(value.shape, value.stride(), value.storage_offset())


__all__ = ["capture", "check", "copied", "program_of"]
