"""Reductions and scans of a tile.

A row that fits in one block (`persistent`) is reduced at once. A longer one is walked block by block: an accumulator
for each lane, combined with every block, then one reduction over the lanes after the loop. In the rows below, `{a}` is
the accumulator (or left value), `{v}` the new value, `{T}` the type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import torch

from litz.codegen.dialect import family
from litz.ir import Node
from litz.ir.combined import scan_row
from litz.ir.dtypes import HALF, compute_dtype, greatest, least, short
from litz.ir.node import walk
from litz.ir.reductions import REDUCTIONS, SCANS, Form
from litz.ir.scalars import Scalar
from litz.ir.stages import one_walk_sums

from .dialect import TRITON, VALUES, literal, typed
from .values import Tile, Value, op_text


@dataclass(frozen=True)
class Row:
    """How to reduce with one accumulator: the value that changes nothing, the combination, the reduction of a tile
    along its `{axis}`."""

    identity: Scalar
    combine: str
    across: str
    scan: str = ""


def _by_function(identity: Scalar, function: str, combine: str = "") -> Row:
    """Returns the row of a reduction that merges by a function of two values. combine: a shorter text for the
    merging."""
    across = f"tl.reduce({{v}}, {{axis}}, {function}, keep_dims=True)"
    return Row(identity, combine or f"{function}({{a}}, {{v}})", across, f"tl.associative_scan({{v}}, 1, {function})")


def _row(kind: str, dtype: torch.dtype) -> Row:
    """The row of a kind of reduction for values of `dtype` (a compute type)."""
    row = family(kind, dtype)
    if row == "any":
        return Row(False, "{a} | {v}", "tl.max({v}.to(tl.int32), {axis}, keep_dims=True) != 0")
    if row == "all":
        return Row(True, "{a} & {v}", "tl.min({v}.to(tl.int32), {axis}, keep_dims=True) != 0")
    identity = REDUCTIONS[kind].form(dtype).identity[0].attrs[0]
    narrow = ".to({T})" if not dtype.is_floating_point and dtype.itemsize < 4 else ""
    if kind == "sum":
        across, scan = f"tl.sum({{v}}, {{axis}}, keep_dims=True){narrow}", f"tl.cumsum({{v}}, 1){narrow}"
        return Row(identity, "{a} + {v}", across, scan)
    if kind == "prod":
        return _by_function(identity, "_multiply", "{a} * {v}")
    word = "maximum" if kind == "max" else "minimum"
    if dtype.is_floating_point:
        return _by_function(identity, f"_{word}")
    across = f"tl.{kind}({{v}}, {{axis}}, keep_dims=True){narrow}"
    return Row(identity, f"tl.{word}({{a}}, {{v}})", across, f"tl.associative_scan({{v}}, 1, _{word}_int)")


def _nodes(roots: Sequence[Node], given: Mapping[Node, str], fresh: Callable[[], str]) -> tuple[list[str], list[str]]:
    """Lines that compute nodes over those that are given, and the names of the roots."""
    texts, lines = dict(given), list[str]()
    for node in walk(*roots):
        if node in texts:
            continue
        if node.op == "const":
            texts[node] = typed(node.attrs[0], node.dtype)
            continue
        args = [texts[arg] for arg in node.args]
        text = TRITON.cast(args[0], node.args[0].dtype, node.dtype) if node.op == "cast" else op_text(node, args)
        texts[node] = fresh()
        lines.append(f"{texts[node]} = {text}")
    return lines, [texts[root] for root in roots]


def _merge_function(name: str, form: Form) -> str:
    """The function that merges two states."""
    parameters = [f"{side}{number}" for side in ("s", "o") for number in range(len(form.state))]
    given = dict(zip((*form.state, *form.other), parameters, strict=True))
    lines, results = _nodes(form.merge, given, map("x{}".format, count()).__next__)
    body = "".join(f"    {line}\n" for line in (*lines, f"return {', '.join(results)}"))
    return f"@triton.jit\ndef {name}({', '.join(parameters)}):\n{body}\n"


class Group:
    """Reductions of the same values that share their accumulators, by their row alone.

    For a row in one block only `close` emits anything; else there are `accumulators`, and `step` in the loop.
    """

    def __init__(self, on: Reducer, nodes: Sequence[Node], args: Sequence[Node]) -> None:
        self.on, self.nodes, self.args, self.kind = on, nodes, args, nodes[0].attrs[0]
        self.dtype = compute_dtype(self.args[0].dtype)
        self.accumulators: list[str] = []
        self.together = on.tile.tiling.together if self.joins() else 1

    def joins(self) -> bool:
        """Returns whether neighbouring elements can be reduced before they meet an accumulator."""
        return False

    @property
    def form(self) -> Form:
        """Returns the row's nodes (identity, lift, merge, finish) for the type that is computed in."""
        return REDUCTIONS[self.kind].form(self.dtype)

    @property
    def merge(self) -> str:
        """Returns the name of the function that merges two states."""
        return self.on.merge_name(self.nodes[0])

    def start(self) -> Sequence[tuple[Scalar, torch.dtype]]:
        """Returns the state of no values: what each accumulator begins with, and its type."""
        return [(node.attrs[0], node.dtype) for node in self.form.identity]

    def lifted(self) -> list[str]:
        """Returns the texts of the state of each value of the tile, one for each part of the state."""
        form, tile = self.form, self.on.tile
        given = {leaf: self.on.value(arg) for leaf, arg in zip(form.values, self.args, strict=True)}
        given[form.position] = f"{self.on.position()}.to(tl.int64)"
        lines, texts = _nodes(form.lift, given, tile.fresh)
        tile.emit(*lines)
        constants = {node: f"tl.full({self.on.shape}, {literal(node.attrs[0])}, {VALUES[node.dtype]})"
                     for node in form.lift if node.op == "const"}  # fmt: skip
        return [constants.get(node, text) for node, text in zip(form.lift, texts, strict=True)]

    def whole(self) -> list[str]:
        """Returns the texts of the states of a row's values in one block, with the state of no value beyond the row's
        end."""
        return [self.on.masked(text, *nothing) for text, nothing in zip(self.lifted(), self.start(), strict=True)]

    def results(self, state: Sequence[str]) -> Sequence[str]:
        """Returns what each node is, given the state of all values."""
        roots = [self.form.finish[node.attrs[0]] for node in self.nodes]
        lines, texts = _nodes(roots, dict(zip(self.form.state, state, strict=True)), self.on.tile.fresh)
        self.on.tile.emit(*lines)
        return texts

    def step(self) -> None:
        """Emits the merging of one block's values into the accumulators."""
        merged = f"{self.merge}({', '.join([*self.accumulators, *self.lifted()])})"
        self.on.update(self.accumulators, merged, self.on.mask)

    def close(self) -> None:
        """Emits the reduction over lanes, of the accumulators or of a row in one block, and binds the results."""
        self.reduce(self.accumulators or self.whole())

    def reduce(self, state: Sequence[str]) -> None:
        """Emits the merging of the lanes' states, and binds the results."""
        names = [self.on.tile.fresh() for _ in state]
        inputs = state[0] if len(state) == 1 else f"({', '.join(state)})"
        self.on.tile.emit(f"{', '.join(names)} = tl.reduce({inputs}, 1, {self.merge}, keep_dims=True)")
        for node, text in zip(self.nodes, self.results(names), strict=True):
            self.on.bind(node, text)


