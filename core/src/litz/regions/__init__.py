"""Regions: graphs inside of a graph, and the calls that run them as control flow.

A `Region` stands, among a call's arguments, for a Program that the calling Program holds by that name. The functions
here are what such calls call: in, callables for the regions and the operands; out, the results. A region takes its
operands as one list, which it may clear, and returns a sequence. Generated wrappers hand over functions of their own,
the interpreter hands over itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

Body = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True)
class Region:
    """A Program that is called: `Program.regions` has it by its name."""

    name: str


def cond(predicate: Any, yes: Body, no: Body, operands: Sequence[Any]) -> tuple[Any, ...]:
    """Returns what one of two regions makes of the operands: `yes` where the predicate, a number or a tensor of one
    element, holds. The host waits for the predicate."""
    return _own((yes if predicate else no)([*operands]), operands)


def while_loop(test: Body, body: Body, carried: Sequence[Any], others: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the carried values once `test` no longer holds; until then `body` makes the next ones of them. Both
    regions take the carried values, then the others. Each carried value keeps the strides that it has at first, for
    which the regions are compiled. The host waits for each test."""
    first = carried = tuple(carried)
    while test([*carried, *others])[0]:
        carried = tuple(map(_lying_as, body([*carried, *others]), first))
    return _own(carried, (first, others))


def scan(combine: Body, first: Sequence[Any], items: Sequence[torch.Tensor], others: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the last carried values, then the results of all steps, stacked. A step takes the carried values, the
    step's slice of each item, and the others; it returns the next carried values, then its results."""
    count, state = len(first), tuple(first)

    def step(*slices: torch.Tensor) -> Sequence[Any]:
        nonlocal state
        made = combine([*state, *slices, *others])
        state = tuple(map(_lying_as, made[:count], first))
        return made[count:]

    stacked = _stack(step, items)
    return _own((*state, *stacked), (first, items, others))


def map_impl(body: Body, items: Sequence[torch.Tensor], others: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the results of a region for each slice of the items, stacked. A call takes the slices, then the
    others."""
    return _stack(lambda *slices: body([*slices, *others]), items)


def associative_scan(combine: Body, items: Sequence[torch.Tensor], others: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the items scanned along their first dimension, a step at a time: `combine` takes what the steps before
    made and a slice of each item, then the others."""
    state: Sequence[torch.Tensor] = ()

    def step(*slices: torch.Tensor) -> Sequence[torch.Tensor]:
        nonlocal state
        here = [each.contiguous() for each in slices]
        state = tuple(each.contiguous() for each in combine([*state, *here, *others])) if state else here
        return state

    return _stack(step, items) if len(items[0]) else tuple(item.clone() for item in items)


def invoke_subgraph(body: Body, name: Any, *operands: Any) -> tuple[Any, ...]:
    """Returns what a region makes of the operands. name: what torch calls the region."""
    return _own(body([*operands]), operands)


CALLS: Mapping[str, Callable[..., tuple[Any, ...]]] = {
    function.__name__: function for function in (cond, while_loop, scan, map_impl, associative_scan, invoke_subgraph)
}
"""The functions, by the names of torch's higher-order ops."""
ON_HOST = (cond, while_loop)
"""Those whose host decides by a value what is called."""


@dataclass(frozen=True)
class Operands:
    """The arguments of a call of one of `CALLS`, by their part in it. values: what each of the regions takes, in order.
    sliced: does a region take a slice along the first dimension at a time? "dense": a row-major copy of it."""

    regions: tuple[Any, ...]
    values: tuple[Any, ...]
    sliced: tuple[bool | Literal["dense"], ...]


_PARTS: Mapping[str, tuple[slice, tuple[tuple[slice | int, bool | Literal["dense"]], ...]]] = {
    "cond": (slice(1, 3), ((3, False),)),
    "while_loop": (slice(2), ((2, False), (3, False))),
    "scan": (slice(1), ((1, False), (2, True), (3, False))),
    "associative_scan": (slice(1), ((1, "dense"), (1, "dense"), (2, False))),
    "map_impl": (slice(1), ((1, True), (2, False))),
    "invoke_subgraph": (slice(1), ((slice(2, None), False),)),
}
"""Where the arguments of a call have regions and values, and whether the values are sliced."""


def operands_of(name: str, args: Sequence[Any]) -> Operands:
    """Returns the arguments of a call. name: of its function."""
    regions, groups = _PARTS[name]
    flat = [(value, sliced) for at, sliced in groups for value in args[at]]
    return Operands(tuple(args[regions]), tuple(value for value, _ in flat), tuple(sliced for _, sliced in flat))


def _stack(step: Callable[..., Sequence[Any]], items: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """The results of a step for each slice of the items along their first dimension, each in one tensor. What a step
    returns as None is None."""
    stacked: list[Any] = []
    for number, slices in enumerate(zip(*(item.unbind(0) for item in items), strict=True)):
        made = step(*slices)
        if not number:
            count = len(items[0])
            stacked = [None if each is None else each.new_empty((count, *each.shape)) for each in made]
        for whole, each in zip(stacked, made, strict=True):
            if whole is not None:
                whole[number] = each
    return tuple(stacked)


def _lying_as(value: Any, first: Any) -> Any:
    """A carried value with the strides of the first one."""
    if not isinstance(value, torch.Tensor) or value.stride() == first.stride():
        return value
    return torch.empty_strided(value.shape, first.stride(), dtype=value.dtype, device=value.device).copy_(value)


def _own(results: Sequence[Any], operands: Any) -> tuple[Any, ...]:
    """The results, each in memory of its own: copies of those that lie in an operand's memory or in that of another
    result."""
    taken = {_place(value) for value in _tensors(operands)}

    def own(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.numel() == 0:
            return value
        place = _place(value)
        if place in taken:
            return value.conj().clone().conj() if value.is_conj() else value.clone()
        taken.add(place)
        return value

    return tuple(map(own, results))


def _place(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return [value] if isinstance(value, torch.Tensor) else []
