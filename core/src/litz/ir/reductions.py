"""The reductions, a row each, as data: what is held while values come in, how it grows, what comes of it.

A `reduce` node takes its values over all the reduction ranges of its loop, or over ranges of its own; its kind is a
result of one of the rows. `sum_in_order` and `prod_in_order` take in one value after the other, in row-major order.
Results of one row and the same values share one state: `welford_mean` and `welford_m2` are the mean, and the sum of
squared deviations from it (Welford, "Note on a method for calculating corrected sums of squares and products", 1962;
merged as Chan, Golub and LeVeque do, 1979). Those of `welford_double` are float64, for squares beyond float32; they
need be no more exact. `dot` is the sum of products of two values, which need not be rounded before they are added:
contractions are made of it. `argmax` and `argmin` give the row-major position within the reduction ranges, the first of
equals; NaN is the extreme. `weighted_softmax` is the sum of values, weighted by the softmax of scores, in one walk
(Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018): attention is made of it. A score of -inf
has the weight 0; where no score is greater, the result is NaN, as that of a softmax is.

Adding a reduction is adding a row. The interpreter computes its torch column, `litz.schedule.split` splits it, and code
generators write it from the row; a faster form that was made by hand is an entry of a target's dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from operator import itemgetter

import torch

from .dtypes import compute_dtype, greatest, least
from .node import Node, intern, rewrite, walk, with_args
from .ops import OPS
from .scalars import Scalar, call, cast, const

State = tuple[Node, ...]
Torch = Callable[..., torch.Tensor]


@dataclass(frozen=True, eq=False)
class Result:
    """The result of one kind of `reduce` node. finish: makes it of a state that has all values. torch: the same, of
    tensors with the reduction as last dimension, which goes. scan: the inclusive scan along the last dimension, None
    where there are no such scans. flops: per value."""

    finish: Callable[[State], Node]
    torch: Torch
    scan: Torch | None = None
    flops: int = 1


@dataclass(frozen=True, eq=False)
class Reduction:
    """A way to reduce. Its functions take and give nodes of compute types (half types as float32).

    name: of the row. results: by kind. identity: the state of no values, constants, by the type of the values.
    merge: the state of two others; values in the second come later where that counts. lift: the state of one value,
    given the values (there are `arity`) and the position (int64, row-major); by default the value itself. parts: names
    of what the state consists of. neutral: a value that changes nothing, by type; None if there is none. ordered: do
    positions count, so that nothing may renumber them? merge_flops: of a merge. begins_with_first: is there no state of
    no values? The identity is any state then, and the first value is the first state.
    """

    name: str
    results: Mapping[str, Result]
    identity: Callable[[torch.dtype], State]
    merge: Callable[[State, State], State]
    lift: Callable[[State, Node], State] | None = None
    arity: int = 1
    parts: tuple[str, ...] = ("value",)
    neutral: Callable[[torch.dtype], Scalar] | None = None
    ordered: bool = False
    merge_flops: int = 1
    takes_states: bool = False
    begins_with_first: bool = False

    def form(self, dtype: torch.dtype) -> Form:
        """Returns the row for values of a dtype. Errors: TypeError if the row has no meaning there."""
        return _form(self, compute_dtype(dtype))

    def dtype(self, kind: str, dtype: torch.dtype) -> torch.dtype:
        """Returns the type of a result of the given kind. dtype: that of the first value. Half types stay, as results
        of arithmetic do."""
        found = self.form(dtype).finish[kind].dtype
        return dtype if found == compute_dtype(dtype) else found

    @property
    def several(self) -> bool:
        """Returns whether one walk over the values gives several results."""
        return len(self.results) > 1

    @cached_property
    def of_states(self) -> Reduction:
        """Returns the reduction that merges states, such as a split reduction leaves: the parts of a state are its
        values and its results."""

        def result(number: int) -> Result:
            return Result(lambda state: state[number], lambda *parts: self.fold(parts)[number], flops=self.merge_flops)

        kinds = {f"{self.name}_combine_{part}": result(number) for number, part in enumerate(self.parts)}
        return Reduction(
            f"{self.name}_combine",
            kinds,
            self.identity,
            self.merge,
            lambda values, position: values,
            len(self.parts),
            self.parts,
            merge_flops=self.merge_flops,
            takes_states=True,
        )

    def alone(self, number: int, dtype: torch.dtype) -> str | None:
        """Returns the kind that merges one part of states by itself, whatever the other parts are; None if there is
        none."""
        merged = self.form(dtype).merge[number]
        part = self.form(dtype).state[number].dtype
        for kind, row in REDUCTIONS.items():
            if row.parts == ("value",) and row.means(part):
                form = row.form(part)
                if form.lift == form.values and merged.op == form.merge[0].op:
                    if merged.args == (self.form(dtype).state[number], self.form(dtype).other[number]):
                        return kind
        return None

    def means(self, dtype: torch.dtype) -> bool:
        """Returns whether the row has a meaning for values of a type."""
        try:
            return bool(self.form(dtype))
        except TypeError:
            return False

    def fold(self, states: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the states along the last dimension merged, neighbours first, so that their order is kept."""
        form = self.form(states[0].dtype)
        while (size := states[0].shape[-1]) != 1:
            if size == 0 or size % 2:
                states = [
                    torch.cat(
                        [s.to(n.dtype), torch.full((*s.shape[:-1], 1), n.attrs[0], dtype=n.dtype, device=s.device)], -1
                    )
                    for s, n in zip(states, form.identity, strict=True)
                ]
            if size:
                both = [*(s[..., 0::2] for s in states), *(s[..., 1::2] for s in states)]
                states = evaluate(form.merge, dict(zip((*form.state, *form.other), both, strict=True)))
        return [state[..., 0] for state in states]