class Plain(Group):
    """One accumulator, by the rows above. `any` and `all` ask of values of every type whether they are not 0."""

    def start(self) -> Sequence[tuple[Scalar, torch.dtype]]:
        """Returns the row's identity; bool for `any` and `all`."""
        dtype = torch.bool if self.kind in ("any", "all") else self.dtype
        return [(_row(self.kind, dtype).identity, dtype)]

    def lifted(self) -> list[str]:
        """Returns the value itself, or for `any` and `all` whether it is not 0."""
        value, ((_, dtype),) = self.on.value(self.args[0]), self.start()
        return [value if dtype == self.dtype else f"({value} != 0)"]

    def whole(self) -> list[str]:
        """Returns the text of a row's values; of a softmax, lanes outside of the row get -inf before the maximum is
        found, so that their exponentials are 0 and need no mask."""
        on, (node, *_) = self.on, self.nodes
        if on.mask is None:
            return super().whole()
        if node in on.vanishing:
            return self.lifted()
        texts = super().whole()
        if node in on.vanishing.values():
            texts = [on.named(texts[0])]
            on.tile.values[self.args[0]] = Value(texts[0], on.full)
        return texts

    def joins(self) -> bool:
        """Returns True: every reduction of this kind joins neighbours."""
        return True

    def step(self) -> None:
        """Emits the combination of the accumulator with one block, or with the results of its groups of neighbours."""
        (name,), (value,) = self.accumulators, self.lifted()
        if self.together > 1:
            ((identity, dtype),), row = self.start(), _row(self.kind, self.dtype)
            groups = self.on.grouped(self.on.masked(value, identity, dtype), self.together)
            found = row.across.format(v=groups, T=VALUES[dtype], axis=2)
            part = f"tl.reshape({found}, {self.on.lanes(self.together)})"
            self.on.tile.emit(f"{name} = {row.combine.format(a=name, v=part)}")
            return
        new = _row(self.kind, self.dtype).combine.format(a=name, v=value)
        self.on.tile.emit(f"{name} = {new if self.on.mask is None else f'tl.where(rmask, {new}, {name})'}")

    def reduce(self, state: Sequence[str]) -> None:
        """Emits Triton's own reduction over the lanes, and binds every node to its result."""
        (value,), ((_, dtype),) = state, self.start()
        for node in self.nodes:
            self.on.bind(node, _row(self.kind, dtype).across.format(v=value, T=VALUES[dtype], axis=1))


