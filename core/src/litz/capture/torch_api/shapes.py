"""Symbolic shapes: expressions, hints, ranges and guards of a ShapeEnv."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import sympy
import torch
from torch._prims_common import compute_elementwise_output_logical_to_physical_perm, suggest_memory_format
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_unbacked_symbols, statically_known_true

from .fake import fake_mode_around, fake_mode_of


def sympy_of(value: Any) -> Any:
    """The sympy expression of a size or scalar: SymInt, SymFloat, SymBool, int, float, bool or sympy itself.

    Raises TypeError for anything else.
    """
    if type(value) is int:  # most are
        return sympy.Integer(value)  # which takes half of sympify's time
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.expr
    if isinstance(value, (int, float, sympy.Basic)):
        return sympy.sympify(value)
    raise TypeError(f"no sympy expression for {type(value).__name__}: {value!r}")


def shape_env_of(values: Iterable[object]) -> ShapeEnv | None:
    """Returns the shape environment behind `values` (SymInts or fake tensors); None where all shapes are static."""
    values = list(values)
    for value in values:
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return value.node.shape_env
    mode = fake_mode_of(values)
    return None if mode is None else mode.shape_env


def backed_values(shape_env: ShapeEnv | None) -> Mapping[sympy.Symbol, int]:
    """Returns the value that each backed integer symbol had in the inputs of this compile. Unbacked symbols are
    absent."""
    if shape_env is None:
        return MappingProxyType({})
    # A nested tensor's ragged size is a SingletonInt, which has no value.
    values = shape_env.backed_var_to_val.items()
    return MappingProxyType({symbol: int(v) for symbol, v in values if getattr(v, "is_Integer", False)})


def value_ranges(shape_env: ShapeEnv | None) -> Mapping[sympy.Symbol, tuple[sympy.Expr, sympy.Expr]]:
    """Returns the least and the greatest value that each symbol may take, both inclusive."""
    if shape_env is None:
        return MappingProxyType({})
    return MappingProxyType({symbol: (r.lower, r.upper) for symbol, r in shape_env.var_to_range.items()})


def facts_of(shape_env: ShapeEnv) -> list[str]:
    """Returns what is on record with a shape environment beside its ranges and guards, as text: which sizes are others
    by now, and what is to be asserted at run time."""
    found = [f"{symbol} is {expr}" for symbol, expr in shape_env.replacements.items()]
    found += [f"renamed {old} to {new}" for old, new in getattr(shape_env, "unbacked_renamings", {}).items()]
    for symbol, asserts in shape_env.deferred_runtime_asserts.items():
        found += [f"assert for {symbol}: {item.expr}: {item.msg}" for item in asserts]
    return found


def decide_again(shape_env: ShapeEnv | None, texts: Iterable[str]) -> bool:
    """Record guards that an earlier compile of the same graph made: Python texts over the symbols. False where one does
    not hold for this compile's sizes."""
    texts = list(texts)
    names = {**_symints(shape_env), "math": math} if texts else {}
    return all(bool(eval(text, names)) for text in texts)


def size_of_text(shape_env: ShapeEnv | None, text: int | str) -> Any:
    """Returns the int or SymInt that a text of Python over the symbols stands for. The text is executed."""
    return text if isinstance(text, int) else eval(text, {**_symints(shape_env), "math": math})


def size_symbols(shape_env: ShapeEnv | None) -> frozenset[sympy.Symbol]:
    """Returns the symbols of whole numbers that the inputs of this compile have."""
    known = {} if shape_env is None else shape_env.backed_var_to_val
    return frozenset(symbol for symbol, value in known.items() if getattr(value, "is_Integer", False))


def _symints(shape_env: ShapeEnv | None) -> dict[str, Any]:
    if shape_env is None:
        return {}
    values = {symbol: int(shape_env.backed_var_to_val[symbol]) for symbol in size_symbols(shape_env)}
    return {str(symbol): shape_env.create_symintnode(symbol, hint=value) for symbol, value in values.items()}


