"""Reductions and scans of a tile, as lines.

A row that fits in one block is reduced at once. A longer one is walked block by block: an accumulator for each lane,
which every block joins, then one reduction over the lanes after the walk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from litz.codegen.dialect import family
from litz.ir import Node
from litz.ir.combined import scan_row
from litz.ir.dtypes import HALF, compute_dtype, greatest, least
from litz.ir.node import walk
from litz.ir.reductions import REDUCTIONS, SCANS, Form, Reduction
from litz.ir.stages import one_walk_sums

from . import program as tile
from .program import Axes, Const, Operand, Places, Value

if TYPE_CHECKING:
    from .make import Maker


def neutral(kind: str, dtype: torch.dtype) -> Const:
    """Returns the state of no values, of a reduction that has one part."""
    row = family(kind, dtype)
    if row in ("any", "all"):
        return Const(row == "all", torch.bool)
    return Const(REDUCTIONS[kind].form(dtype).identity[0].attrs[0], dtype)


class Group:
    """Reductions of the same values that share their accumulators, by their row alone.

    For a row in one block only `close` adds anything; else there are `accumulators`, and `step` in the walk.
    """

    form_name = "row"

    def __init__(self, on: Reducer, nodes: Sequence[Node], args: Sequence[Node]) -> None:
        self.on, self.nodes, self.args, self.kind = on, nodes, args, nodes[0].attrs[0]
        self.dtype = compute_dtype(self.args[0].dtype)
        self.accumulators: tuple[Value, ...] = ()
        self.together = on.maker.tiling.together if self.joins() else 1

    def joins(self) -> bool:
        """Returns whether neighbouring elements can be reduced before they meet an accumulator."""
        return False

    @property
    def form(self) -> Form:
        """Returns the row's nodes (identity, lift, merge, finish) for the type that is computed in."""
        return REDUCTIONS[self.kind].form(self.dtype)

    def start(self) -> Sequence[Const]:
        """Returns the state of no values: what each accumulator begins with."""
        return [Const(node.attrs[0], node.dtype) for node in self.form.identity]

    def lifted(self) -> list[Operand]:
        """Returns the state of each value of the tile, an operand for each part of the state."""
        form, on = self.form, self.on
        given: dict[Node, Operand] = {leaf: on.value(arg) for leaf, arg in zip(form.values, self.args, strict=True)}
        given[form.position] = Places(torch.int64, on.full, True)
        found = on.nodes(form.lift, given)
        return [replace(value, axes=on.full) if isinstance(value, Const) else value for value in found]

    def whole(self) -> list[Operand]:
        """Returns the states of a row's values in one block, with the state of no value beyond the row's end."""
        return [self.on.filled(state, nothing) for state, nothing in zip(self.lifted(), self.start(), strict=True)]

    def finish(self, state: Sequence[Value]) -> Sequence[Operand]:
        """Returns what each node is, given the state of all values."""
        roots = [self.form.finish[node.attrs[0]] for node in self.nodes]
        return self.on.nodes(roots, dict(zip(self.form.state, state, strict=True)))

    def open(self) -> None:
        """Adds the accumulators."""
        axes = self.on.full if self.together == 1 else self.on.results | {"g"}
        self.accumulators = tuple(self.on.started("acc", const, axes) for const in self.start())

    def step(self) -> None:
        """Adds that one block's values join the accumulators."""
        self.join(self.lifted())

    def join(self, args: Sequence[Operand], masked: bool | None = None) -> None:
        """Adds a line `join`. masked: are lanes outside of the row left as they were?"""
        masked = self.on.masked if masked is None else masked
        named = self.accumulators if masked and self.form_name != "plain" else ()
        fresh = tuple(self.on.maker.fresh() for _ in named)
        value = self.args[0]
        of_half = value.dtype in HALF or (value.op == "cast" and value.args[0].dtype in HALF)
        half = self.form_name == "online" and self.together > 1 and of_half
        self.on.maker.put(
            tile.Join(self.accumulators, self.kind, self.form_name, tuple(args), masked, self.together, half, fresh)
        )

    def close(self) -> None:
        """Adds the reduction over lanes, of the accumulators or of a row in one block, and binds the results."""
        self.reduce(self.accumulators or self.whole())

    def reduce(self, state: Sequence[Operand]) -> None:
        """Adds the merging of the lanes' states, and binds the results."""
        on = self.on
        values = tuple(Value(on.maker.fresh(), compute_dtype(part.dtype), on.results) for part in state)
        on.maker.put(tile.Reduce(values, self.kind, self.form_name, tuple(state)))
        for node, result in zip(self.nodes, self.finish(values), strict=True):
            found = result if isinstance(result, Value) else on.maker.op("same", [result], node.dtype)
            on.maker.values[node] = replace(found, dtype=node.dtype)


