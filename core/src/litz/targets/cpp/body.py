"""The values and stores of a loop as lines of a nest (`litz.tiles.program`).

In: the nodes of a flat loop. Out: lines. `Body` keeps which node is visible as which operand; the body of a loop sees
what is around it, and what it makes ends with it.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from litz.codegen.sizes import INT32
from litz.ir.dtypes import FLOAT8, HALF
from litz.ir.index import Expr, Symbol
from litz.ir.intervals import SPANS, Span
from litz.ir.node import Node, walk
from litz.ir.operation import Loop, Store
from litz.ir.ops import OPS
from litz.tiles import program as tile
from litz.tiles.program import Access, Axes, Const, Element, Line, Operand, Position, Value

from .dialect import VALUES
from .text import IndexText

_NO_BOOLS = frozenset({"load", "index", "const", "bounded", "cast", "where", "add", "sub", "mul", "lt", "ge"})


def _maybe_bool(node: Node) -> bool:
    """Says whether a compiler may find a bool in a value: g++ does in a bool's cast, a choice of constants, and in more
    than litz can list, such as the lesser of a byte and 1."""
    cast = node.op == "cast" and node.args[0].dtype == torch.bool
    chosen = node.op == "where" and all(branch.op == "const" for branch in node.args[1:])
    return cast or chosen or node.op not in _NO_BOOLS


class Body:
    """Makes nodes and stores of one loop. index: the names of its variables and sizes."""

    def __init__(self, loop: Loop, index: IndexText) -> None:
        self.loop, self.index = loop, index
        self.made: list[Line] = []
        self.visible: ChainMap[Node, Operand] = ChainMap()
        self.at: Mapping[Symbol, str] = {}
        """Other names of some variables, for what is made now."""
        self.count = 0
        self.staged: dict[Node, Element] = {}
        """Loads whose element is in a room, and where it is there."""
        self.stored: dict[str, Value] = {}
        """Values that there are as they lie in memory too: that by the name of the value."""
        self.checked: dict[tuple[Any, ...], Node] = {}
        """The node that was checked first of those that check one position against one size."""
        self.intervals: dict[Node, Span | None] = {}
        self.variables = loop.variables
        self.only_stored = self._only_stored()
        self.atomic = False
        """Do threads share the loop, so that combining stores have to be atomic?"""
        self.nodes_order = {node: number for number, node in enumerate(loop.nodes)}

    def _only_stored(self) -> frozenset[Node]:
        """Casts to half types that only stores use: storing rounds, so they need no rounding of their own."""
        stores = self.loop.stores
        used = {arg for node in self.loop.nodes for arg in node.args}
        used |= {root for store in stores for root in store.roots[:-1]}
        used |= {store.value for store in stores if store.mode != "set"}
        values = {store.value for store in stores}
        return frozenset(v for v in values - used if v.op == "cast" and v.dtype in HALF)

    # ------------------------------------------------------------------ lines, names and scopes

    def put(self, *lines: Line) -> None:
        """Adds lines."""
        self.made += lines

    def name(self, stem: str = "v") -> str:
        """Returns a variable name that the kernel has not used yet, `stem` and a number."""
        self.count += 1
        return f"{stem}{self.count - 1}"

    @contextmanager
    def each(self, each: tile.Each | tile.If) -> Iterator[None]:
        """Adds a loop or a branch, whose body is what is made within; its values are not visible after it."""
        self.visible, outer, self.made = self.visible.new_child(), self.made, []
        yield
        outer.append(replace(each, body=tuple(self.made)))
        self.visible, self.made = self.visible.parents, outer

    def missing(self, roots: Sequence[Node]) -> list[Node]:
        """Returns the nodes that have to be made for the roots, in the loop's order. Visible nodes, constants and casts
        that only stores use are left out."""
        found = walk(*roots, into=lambda node: node not in self.visible and node.op != "const")
        return sorted((node for node in found if node not in self.only_stored), key=self.nodes_order.__getitem__)

    def axes(self, node: Node, at: Mapping[Symbol, str] | None = None) -> Axes:
        """Returns the names of the loop variables that a node varies along."""
        names = {**self.index.names, **(self.at if at is None else at)}
        return frozenset(names[var] for var in self.variables[node])

    def operand(self, node: Node) -> Operand:
        """Returns the value of a node that is visible where the operand will stand. Errors: KeyError for any other
        node."""
        if node.op == "const":
            return Const(node.attrs[0], node.dtype)
        if node in self.only_stored and node not in self.visible:
            return tile.As(self.operand(node.args[0]), node.dtype)
        return self.visible[node]

    def write(self, nodes: Sequence[Node]) -> None:
        """Makes nodes, in order."""
        for node in nodes:
            self.define(node)

    def define(self, node: Node) -> None:
        """Makes the value of a node whose arguments are visible. Makes nothing for a constant or a visible node, and a
        check for a `bounded` node."""
        if node.op == "const" or node in self.visible:
            return
        if node.op == "bounded":
            self._check(node)
        else:
            bits = self._bits(node) if node.dtype in FLOAT8 else None
            self.visible[node] = value = self.value(node, bits)
            if bits is not None:
                self.stored[value.text] = bits

    # ------------------------------------------------------------------ values

    def value(self, node: Node, bits: Value | None = None) -> Value:
        """Makes and returns the value of a node whose arguments are visible. bits: of a float8. Errors:
        NotImplementedError for an op that C++ has no text for."""
        small = node.dtype == torch.int64 and self.small(node)
        value = Value(self.name(), node.dtype, self.axes(node), small)
        if bits is not None:
            self.put(tile.Op(value, "decode", (bits,)))
        elif node.op == "load":
            self._load(node, value)
        elif node.op == "index":
            self.put(tile.Op(value, "index", (self.position(node.attrs[0], value.axes),)))
        elif node.op == "cast" and node.dtype == node.args[0].dtype and node.args[0].op in ("load", "cast"):
            self.put(tile.Op(value, "same", (self.operand(node.args[0]),)))  # rounded already
        elif node.op == "bitcast":
            self.put(tile.Op(value, "bitcast", (self.held(node.args[0]),)))
        elif node.op in OPS or node.op == "cast":
            self.put(tile.Op(value, node.op, tuple(map(self.operand, node.args))))
        else:
            raise NotImplementedError(f"no C++ for {node!r}")
        return value

    def _bits(self, node: Node) -> Value:
        """What memory holds for a float8 node, made visible: a copy moves that, and NaN keeps its bits."""
        value = Value(self.name("b"), node.dtype, self.axes(node))
        if node.op == "load":
            self._load(node, value)
        elif node.op == "where":
            condition, *both = node.args
            self.put(tile.Op(value, "where", (self.operand(condition), *map(self.held, both))))
        elif node.op == "bitcast":
            self.put(tile.Op(value, "byte", (self.held(node.args[0]),)))
        else:
            self.put(tile.Op(value, "same", (tile.Coded(self.operand(node.args[0]), node.dtype),)))
        return value

    def held(self, node: Node) -> Operand:
        """Returns what memory holds for a node's value: the bits of a float8, else the value."""
        operand = self.operand(node)
        if node.dtype not in FLOAT8:
            return operand
        return self.stored.get(getattr(operand, "text", "")) or tile.Coded(operand, node.dtype)

    def _load(self, node: Node, value: Value) -> None:
        if node in self.staged:
            self.put(tile.Op(value, "same", (self.staged[node],)))
            return
        masks = () if node.mask is None else (self.operand(node.mask),)
        self.put(tile.Load(value, self.access(node), masks, node.mask is not None))  # type: ignore[arg-type]

    def position(self, expr: Expr, axes: Axes = frozenset(), at: Mapping[Symbol, str] | None = None) -> Position:
        """Returns an index expression as an operand. at: other names of some variables."""
        return Position(expr, axes, at=tuple({**self.at, **(at or {})}.items()))

    def access(self, of: Node | Store, at: Mapping[Symbol, str] | None = None) -> Access:
        """Returns the element of a load or a store. at: other names of some variables."""
        indirect, at = tuple(map(self.operand, of.indirect)), {**self.at, **(at or {})}
        names = {**self.index.names, **at}
        axes = frozenset(names[each] for each in of.index[0].free_symbols if each in self.loop.extents)
        axes = axes.union(*(each.axes for each in indirect))
        bools = [any(map(_maybe_bool, walk(node, into=lambda each: each.op != "load"))) for node in of.indirect]
        return Access(of.buffer, of.index[0], indirect, axes, at=tuple(at.items()), bools=tuple(bools))

    def _check(self, node: Node) -> None:
        """Make a position visible that lies within its size, and take note where that is not the one that was given."""
        same = self.checked.setdefault((node.args, node.attrs[0]), node)
        if same in self.visible:
            self.visible[node] = self.visible[same]
            return
        position, *masks = map(self.operand, node.args)
        held = Value(self.name("in"), torch.bool, position.axes)
        value = Value(self.name(), node.dtype, position.axes, self.small(node))
        self.put(tile.Check(value, held, position, node.attrs[0], tuple(masks), node.attrs[1]))  # type: ignore[arg-type]
        self.visible[node] = value

    # ------------------------------------------------------------------ stores

    def element(self, node: Node) -> Operand:
        """Returns the value of a visible node, as memory holds it."""
        if node.op == "cast" and node.dtype in HALF and VALUES[node.args[0].dtype] == "float":
            source = self.visible.get(node.args[0])
            if source is not None:  # g++ rounds once, for the store and for who uses the value
                return tile.As(source, node.dtype)
        return self.held(node)

    def store(self, *stores: Store) -> None:
        """Makes stores whose nodes are visible."""
        for store in stores:
            value = self.element(store.value) if store.mode == "set" else self.operand(store.value)
            masks = () if store.mask is None else (self.operand(store.mask),)
            access = self.access(store)
            axes = access.axes.union(value.axes, *(mask.axes for mask in masks))
            self.put(tile.Store(access, value, masks, store.mode, axes))  # type: ignore[arg-type]

    # ------------------------------------------------------------------ small integers

    def small(self, node: Node) -> bool:
        """Returns whether this int64 value, and so every bit of it, is known to fit in an int."""
        known = self.interval(node)
        return known is not None and max(abs(known[0]), abs(known[1])) <= INT32

    def interval(self, node: Node) -> Span | None:
        """Returns the least and the greatest value of an int64 node. None for other types, and if they do not follow
        from ranges and constants or arithmetic may leave 32 bits."""
        if not self.intervals:
            for each in self.loop.nodes:
                self.intervals[each] = self._interval(each)
        return self.intervals[node]

    def _interval(self, node: Node) -> Span | None:
        if node.dtype != torch.int64:
            return None
        if node.op == "const":
            return int(node.attrs[0]), int(node.attrs[0])
        if node.op == "index":
            return self.index.interval(node.attrs[0]) if self.index.fits_int(node.attrs[0]) else None
        if node.op == "bounded":
            size = node.attrs[0]
            return (0, max(int(size) - 1, 0)) if size.is_Integer else None
        if node.op not in SPANS and node.op != "where":
            return None
        arguments = [self.intervals.get(arg) for arg in (node.args[1:] if node.op == "where" else node.args)]
        known = [argument for argument in arguments if argument is not None]
        if len(known) != len(arguments):
            return None
        joined = (min(low for low, _ in known), max(high for _, high in known)) if node.op == "where" else None
        low, high = joined or SPANS[node.op](*known)
        return (low, high) if max(abs(low), abs(high)) <= INT32 else None