class Place(Group):
    """The position of an extreme, in 32 bits where they suffice, else in 64."""

    @property
    def merge(self) -> str:
        """Returns the name of the helper that merges two (extreme, position) pairs."""
        return f"_{self.kind}"

    def start(self) -> Sequence[tuple[Scalar, torch.dtype]]:
        """Returns the worst value and the greatest position, so that any element is preferred; bools are held as
        int32."""
        held = torch.int32 if self.dtype == torch.bool else self.dtype
        position = torch.int32 if self.on.tile.index_type == "tl.int32" else torch.int64
        return [((least if self.kind == "argmax" else greatest)(held), held), (greatest(position), position)]

    def whole(self) -> list[str]:
        """Returns the values and positions of a row, with the identity in lanes outside of it."""
        value = self.on.value(self.args[0]) + (".to(tl.int32)" if self.dtype == torch.bool else "")
        position = self.on.position()
        if self.on.tile.tiling.frame is not None:  # lanes before the row have positions below 0
            position = self.on.masked(position, *self.start()[1])
        return [self.on.masked(value, *self.start()[0]), position]

    def step(self) -> None:
        """Emits the merging of one block's values and positions into the accumulators."""
        names = ", ".join(self.accumulators)
        self.on.tile.emit(f"{names} = {self.merge}({names}, {', '.join(self.whole())})")

    def results(self, state: Sequence[str]) -> Sequence[str]:
        """Returns the position as int64 for each node."""
        return [f"{state[1]}.to(tl.int64)"] * len(self.nodes)


class Combined(Group):
    """States of Welford's algorithm, merged."""

    merge = "_welford_combine"