class Plain(Group):
    """One accumulator. `any` and `all` ask of values of every type whether they are not 0."""

    form_name = "plain"

    def start(self) -> Sequence[Const]:
        """Returns the row's identity; bool for `any` and `all`."""
        return [neutral(self.kind, torch.bool if self.kind in ("any", "all") else self.dtype)]

    def lifted(self) -> list[Operand]:
        """Returns the value itself, or for `any` and `all` whether it is not 0."""
        value, (nothing,) = self.on.value(self.args[0]), self.start()
        return [value if nothing.dtype == self.dtype else tile.As(value, nothing.dtype)]

    def whole(self) -> list[Operand]:
        """Returns a row's values; of a softmax, lanes outside of the row get -inf before the maximum is found, so that
        their exponentials are 0 and need no mask."""
        on, (node, *_) = self.on, self.nodes
        if not on.masked:
            return super().whole()
        if node in on.vanishing:
            return self.lifted()
        found = super().whole()
        if node in on.vanishing.values():
            (node,) = self.args
            on.maker.values[node] = on.maker.op("same", found, node.dtype)
            return [on.maker.values[node]]
        return found

    def joins(self) -> bool:
        """Returns True: every reduction of this kind joins neighbours."""
        return True

    def step(self) -> None:
        """Adds that one block joins the accumulator, or the results of its groups of neighbours."""
        if self.together > 1:
            (value,), (nothing,) = self.lifted(), self.start()
            self.join([self.on.filled(value, nothing)], masked=False)
        else:
            super().step()

    def reduce(self, state: Sequence[Operand]) -> None:
        """Adds a reduction over the lanes for every node."""
        on = self.on
        for node in self.nodes:
            on.maker.values[node] = value = Value(on.maker.fresh(), node.dtype, on.results)
            on.maker.put(tile.Reduce((value,), self.kind, self.form_name, tuple(state)))


class Place(Group):
    """The position of an extreme, in 32 bits where they suffice, else in 64."""

    form_name = "place"

    def start(self) -> Sequence[Const]:
        """Returns the worst value and the greatest position, so that any element is preferred; bools are held as
        int32."""
        held = torch.int32 if self.dtype == torch.bool else self.dtype
        worst = (least if self.kind == "argmax" else greatest)(held)
        return [Const(worst, held), Const(greatest(self.on.position_type), self.on.position_type)]

    def whole(self) -> list[Operand]:
        """Returns the values and positions of a row, with the identity in lanes outside of it."""
        on, (worst, last) = self.on, self.start()
        value = on.value(self.args[0])
        place: Operand = Places(on.position_type, on.full)
        if on.maker.tiling.frame is not None:  # lanes before the row have positions below 0
            place = on.filled(place, last)
        return [on.filled(tile.As(value, worst.dtype) if self.dtype == torch.bool else value, worst), place]

    def step(self) -> None:
        """Adds that one block's values and positions join the accumulators."""
        self.join(self.whole(), masked=False)

    def finish(self, state: Sequence[Value]) -> Sequence[Operand]:
        """Returns the position as int64 for each node."""
        return [self.on.maker.op("cast", [state[1]], torch.int64) for _ in self.nodes]


class Combined(Group):
    """States of Welford's algorithm, merged."""

    form_name = "combined"