def evaluate_statically(shape_env: ShapeEnv | None, condition: Any) -> bool | None:
    """Returns True or False where the ranges and guards so far decide `condition`, else None. Adds no guard."""
    if condition in (True, sympy.true):
        return True
    if condition in (False, sympy.false):
        return False
    if shape_env is None:
        return None
    answer = shape_env._maybe_evaluate_static(condition)
    return None if answer is None else bool(answer)


def evaluate_with_guard(shape_env: ShapeEnv | None, condition: Any) -> bool:
    """Decide `condition` for this compile's sizes, and record the guard that makes another answer recompile.

    Raises GuardOnDataDependentSymNode where it depends on an unbacked symbol.
    """
    static = evaluate_statically(shape_env, condition)
    if static is not None:
        return static
    if shape_env is None:
        raise ValueError(f"{condition} has symbols, but the graph has no shape environment")
    return bool(shape_env.evaluate_expr(condition))


def without_guards(shape_env: ShapeEnv | None) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which questions about sizes leave no guard: for costs, never for what must hold."""
    return contextlib.nullcontext() if shape_env is None else shape_env.suppress_guards()


def known(condition: Any) -> bool:
    """Returns whether a condition on sizes (a bool or SymBool) holds whatever they are; no guard is made."""
    return bool(statically_known_true(condition))


def hangs_on_data(value: Any) -> bool:
    """Returns whether a fake result has a size, or is a number, that only data decide."""
    return bool(free_unbacked_symbols(value))


def same_statically(a: Any, b: Any) -> bool:
    """Returns whether two sizes (int or SymInt) are known to be equal, without a guard."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    left, right = sympy_of(a), sympy_of(b)
    if left == right:
        return True
    return evaluate_statically(shape_env_of([a, b]), sympy.Eq(left, right)) is True


def same_layout(left: torch.Tensor, right: torch.Tensor, *, offset: bool = False) -> bool:
    """Returns whether two fake tensors have the same dtype, device, sizes and strides for all sizes that guards allow,
    and are read off memory alike: conjugate and negative both or neither. False for tensors that are not strided.

    offset: the storage offset too, which matters when one is a view of the other.
    """
    if left.layout != torch.strided or right.layout != torch.strided:
        return False
    if left.dtype != right.dtype or left.device != right.device or left.dim() != right.dim():
        return False
    if left.is_neg() != right.is_neg() or left.is_conj() != right.is_conj():
        return False
    numbers = [(*value.shape, *value.stride()) for value in (left, right)]
    same = all(same_statically(a, b) for a, b in zip(*numbers, strict=True))
    return same and (not offset or same_statically(left.storage_offset(), right.storage_offset()))


def suggested_format(tensor: torch.Tensor) -> torch.memory_format:
    """Returns the memory format that eager's kernels for images give the result for this input: channels last or
    contiguous."""
    return suggest_memory_format(tensor)


def guard_count(shape_env: ShapeEnv | None) -> int:
    """Returns how many guards are on record by now; 0 where every shape is static."""
    return 0 if shape_env is None else len(shape_env.guards)


def guards_since(shape_env: ShapeEnv | None, count: int) -> list[Any]:
    """Returns the guards that were added after the first `count`, as sympy booleans."""
    return [] if shape_env is None else [guard.expr for guard in shape_env.guards[count:]]


def elementwise_order(operands: Sequence[torch.Tensor], result: torch.Tensor) -> list[int] | None:
    """Returns the dimensions of an elementwise result from the outermost in memory to the innermost, as eager's kernels
    order them for these operands; row by row without any. None where the result lies so already, or where an operand
    has more elements than the result."""
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

    dims = range(result.dim())
    with disable_proxy_modes_tracing(), fake_mode_around([result]):
        try:
            whole = [operand.expand(result.shape) for operand in operands if operand.dim()]
        except RuntimeError:
            return None
        order = _memory_order(whole) if whole else list(dims)
        now = _memory_order([result])
    long = [dim for dim in dims if not same_statically(result.shape[dim], 1)]
    same = [dim for dim in order if dim in long] == [dim for dim in now if dim in long]
    return None if same else order


def _memory_order(tensors: Sequence[torch.Tensor]) -> list[int]:
    return list(compute_elementwise_output_logical_to_physical_perm(*tensors)[0])