class Welford(Combined):
    """Mean and squared deviations; each lane's count of values is the same, and worked out at the end."""

    def start(self) -> Sequence[tuple[Scalar, torch.dtype]]:
        """Returns the identity of mean and squared deviations; the count of values is no accumulator."""
        return super().start()[:2]

    def joins(self) -> bool:
        """Returns whether neighbours join: in float32, where no group of them is cut by an end of the row."""
        # Where no group is cut by an end of the row.
        size, framed = self.on.size, self.on.tile.tiling.frame is not None
        whole = bool(size.is_Integer) and int(size) % self.on.tile.tiling.together == 0
        return whole and not framed and self.dtype == torch.float32

    def step(self) -> None:
        """Emits Welford's update of mean and squared deviations by one block, value by value or by groups."""
        if self.together > 1:
            on = self.on
            state = ", ".join([*self.accumulators, on.grouped(on.value(self.args[0]), self.together)])
            inside = None if on.mask is None else f"(roffset + {on.first_of_group(self.together)} < {on.length})"
            on.update(self.accumulators, f"_welford_group({state}, {self.together}, roffset // RBLOCK)", inside)
            return
        state = ", ".join([*self.accumulators, self.on.value(self.args[0])])
        self.on.update(self.accumulators, f"_welford_step({state}, roffset // RBLOCK + 1)", self.on.mask)

    def close(self) -> None:
        """Emits the merging of the lanes, each weighted by its count of values; for a row in one block, the mean and
        the sum of squared deviations by their definitions."""
        on = self.on
        if self.accumulators:
            # How many values each lane has seen.
            first = "rbase" if self.together == 1 else on.first_of_group(self.together)
            steps = f"(({on.length} - {first} + (RBLOCK - 1)) // RBLOCK)"
            times = "" if self.together == 1 else f" * {self.together}"
            weight = f"({steps}{times}).to({VALUES[self.args[0].dtype]})"
            self.reduce([*self.accumulators, f"tl.broadcast_to({weight}, {on.lanes(self.together)})"])
            return
        # All of the row is at hand: the plain formulas, which are exact where Welford's is only stable.
        value = on.value(self.args[0])
        mean, spread = on.tile.fresh(), on.tile.fresh()
        total = f"tl.sum({on.masked(value, 0.0, torch.float32)}, 1, keep_dims=True)"
        rounded = all(node in on.tile.texts for node in self.nodes) and on.size.is_Integer and int(on.size) > 0
        text = f"{total} * {literal(1 / int(on.size))}" if rounded else f"_mean({total}, {on.length})"
        on.tile.emit(f"{mean} = {text}")
        # Masked before it is squared: a square is added in one instruction then.
        on.tile.emit(f"{spread} = {on.masked(f'{value} - {mean}', 0.0, torch.float32)}")
        squares = f"tl.sum({spread} * {spread}, 1, keep_dims=True)"
        for node in self.nodes:
            on.bind(node, mean if node.attrs[0] == "welford_mean" else squares)


class Online(Group):
    """A maximum and sums of exp(x - max(x)), on one walk over a row of several blocks."""

    merge = "_softmax_combine"

    def start(self) -> Sequence[tuple[Scalar, torch.dtype]]:
        """Returns -inf for the maximum and 0 for the sum."""
        return [(-float("inf"), self.dtype), (0.0, self.dtype)]

    def joins(self) -> bool:
        """Returns whether neighbours join: in float32."""
        return self.dtype == torch.float32

    def step(self) -> None:
        """Emits the update of maximum and sum by one block; the sum is scaled down where the maximum grows."""
        value = self.on.value(self.args[0])
        if self.together > 1:
            groups = self.on.grouped(self.on.masked(value, -float("inf"), self.dtype), self.together)
            state = ", ".join([*self.accumulators, groups, str(_is_half(self.args[0]))])
            self.on.tile.emit(f"{', '.join(self.accumulators)} = _softmax_group({state})")
            return
        state = ", ".join([*self.accumulators, value])
        self.on.update(self.accumulators, f"_softmax_step({state})", self.on.mask)

    def results(self, state: Sequence[str]) -> Sequence[str]:
        """Returns the maximum for the nodes that ask for it, and the sum of exp(x - max(x)) for the others."""
        total = f"_softmax_total({', '.join(state)})"
        return [state[0] if node.attrs[0] == "max" else total for node in self.nodes]


def _is_half(node: Node) -> bool:
    """Was a value of a half type before it was computed with?"""
    return node.dtype in HALF or (node.op == "cast" and node.args[0].dtype in HALF)


MADE_BY_HAND: Mapping[str, type[Group]] = {
    **dict.fromkeys(("sum", "prod", "max", "min", "any", "all"), Plain),
    "argmax": Place,
    "argmin": Place,
    "welford": Welford,
    "welford_combine": Combined,
    "online": Online,
}
"""Reductions with text of their own, which is faster or shorter; any other is worked out from its row."""