@dataclass(frozen=True)
class Form:
    """A row for one type of values: nodes over the leaves `values`, `position`, `state` and `other` (the later state of
    a merge). `finish` has a node per kind."""

    values: State
    position: Node
    state: State
    other: State
    identity: State
    lift: State
    merge: State
    finish: Mapping[str, Node]

    @property
    def step(self) -> State:
        """Returns the state with one more value, over `state`, `values` and `position`."""
        given = dict(zip(self.other, self.lift, strict=True))
        return rewrite(self.merge, lambda node, args: given.get(node) or with_args(node, args))


@cache
def _form(row: Reduction, dtype: torch.dtype) -> Form:
    identity = row.identity(dtype)
    state, other = (
        tuple(_leaf(f"{name}{number}", node.dtype) for number, node in enumerate(identity)) for name in ("s", "o")
    )
    types = [node.dtype for node in identity] if row.takes_states else [dtype] * row.arity
    values = tuple(_leaf(f"v{number}", each) for number, each in enumerate(types))
    position = _leaf("at", torch.int64)
    lift = values if row.lift is None else row.lift(values, position)
    finish = {kind: result.finish(state) for kind, result in row.results.items()}
    return Form(values, position, state, other, identity, lift, row.merge(state, other), finish)


def _leaf(name: str, dtype: torch.dtype) -> Node:
    return intern("given", dtype, (), (name,))


def evaluate(roots: Sequence[Node], given: Mapping[Node, torch.Tensor]) -> list[torch.Tensor]:
    """Returns the values of nodes made of ops, constants and casts over leaves that are given."""
    values: dict[Node, torch.Tensor] = dict(given)
    for node in walk(*roots):
        if node in values:
            continue
        args = [values[arg] for arg in node.args]
        if node.op == "const":
            values[node] = torch.tensor(node.attrs[0], dtype=node.dtype, device="cpu")
        else:
            values[node] = args[0].to(node.dtype) if node.op == "cast" else OPS[node.op].torch(*args)
    return [values[root] for root in roots]


# ------------------------------------------------------------------------------------------------------------ rows


_first, _second = itemgetter(0), itemgetter(1)


