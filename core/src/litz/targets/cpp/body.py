"""The body of a loop as C++ statements: one `const` per node.

In: the nodes of a flat loop. Out: lines of text. `Body` keeps which node is visible under which name; a nested block
sees the names around it, and what it defines ends with it.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from litz.codegen.dialect import combining
from litz.codegen.sizes import INT32
from litz.ir.dtypes import FLOAT8, HALF, ROUNDED
from litz.ir.index import Expr, Symbol, placeholder
from litz.ir.intervals import SPANS, Span
from litz.ir.node import Node, walk
from litz.ir.operation import Loop, Store
from litz.ir.ops import OPS

from .dialect import CPP, ELEMENTS, VALUES, literal, op_text, read, written
from .text import IndexText


@dataclass
class Lines:
    """The lines of a C++ text that is being written, with their indentation."""

    text: list[str] = field(default_factory=list)
    depth: int = 1

    def add(self, *lines: str) -> None:
        """Appends lines, indented by the present depth."""
        # A pragma belongs to the loop below it, at the same depth.
        self.text += ["  " * self.depth + line if line else "" for line in lines]

    @contextmanager
    def block(self, *header: str) -> Iterator[None]:
        """Writes `header {` and, after the body of the `with` statement, `}`. All lines of the header but the last
        stand above the one with the brace."""
        self.add(*header[:-1], f"{header[-1]} {{" if header[-1] else "{")
        self.depth += 1
        yield
        self.depth -= 1
        self.add("}")


class Body:
    """Writes nodes and stores of one loop."""

    def __init__(self, loop: Loop, pointers: Mapping[str, str], index: IndexText, lines: Lines) -> None:
        self.loop, self.pointers, self.index, self.lines = loop, pointers, index, lines
        self.visible: ChainMap[Node, str] = ChainMap()
        self.count = 0
        self.staged: dict[Node, str] = {}
        """Loads whose element was copied to a buffer, and where it is there."""
        self.stored: dict[str, str] = {}
        """Values that there are as they lie in memory too: the name of that by the name of the value."""
        self.widened: dict[Node, str] = {}
        """Loads whose value was computed ahead, and where it is."""
        self.bounds: list[tuple[Expr, str]] = []
        """Checks of `bounded` nodes, each a size and a name; the kernel returns the number (from 1) of a failed one."""
        self.checked: dict[tuple[Any, ...], Node] = {}
        """The node that was checked first of those that check one position against one size."""
        self.intervals: dict[Node, Span | None] = {}
        self.variables = loop.variables
        self.only_stored = self._only_stored()
        self.threads = False
        """True if threads share the loop, so that combining stores have to be atomic."""
        self.nodes_order = {node: number for number, node in enumerate(loop.nodes)}

    def _only_stored(self) -> frozenset[Node]:
        """Casts to half types that only stores use: storing rounds, so they need no rounding of their own."""
        stores = self.loop.stores
        used = {arg for node in self.loop.nodes for arg in node.args}
        used |= {root for store in stores for root in store.roots[:-1]}
        used |= {store.value for store in stores if store.mode != "set"}
        values = {store.value for store in stores}
        return frozenset(v for v in values - used if v.op == "cast" and v.dtype in HALF)

    # ------------------------------------------------------------------ names and scopes

    def name(self, stem: str = "v") -> str:
        """Returns a variable name that the kernel has not used yet, `stem` and a number."""
        self.count += 1
        return f"{stem}{self.count - 1}"

    @contextmanager
    def scope(self, *header: str) -> Iterator[None]:
        """Writes a block of C++ in which new names may be defined; the names are not visible after it."""
        self.visible = self.visible.new_child()
        with self.lines.block(*header):
            yield
        self.visible = self.visible.parents

    def missing(self, roots: Sequence[Node]) -> list[Node]:
        """Returns the nodes that have to be written for the roots, in the loop's order. Visible nodes, constants and
        casts that only stores use are left out."""
        found = walk(*roots, into=lambda node: node not in self.visible and node.op != "const")
        return sorted((node for node in found if node not in self.only_stored), key=self.nodes_order.__getitem__)

    def value(self, node: Node) -> str:
        """Returns C++ text for the value of a node that is visible where the text will stand. Errors: KeyError for any
        other node."""
        if node.op == "const":
            return literal(node.attrs[0], node.dtype)
        if node in self.only_stored and node not in self.visible:
            source = node.args[0]
            return self.value(source) if VALUES[source.dtype] == "float" else f"(float){self._operand(source)}"
        return self.visible[node]

    def write(self, nodes: Sequence[Node]) -> None:
        """Defines nodes, in order, as `const` variables."""
        for node in nodes:
            self.define(node)

    def define(self, node: Node) -> None:
        """Writes `const T v = ...;` for a node whose arguments are visible. Writes nothing for a constant or a visible
        node, and a check for a `bounded` node."""
        if node.op == "const" or node in self.visible:
            return
        if node.op == "bounded":
            self._check(node)
            return
        held = self._held(node) if node.dtype in FLOAT8 else None
        text = self.expression(node) if held is None else read(node.dtype, held)
        name = self.name()
        self.lines.add(f"const {self.type_of(node)} {name} = {text};")
        if held is not None:
            self.stored[name] = held
        self.visible[node] = name

    def _held(self, node: Node) -> str:
        """The name of a float8 node's value as it lies in memory, made visible: a copy moves that, and NaN keeps its
        bits."""
        dtype = node.dtype
        if node.op == "where":
            condition, *both = node.args
            texts = [self.element(arg) for arg in both]
            text = f"{self.value(condition)} ? {texts[0]} : {texts[1]}"
        elif node.op == "load":
            place = self.staged.get(node) or self.place(node.buffer, node.index, node.indirect)
            text = place if node.mask is None else f"{self.value(node.mask)} ? {place} : ({ELEMENTS[dtype]})0"
        elif node.op == "bitcast":
            text = f"bitcast<{ELEMENTS[dtype]}>({self.element(node.args[0])})"
        else:
            (source,) = node.args
            value = self._operand(source)
            text = written(dtype, value if VALUES[source.dtype] == "float" else f"(float){value}")
        name = self.name("b")
        self.lines.add(f"const {ELEMENTS[dtype]} {name} = {text};")
        return name

    def type_of(self, node: Node) -> str:
        """Returns the C++ type of a node's value: `int` for an int64 that is known to be small, so that lanes are 32
        bits wide."""
        if node.dtype == torch.int64 and self.small(node):
            return "int"
        return VALUES[node.dtype]

    # ------------------------------------------------------------------ expressions

    def expression(self, node: Node) -> str:
        """Returns the C++ expression of a node whose arguments are defined. Errors: NotImplementedError for an op that
        C++ has no text for."""
        if node.op in OPS:
            return op_text(node, [self._operand(arg) for arg in node.args], self.type_of(node))
        if node.op == "index":
            return self.index.text(node.attrs[0])
        if node.op == "load":
            return self._load(node)
        if node.op == "cast":
            return self._cast(node)
        if node.op == "bitcast":
            (source,) = node.args
            if source.dtype in FLOAT8:
                return f"bitcast<{ELEMENTS[node.dtype]}>({self.element(source)})"
            return CPP.bitcast(self._operand(source), source.dtype, node.dtype)
        raise NotImplementedError(f"no C++ for {node!r}")

    def _operand(self, node: Node) -> str:
        text = self.value(node)
        return f"({text})" if text.startswith("-") else text

    def place(
        self,
        buffer: str,
        index: tuple[Expr, ...],
        indirect: Sequence[Node] = (),
        at: Mapping[Symbol, str] | None = None,
    ) -> str:
        """Returns the text of an element of a buffer, such as `p0[...]`. index: has the offset as its first item.
        indirect: nodes whose values are the index's placeholders. at: texts in place of some loop variables."""
        values = {placeholder(n): f"(i64){self.value(node)}" for n, node in enumerate(indirect)}
        return f"{self.pointers[buffer]}[{self.index.text(index[0], {**values, **(at or {})})}]"

    def _load(self, node: Node) -> str:
        if node in self.widened:
            return self.widened[node]
        place = self.staged.get(node) or self.place(node.buffer, node.index, node.indirect)
        element = read(node.dtype, place)
        if node.mask is None:
            return element
        zero = literal(0, node.dtype) if node.dtype != torch.int64 else "0"
        return f"{self.value(node.mask)} ? {element} : {zero}"

    def _cast(self, node: Node) -> str:
        (source,) = node.args
        value = self._operand(source)
        if node.dtype == source.dtype and source.op in ("load", "cast"):
            return value  # rounded already
        return CPP.cast(value, source.dtype, node.dtype, self.type_of(node))

    def bound_number(self, node: Node) -> int:
        """Returns the number that the kernel returns where a `bounded` node does not hold."""
        if node.attrs not in self.bounds:
            self.bounds.append(node.attrs)
        return self.bounds.index(node.attrs) + 1

    def _check(self, node: Node) -> None:
        """Make a position visible that lies within its size, and take note where that is not the one that was given."""
        same = self.checked.setdefault((node.args, node.attrs[0]), node)
        if same in self.visible:
            self.visible[node] = self.visible[same]
            return
        position, mask = node.args[0], node.args[1] if len(node.args) > 1 else None
        name, held, safe = self.value(position), self.name("in"), self.name()
        fine = held if mask is None else f"({held} | !{self.value(mask)})"
        self.lines.add(
            f"const bool {held} = (u64){name} < (u64){self.index.text(node.attrs[0])};",
            f"bad = {fine} ? bad : {self.bound_number(node)};",
            # A position that does not hold reads element 0; the kernel's result is an error anyway.
            f"const {self.type_of(node)} {safe} = {held} ? {name} : 0;",
        )
        self.visible[node] = safe

    # ------------------------------------------------------------------ stores

    def element(self, node: Node) -> str:
        """Returns C++ text for the value of a visible node, as memory holds it."""
        value = self.value(node)
        if node.op == "cast" and node.dtype in HALF and VALUES[node.args[0].dtype] == "float":
            value = self.visible.get(node.args[0], value)  # g++ rounds once, for the store and for who uses the value
        return self.stored[value] if node.dtype in FLOAT8 and value in self.stored else written(node.dtype, value)

    def store(self, *stores: Store) -> None:
        """Writes the statements of stores whose nodes are visible."""
        for store in stores:
            self._store(store)

    def _store(self, store: Store) -> None:
        place = self.place(store.buffer, store.index, store.indirect)
        value = self.value(store.value)
        dtype = store.value.dtype
        if store.mode == "set":
            statement = f"{place} = {self.element(store.value)};"
        else:
            statement = self._combine(store.mode, place, value, dtype)
        self.lines.add(statement if store.mask is None else f"if ({self.value(store.mask)}) {statement}")

    def _combine(self, mode: str, place: str, value: str, dtype: torch.dtype) -> str:
        kind = combining(mode, dtype)
        if dtype in ROUNDED:
            change = written(dtype, f"combined_{kind}({read(dtype, 'old')}, {value})")
            if self.threads:
                return f"atomic_update(&{place}, [=]({ELEMENTS[dtype]} old) {{ return {change}; }});"
            return f"{{ auto& place = {place}; const {ELEMENTS[dtype]} old = place; place = {change}; }}"
        element = "u8" if dtype == torch.bool else VALUES[dtype]
        if self.threads:
            return f"atomic_{kind}(&{place}, ({element}){value});"
        return f"{{ auto& place = {place}; place = combined_{kind}(place, ({element}){value}); }}"

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