class Reducer:
    """Reduces the values of a tile: `open` before the loop over the row, `step` in it, `close` after it."""

    def __init__(
        self, tile: Tile, reduces: Sequence[Node], scans: Sequence[Node], online: Mapping[Node, Node] | None = None
    ) -> None:
        """online: sums of exp(x - max(x)), each with the maximum that it is found together with."""
        online = online or {}
        axis = tile.tiling.axis("r")
        assert axis is not None
        self.tile, self.scans = tile, scans
        self.persistent, self.size, self.length = tile.tiling.persistent, axis.size, tile.index_text(axis.size)
        groups: dict[tuple[str, tuple[Node, ...]], list[Node]] = {}
        for node in reduces:
            together = node in online or node in online.values()
            family = "online" if together else REDUCTIONS[node.attrs[0]].name
            groups.setdefault((family, online.get(node, node).args), []).append(node)
        self.groups = [MADE_BY_HAND.get(family, Group)(self, nodes, args) for (family, args), nodes in groups.items()]
        self.carries: dict[Node, str] = {}
        self.scanned: dict[tuple[str, tuple[Node, ...]], tuple[list[str], list[str]]] = {}
        """Scans by functions of the user's, by function and values: what the parts are, and what is carried."""
        self.full = tile.level_axes(True)
        self.shape = tile.shape(self.full)
        self.results = tile.level_axes(False)
        self.mask = "rmask" if tile.is_masked(axis) else None
        self.vanishing = one_walk_sums(tile.loop) if self.persistent else {}
        """Sums of exp(x - max(x)), each with its maximum, of rows in one block."""

    # What groups are written with.

    def value(self, node: Node) -> str:
        """Returns the name of a node's value, broadcast to the whole tile."""
        return self.tile.full(node, self.full)

    def masked(self, text: str, identity: Scalar, dtype: torch.dtype) -> str:
        """Returns `text` with the lanes beyond the end of the row set to `identity`, a value that changes nothing."""
        if self.mask is None:
            return text
        if dtype == torch.bool:
            return f"({text} & {self.mask})" if identity is False else f"({text} | ({self.mask} == 0))"
        return f"tl.where({self.mask}, {text}, {literal(identity)})"

    def named(self, text: str) -> str:
        """Emits `text` under a name of its own, which it returns."""
        name = self.tile.fresh()
        self.tile.emit(f"{name} = {text}")
        return name

    def bind(self, node: Node, text: str) -> None:
        """Makes `text` the value of a node, under a name of its own unless `text` is a name."""
        name = text
        if not text.isidentifier():
            name = self.tile.fresh()
            self.tile.emit(f"{name} = {text}")
        self.tile.values[node] = Value(name, self.results)

    def position(self) -> str:
        """Returns the position along the row of each element of the tile, in the type of indices."""
        text = f"tl.broadcast_to(rindex, {self.shape})"
        return text if self.tile.index_type == "tl.int32" else f"{text}.to(tl.int64)"

    def update(self, names: Sequence[str], new: str, inside: str | None) -> None:
        """Emits that accumulators become what a function gives, except in lanes beyond the end of the row. new: the
        function's call. inside: the text of the mask of the lanes within the row; None if all are."""
        if inside is None:
            self.tile.emit(f"{', '.join(names)} = {new}")
            return
        fresh = [self.tile.fresh() for _ in names]
        self.tile.emit(f"{', '.join(fresh)} = {new}")
        self.tile.emit(*(f"{n} = tl.where({inside}, {value}, {n})" for n, value in zip(names, fresh, strict=True)))

    # Neighbouring elements that are reduced before they meet an accumulator.

    def lanes(self, together: int) -> str:
        """Returns the shape of accumulators, one for `together` elements of a row."""
        return self.shape if together == 1 else f"[XBLOCK, RBLOCK // {together}]"

    def grouped(self, text: str, together: int) -> str:
        """Returns the text of the tile's values, grouped by `together` neighbours along the row."""
        return f"tl.reshape({text}, [XBLOCK, RBLOCK // {together}, {together}])"

    def first_of_group(self, together: int) -> str:
        """Returns the place of each group's first element in a block along the row."""
        return f"(tl.arange(0, RBLOCK // {together})[None, :] * {together})"

    def merge_name(self, node: Node) -> str:
        """Returns the name of the function that merges two states of a node's reduction, and adds the function to the
        kernel."""
        row, dtype = scan_row(node.attrs[0]) or REDUCTIONS[node.attrs[0]], compute_dtype(node.args[0].dtype)
        name = f"litz_merge_{row.name}_{short(dtype)}"
        self.tile.functions[name] = _merge_function(name, row.form(dtype))
        return name

    # The loop over the row.

    def open(self) -> None:
        """Emits the accumulators and what scans carry from block to block, at their identities; nothing for a row in
        one block."""
        if self.persistent:
            return
        for group in self.groups:
            shape = self.lanes(group.together)
            group.accumulators = [self._full("acc", shape, *nothing) for nothing in group.start()]
        for node in self.scans:
            if node.attrs[0] not in SCANS:
                parts, shape = self.scanned.setdefault(self._function(node), ([], [])), self.tile.shape(self.results)
                parts[1][:] = parts[1] or [self._full("carry", shape, 0, arg.dtype) for arg in node.args]
                continue
            nothing = self._scan_row(node).identity, compute_dtype(node.dtype)
            self.carries[node] = self._full("carry", self.tile.shape(self.results), *nothing)

    def _full(self, stem: str, shape: str, value: Scalar, dtype: torch.dtype) -> str:
        name = self.tile.fresh(stem)
        self.tile.emit(f"{name} = tl.full({shape}, {literal(value)}, {VALUES[dtype]})")
        return name

    def step(self) -> None:
        """Emits what every group does with one block."""
        for group in () if self.persistent else self.groups:
            group.step()

    def close(self) -> None:
        """Emits the results of every group."""
        for group in self.groups:
            group.close()

    # Scans are values of the row, not of its result.

    def _scan_row(self, node: Node) -> Row:
        """How to scan: states are values there."""
        kind, dtype = node.attrs[0], compute_dtype(node.dtype)
        if kind in MADE_BY_HAND:
            return _row(kind, dtype)
        return _by_function(REDUCTIONS[kind].form(dtype).identity[0].attrs[0], self.merge_name(node))

    def scan(self, node: Node) -> Value:
        """Emits an inclusive scan along the row; over blocks, the last value of each is carried into the next."""
        if node.attrs[0] not in SCANS:
            return self._combined(node)
        dtype = compute_dtype(node.dtype)
        row = self._scan_row(node)
        value = self.value(node.args[0])
        name = self.tile.fresh()
        scanned = row.scan.format(v=value, T=VALUES[dtype])
        if self.persistent:
            self.tile.emit(f"{name} = {scanned}")
            return Value(name, self.full)
        carry = self.carries[node]
        self.tile.emit(f"{name} = {row.combine.format(a=carry, v=f'({scanned})')}")
        total = row.across.format(v=self.masked(value, row.identity, dtype), T=VALUES[dtype], axis=1)
        self.tile.emit(f"{carry} = {row.combine.format(a=carry, v=f'({total})')}")
        return Value(name, self.full)

    def _function(self, node: Node) -> tuple[str, tuple[Node, ...]]:
        return self.merge_name(node), node.args

    def _combined(self, node: Node) -> Value:
        """Emits a scan by a function of the user's, for all its parts at once. The function has no state of no values:
        the first block is as it is, and what lies beyond the end of the row is in the last block, which hands on
        nothing."""
        function, _ = key = self._function(node)
        names, carries = self.scanned.setdefault(key, ([], []))
        row = scan_row(node.attrs[0])
        assert row is not None
        if not names:
            values = [self.value(arg) for arg in node.args]
            given = f"({', '.join(values)})" if len(values) > 1 else values[0]
            names += [self.tile.fresh() for _ in values]
            self.tile.emit(f"{', '.join(names)} = tl.associative_scan({given}, 1, {function})")
            if carries:
                joined = [self.tile.fresh() for _ in values]
                self.tile.emit(f"{', '.join(joined)} = {function}({', '.join([*carries, *names])})")
                # Not by tl.reduce, which merges lanes in any order. Adding -0.0 changes no number.
                for arg, name, other, carry in zip(node.args, names, joined, carries, strict=True):
                    nothing = "-0.0" if arg.dtype.is_floating_point else "0"
                    last = f"tl.where(rbase == RBLOCK - 1, {name}, {nothing})"
                    self.tile.emit(f"{name} = tl.where(roffset == 0, {name}, {other})")
                    self.tile.emit(f"{carry} = tl.sum({last}, 1, keep_dims=True)")
        return Value(names[list(row.results).index(node.attrs[0])], self.full)
