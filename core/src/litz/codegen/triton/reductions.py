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

from litz.ir import Node
from litz.ir.dtypes import compute_dtype, greatest, least, short
from litz.ir.node import walk
from litz.ir.reductions import REDUCTIONS, Form
from litz.ir.scalars import Scalar

from .dialect import TRITON, VALUES, literal, typed
from .values import Tile, Value, op_text


@dataclass(frozen=True)
class Row:
    """How to reduce with one accumulator: the value that changes nothing, the combination, the reduction of a tile."""

    identity: Scalar
    combine: str
    across: str
    scan: str = ""


def _row(kind: str, dtype: torch.dtype) -> Row:
    """The row of a kind of reduction for values of `dtype` (a compute type)."""
    if dtype == torch.bool or kind in ("any", "all"):
        # Sum and max of bool are its "or", product and min its "and".
        if kind in ("any", "sum", "max"):
            return Row(False, "{a} | {v}", "tl.max({v}.to(tl.int32), 1, keep_dims=True) != 0")
        return Row(True, "{a} & {v}", "tl.min({v}.to(tl.int32), 1, keep_dims=True) != 0")
    identity = REDUCTIONS[kind].form(dtype).identity[0].attrs[0]
    narrow = ".to({T})" if not dtype.is_floating_point and dtype.itemsize < 4 else ""
    if kind == "sum":
        across, scan = f"tl.sum({{v}}, 1, keep_dims=True){narrow}", f"tl.cumsum({{v}}, 1){narrow}"
        return Row(identity, "{a} + {v}", across, scan)
    if kind == "prod":
        across, scan = "tl.reduce({v}, 1, _multiply, keep_dims=True)", "tl.associative_scan({v}, 1, _multiply)"
        return Row(identity, "{a} * {v}", across, scan)
    word = "maximum" if kind == "max" else "minimum"
    scan = f"tl.associative_scan({{v}}, 1, _{word})"
    if dtype.is_floating_point:
        return Row(identity, f"_{word}({{a}}, {{v}})", f"tl.reduce({{v}}, 1, _{word}, keep_dims=True)", scan)
    across = f"tl.{kind}({{v}}, 1, keep_dims=True){narrow}"
    return Row(identity, f"tl.{word}({{a}}, {{v}})", across, f"tl.associative_scan({{v}}, 1, _{word}_int)")


