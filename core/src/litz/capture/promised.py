"""What a plugin makes in an op's place, held against what the op itself would give: type, device, sizes, strides where
they are promised, number of results, shared memory.

In: what was made, as fake tensors or as tensors of a Graph, and the fake result of what it replaces. Out: a complaint
in words, '' if there is none. Sizes that are symbols are equal if they are known to be; where only this compile's
values make them equal, that becomes a guard.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from litz.capture import torch_api
from litz.capture.eager_layouts import COMPOSITE, is_laid_by_operands, laid_as_in_eager
from litz.capture.eager_types import unless_left_to_eager
from litz_plugins.blame import Blamed


def differs(found: Any, expected: Any, *, strides: bool) -> str:
    """Returns how a result, or a structure of results, differs from what is expected, in words; '' where it does not.
    strides: whether strides count."""
    if isinstance(expected, (tuple, list)):
        if not isinstance(found, (tuple, list)) or len(found) != len(expected):
            return f"{_described(found)}, where {len(expected)} results are expected"
        pairs = enumerate(zip(found, expected, strict=True))
        texts = (f"result {at}: {text}" for at, (mine, its) in pairs if (text := differs(mine, its, strides=strides)))
        return next(texts, "")
    if isinstance(expected, torch.Tensor):
        return _tensor_differs(found, expected, strides)
    if isinstance(expected, (torch.SymInt, int)) and not isinstance(expected, bool):
        same = isinstance(found, (torch.SymInt, int)) and same_size(_env(found, expected), found, expected)
        return "" if same else f"{_described(found)}, where {expected} is expected"
    if expected is None and found is not None:
        return f"{_described(found)}, where nothing is expected"
    return ""


def _tensor_differs(found: Any, expected: torch.Tensor, strides: bool) -> str:
    wanted = _described(expected)
    if not isinstance(found, torch.Tensor):
        return f"{_described(found)}, where {wanted} is expected"
    if found.dtype != expected.dtype or found.device != expected.device or found.dim() != expected.dim():
        return f"{_described(found)}, where {wanted} is expected"
    env = _env(*found.shape, *expected.shape)
    if not all(same_size(env, mine, its) for mine, its in zip(found.shape, expected.shape, strict=True)):
        return f"{_described(found)}, where {wanted} is expected"
    if strides and torch.strided in (found.layout, expected.layout) and not _lie_alike(found, expected, env):
        return f"strides {_sizes(found.stride())}, where {_sizes(expected.stride())} are expected for {wanted}"
    return ""


def _lie_alike(found: torch.Tensor, expected: torch.Tensor, env: Any) -> bool:
    """Returns whether two tensors of the same sizes lie alike. A dimension of one element may have any stride."""
    if found.layout != expected.layout:
        return False
    if any(torch_api.same_statically(size, 0) for size in expected.shape):
        return True
    rows = zip(expected.shape, found.stride(), expected.stride(), strict=True)
    return all(torch_api.same_statically(size, 1) or same_size(env, mine, its) for size, mine, its in rows)


def same_size(env: Any, left: Any, right: Any) -> bool:
    """Returns whether two sizes (int, SymInt or expression) are equal. Adds a guard where only the values at hand tell.
    Sizes that depend on data, of which nothing is known, are taken to be equal."""
    left, right = torch_api.sympy_of(left), torch_api.sympy_of(right)
    if left == right:
        return True
    condition = sympy.Eq(left, right)
    known = torch_api.evaluate_statically(env, condition)
    if known is not None or env is None:
        return known is True
    try:
        return torch_api.evaluate_with_guard(env, condition)
    except Exception:  # it depends on data
        return True


def _env(*values: Any) -> Any:
    return torch_api.shape_env_of(list(values))


def _described(value: Any) -> str:
    """Returns "float32 [3, 4] on cpu", or the name of a type."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {_sizes(value.shape)} on {value.device}"
    if isinstance(value, (tuple, list)):
        return f"{len(value)} results"
    return "None" if value is None else f"{type(value).__name__} {value}"


def _sizes(sizes: Any) -> str:
    return f"[{', '.join(map(str, sizes))}]"


# ------------------------------------------------------------------------------------------------------ decompositions


def checked(op: Any, rule: Blamed) -> Callable[..., Any]:
    """Returns a decomposition of `op` that checks each result of a plugin's rule against what the op itself gives, and
    leaves the op whole where eager refuses the types, and lays the result as eager does, as core's rules do."""
    return laid_as_in_eager(op, functools.partial(_checked, op, rule)) if isinstance(op, OpOverload) else rule


def _checked(op: OpOverload, rule: Blamed, /, *args: Any, **kwargs: Any) -> Any:
    function = unless_left_to_eager(op, torch_api.whole_where_undecided(rule.function))  # few are ever called
    with rule.call() as call:
        call.result = function(*args, **kwargs)
        if call.result is not NotImplemented:
            call.result = _as_promised(op, args, kwargs, call.result)
    return call.result


def _as_promised(op: OpOverload, args: Any, kwargs: Any, result: Any) -> Any:
    """Returns a decomposition's result, with an argument that it passed on copied where the op makes memory of its own.
    ValueError for what the op does not return."""
    expected = torch_api.fake_result(op, args, kwargs)
    if expected is NotImplemented:
        return result
    problem = differs(result, expected, strides=not (is_laid_by_operands(op) or op.name()[6:] in COMPOSITE))
    if problem:
        raise ValueError(f"it returned {problem}")
    given = [item for item in tree_leaves((args, dict(kwargs))) if isinstance(item, torch.Tensor)]

    def own(mine: Any, its: Any) -> Any:
        if isinstance(mine, (tuple, list)):
            return (list if isinstance(mine, list) else tuple)(map(own, mine, its))  # not all types take an iterable
        if not isinstance(mine, torch.Tensor):
            return mine
        shares, should = (any(torch_api.share_memory(made, item) for item in given) for made in (mine, its))
        if should and not shares:
            raise ValueError(f"it returned memory of its own, where {op} returns a view of its argument")
        return mine.clone() if shares and not should else mine

    return own(result, expected)


__all__ = ["checked", "differs", "same_size"]
