"""Loops, buffers and sizes from their text, which programs, schedules and kernels' plans have in common."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

import sympy
import torch

from litz.ir.buffer import Buffer, Kind, Layout
from litz.ir.dtypes import SHORT
from litz.ir.index import ZERO, Symbol, canonical, placeholder, size_var
from litz.ir.node import Node, intern
from litz.ir.operation import Loop, Range, Store, StoreMode
from litz.ir.ops import OPS

from .cursor import NAME, WORD, Cursor, Lines
from .expressions import Expressions

_DTYPES: Mapping[str, torch.dtype] = {name: dtype for dtype, name in SHORT.items()}
_DEVICE = re.compile(r"[a-z]\w*(?::\d+)?")
_CONSTANT = re.compile(
    r"(-?(?:inf|nan|\d+(?:\.\d*)?(?:e[+-]?\d+)?j?)|True|False|\(-?[\w.]+(?:[+-]\w+)*[\w.+-]*j\)):(\w+)"
)
_VALUE = re.compile(r"v\d+")
_MODES = tuple(mode for mode in get_args(StoreMode) if mode != "set")


class LoopParser:
    """A parser of Loops that knows the names of a text so far: its sizes and its buffers."""

    def __init__(self, objects: Mapping[str, Any] | None = None) -> None:
        self.objects = objects or {}
        self.symbols: dict[str, Symbol] = {}
        self.hints: dict[Symbol, int] = {}
        self.buffers: dict[str, Buffer] = {}
        self.expressions = Expressions(self.symbol_of)
        self._values: Mapping[str, Node] = {}
        self._indirect: list[Node] | None = None

    def symbol_of(self, name: str) -> Symbol | None:
        """Returns the symbol that a name stands for here; None if there is none."""
        if self._indirect is not None and name in self._values:
            node = self._values[name]
            if node not in self._indirect:
                self._indirect.append(node)
            return placeholder(self._indirect.index(node))
        return self.symbols.get(name) or canonical(name)

    def object(self, line: Cursor, name: str, what: str) -> Any:
        """Returns one of the given objects."""
        if name not in self.objects:
            line.fail(f"{what}, which no text has: give objects={{{name!r}: ...}}")
        return self.objects[name]

    # ---------------------------------------------------------------------------------------------------------- parts

    def size(self, line: Cursor) -> Symbol:
        """Reads `s0 (integer) about 8`, the declaration of a size."""
        name = line.name("the name of a size")
        known = {"integer": True, "positive": True}
        if line.takes("("):
            known = dict(line.inside(")", lambda: self._assumption(line)))
        symbol = size_var(name) if known == {"integer": True, "positive": True} else sympy.Symbol(name, **known)
        self.symbols[name] = symbol
        if line.takes("about"):
            self.hints[symbol] = line.integer()
        return symbol

    @staticmethod
    def _assumption(line: Cursor) -> tuple[str, bool]:
        holds = not line.takes("not")
        return line.name("what is known of a size"), holds

    def dtype(self, line: Cursor) -> torch.dtype:
        """Returns the type that comes next."""
        start = line.at
        name = line.find(NAME) or ""
        found = _dtype_named(name)
        if found is None:
            line.fail("a type (f32, bf16, i64, bool, ...)", start)
        return found

    def device(self, line: Cursor) -> torch.device:
        """Returns the device that comes next."""
        start = line.at
        name = line.find(_DEVICE)
        try:
            return torch.device(name or "")
        except RuntimeError:
            line.fail("a device (cpu, cuda:0, ...)", start)

    def layout(self, line: Cursor) -> Layout:
        """Returns the layout that comes next: `[4, s0] stride (s0, 1) offset 2`."""
        line.take("[", "the sizes, in brackets")
        size = tuple(line.inside("]", lambda: self.expressions.sum(line)))
        stride = Layout.contiguous(size).stride
        if line.takes("stride"):
            line.take("(")
            stride = tuple(line.inside(")", lambda: self.expressions.sum(line)))
            if len(stride) != len(size):
                line.fail(f"{len(size)} strides before this")
        return Layout(size, stride, self.expressions.sum(line) if line.takes("offset") else ZERO)

    def buffer(self, line: Cursor, kind: Kind) -> Buffer:
        """Reads `name: f32 [4, 8] cpu`."""
        start = line.at
        name = line.name("the name of a buffer")
        if name in self.buffers:
            line.fail("a name that no other buffer has", start)
        line.take(":")
        dtype = self.dtype(line)
        layout = self.layout(line)
        self.buffers[name] = Buffer(name, dtype, self.device(line), layout, kind)
        return self.buffers[name]

    def note(self, name: str, note: Cursor, device: torch.device) -> None:
        """Reads a buffer's type and layout from the note of what writes the buffer."""
        start = note.at
        dtype, layout = self.dtype(note), self.layout(note)
        found = Buffer(name, dtype, device if note.is_done else self.device(note), layout)
        note.finish()
        known = self.buffers.setdefault(name, found)
        if (known.dtype, known.layout, known.device) != (found.dtype, found.layout, found.device):
            note.at = start
            note.fail(f"the type and layout that {name} has already, {known}")

    # ---------------------------------------------------------------------------------------------------------- loops

    def loop(self, lines: Lines) -> Loop:
        """Reads a loop and its body."""
        line = lines.take("a loop")
        line.take("loop")
        name = line.name("the name of the loop")
        line.take("[", "the loop's ranges, in brackets")
        ranges, inner = [], []
        if not line.sees("|") and not line.sees("]"):
            ranges = line.listed(lambda: self.range(line))
        if line.takes("|"):
            inner = line.listed(lambda: self.range(line))
        line.take("]", "',', '|' or ']'")
        device = self.device(line)
        line.finish()
        origins = tuple(line.notes[0].listed(lambda: line.notes[0].name("a node's name"))) if line.notes else ()
        values: dict[str, Node] = {}
        self._values = values
        stores = []
        body = lines.block(line)
        while body.next is not None:
            each = body.take("")
            if each.takes("store"):
                stores.append(self._store(each, device))
            else:
                self._value(each, values)
        if not stores:
            line.fail("a line `store ...` in the loop")
        self._values = {}
        return Loop(name, device, tuple(ranges), tuple(inner), tuple(stores), origins)

    def range(self, line: Cursor) -> Range:
        """Reads a loop's variable and its extent: `i0<8`."""
        start = line.at
        name = line.find(WORD)
        symbol = None if name is None else self.symbol_of(name)
        if symbol is None:
            line.fail("a loop's variable: i0, i1, ... before '|', r0, r1, ... behind", start)
        line.take("<")
        return Range(symbol, self.expressions.sum(line))

    def _value(self, line: Cursor, values: dict[str, Node]) -> None:
        name = line.find(_VALUE)
        if name is None:
            line.fail("`store ...` or a value `v0: f32 = ...`")
        line.take(":")
        dtype = self.dtype(line)
        line.take("=")
        values[name] = self._node(line, dtype)
        line.finish()

    def _node(self, line: Cursor, dtype: torch.dtype) -> Node:
        start = line.at
        op = line.find(WORD)
        if op == "load":
            buffer = line.name("the name of a buffer")
            index, indirect = self._position(line)
            mask = (self._arg(line),) if line.takes("if") else ()
            return intern(op, dtype, (*indirect, *mask), (buffer, index, bool(mask)))
        if op == "index":
            return intern(op, dtype, (), (self.expressions.sum(line),))
        if op == "bounded":
            position = self._arg(line)
            line.take("<")
            size = self.expressions.sum(line)
            mask = (self._arg(line),) if line.takes("if") else ()
            return intern(op, dtype, (position, *mask), (size, "" if line.is_done else line.string("what is checked")))
        if op in ("reduce", "scan"):
            own = self._own_ranges(line) if op == "reduce" and line.takes("[") else ()
            kind = line.name(f"the kind of {op}")
            return intern(op, dtype, tuple(line.listed(lambda: self._arg(line))), (kind, own) if own else (kind,))
        if op is None or (op not in OPS and op not in ("cast", "bitcast")):
            line.fail("a scalar op, load, index, bounded, reduce or scan", start)
        return intern(op, dtype, () if line.is_done else tuple(line.listed(lambda: self._arg(line))), ())

    def _own_ranges(self, line: Cursor) -> tuple[Range, ...]:
        found = tuple(line.listed(lambda: self.range(line)))
        line.take("]", "',' or ']'")
        return found

    def _arg(self, line: Cursor) -> Node:
        """A value by its name, or a constant `2.0:f32`."""
        line.skip()
        found = _CONSTANT.match(line.whole, line.at, line.end)
        dtype = None if found is None else _dtype_named(found[2])
        if found is not None and dtype is not None:
            try:
                value = constant(found[1])
            except ValueError:
                line.fail("a number as Python prints it")
            line.at = found.end()
            return intern("const", dtype, (), (value,))
        start = line.at
        name = line.find(_VALUE)
        if name is None or name not in self._values:
            line.fail("a value of an earlier line (v0, ...) or a constant (2.0:f32, ...)", start)
        return self._values[name]

    def _position(self, line: Cursor) -> tuple[tuple[Any, ...], tuple[Node, ...]]:
        """An index, and the values that its placeholders stand for."""
        line.take("[", "the index, in brackets")
        self._indirect = []
        index = tuple(line.inside("]", lambda: self.expressions.sum(line)))
        indirect, self._indirect = tuple(self._indirect), None
        if line.takes("at"):
            indirect = tuple(line.listed(lambda: self._arg(line)))
        return index, indirect

    def _store(self, line: Cursor, device: torch.device) -> Store:
        buffer = line.name("the name of a buffer")
        index, indirect = self._position(line)
        mode: Any = next((mode for mode in _MODES if line.takes(f"{mode}=")), "set")
        if mode == "set":
            line.take("=", f"'=' or one of {', '.join(f'{mode}=' for mode in _MODES)}")
        value = self._arg(line)
        mask = self._arg(line) if line.takes("if") else None
        line.finish()
        for note in line.notes:
            self.note(buffer, note, device)
        return Store(buffer, index, value, indirect, mode, mask)


def _dtype_named(name: str) -> torch.dtype | None:
    # torch imports some of its modules where it is asked for them by getattr.
    found = _DTYPES.get(name) or vars(torch).get(name)
    return found if isinstance(found, torch.dtype) else None


def constant(text: str) -> bool | int | float | complex:
    """Returns the number that Python prints so."""
    if text in ("True", "False"):
        return text == "True"
    if text.endswith(("j", "j)")):
        return complex(text)
    return int(text) if text.lstrip("-").isdigit() else float(text)
