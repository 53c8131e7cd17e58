"""Buckets: small collectives of one kind, started as one. In: a schedule's steps. Out: steps in which some are merged.

A bucket is the coalesced form of its members' op: NCCL launches it as one kernel, each tensor keeps memory of its own,
so nothing is copied in or out and every value is where it was. Members agree in op, group, reduction and dtype, and
none needs another's result.

Two are merged where one launch is quicker than two by the best, the likely and the worst figure of the estimates. What
is saved is one latency, and errors grow with size, so buckets stop growing by themselves; `cap` bytes stop them before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed._functional_collectives  # defines the ops
from torch._ops import OpOverload

from litz.ir import Collective, Program, TensorRef
from litz.schedule.contracted import ContractedGraph
from litz.schedule.dependences import topological
from litz.schedule.schedule import Step
from litz_plugins import Estimate

_ops = torch.ops._c10d_functional
COALESCED: Mapping[Any, OpOverload] = {
    op: merged
    for single, coalesced in (
        (_ops.all_reduce, _ops.all_reduce_coalesced),
        (_ops.all_gather_into_tensor, _ops.all_gather_into_tensor_coalesced),
        (_ops.reduce_scatter_tensor, _ops.reduce_scatter_tensor_coalesced),
    )
    for op, merged in ((single.default, coalesced.default), (coalesced.default, coalesced.default))
}
"""Op -> the op that does it to a list of tensors. Each takes its tensors first, its other arguments after them."""

GATHERS = (_ops.all_gather_into_tensor_coalesced.default,)
"""Collectives of which the first in a graph is exposed, as nothing runs before it. (Of other kinds, whose results are
used late, it is the last.)"""

EstimateOf = Callable[[Collective], Estimate | None]


@dataclass(frozen=True)
class Bucketing:
    """Steps with buckets in place of their members. estimates: by step, where known. members: by bucket."""

    steps: tuple[Step, ...]
    estimates: Mapping[str, Estimate]
    members: Mapping[str, tuple[str, ...]]


def tensors_of(step: Collective) -> tuple[TensorRef, ...]:
    """Returns the tensors that a mergeable collective sends."""
    first = step.args[0]
    return tuple(first) if isinstance(first, (tuple, list)) else (first,)


def bucket_key(step: Any, program: Program) -> tuple[Any, ...] | None:
    """Returns what members of a bucket have in common; None for a step that cannot be in a bucket."""
    if not isinstance(step, Collective) or step.target not in COALESCED or not step.ranks:
        return None
    refs = tensors_of(step)
    plain = not (step.kwargs or step.mutates or step.aliases or step.unbacked) and None not in step.outputs
    dtypes = {program.buffers[ref.buffer].dtype for ref in refs}
    if not plain or len(dtypes) != 1 or not all(ref.layout.is_contiguous() for ref in refs):
        return None
    return (COALESCED[step.target], *step.args[1:], step.device, *dtypes)


def merge(first: Collective, second: Collective) -> Collective:
    """Returns both collectives as one, under the name of the first."""
    return replace(
        first,
        target=COALESCED[first.target],
        args=((*tensors_of(first), *tensors_of(second)), *first.args[1:]),
        outputs=(*first.outputs, *second.outputs),
        origins=tuple(dict.fromkeys((*first.origins, *second.origins))),
    )


def bucketed(
    steps: Sequence[Step],
    before: Sequence[set[int]],
    program: Program,
    estimates: Mapping[str, Estimate],
    estimate: EstimateOf,
    cap: float,
    *,
    ramp: bool = False,
) -> Bucketing:
    """Returns the steps with what pays merged, in an order that their dependences allow.

    before: for each step the positions of those that it follows. cap: bytes sent by a rank in one bucket, a single
    collective aside. ramp: where communication is exposed (see `GATHERS`) buckets start at an eighth of `cap` and
    double.
    """
    graph = ContractedGraph(before)
    classes: dict[tuple[Any, ...], list[int]] = {}
    for number, step in enumerate(steps):
        key = bucket_key(step, program)
        if key is not None and step.name in estimates:
            classes.setdefault(key, []).append(number)
    buckets: dict[int, _Bucket] = {}
    for key, numbers in classes.items():
        rooms = _rooms(cap, ramp)
        room, open_ = next(rooms), -1
        forward = key[0] in GATHERS
        for number in numbers if forward else reversed(numbers):
            step = steps[number]
            assert isinstance(step, Collective)
            single = _Bucket(step, estimates[step.name], (step.name,), sent_bytes(step, program))
            grown = None
            if open_ >= 0:
                pair = (buckets[open_], single) if forward else (single, buckets[open_])
                grown = _grown(*pair, estimate, room)
            if grown is not None and not graph.precedes(open_, number) and not graph.precedes(number, open_):
                graph.contract(open_, number)
                buckets[open_] = grown
                continue
            room, open_ = (next(rooms) if open_ >= 0 else room), number
            buckets[number] = single
    found = _ordered(graph, steps, {number: bucket.step for number, bucket in buckets.items()})
    known = {**estimates, **{bucket.step.name: bucket.estimate for bucket in buckets.values()}}
    return Bucketing(
        found,
        {step.name: known[step.name] for step in found if step.name in known},
        {bucket.step.name: bucket.members for bucket in buckets.values() if len(bucket.members) > 1},
    )


@dataclass(frozen=True)
class _Bucket:
    step: Collective
    estimate: Estimate
    members: tuple[str, ...]
    bytes: int


def _grown(first: _Bucket, second: _Bucket, estimate: EstimateOf, room: float) -> _Bucket | None:
    """Both as one, if they fit and one launch is quicker than two by every figure of the estimates. The tensors stay in
    the source's order, which is that of every rank."""
    size = first.bytes + second.bytes
    if size > room:
        return None
    step = merge(first.step, second.step)
    found = estimate(step)
    if found is None:
        return None
    times = zip(_figures(found), _figures(first.estimate), _figures(second.estimate), strict=True)
    if not all(together < one + other for together, one, other in times):
        return None
    return _Bucket(step, found, (*first.members, *second.members), size)