class Welford(Combined):
    """Mean and squared deviations; each lane's count of values is the same, and worked out at the end."""

    form_name = "welford"

    def start(self) -> Sequence[Const]:
        """Returns the identity of mean and squared deviations; the count of values is no accumulator."""
        return super().start()[:2]

    def joins(self) -> bool:
        """Returns whether neighbours join: in float32, where no group of them is cut by an end of the row."""
        size, framed = self.on.axis.size, self.on.maker.tiling.frame is not None
        whole = bool(size.is_Integer) and int(size) % self.on.maker.tiling.together == 0
        return whole and not framed and self.dtype == torch.float32

    def step(self) -> None:
        """Adds Welford's update of mean and squared deviations by one block, value by value or by groups."""
        self.join([self.on.value(self.args[0])])

    def close(self) -> None:
        """Adds the merging of the lanes, each weighted by its count of values; for a row in one block, the mean and the
        sum of squared deviations by their definitions."""
        on, maker = self.on, self.on.maker
        if self.accumulators:
            self.reduce([*self.accumulators, tile.Counts(self.dtype, self.accumulators[0].axes)])
            return
        # All of the row is at hand: the plain formulas, which are exact where Welford's is only stable.
        value, size = on.value(self.args[0]), on.axis.size
        near = all(node in maker.near for node in self.nodes) and bool(size.is_Integer) and int(size) > 0
        mean, apart = Value(maker.fresh(), self.dtype, on.results), Value(maker.fresh(), self.dtype, on.full)
        spreads = [node for node in self.nodes if node.attrs[0] != "welford_mean"]
        m2 = Value(maker.fresh(), self.dtype, on.results) if spreads else None
        maker.put(tile.Moments(mean, apart, m2, value, on.masked, near))
        for node in self.nodes:
            maker.values[node] = replace(m2 if m2 is not None and node in spreads else mean, dtype=node.dtype)


class Online(Group):
    """A maximum and sums of exp(x - max(x)), on one walk over a row of several blocks."""

    form_name = "online"

    def start(self) -> Sequence[Const]:
        """Returns -inf for the maximum and 0 for the sum."""
        return [Const(-float("inf"), self.dtype), Const(0.0, self.dtype)]

    def joins(self) -> bool:
        """Returns whether neighbours join: in float32."""
        return self.dtype == torch.float32

    def step(self) -> None:
        """Adds that one block joins maximum and sum; the sum is scaled down where the maximum grows."""
        value = self.on.value(self.args[0])
        if self.together > 1:
            self.join([self.on.filled(value, self.start()[0])], masked=False)
        else:
            self.join([value])

    def finish(self, state: Sequence[Value]) -> Sequence[Operand]:
        """Returns the maximum for the nodes that ask for it, and the sum of exp(x - max(x)) for the others."""
        op = self.on.maker.op
        return [state[0] if node.attrs[0] == "max" else op("softmax_total", state, self.dtype) for node in self.nodes]


def _function(node: Node) -> tuple[Reduction | None, object]:
    """Returns the row of a scan by a function of the user's, None for another scan, and what is scanned once."""
    row = None if node.attrs[0] in SCANS else scan_row(node.attrs[0])
    return row, node if row is None else (row.name, node.args)


def _zeros(args: Sequence[Node]) -> list[Const]:
    return [Const(0.0 if arg.dtype.is_floating_point else 0, arg.dtype) for arg in args]


MADE_BY_HAND: Mapping[str, type[Group]] = {
    **dict.fromkeys(("sum", "prod", "max", "min", "any", "all"), Plain),
    "argmax": Place,
    "argmin": Place,
    "welford": Welford,
    "welford_combine": Combined,
    "online": Online,
}
"""Reductions with lines of their own, which are faster or shorter; any other is worked out from its row."""