MADE_BY_HAND = {"sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "welford", "welford_combine", "online"}
"""Reductions with text of their own, which is faster or shorter; any other is worked out from its row."""


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


class Reducer:
    """Reduces the values of a tile: `open` before the loop over the row, `step` in it, `close` after it.

    For a row in one block only `close` emits anything. `groups` are reductions that share their accumulators.
    """

    def __init__(
        self, tile: Tile, reduces: Sequence[Node], scans: Sequence[Node], online: Mapping[Node, Node] | None = None
    ) -> None:
        """online: sums of exp(x - max(x)), each with the maximum that it is found together with."""
        online = online or {}
        tops = set(online.values())
        self.tile, self.scans = tile, scans
        self.persistent = tile.tiling.persistent
        self.groups: dict[tuple[str, tuple[Node, ...]], list[Node]] = {}
        for node in reduces:
            kind = node.attrs[0]
            family = REDUCTIONS[kind].name
            if node in online or node in tops:
                family, node_args = "online", online.get(node, node).args
            else:
                node_args = node.args
            self.groups.setdefault((family, node_args), []).append(node)
        self.accumulators: dict[tuple[str, tuple[Node, ...]], list[str]] = {}
        self.carries: dict[Node, str] = {}
        self.full = tile.level_axes(True)
        self.shape = tile.shape(self.full)
        self.results = tile.level_axes(False)
        axis = tile.tiling.axis("r")
        assert axis is not None
        self.mask = "rmask" if axis.masked else None
        self.length = tile.index_text(axis.size)

    # Helpers.

    def _value(self, node: Node) -> str:
        return self.tile.full(node, self.full)

    def _masked(self, text: str, identity: Scalar, dtype: torch.dtype) -> str:
        """`text` with the lanes beyond the end of the row set to a value that changes nothing."""
        if self.mask is None:
            return text
        if dtype == torch.bool:
            return f"({text} & {self.mask})" if identity is False else f"({text} | ({self.mask} == 0))"
        return f"tl.where({self.mask}, {text}, {literal(identity)})"

    def _accumulator(self, identity: Scalar, type_text: str) -> str:
        name = self.tile.fresh("acc")
        self.tile.emit(f"{name} = tl.full({self.shape}, {literal(identity)}, {type_text})")
        return name

    def _bind(self, node: Node, text: str) -> None:
        name = text
        if not text.isidentifier():
            name = self.tile.fresh()
            self.tile.emit(f"{name} = {text}")
        self.tile.values[node] = Value(name, self.results)

    def _input(self, kind: str, node: Node) -> tuple[str, torch.dtype]:
        """The value to reduce; `any` and `all` ask of every type whether it is not 0."""
        text, dtype = self._value(node), compute_dtype(node.dtype)
        if kind in ("any", "all") and dtype != torch.bool:
            return f"({text} != 0)", torch.bool
        if kind in ("argmax", "argmin") and dtype == torch.bool:
            return f"{text}.to(tl.int32)", torch.int32
        return text, dtype

    # Before the loop.

    def open(self) -> None:
        if self.persistent:
            return
        for (family, args), nodes in self.groups.items():
            dtype = compute_dtype(args[0].dtype)
            if family not in MADE_BY_HAND:
                identity = self._form(nodes).identity
                names = [self._accumulator(node.attrs[0], VALUES[node.dtype]) for node in identity]
            elif family == "welford":
                names = [self._accumulator(0.0, VALUES[dtype]) for _ in range(2)]
            elif family == "welford_combine":
                names = [self._accumulator(0.0, VALUES[dtype]) for _ in range(3)]
            elif family == "online":
                names = [self._accumulator(start, VALUES[dtype]) for start in (-float("inf"), 0.0)]
            elif family in ("argmax", "argmin"):
                dtype = torch.int32 if dtype == torch.bool else dtype
                worst = least(dtype) if family == "argmax" else greatest(dtype)
                names = [self._accumulator(worst, VALUES[dtype]), self._accumulator(*self._last_position())]
            else:
                dtype = torch.bool if family in ("any", "all") else dtype
                names = [self._accumulator(_row(family, dtype).identity, VALUES[dtype])]
            self.accumulators[family, args] = names
        for node in self.scans:
            dtype = compute_dtype(node.dtype)
            name = self.tile.fresh("carry")
            start = literal(self._scan_row(node).identity)
            self.tile.emit(f"{name} = tl.full({self.tile.shape(self.results)}, {start}, {VALUES[dtype]})")
            self.carries[node] = name

    def _last_position(self) -> tuple[int, str]:
        wide = self.tile.index_type != "tl.int32"
        return (2**63 - 1, "tl.int64") if wide else (2**31 - 1, "tl.int32")

    def _position(self) -> str:
        text = f"tl.broadcast_to(rindex, {self.shape})"
        return text if self.tile.index_type == "tl.int32" else f"{text}.to(tl.int64)"

    # In the loop.

    def step(self) -> None:
        if self.persistent:
            return
        emit = self.tile.emit
        for (family, args), nodes in self.groups.items():
            names = self.accumulators[family, args]
            if family not in MADE_BY_HAND:
                self._update(names, f"{self._merge_name(nodes[0])}({', '.join([*names, *self._lifted(nodes)])})")
            elif family == "welford":
                value = self._value(args[0])
                self._update(names, f"_welford_step({names[0]}, {names[1]}, {value}, roffset // RBLOCK + 1)")
            elif family == "online":
                self._update(names, f"_softmax_step({names[0]}, {names[1]}, {self._value(args[0])})")
            elif family == "welford_combine":
                values = ", ".join(map(self._value, args))
                self._update(names, f"_welford_combine({', '.join(names)}, {values})")
            elif family in ("argmax", "argmin"):
                value, dtype = self._input(family, args[0])
                value = self._masked(value, least(dtype) if family == "argmax" else greatest(dtype), dtype)
                emit(f"{', '.join(names)} = _{family}({', '.join(names)}, {value}, {self._position()})")
            else:
                value, dtype = self._input(family, args[0])
                new = _row(family, dtype).combine.format(a=names[0], v=value)
                emit(f"{names[0]} = {new}" if self.mask is None else f"{names[0]} = tl.where(rmask, {new}, {names[0]})")

    def _update(self, names: list[str], new: str) -> None:
        if self.mask is None:
            self.tile.emit(f"{', '.join(names)} = {new}")
            return
        fresh = [self.tile.fresh() for _ in names]
        self.tile.emit(f"{', '.join(fresh)} = {new}")
        for name, value in zip(names, fresh, strict=True):
            self.tile.emit(f"{name} = tl.where(rmask, {value}, {name})")

    # After it.

    def close(self) -> None:
        for (family, args), nodes in self.groups.items():
            if family not in MADE_BY_HAND:
                self._close_by_row(self.accumulators.get((family, args)), nodes)
            elif family == "welford":
                self._close_welford(args, nodes)
            elif family == "welford_combine":
                self._close_combined(args, nodes)
            elif family == "online":
                self._close_online(args, nodes)
            elif family in ("argmax", "argmin"):
                self._close_position(family, args, nodes)
            else:
                self._close_plain(family, args, nodes)

    # By the row alone.

    def _form(self, nodes: list[Node]) -> Form:
        return REDUCTIONS[nodes[0].attrs[0]].form(nodes[0].args[0].dtype)

    def _merge_name(self, node: Node) -> str:
        """The name of the function that merges two states; the kernel gets it where it is not there."""
        row, dtype = REDUCTIONS[node.attrs[0]], compute_dtype(node.args[0].dtype)
        name = f"litz_merge_{row.name}_{short(dtype)}"
        self.tile.functions[name] = _merge_function(name, row.form(dtype))
        return name

    def _scan_row(self, node: Node) -> Row:
        """How to scan: states are values there."""
        kind, dtype = node.attrs[0], compute_dtype(node.dtype)
        if kind in MADE_BY_HAND:
            return _row(kind, dtype)
        merge, identity = self._merge_name(node), REDUCTIONS[kind].form(dtype).identity[0].attrs[0]
        across, scan = f"tl.reduce({{v}}, 1, {merge}, keep_dims=True)", f"tl.associative_scan({{v}}, 1, {merge})"
        return Row(identity, f"{merge}({{a}}, {{v}})", across, scan)

    def _lifted(self, nodes: list[Node]) -> list[str]:
        """The state of each value of the tile."""
        form, args = self._form(nodes), nodes[0].args
        given = {leaf: self._value(arg) for leaf, arg in zip(form.values, args, strict=True)}
        given[form.position] = f"{self._position()}.to(tl.int64)"
        lines, texts = _nodes(form.lift, given, self.tile.fresh)
        for line in lines:
            self.tile.emit(line)
        constants = {node: f"tl.full({self.shape}, {literal(node.attrs[0])}, {VALUES[node.dtype]})"
                     for node in form.lift if node.op == "const"}  # fmt: skip
        return [constants.get(node, text) for node, text in zip(form.lift, texts, strict=True)]

    def _close_by_row(self, accumulators: list[str] | None, nodes: list[Node]) -> None:
        form, merge = self._form(nodes), self._merge_name(nodes[0])
        state = accumulators
        if state is None:
            parts = zip(self._lifted(nodes), form.identity, strict=True)
            state = [self._masked(text, nothing.attrs[0], nothing.dtype) for text, nothing in parts]
        names = [self.tile.fresh() for _ in state]
        inputs = state[0] if len(state) == 1 else f"({', '.join(state)})"
        self.tile.emit(f"{', '.join(names)} = tl.reduce({inputs}, 1, {merge}, keep_dims=True)")
        roots = [form.finish[node.attrs[0]] for node in nodes]
        lines, results = _nodes(roots, dict(zip(form.state, names, strict=True)), self.tile.fresh)
        for line in lines:
            self.tile.emit(line)
        for node, text in zip(nodes, results, strict=True):
            self._bind(node, text)

    def _close_plain(self, family: str, args: tuple[Node, ...], nodes: list[Node]) -> None:
        if self.persistent:
            value, dtype = self._input(family, args[0])
            value = self._masked(value, _row(family, dtype).identity, dtype)
        else:
            value = self.accumulators[family, args][0]
            dtype = torch.bool if family in ("any", "all") else compute_dtype(args[0].dtype)
        for node in nodes:
            self._bind(node, _row(family, dtype).across.format(v=value, T=VALUES[dtype]))

    def _close_position(self, family: str, args: tuple[Node, ...], nodes: list[Node]) -> None:
        if self.persistent:
            value, dtype = self._input(family, args[0])
            value = self._masked(value, least(dtype) if family == "argmax" else greatest(dtype), dtype)
            position = self._position()
        else:
            value, position = self.accumulators[family, args]
        pair = [self.tile.fresh(), self.tile.fresh()]
        self.tile.emit(f"{', '.join(pair)} = tl.reduce(({value}, {position}), 1, _{family}, keep_dims=True)")
        for node in nodes:
            self._bind(node, f"{pair[1]}.to(tl.int64)")

    def _close_welford(self, args: tuple[Node, ...], nodes: list[Node]) -> None:
        type_text = VALUES[args[0].dtype]
        if self.persistent:
            # All of the row is at hand: the plain formulas, which are exact where Welford's is only stable.
            value = self._value(args[0])
            mean, spread = self.tile.fresh(), self.tile.fresh()
            total = f"tl.sum({self._masked(value, 0.0, torch.float32)}, 1, keep_dims=True)"
            self.tile.emit(f"{mean} = _mean({total}, {self.length})")
            self.tile.emit(f"{spread} = {value} - {mean}")
            squares = self._masked(f"{spread} * {spread}", 0.0, torch.float32)
            results: Mapping[str, str] = {"welford_mean": mean, "welford_m2": f"tl.sum({squares}, 1, keep_dims=True)"}
        else:
            mean, m2 = self.accumulators["welford", args]
            # How many values each lane has seen.
            weight = f"(({self.length} - rbase + (RBLOCK - 1)) // RBLOCK).to({type_text})"
            weight = f"tl.broadcast_to({weight}, {self.shape})"
            results = self._combine("welford", mean, m2, weight)
        for node in nodes:
            self._bind(node, results[node.attrs[0]])

    def _close_combined(self, args: tuple[Node, ...], nodes: list[Node]) -> None:
        if self.persistent:
            parts = [self._masked(self._value(arg), 0.0, torch.float32) for arg in args]
        else:
            parts = self.accumulators["welford_combine", args]
        results = self._combine("welford_combine", *parts)
        for node in nodes:
            self._bind(node, results[node.attrs[0]])

    def _close_online(self, args: tuple[Node, ...], nodes: list[Node]) -> None:
        top, total = self.tile.fresh(), self.tile.fresh()
        pair = ", ".join(self.accumulators["online", args])
        self.tile.emit(f"{top}, {total} = tl.reduce(({pair}), 1, _softmax_combine, keep_dims=True)")
        for node in nodes:
            self._bind(node, top if node.attrs[0] == "max" else f"_softmax_total({top}, {total})")

    def _combine(self, family: str, mean: str, m2: str, weight: str) -> Mapping[str, str]:
        names = [self.tile.fresh() for _ in range(3)]
        inputs = f"({mean}, {m2}, {weight})"
        self.tile.emit(f"{', '.join(names)} = tl.reduce({inputs}, 1, _welford_combine, keep_dims=True)")
        return {f"{family}_mean": names[0], f"{family}_m2": names[1]}

    # Scans are values of the row, not of its result.

    def scan(self, node: Node) -> Value:
        """Emits an inclusive scan along the row; over blocks, the last value of each is carried into the next."""
        dtype = compute_dtype(node.dtype)
        row = self._scan_row(node)
        value = self._value(node.args[0])
        name = self.tile.fresh()
        scanned = row.scan.format(v=value, T=VALUES[dtype])
        if self.persistent:
            self.tile.emit(f"{name} = {scanned}")
            return Value(name, self.full)
        carry = self.carries[node]
        self.tile.emit(f"{name} = {row.combine.format(a=carry, v=f'({scanned})')}")
        total = row.across.format(v=self._masked(value, row.identity, dtype), T=VALUES[dtype])
        self.tile.emit(f"{carry} = {row.combine.format(a=carry, v=f'({total})')}")
        return Value(name, self.full)
