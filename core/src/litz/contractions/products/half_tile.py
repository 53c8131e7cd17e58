"""A tile that computes half types in those types, two values to a register. In: a prologue's loop. Out: lines.

Core's code generator holds half types as float32. Where integers of few bits become weights, conversions to and from
float32 take longer than the weights take to arrive. Here a sum, a difference or a product of half types is one
instruction for two values, which rounds as eager does, after each operation; everything else is done in float32.

A small integer v becomes a half type without a conversion: the bits of 2**n are those of a number whose last bit counts
1 (n = 7 for bfloat16, 10 for float16), so `2**n | v` are the bits of 2**n + v.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch

from litz.codegen.triton.dialect import ELEMENTS, TRITON, literal
from litz.codegen.triton.values import Tile, op_text
from litz.ir import Loop, Node
from litz.ir.dtypes import FLOAT8, HALF, INTEGER, STORAGE, short
from litz.ir.intervals import Intervals

NATIVE: Mapping[str, str] = {"add": "+", "sub": "-", "mul": "*"}
_BYTES = frozenset({torch.int8, torch.uint8})
UNIT: Mapping[torch.dtype, int] = {dtype: round(1 / torch.finfo(dtype).eps) for dtype in HALF}
"""2**n: numbers from here to twice this are a distance of 1 apart."""


def pays(prologue: Loop) -> bool:
    """Does a prologue make values of a half type from small integers, or from float8?"""
    (store,) = prologue.stores
    small = any((n.dtype in INTEGER and n.dtype.itemsize == 1) or n.dtype in FLOAT8 for n in prologue.loads)
    return store.value.dtype in HALF and small


class HalfTile(Tile):
    """Values of half types are held in their own type."""

    @cached_property
    def _halves(self) -> dict[Node, tuple[str, str]]:
        """2**n + v of the low and the high 4 bits of packed bytes, so far."""
        return {}

    @cached_property
    def _intervals(self) -> Intervals:
        return Intervals(self.loop.extents)

    def _load(self, node: Node) -> tuple[str, frozenset[str]]:
        text, axes = super()._load(node)
        return (text.removesuffix(".to(tl.float32)") if node.dtype in HALF else text), axes

    def _cast(self, node: Node) -> tuple[str, frozenset[str]]:
        (arg,) = node.args
        if node.dtype not in HALF:
            wide, axes = self._wide(arg)
            return TRITON.cast(wide, arg.dtype, node.dtype), axes
        if arg.dtype == node.dtype:
            return self.get(arg).text, self.get(arg).axes
        bits = self._bits(node)
        if bits is None and arg.dtype in _BYTES:
            sign = "signed" if arg.dtype == torch.int8 else "unsigned"
            return f"_{sign}_{short(node.dtype)}({self.get(arg).text})", self.get(arg).axes
        if bits is not None:
            return f"{bits} - {self._constant(UNIT[node.dtype], node.dtype)}", self.get(arg).axes
        if arg.dtype in FLOAT8:
            return f"_half_{STORAGE[arg.dtype].name}({self.bits(arg)}, {ELEMENTS[node.dtype]})", self.get(arg).axes
        wide, axes = self._wide(arg)
        return f"{wide}.to(tl.float32).to({ELEMENTS[node.dtype]})", axes

    def _scalar_op(self, node: Node) -> tuple[str, frozenset[str]]:
        axes = frozenset[str]().union(*(self.get(arg).axes for arg in node.args))
        native = self._native(node)
        if native is not None:
            return native, axes
        if not any(each.dtype in HALF for each in (node, *node.args)):
            return super()._scalar_op(node)
        text = op_text(node, [self._wide(arg)[0] for arg in node.args])
        return (f"({text}).to({ELEMENTS[node.dtype]})" if node.dtype in HALF else text), axes

    def _native(self, node: Node) -> str | None:
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
                return f"{bits} - {self._constant(whole, node.dtype)}"
        texts = [self._constant(a.attrs[0], a.dtype) if a.op == "const" else self.get(a).text for a in node.args]
        return f"{texts[0]} {NATIVE[node.op]} {texts[1]}"

    def _bits(self, cast: Node) -> str | None:
        """2**n + v as text, where the cast is of an integer v that is known to be from 0 to 2**n - 1."""
        (arg,) = cast.args
        if arg.dtype not in INTEGER or arg.op == "const":
            return None
        found, unit = self._intervals.of(arg), UNIT[cast.dtype]
        if found.low is None or found.high is None or not (found.low.is_Integer and found.high.is_Integer):
            return None
        if int(found.low) < 0 or int(found.high) >= unit:
            return None
        packed = _nibble(arg)
        if packed is not None and self.get(packed).axes == frozenset(axis.name for axis in self.tiling.axes):
            if packed not in self._halves:
                low, high = self.fresh("low"), self.fresh("high")
                self.emit(f"{low}, {high} = _nibbles_{short(cast.dtype)}({self.get(packed).text})")
                self._halves[packed] = low, high
            return self._halves[packed][arg.op == "shift_right"]
        one = torch.tensor(unit, dtype=cast.dtype).view(torch.int16).item()
        return f"({self.get(arg).text}.to(tl.uint16) | {one}).to({ELEMENTS[cast.dtype]}, bitcast=True)"

    def _wide(self, node: Node) -> tuple[str, frozenset[str]]:
        """A value as core's code generator holds it."""
        value = self.get(node)
        return (f"{value.text}.to(tl.float32)" if node.dtype in HALF and node.op != "const" else value.text), value.axes

    @staticmethod
    def _exact(value: float, dtype: torch.dtype) -> bool:
        return float(torch.tensor(float(value), dtype=dtype)) == float(value)

    @staticmethod
    def _constant(value: float, dtype: torch.dtype) -> str:
        return f"tl.full([], {literal(float(value))}, {ELEMENTS[dtype]})"


def _nibble(node: Node) -> Node | None:
    """The bytes whose low or high 4 bits a node is; None if it is something else."""
    if node.dtype != torch.uint8 or node.op not in ("bitwise_and", "shift_right") or node.args[1].op != "const":
        return None
    return node.args[0] if node.args[1].attrs[0] == (15 if node.op == "bitwise_and" else 4) else None


__all__ = ["HalfTile", "pays"]