def _figures(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.low_us, estimate.us, estimate.high_us


def _rooms(cap: float, ramp: bool) -> Iterator[float]:
    """The most bytes of the first bucket, the second, ..."""
    room = cap / 8 if ramp else cap
    while True:
        yield room
        room = min(cap, 2 * room)


def sent_bytes(step: Collective, program: Program) -> int:
    """Returns the larger of what the op reads and writes: the full tensors of a gather or a scatter."""
    sides = (step.reads, step.outputs)
    sizes = [sum(program.hint(program.buffers[n].nbytes) for n in names if n is not None) for names in sides]
    return max(sizes)


def merged_as(
    groups: Sequence[Sequence[str]],
    steps: Sequence[Step],
    before: Sequence[set[int]],
    estimate: EstimateOf,
    fits: Callable[[Collective], bool] = lambda bucket: True,
) -> Bucketing | None:
    """Returns the steps with the named collectives merged, whatever that costs; None where one of a bucket needs
    another's result, or a bucket does not fit."""
    named = {step.name: number for number, step in enumerate(steps)}
    graph = ContractedGraph(before)
    merged: dict[int, Collective] = {}
    members: dict[str, tuple[str, ...]] = {}
    for group in groups:
        first, *others = (named[name] for name in group)
        for number in others:
            one, other = merged.get(first, steps[first]), steps[number]
            assert isinstance(one, Collective) and isinstance(other, Collective)
            if graph.precedes(first, number) or graph.precedes(number, first):
                return None
            merged[first] = merge(one, other)
            graph.contract(first, number)
        if others and not fits(merged[first]):
            return None
        members.update({group[0]: tuple(group)} if others else {})
    found = {step.name: estimate(step) for step in merged.values()}
    return Bucketing(
        _ordered(graph, steps, merged), {name: one for name, one in found.items() if one is not None}, members
    )


def _ordered(graph: ContractedGraph, steps: Sequence[Step], merged: Mapping[int, Collective]) -> tuple[Step, ...]:
    """Returns the remaining steps in an order that the graph allows."""
    kept = [number for number, alive in enumerate(graph.alive) if alive]
    place = {number: position for position, number in enumerate(kept)}
    order = topological([{place[other] for other in graph.before[number]} for number in kept])
    return tuple(merged.get(kept[n], steps[kept[n]]) for n in order)
