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
from litz.ir.index import Expr, Symbol, known_nonnegative, placeholder
from litz.ir.intervals import Intervals
from litz.ir.node import Node, walk
from litz.ir.operation import Loop, Store
from litz.ir.ops import OPS
from litz.tiles import program as tile
from litz.tiles.program import Access, Axes, Const, Element, Line, Operand, Position, Value

from .dialect import VALUES
from .text import IndexText

DIVIDING = frozenset({"truncdiv", "floordiv", "remainder", "fmod", "pow", "shift_left", "shift_right"})
"""Ops whose result's low bits do not follow from those of the arguments."""

_NO_BOOLS = frozenset({"load", "index", "const", "bounded", "cast", "where", "add", "sub", "mul", "lt", "ge"})


def _maybe_bool(node: Node) -> bool:
    """Says whether a compiler may find a bool in a value: g++ does in a bool's cast, a choice of constants, and in more
    than litz can list, such as the lesser of a byte and 1."""
    cast = node.op == "cast" and node.args[0].dtype == torch.bool
    chosen = node.op == "where" and all(branch.op == "const" for branch in node.args[1:])
    return cast or chosen or node.op not in _NO_BOOLS


def as_it_was(node: Node) -> Node:
    """Returns the node that a cast to a half type gives back: a half of that type, which floats may have held since."""
    source = node
    while source.op == "cast" and source.dtype in (node.dtype, torch.float32, torch.float64):
        source = source.args[0]
    return source if source.dtype == node.dtype and node.dtype in HALF else node


class Body:
    """Makes nodes and stores of one loop. index: the names of its variables and sizes. count: of names taken."""

    def __init__(self, loop: Loop, index: IndexText, count: int = 0) -> None:
        self.loop, self.index = loop, index
        self.made: list[Line] = []
        self.visible: ChainMap[Node, Operand] = ChainMap()
        self.at: Mapping[Symbol, str] = {}
        """Other names of some variables, for what is made now."""
        self.count = count
        self.staged: dict[Node, Element] = {}
        """Loads whose element is in a room, and where it is there."""
        self.rooms: dict[int, Element] = {}
        """Places in rooms that stores write to for now, by the ids of the stores."""
        self.stored: dict[str, Value] = {}
        """Values that there are as they lie in memory too: that by the name of the value."""
        positions = [n for each in loop.loads for n in each.indirect] + [n for s in loop.stores for n in s.indirect]
        self.told = {n for n in positions if any(map(_maybe_bool, walk(n, into=lambda each: each.op != "load")))}
        """Positions of which a compiler may find out that they are bools."""
        self.opaque: dict[str, Value] = {}
        """The values that stand for these in addresses, by the names of these: a compiler learns nothing of them."""
        self.checked: dict[tuple[Any, ...], Node] = {}
        """The node that was checked first of those that check one position against one size."""
        self.intervals = Intervals(loop.extents)
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
        elif node.op == "cast" and node.dtype == node.args[0].dtype and node.args[0].op in ("load", "cast"):
            self.visible[node] = self.operand(node.args[0])  # rounded already
        else:
            bits = self._bits(node) if node.dtype in FLOAT8 else None
            self.visible[node] = value = self.value(node, bits)
            if bits is not None:
                self.stored[value.text] = bits
        if node in self.told and isinstance(told := self.visible[node], Value):
            self.opaque[told.text] = Value(self.name(), node.dtype, told.axes, told.narrow)
            self.put(tile.Op(self.opaque[told.text], "opaque", (told,)))

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
        elif node.op == "bitcast":
            self.put(tile.Op(value, "bitcast", (self.held(node.args[0]),)))
        elif node.op in OPS or node.op == "cast":
            self.put(tile.Op(value, node.op, tuple(map(self.operand, node.args))))
        else:
            raise NotImplementedError(f"no C++ for {node!r}")
        return value

    def _bits(self, node: Node) -> Value:
        """Returns what memory holds for a float8 node, made visible: a copy moves that, and NaN keeps its bits."""
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
        places, at = tuple(map(self.operand, of.indirect)), {**self.at, **(at or {})}
        indirect = tuple(self.opaque.get(getattr(each, "text", ""), each) for each in places)
        names = {**self.index.names, **at}
        axes = frozenset(names[each] for each in of.index[0].free_symbols if each in self.loop.extents)
        axes = axes.union(*(each.axes for each in indirect))
        narrow = bool(indirect) and self._is_narrow(of)
        return Access(of.buffer, of.index[0], indirect, axes, narrow=narrow, at=tuple(at.items()))

    def _is_narrow(self, of: Node | Store) -> bool:
        """Says whether 32 bits have room for the offset of an element at computed positions, and for its parts."""
        extents = dict(self.loop.extents)
        for number, node in enumerate(of.indirect):
            found = self.intervals.of(node)
            if found.low is None or found.high is None or not known_nonnegative(found.low) or not self.small(node):
                return False
            extents[placeholder(number)] = found.high + 1
        return IndexText({}, extents).fits_int(of.index[0])

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
        if (source := as_it_was(node)) in self.visible and source is not node:
            return self.held(source)
        if node.op == "cast" and node.dtype == torch.float16 and VALUES[node.args[0].dtype] == "float":
            number = self.visible.get(node.args[0])
            if number is not None:  # to round the number takes as many steps as to cut the rounded one
                return tile.As(number, node.dtype)
        return self.held(node)

    def store(self, *stores: Store) -> None:
        """Makes stores whose nodes are visible: into the store's room if it has one, else to memory."""
        for store in stores:
            if (place := self.rooms.get(id(store))) is not None:
                self.put(tile.Put(place, (self.element if place.stored else self.operand)(store.value)))
                continue
            value = self.element(store.value) if store.mode == "set" else self.operand(store.value)
            masks = () if store.mask is None else (self.operand(store.mask),)
            access = self.access(store)
            axes = access.axes.union(value.axes, *(mask.axes for mask in masks))
            self.put(tile.Store(access, value, masks, store.mode, axes))  # type: ignore[arg-type]

    # ------------------------------------------------------------------ small integers

    def small(self, node: Node) -> bool:
        """Returns whether an int has room for this int64 value, and for the arguments that its text takes as ints."""
        if node.op == "index":
            return self.index.fits_int(node.attrs[0])
        found = self.intervals.of(node)
        if any(end is None or not end.is_Integer or abs(int(end)) > INT32 for end in (found.low, found.high)):
            return False
        return node.op not in DIVIDING or all(arg.dtype != torch.int64 or self.small(arg) for arg in node.args)