def _by_op(
    name: str,
    op: str,
    neutral: Callable[[torch.dtype], Scalar],
    function: Torch,
    scan: Torch | None = None,
    held: torch.dtype | None = None,
    lift: Callable[[State, Node], State] | None = None,
) -> Reduction:
    """Returns a reduction whose state is one value, merged by an op. held: the state's dtype where it differs from the
    values'."""
    return Reduction(
        name,
        {name: Result(_first, function, scan)},
        identity=lambda dtype: (const(neutral(dtype), held or dtype),),
        merge=lambda a, b: (call(op, a[0], b[0]),),
        lift=lift,
        neutral=neutral,
    )


def _test(name: str, op: str, empty: bool, function: Torch) -> Reduction:
    """Returns the reduction that says whether any value, or every value, is not 0."""

    def lift(values: State, position: Node) -> State:
        (value,) = values
        return (value if value.dtype == torch.bool else call("ne", value, const(0, value.dtype)),)

    return _by_op(name, op, lambda dtype: int(empty), function, held=torch.bool, lift=lift)


def _position_of(name: str, better: str, worst: Callable[[torch.dtype], Scalar], function: Torch) -> Reduction:
    """Returns the reduction that gives the place of an extreme: the first of equals, and a NaN before everything
    else."""

    def merge(a: State, b: State) -> State:
        nan_a, nan_b = call("ne", a[0], a[0]), call("ne", b[0], b[0])
        beats = call("bitwise_or", call(better, b[0], a[0]), call("bitwise_and", nan_b, call("eq", a[0], a[0])))
        equals = call("bitwise_or", call("eq", b[0], a[0]), call("bitwise_and", nan_b, nan_a))
        take = call("bitwise_or", beats, call("bitwise_and", equals, call("lt", b[1], a[1])))
        return call("where", take, b[0], a[0]), call("where", take, b[1], a[1])

    return Reduction(
        name,
        {name: Result(_second, function, flops=2)},
        identity=lambda dtype: (const(worst(dtype), dtype), const(greatest(torch.int64), torch.int64)),
        merge=merge,
        lift=lambda values, position: (values[0], position),
        parts=("best", "at"),
        ordered=True,
    )


def _typed(function: Torch, of_bool: Torch) -> Torch:
    """Torch's sum and product give int64 for small types: not here."""
    return lambda x: of_bool(x, -1) if x.dtype == torch.bool else function(x, -1, dtype=x.dtype)


def _dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    products = a & b if a.dtype == torch.bool else a * b
    return products.any(-1) if a.dtype == torch.bool else products.sum(-1, dtype=a.dtype)


def _merge_moments(a: State, b: State) -> State:
    (mean, m2, weight), (other_mean, other_m2, other_weight) = a, b
    zero, one = const(0, mean.dtype), const(1, mean.dtype)
    delta, total = call("sub", other_mean, mean), call("add", weight, other_weight)
    empty = call("eq", total, zero)
    share = call("where", empty, zero, call("div", other_weight, call("where", empty, one, total)))
    moved = call("mul", call("mul", delta, delta), call("mul", weight, share))
    return call("add", mean, call("mul", delta, share)), call("add", call("add", m2, other_m2), moved), total


def _moments(name: str, held: torch.dtype | None) -> Reduction:
    """Returns a row of the mean and the squared deviations. held: the state's dtype where it differs from the
    values'."""

    def lift(values: State, position: Node) -> State:
        if not values[0].dtype.is_floating_point:
            raise TypeError(f"{name} is of floating point values, not of {values[0].dtype}")
        value = cast(values[0], held or values[0].dtype)
        return value, call("sub", value, value), const(1, value.dtype)  # NaN if the value is not finite

    return Reduction(
        name,
        {
            # Per value: the count, its reciprocal's product with a difference, an add; and three more.
            f"{name}_mean": Result(_first, lambda x: x.mean(-1, dtype=held), flops=4),
            f"{name}_m2": Result(_second, lambda x: ((x - x.mean(-1, dtype=held, keepdim=True)) ** 2).sum(-1), flops=3),
        },
        identity=lambda dtype: (const(0, held or dtype),) * 3,
        merge=_merge_moments,
        lift=lift,
        parts=("mean", "m2", "weight"),
        merge_flops=6,
    )