class Reducer:
    """Reduces the values of a tile: `open` before the walk over the row, `step` in it, `close` after it."""

    def __init__(
        self, maker: Maker, reduces: Sequence[Node], scans: Sequence[Node], online: Mapping[Node, Node] | None = None
    ) -> None:
        """online: sums of exp(x - max(x)), each with the maximum that it is found together with."""
        online = online or {}
        axis = maker.tiling.axis("r")
        assert axis is not None
        self.maker, self.scans, self.axis = maker, scans, axis
        self.persistent = maker.tiling.persistent
        self.full, self.results = maker.level_axes(True), maker.level_axes(False)
        self.masked = maker.is_masked(axis)
        self.position_type = torch.int32 if maker.positions == "i32" else torch.int64
        self.carries: dict[object, tuple[Value, ...]] = {}
        self.scanned: dict[object, tuple[Value, ...]] = {}
        """Scans by functions of the user's: the parts, by function and values."""
        groups: dict[tuple[str, tuple[Node, ...]], list[Node]] = {}
        for node in reduces:
            together = node in online or node in online.values()
            name = "online" if together else REDUCTIONS[node.attrs[0]].name
            groups.setdefault((name, online.get(node, node).args), []).append(node)
        self.groups = [MADE_BY_HAND.get(name, Group)(self, nodes, args) for (name, args), nodes in groups.items()]
        self.vanishing = one_walk_sums(maker.loop) if self.persistent else {}
        """Sums of exp(x - max(x)), each with its maximum, of rows in one block."""

    # What groups are made with.

    def value(self, node: Node) -> Operand:
        """Returns a node's value, repeated along the whole tile."""
        return self.maker.spread(node, self.full)

    def filled(self, value: Operand, outside: Const) -> Operand:
        """Returns a value with what changes nothing in the lanes outside of the row."""
        return tile.Filled(value, outside, value.dtype) if self.masked else value

    def started(self, stem: str, const: Const, axes: Axes) -> Value:
        """Adds a tile full of a constant, which a walk carries."""
        value = Value(self.maker.fresh(stem), const.dtype, axes)
        self.maker.put(tile.Op(value, "same", (replace(const, axes=axes),)))
        return value

    def nodes(self, roots: Sequence[Node], given: Mapping[Node, Operand]) -> list[Operand]:
        """Adds what computes nodes over those that are given, and returns the values of the roots."""
        found = dict(given)
        for node in walk(*roots):
            if node in found:
                continue
            if node.op == "const":
                found[node] = Const(node.attrs[0], node.dtype)
            else:
                found[node] = self.maker.op(node.op, [found[arg] for arg in node.args], node.dtype)
        return [found[root] for root in roots]

    # The walk over the row.

    def open(self) -> None:
        """Adds the accumulators and what scans carry from block to block; nothing for a row in one block."""
        if self.persistent:
            return
        for group in self.groups:
            group.open()
        for node in self.scans:
            row, key = _function(node)
            nothing = [neutral(node.attrs[0], compute_dtype(node.dtype))] if row is None else _zeros(node.args)
            if key not in self.carries:
                self.carries[key] = tuple(self.started("carry", const, self.results) for const in nothing)

    def step(self) -> None:
        """Adds what every group does with one block."""
        for group in () if self.persistent else self.groups:
            group.step()

    def close(self) -> None:
        """Adds the results of every group."""
        for group in self.groups:
            group.close()

    # Scans are values of the row, not of its result.

    def scan(self, node: Node) -> Value:
        """Adds an inclusive scan along the row; over blocks, the last value of each is carried into the next."""
        row, key = _function(node)
        if row is None:
            arg, form = self.value(node.args[0]), "plain" if node.attrs[0] in MADE_BY_HAND else "row"
            value = Value(self.maker.fresh(), node.dtype, self.full)
            outside = neutral(node.attrs[0], compute_dtype(node.dtype)) if self.masked else None
            self.maker.put(tile.Scan((value,), node.attrs[0], form, (arg,), self.carries.get(key, ()), outside))
            return value
        if key not in self.scanned:
            args, carry = tuple(map(self.value, node.args)), self.carries.get(key, ())
            self.scanned[key] = tuple(Value(self.maker.fresh(), arg.dtype, self.full) for arg in node.args)
            fresh = tuple(self.maker.fresh() for _ in carry)
            self.maker.put(tile.Scan(self.scanned[key], node.attrs[0], "function", args, carry, None, fresh))
        return self.scanned[key][list(row.results).index(node.attrs[0])]
