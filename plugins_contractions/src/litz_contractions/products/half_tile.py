"""Tiles that compute half types in those types, two values to a register. In: a prologue's loop. Out: lines.

Core's code generator holds half types as float32. Where integers of few bits become weights, conversions to and from
float32 take longer than the weights take to arrive. Here a sum, a difference or a product of half types is one
instruction for two values, which rounds as eager does, after each operation; everything else is done in float32.

A small integer v becomes a half type without a conversion: the bits of 2**n are those of a number whose last bit counts
1 (n = 7 for bfloat16, 10 for float16), so `2**n | v` are the bits of 2**n + v.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import sympy
import torch

from litz.ir import Loop, Node
from litz.ir.dtypes import FLOAT8, HALF, INTEGER, STORAGE, short
from litz.ir.index import Expr, Symbol, stride_of
from litz.ir.intervals import Intervals
from litz.tiles.make import Maker
from litz.tiles.program import Const, Operand, Value

from .lines import Planes
from .print import NATIVE, UNIT

_BYTES = frozenset({torch.int8, torch.uint8})
_IN_WORDS = _BYTES | {dtype for dtype in FLOAT8 if STORAGE[dtype].bits is not None}
"""Types whose elements may come two at a time."""


def pays(prologue: Loop) -> bool:
    """Returns whether a prologue makes values of a half type from small integers, or from float8."""
    (store,) = prologue.stores
    small = any((n.dtype in INTEGER and n.dtype.itemsize == 1) or n.dtype in FLOAT8 for n in prologue.loads)
    return store.value.dtype in HALF and small


def words_of(prologue: Loop | None, depth: Symbol) -> bool:
    """Returns whether bytes may be loaded two at a time: there are some that vary along the variable, these are
    neighbours along it, and every use of one makes a half type of it, or of its low or high 4 bits, or float32 of a
    float8."""
    if prologue is None or not pays(prologue):
        return False
    loads = [n for n in prologue.loads if n.dtype in _IN_WORDS and (n.indirect or stride_of(n.index[0], depth) != 0)]
    if any(node.mask is not None or node.indirect or stride_of(node.index[0], depth) != 1 for node in loads):
        return False

    def is_made(node: Node) -> bool:
        of_float8 = node.op == "cast" and node.args[0].dtype in FLOAT8
        return node.op == "cast" and (node.dtype in HALF or (of_float8 and node.dtype == torch.float32))

    for node in prologue.nodes:
        for arg in node.args:
            if arg in loads and not is_made(node) and _nibble(node) is not arg:
                return False
            packed = _nibble(arg)
            if packed in loads and not is_made(node):
                return False
    return bool(loads)


class HalfMaker(Maker):
    """Values of half types are held in their own type: `near` of an op on them begins with `half`. words: buffers whose
    bytes are loaded two at a time, where the two are values of a depth that is walked in steps of two."""

    words: frozenset[str] = frozenset()

    def compute(self, roots: Iterable[Node]) -> None:
        """Adds what the roots need. A byte that comes with its word is not computed by itself."""
        for root in roots:
            self.operand(root)

    def operand(self, node: Node) -> Value | Const:
        """Returns a node's value; half types stay in their own type, two values to a register."""
        if node.op != "const" and node not in self.values:
            self.values[node] = self.value(node)
        return super().operand(node)

    def value(self, node: Node) -> Value:
        """Adds what computes a node, and returns its value."""
        own = {"cast": self._half_cast, **dict.fromkeys(("load", "index", "bitcast", "bounded"))}
        make = None if node.dtype in FLOAT8 or node in self.near else own.get(node.op, self._scalar_op)
        made = None if make is None else make(node)
        return super().value(node) if made is None else made

    @cached_property
    def _every(self) -> frozenset[str]:
        return frozenset(axis.name for axis in self.tiling.axes)

    @cached_property
    def _words(self) -> dict[tuple[str, torch.dtype, str, Expr], tuple[Value, ...]]:
        """The words converted so far: (conversion, its type, buffer, offset) -> the values of a word."""
        return {}

    def _in_word(self, node: Node) -> bool:
        """Returns whether the load is a byte at an even place, or the byte after one, at every point of the loop."""
        if node.op != "load" or node.dtype not in _IN_WORDS or node.buffer not in self.words:
            return False
        if self.axes_of(node.index[0], []) != self._every:
            return False
        varying = node.index[0] - node.index[0].as_coeff_Add()[0]
        return all(factor.is_Integer and factor % 2 == 0 for factor in varying.as_coefficients_dict().values())

    def _of_word(self, kind: str, node: Node, dtype: torch.dtype) -> tuple[Value, ...] | None:
        """Returns what a conversion makes of the word that a loaded byte is in, the byte's own results first; None
        where bytes are loaded one by one."""
        if not self._in_word(node):
            return None
        (offset,) = node.index
        byte = int(offset.as_coeff_Add()[0]) % 2
        place = sympy.expand((offset - byte) / 2)
        key = (kind, dtype, node.buffer, place)
        if key not in self._words:
            word = self.fresh("word")
            access = self.access(node.buffer, place, [])
            count = 4 if kind == "nibbles" else 2
            values = tuple(Value(self.fresh("plane"), dtype, self._every) for _ in range(count))
            self.put(Planes(values, kind, None, word, access, tuple(self.masks(access.axes))))
            self._words[key] = values
        values = self._words[key]
        each = len(values) // 2
        return values[byte * each : (byte + 1) * each]

    @cached_property
    def _halves(self) -> dict[Node, tuple[Value, Value]]:
        """2**n + v of the low and the high 4 bits of packed bytes, so far."""
        return {}

    @cached_property
    def _intervals(self) -> Intervals:
        return Intervals(self.loop.extents)

    def _half_cast(self, node: Node) -> Value:
        (arg,) = node.args
        if arg.dtype in FLOAT8 and node.dtype in (torch.float32, *HALF):
            # Two at a time by way of a half type, which has all the numbers.
            half = node.dtype if node.dtype in HALF else torch.float16
            planes = self._of_word(STORAGE[arg.dtype].name, arg, half)
            if planes is not None:
                return planes[0] if node.dtype == half else self.op("cast", planes[:1], node.dtype, "half")
            return self.op("decode", [self.held(arg)], node.dtype, f"half {short(arg.dtype)}")
        if node.dtype not in HALF:
            return self.op("cast", [self.operand(arg)], node.dtype, "half")
        if arg.dtype == node.dtype and isinstance(found := self.operand(arg), Value):
            return found
        bits = self._bits(node)
        if bits is None and arg.dtype in _BYTES:
            sign = "signed" if arg.dtype == torch.int8 else "unsigned"
            planes = self._of_word(sign, arg, node.dtype)
            return planes[0] if planes is not None else self.op("cast", [self.operand(arg)], node.dtype, f"half {sign}")
        if bits is None:
            return self.op("cast", [self.operand(arg)], node.dtype, "half")
        packed = _nibble(arg)
        if packed is None or not self._in_word(packed):
            self.operand(arg)
        return self.op("sub", [bits, Const(UNIT[node.dtype], node.dtype)], node.dtype, "half less")

    def _scalar_op(self, node: Node) -> Value | None:
        args = [self.operand(arg) for arg in node.args]
        if not any(each.dtype in HALF for each in (node, *node.args)):
            return None
        return self._native(node, args) or self.op(node.op, args, node.dtype, "half")

    def _native(self, node: Node, args: list[Value | Const]) -> Value | None:
        """A sum, difference or product in the half type itself; None where an operand is not of that type."""
        if node.dtype not in HALF or node.op not in NATIVE or any(arg.dtype != node.dtype for arg in node.args):
            return None
        if not all(arg.op != "const" or self._exact(arg.attrs[0], node.dtype) for arg in node.args):
            return None
        first, second = node.args
        if node.op in ("add", "sub") and first.op == "cast" and second.op == "const":
            # (2**n + v) - (2**n - c) is v + c, exactly: one operation for the conversion and the sum.
            bits, change = self._bits(first), second.attrs[0] if node.op == "add" else -second.attrs[0]
            whole = UNIT[node.dtype] - change
            if bits is not None and change == int(change) and self._exact(whole, node.dtype):
                return self.op("sub", [bits, Const(whole, node.dtype)], node.dtype, "half less")
        return self.op(node.op, args, node.dtype, "half native")

    def _bits(self, cast: Node) -> Operand | None:
        """2**n + v, or the integer v, where the cast is of a v that is known to be from 0 to 2**n - 1."""
        (arg,) = cast.args
        if arg.dtype not in INTEGER or arg.op == "const":
            return None
        found, unit = self._intervals.of(arg), UNIT[cast.dtype]
        if found.low is None or found.high is None or not (found.low.is_Integer and found.high.is_Integer):
            return None
        if int(found.low) < 0 or int(found.high) >= unit:
            return None
        packed = _nibble(arg)
        planes = None if packed is None else self._of_word("nibbles", packed, cast.dtype)
        if planes is not None:
            return planes[arg.op == "shift_right"]
        if packed is not None and (held := self.operand(packed)).axes == self._every and isinstance(held, Value):
            if packed not in self._halves:
                low, high = (Value(self.fresh(stem), cast.dtype, self._every) for stem in ("low", "high"))
                self.put(Planes((low, high), "nibbles", held))
                self._halves[packed] = low, high
            return self._halves[packed][arg.op == "shift_right"]
        return self.operand(arg)

    @staticmethod
    def _exact(value: float, dtype: torch.dtype) -> bool:
        return float(torch.tensor(float(value), dtype=dtype)) == float(value)


def _nibble(node: Node) -> Node | None:
    """The bytes whose low or high 4 bits a node is; None if it is something else."""
    if node.dtype != torch.uint8 or node.op not in ("bitwise_and", "shift_right") or node.args[1].op != "const":
        return None
    return node.args[0] if node.args[1].attrs[0] == (15 if node.op == "bitwise_and" else 4) else None
