"""Samples of an op, made from its schema. In: an overload. Out: calls that eager takes.

Tensors are made in shapes, strides and dtypes from a table; other arguments have their defaults, or the first values of
a table with which eager takes the call. What eager refuses is no sample, nor what ends eager's process or writes
outside of its memory: a copy of the process makes the calls first.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves

from litz_testing.conformance.call import Call, describe, make_call
from litz_testing.tensors import overlaps

from .in_copy import how_a_copy_ends

Given = tuple[Sequence[Any], Mapping[str, Any]]
"""The arguments of a call, as an author gives them."""


@dataclass(frozen=True)
class Variant:
    """The look of a sample's tensors. shape; layout: how they lie in memory, a row of `LAYOUTS`; scale: how much larger
    each extent above 1 is, for the second set of sizes of a dynamic program."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    layout: str = "rows"

    def __str__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        return f"{str(self.dtype).removeprefix('torch.')}[{shape}] in {self.layout}"

    def scaled(self) -> Variant:
        """Returns the variant with other sizes, to which the same dynamic code applies."""
        return Variant(self.dtype, tuple(n + 2 if n > 1 else n for n in self.shape), self.layout)

    def tensor(self, generator: torch.Generator) -> torch.Tensor:
        """Returns a new tensor of the variant's shape, strides and dtype."""
        return LAYOUTS[self.layout](self.shape, lambda shape: _values(shape, self.dtype, generator))


Make = Callable[[Sequence[int]], torch.Tensor]

LAYOUTS: Mapping[str, Callable[[tuple[int, ...], Make], torch.Tensor]] = {
    "rows": lambda shape, make: make(shape),
    "columns": lambda shape, make: make(shape[::-1]).permute(*reversed(range(len(shape)))),
    "every other": lambda shape, make: make((*shape[:-1], 2 * shape[-1]))[..., ::2],
    "expanded": lambda shape, make: make((1, *shape[1:])).expand(shape),
    "shifted": lambda shape, make: make((shape[0] + 1, *shape[1:]))[1:],
}

f32 = torch.float32
VARIANTS = (
    Variant(f32, (3, 5)),
    Variant(f32, (3, 5), "columns"),
    Variant(f32, (3, 5), "every other"),
    Variant(f32, (4, 3), "expanded"),
    Variant(f32, (3, 5), "shifted"),
    Variant(f32, (0, 5)),
    Variant(f32, (1, 1)),
    Variant(f32, (1, 5)),
    Variant(f32, ()),
    Variant(f32, (4, 4)),
    Variant(f32, (2, 3, 4)),
    Variant(f32, (2, 3, 6, 6)),
    *(Variant(dtype, (3, 5)) for dtype in (torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool)),
)


