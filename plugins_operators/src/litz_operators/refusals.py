"""Decompositions of ops whose kernels in eager refuse what torch's rules compute. An op with a number that is refused
stays whole, so that the library raises its error. Values of tensors are asserted before the op, on a CPU alone: a GPU's
kernels end the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

aten = torch.ops.aten
Rule = Callable[..., Any]


class _Values(NamedTuple):
    """The values of an op's argument number `position`: each is `low` or more, and `high` or less, if not None."""

    position: int
    low: float
    high: float | None
    message: str


_VALUES: Mapping[OpOverload, tuple[_Values, ...]] = {
    aten.binary_cross_entropy.default: tuple(
        _Values(position, 0, 1, f"all elements of {name} should be between 0 and 1")
        for position, name in enumerate(("input", "target"))
    ),
    aten.bernoulli.default: (_Values(0, 0, 1, "Expected p_in >= 0 && p_in <= 1 to be true, but got false"),),
    **{
        op: (_Values(1, 0, None, "normal expects all elements of std >= 0.0"),)
        for op in (aten.normal.float_Tensor, aten.normal.Tensor_Tensor)
    },
}

_NUMBERS: Mapping[OpOverload, Callable[..., bool]] = {
    aten.smooth_l1_loss.default: lambda x, target, reduction=1, beta=1.0: _is_known(beta) and beta < 0,
    aten.uniform.default: lambda x, low=0.0, high=1.0, **options: _is_known(low, high) and not low <= high,
}
"""By op, whether eager refuses the call for its numbers."""


def with_refusals(rules: Mapping[OpOverload, Rule]) -> Mapping[OpOverload, Rule]:
    """Returns decompositions of the ops of this module, by the rules that compute the ops."""
    return {
        **{op: partial(_asserting, rules[op], values) for op, values in _VALUES.items()},
        **{op: partial(_unless_refused, rules[op], refuses) for op, refuses in _NUMBERS.items()},
        aten.bernoulli.Tensor: _bernoulli_of_tensor,
        aten.index_fill.int_Scalar: _index_fill,
        aten.index_fill.int_Tensor: _index_fill,
    }


def _index_fill(x: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> Any:
    """A negative index counts from the end, unlike in the index_copy that torch's rule makes of index_fill. Of a tensor
    without elements the op stays whole: eager looks at fewer positions than index_put does."""
    if 0 in [n for n in x.shape if isinstance(n, int)]:
        return NotImplemented
    number = value if isinstance(value, torch.Tensor) else x.new_full((), value)
    if x.dim() == 0:
        return aten.index_put(x.unsqueeze(0), [index], number.to(x.dtype)).squeeze(0)
    return aten.index_put(x, [None] * (dim % x.dim()) + [index], number.to(x.dtype))


def _is_known(*numbers: Any) -> bool:
    """Says whether the numbers are known while compiling."""
    return all(isinstance(number, (int, float)) for number in numbers)


def _asserting(rule: Rule, values: tuple[_Values, ...], *args: Any, **options: Any) -> Any:
    """Goes by the rule, with an assertion before of each tensor on a CPU."""
    for position, low, high, message in values:
        x = args[position]
        if x.device.type == "cpu":
            inside = x >= low if high is None else (x >= low) & (x <= high)
            aten._assert_async.msg(inside.all(), message)
    return rule(*args, **options)


def _unless_refused(rule: Rule, refuses: Callable[..., bool], *args: Any, **options: Any) -> Any:
    """Goes by the rule, or leaves the op whole where eager refuses the call."""
    return NotImplemented if refuses(*args, **options) else rule(*args, **options)


def _bernoulli_of_tensor(x: torch.Tensor, p: torch.Tensor, *, generator: torch.Generator | None = None) -> Any:
    """A draw for each element of `x`, in float32 whatever the types, by the rule of bernoulli, which lies as `x` does.
    Leaves the op whole where torch's own generator draws."""
    if generator is not None:
        return NotImplemented
    return aten.copy.default(x, aten.bernoulli.default(p.expand(x.shape)))