def _weight(score: Node, top: Node) -> Node:
    """Returns exp(score - top), 0 of a score of -inf."""
    least_score = const(least(top.dtype), top.dtype)
    return call("exp", call("sub", score, call("where", call("eq", top, least_score), const(0, top.dtype), top)))


def _lift_weighted(values: State, position: Node) -> State:
    score, value = values
    weight = _weight(score, score)  # 1; 0 of -inf, NaN of what is not finite otherwise
    return score, weight, call("mul", weight, value)


def _merge_weighted(a: State, b: State) -> State:
    top = call("maximum", a[0], b[0])
    by_a, by_b = _weight(a[0], top), _weight(b[0], top)
    sums = (call("add", call("mul", one, by_a), call("mul", other, by_b)) for one, other in zip(a[1:], b[1:]))
    return top, *sums


def _weighted_softmax(scores: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    weights = scores.softmax(-1)
    return (weights * values).sum(-1) / weights.sum(-1)


ROWS: tuple[Reduction, ...] = (
    _by_op("sum", "add", lambda dtype: 0, _typed(torch.sum, torch.any), lambda x: x.cumsum(-1, dtype=x.dtype)),
    _by_op("prod", "mul", lambda dtype: 1, _typed(torch.prod, torch.all), lambda x: x.cumprod(-1, dtype=x.dtype)),
    replace(_by_op("sum_in_order", "add", lambda dtype: 0, _typed(torch.sum, torch.any)), ordered=True),
    replace(_by_op("prod_in_order", "mul", lambda dtype: 1, _typed(torch.prod, torch.all)), ordered=True),
    _by_op("max", "maximum", least, lambda x: x.amax(-1), lambda x: torch.cummax(x, -1).values),
    _by_op("min", "minimum", greatest, lambda x: x.amin(-1), lambda x: torch.cummin(x, -1).values),
    _test("any", "bitwise_or", False, lambda x: x.any(-1)),
    _test("all", "bitwise_and", True, lambda x: x.all(-1)),
    _position_of("argmax", "gt", least, lambda x: x.argmax(-1)),
    _position_of("argmin", "lt", greatest, lambda x: x.argmin(-1)),
    Reduction(
        "dot",
        {"dot": Result(_first, _dot, flops=2)},
        identity=lambda dtype: (const(0, dtype),),
        merge=lambda a, b: (call("add", a[0], b[0]),),
        lift=lambda values, position: (call("mul", values[0], values[1]),),
        arity=2,
    ),
    _moments("welford", None),
    _moments("welford_double", torch.float64),
    Reduction(
        "weighted_softmax",
        {"weighted_softmax": Result(lambda state: call("div", state[2], state[1]), _weighted_softmax, flops=12)},
        identity=lambda dtype: (const(least(dtype), dtype), const(0, dtype), const(0, dtype)),
        merge=_merge_weighted,
        lift=_lift_weighted,
        arity=2,
        parts=("top", "weights", "total"),
        merge_flops=22,
    ),
)


def by_kind(*rows: Reduction) -> Iterator[tuple[str, Reduction]]:
    """Returns the row of each kind that rows add: of their results, and of merging their states."""
    for row in rows:
        yield from ((kind, row) for kind in row.results)
        if row.lift is not None:
            yield from ((kind, row.of_states) for kind in row.of_states.results)


REDUCTIONS: dict[str, Reduction] = dict(by_kind(*ROWS))
"""The row of each kind of `reduce` node."""

SCANS: dict[str, Torch] = {
    kind: result.scan for row in ROWS for kind, result in row.results.items() if result.scan is not None
}
"""Inclusive scans along the last dimension, by kind."""