def _values(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Normal numbers; small integers from 0 on, which may be indices."""
    if dtype == torch.bool:
        return torch.rand(tuple(shape), generator=generator) > 0.5
    if not dtype.is_floating_point:
        return torch.randint(0, 3, tuple(shape), generator=generator, dtype=dtype)
    return torch.randn(tuple(shape), generator=generator).to(dtype)


VALUES: dict[str, tuple[Any, ...]] = {
    "int": (0, 1, 2),
    "float": (0.5,),
    "bool": (False, True),
    "number": (2, 0.5),
    "List[int]": ([0], [0, 1], [1], [2, 2], [3, 5]),
    "List[float]": ([0.5],),
    "List[bool]": ([True],),
}
"""What is tried for an argument without a default, by its type in the schema."""
MOST_TRIES = 24


@dataclass(frozen=True)
class OpSample:
    """One call of an op. name: of the example; call: with its tensors; again: the same with other sizes, None where
    eager refuses these. values: False for an op whose results are random."""

    name: str
    call: Call
    again: Call | None
    values: bool = True


def _accepted(call: Call) -> bool:
    """Returns whether eager takes the call, and returns tensors, of the shapes that torch's fake kernel says. Results
    of others mean nothing: those of `_weight_norm_interface` have the shape of its second operand, whatever that is."""
    shapes = [result.shape for result in _results(call) if isinstance(result, torch.Tensor)]
    return bool(shapes) and _promised(call) in (None, shapes)


def _promised(call: Call) -> list[torch.Size] | None:
    """The shapes of the fake results; None where these depend on data, or there is no fake kernel."""
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            results = tree_leaves(call.function(*map(mode.from_tensor, call.tensors)))
    except Exception:
        return None
    return [result.shape for result in results if isinstance(result, torch.Tensor)]


def _accepted_or_ended(call: Call) -> bool:
    """Returns what `_accepted` does, in a copy of the process, which a call ends if a new result overlaps itself. Such
    a result has less memory than elements, as an expanded operand has, and a kernel that writes each element writes
    beyond the end of that memory."""
    results = [result for result in _results(call) if isinstance(result, torch.Tensor)]
    given = {tensor.untyped_storage().data_ptr() for tensor in call.tensors if tensor.layout == torch.strided}
    new = (one for one in results if one.layout == torch.strided and one.untyped_storage().data_ptr() not in given)
    if any(overlaps(one) for one in new):
        os.abort()
    return bool(results)


def _results(call: Call) -> list[Any]:
    """Returns eager's results; nothing if eager refuses the call."""
    try:
        return tree_leaves(call.function(*call.tensors))
    except Exception:
        return []


def samples_of(
    op: OpOverload, given: Sequence[Given] = (), variants: Sequence[Variant] = VARIANTS, seed: int = 0
) -> tuple[list[OpSample], dict[str, str]]:
    """Returns samples that eager takes: the given ones, then those made from the schema. And the variants with which
    eager ends its process, each with the signal's name."""
    values = torch.Tag.nondeterministic_seeded not in op.tags
    calls = [_call(op, args, kwargs) for args, kwargs in given]
    found = [OpSample(describe(call.tensors), call, None, values) for call in calls]
    if op._schema.is_mutable:
        return found, {}

    def made(some: Sequence[Variant], accepted: Callable[[Call], bool] = _accepted) -> list[OpSample]:
        every = (_made(op, variant, values, seed, accepted) for variant in some)
        return [sample for sample in every if sample is not None]

    if not how_a_copy_ends(partial(made, variants, _accepted_or_ended)):
        return found + made(variants), {}
    ends = {variant: how_a_copy_ends(partial(made, [variant], _accepted_or_ended)) for variant in variants}
    fatal = {str(variant): end for variant, end in ends.items() if end}
    return found + made([variant for variant in variants if not ends[variant]]), fatal


def _made(
    op: OpOverload, variant: Variant, values: bool, seed: int, accepted: Callable[[Call], bool] = _accepted
) -> OpSample | None:
    for others in itertools.islice(_others(op), MOST_TRIES):
        call = _call(op, *_arguments(op, variant, others, seed))
        if accepted(call):
            again: Call | None = _call(op, *_arguments(op, variant.scaled(), others, seed + 1))
            assert again is not None
            again = again if variant.scaled() != variant and accepted(again) else None
            return OpSample(describe(call.tensors) or "no tensors", call, again, values)
    return None


def _others(op: OpOverload) -> Iterator[dict[str, Any]]:
    """Values for the arguments that are no tensors and have no default; nothing where there is no value for one."""
    names, pools = [], []
    for argument in op._schema.arguments:
        if argument.has_default_value() or "Tensor" in str(argument.type):
            continue
        names.append(argument.name)
        optional = str(argument.type).startswith("Optional")
        pools.append((None,) if optional else VALUES.get(str(argument.type), ()))
    for chosen in itertools.product(*pools):
        yield dict(zip(names, chosen, strict=True))


def _arguments(op: OpOverload, variant: Variant, others: Mapping[str, Any], seed: int) -> Given:
    generator = torch.Generator().manual_seed(seed)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for argument in op._schema.arguments:
        kind = str(argument.type)
        if kind in ("Tensor", "Optional[Tensor]") and not (argument.has_default_value() and argument.kwarg_only):
            value: Any = variant.tensor(generator)
        elif kind.startswith("List[") and "Tensor" in kind:
            value = [variant.tensor(generator), variant.tensor(generator)]
        elif argument.name in others:
            value = others[argument.name]
        else:
            continue
        if argument.kwarg_only or len(args) < op._schema.arguments.index(argument):
            kwargs[argument.name] = value
        else:
            args.append(value)
    return args, kwargs


def _call(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    first, *rest = args or [None]
    if not args:  # `make_call` has an input in front
        return make_call(lambda _, **named: op(**named), SimpleNamespace(input=None, args=(), kwargs=dict(kwargs)))
    return make_call(op, SimpleNamespace(input=first, args=tuple(rest), kwargs=dict(kwargs)))


__all__ = ["LAYOUTS", "VARIANTS", "Given", "OpSample", "Variant", "samples_of"]
