"""The values of a tile: each node of a loop's body becomes one line of Triton.

In: nodes whose arguments have values. Out: lines `tmp3 = ...` and a `Value` for each node: its name, and the axes of
the tile that it varies along. A value that varies along one axis only is computed once per position of that axis and
broadcast where it is used. Half types and float8 are held as float32.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import sympy
import torch

from litz.codegen.dialect import COMPARISONS
from litz.codegen.sizes import INT32
from litz.ir import Buffer, Loop, Node, Range, Store
from litz.ir.build import empty_sizes
from litz.ir.dtypes import FLOAT8, HALF, compute_dtype
from litz.ir.index import Expr, Symbol, bounds, placeholder, product, stride_of
from litz.ir.node import walk

from .dialect import ELEMENTS, TRITON, VALUES, is_negative_zero, literal, read, typed, written
from .frame import VECTOR
from .names import Names
from .rounded import divides_by_sum_of_exp
from .text import IndexText
from .tile_shape import Axis, Tiling

_INFIX = re.compile(r"\{\d\} (\+|-|\*|==|!=|<|<=|>|>=) \{\d\}")


@dataclass(frozen=True)
class Value:
    """A node's value: the text that gives it and the axes of the tile that it varies along."""

    text: str
    axes: frozenset[str] = frozenset()


def op_text(node: Node, texts: list[str]) -> str:
    """Returns Triton text for a scalar op on arguments whose texts are given."""
    template = TRITON.op(node.op, node.args[0].dtype)
    # Beside a tensor, a plain literal takes that tensor's type in arithmetic, comparisons and selections.
    operands = node.args[1:] if node.op == "where" else node.args
    if (node.op == "where" or _INFIX.fullmatch(template)) and not all(arg.op == "const" for arg in operands):
        for position, arg in enumerate(node.args):
            if arg.op == "const" and arg.dtype != torch.bool and not is_negative_zero(arg.attrs[0]):
                texts[position] = literal(arg.attrs[0])
    return template.format(*texts, T=VALUES[node.dtype])


class Tile:
    """The kernel while its body is written: lines, names, the tile's axes and the values so far."""

    def __init__(
        self,
        loop: Loop,
        buffers: Mapping[str, Buffer],
        tiling: Tiling,
        names: Names,
        index_type: str,
        prefix: str = "",
    ) -> None:
        """prefix: of the names of values, where a kernel has several tiles."""
        self.loop, self.buffers, self.tiling, self.names = loop, buffers, tiling, names
        self.index_type = index_type
        self.lines: list[str] = []
        self.depth = 1
        self.values: dict[Node, Value] = {}
        self.stored: dict[Node, Value] = {}
        """The bits of float8 values, as memory holds them."""
        self.limits: list[Expr] = []  # each must be at most INT32, or this kernel needs 64-bit indices
        self.axis_of = {r.var: axis.name for axis in tiling.axes for r in axis.ranges}
        self.index_text = IndexText(names.index_names, loop.extents)
        wide = {symbol: f"{name}.to(tl.int64)" for symbol, name in names.index_names.items()}
        self.wide_text = IndexText(wide, loop.extents)
        self.eviction: Mapping[Node, str] = {}
        self.whole = False
        """Is the code for programs whose block along x lies in the range?"""
        self.texts: Mapping[Node, str] = {}
        """Templates of some nodes in place of the dialect's."""
        self.functions: dict[str, str] = {}
        """Functions that the kernel calls, by name, which are written before it."""
        self.indices: dict[tuple[Range, ...], str] = {}
        """Names of the joint indices that loop variables were made of, by their ranges."""
        self._counter, self._prefix = 0, prefix

    # Lines, names, shapes.

    def emit(self, *lines: str) -> None:
        """Appends lines, indented by the present depth."""
        self.lines += ("    " * self.depth + line for line in lines)

    def fresh(self, prefix: str = "tmp") -> str:
        """Returns a variable name that the kernel has not used yet."""
        self._counter += 1
        return f"{self._prefix}{prefix}{self._counter - 1}"

    def shape(self, axes: Iterable[str]) -> str:
        """Returns the shape of a tensor that varies along `axes`, as text."""
        chosen = set(axes)
        return "[" + ", ".join(f"{a.name.upper()}BLOCK" if a.name in chosen else "1" for a in self.tiling.axes) + "]"

    def level_axes(self, inner: bool) -> frozenset[str]:
        """Returns the axes of the output ranges, and of the reduction ranges as well if `inner`."""
        return frozenset(axis.name for axis in self.tiling.axes if inner or axis.name != "r")

    def tile_mask(self, axes: Iterable[str]) -> list[str]:
        """Returns the names of the masks that keep a tensor along `axes` within the ranges."""
        chosen = set(axes)
        return [f"{axis.name}mask" for axis in self.tiling.axes if axis.name in chosen and self.is_masked(axis)]

    def is_masked(self, axis: Axis) -> bool:
        """Returns whether an axis has lanes that are none of its range."""
        if self.whole and axis.name == "x":
            return False
        return axis.masked or (axis.name == "r" and self.tiling.frame is not None)

    def axes_of(self, expr: Expr, indirect: Iterable[Value] = ()) -> frozenset[str]:
        """Returns the axes that an index expression varies along. indirect: values that stand for its placeholders."""
        found = {self.axis_of[s] for s in expr.free_symbols if s in self.axis_of}
        if "r" in found and self.tiling.frame is not None and not self.tiling.begins_alike:
            found.add("x")  # each row has lanes of its own before it
        return frozenset(found.union(*(value.axes for value in indirect)))

    # Values.

    def compute(self, roots: Iterable[Node]) -> None:
        """Emits the nodes that the roots need and that have no value yet. Reductions must have theirs."""
        for node in self.missing(roots):
            self.values[node] = self._value(node)

    def missing(self, roots: Iterable[Node]) -> list[Node]:
        """Returns the nodes that the roots need and that have no value yet, arguments before users, constants left
        out."""
        return list(walk(*roots, into=lambda node: node not in self.values and node.op != "const"))

    def get(self, node: Node) -> Value:
        """Returns the value of a node; a constant has a type of its own."""
        return Value(typed(node.attrs[0], compute_dtype(node.dtype))) if node.op == "const" else self.values[node]

    def full(self, node: Node, axes: frozenset[str], stored: bool = False) -> str:
        """Returns the text of a node's value, spread over all of `axes`. stored: the value as memory holds it."""
        value = self.get(node)
        if stored:
            value = replace(value, text=self.bits(node))
        if value.axes >= axes:
            return value.text
        text = value.text if value.axes else f"({value.text})"
        return f"tl.broadcast_to({text}, {self.shape(axes)})"

    def _value(self, node: Node) -> Value:
        handler = self._own_text if node in self.texts else getattr(self, f"_{node.op}", None)
        if node.dtype in FLOAT8:
            self.stored.pop(node, None)  # of an earlier walk
            bits = self.held(node)
            name = self.fresh()
            self.emit(f"{name} = {read(node.dtype, bits.text)}")
            return Value(name, bits.axes)
        text, axes = handler(node) if handler is not None else self._scalar_op(node)
        if text.isidentifier():
            return Value(text, axes)  # a cast that changes nothing
        name = self.fresh()
        self.emit(f"{name} = {text}")
        return Value(name, axes)

    def _bits_of(self, node: Node) -> tuple[str, frozenset[str]]:
        """The text of a float8 node's bits, and its axes: a copy moves bits, so that NaN keeps them."""
        if node.op == "load":
            return self._load(node)
        if node.op == "where":
            condition, *both = node.args
            texts = [self.bits(arg) for arg in both]
            axes = frozenset[str]().union(*(self.get(arg).axes for arg in node.args))
            return f"tl.where({self.get(condition).text}, {texts[0]}, {texts[1]})", axes
        (arg,) = node.args
        value = self.get(arg)
        if node.op == "bitcast":
            return f"{self.bits(arg)}.to(tl.uint8, bitcast=True)", value.axes
        text = value.text if VALUES[arg.dtype] == "tl.float32" else f"{value.text}.to(tl.float32)"
        return written(node.dtype, text), value.axes

    def held(self, node: Node) -> Value:
        """Returns what memory holds for a node's value: the bits of a float8 node, else the value."""
        if node.dtype not in FLOAT8:
            return self.get(node)
        if node not in self.stored and (node.op == "const" or node in self.values):
            value = self.get(node)
            return replace(value, text=written(node.dtype, value.text))
        if node not in self.stored:
            text, axes = self._bits_of(node)
            self.stored[node] = Value(self.fresh("bits"), axes)
            self.emit(f"{self.stored[node].text} = {text}")
        return self.stored[node]

    def bits(self, node: Node) -> str:
        """Returns the text of what memory holds for a node's value."""
        return self.held(node).text

    def _own_text(self, node: Node) -> tuple[str, frozenset[str]]:
        values = [self.get(arg) for arg in node.args]
        axes = frozenset[str]().union(*(value.axes for value in values))
        return self.texts[node].format(*(value.text for value in values)), axes

    def _scalar_op(self, node: Node) -> tuple[str, frozenset[str]]:
        small = self._small_comparison(node)
        if small is not None:
            return small
        if node.op == "div" and divides_by_sum_of_exp(node, self.loop):
            top, bottom = (self.get(arg) for arg in node.args)
            return f"{top.text} * _reciprocal({bottom.text})", top.axes | bottom.axes
        values = [self.get(arg) for arg in node.args]
        axes = frozenset[str]().union(*(value.axes for value in values))
        return op_text(node, [value.text for value in values]), axes

    def _small_comparison(self, node: Node) -> tuple[str, frozenset[str]] | None:
        """A comparison of positions: in 32 bits where that is enough, though an `index` node is int64."""
        if node.op not in COMPARISONS or not any(arg.op == "index" for arg in node.args):
            return None
        if not all(self._fits_int32(arg) for arg in node.args):
            return None
        texts = [literal(arg.attrs[0]) if arg.op == "const" else self.index_text(arg.attrs[0]) for arg in node.args]
        axes = frozenset[str]().union(*(self.axes_of(arg.attrs[0]) for arg in node.args if arg.op == "index"))
        return TRITON.op(node.op, torch.int64).format(*texts), axes

    def _fits_int32(self, node: Node) -> bool:
        if node.op == "const":
            return isinstance(node.attrs[0], int) and abs(node.attrs[0]) <= INT32
        return node.op == "index" and self.narrow(node.attrs[0])

    def narrow(self, expr: Expr) -> bool:
        """Returns whether the expression stays within 32 bits. Where sizes decide, the launcher is to check that."""
        if self.index_type == "tl.int64":
            return False
        low, high = bounds(expr, self.loop.extents)
        if low is None or high is None:
            return False
        for bound in (-low, high):
            if bound.is_Integer:
                if int(bound) > INT32:
                    return False
            else:
                self.limits.append(bound)
        return True

    # Ops of their own.

    def _index(self, node: Node) -> tuple[str, frozenset[str]]:
        expr = node.attrs[0]
        text = f"{self.index_text(expr)}.to(tl.int64)" if self.narrow(expr) else self.wide_text(expr)
        return text, self.axes_of(expr)

    def _cast(self, node: Node) -> tuple[str, frozenset[str]]:
        (arg,) = node.args
        value = self.get(arg)
        source, target = arg.dtype, node.dtype
        if arg.op == "index" and target in (torch.float32, torch.int32) and self.narrow(arg.attrs[0]):
            return f"{self.index_text(arg.attrs[0])}.to({VALUES[target]})", value.axes
        if source == target and arg.op in ("load", "cast"):
            return value.text, value.axes  # rounded already
        return TRITON.cast(value.text, source, target), value.axes

    def _bitcast(self, node: Node) -> tuple[str, frozenset[str]]:
        (arg,) = node.args
        value = self.get(arg)
        if arg.dtype in FLOAT8:
            return f"{self.bits(arg)}.to({ELEMENTS[node.dtype]}, bitcast=True)", value.axes
        return TRITON.bitcast(value.text, arg.dtype, node.dtype), value.axes

    def _bounded(self, node: Node) -> tuple[str, frozenset[str]]:
        position, *masked = [self.get(arg) for arg in node.args]
        size, what = node.attrs
        axes = position.axes.union(*(mask.axes for mask in masked))
        held = self.fresh()
        self.emit(f"{held} = ({position.text} >= 0) & ({position.text} < {self.index_text(size)})")
        unread = [f"({mask} == 0)" for mask in [*(mask.text for mask in masked), *self.tile_mask(axes)]]
        shown = self.names.sizes.get(size, "") if size.is_Symbol else (str(size) if size.is_Integer else "")
        message = f"litz: index out of range{f' for size {shown}' if shown else ''}{f' of {what}' if what else ''}"
        self.emit(f'tl.device_assert({" | ".join([held, *unread])}, "{message}")')
        # Where the assertion is compiled out, and until it ends the kernel, what is read lies in the buffer still.
        return f"tl.where({held}, {position.text}, 0)", position.axes

    def not_empty(self, indirect: Iterable[Node]) -> list[str]:
        """Returns the masks for accesses at checked positions: where a size is 0, no position is in the buffer."""
        sizes = [size for size in empty_sizes(indirect) if size != 0]
        none = ["tl.full([1], False, tl.int1)"] if len(sizes) < len(empty_sizes(indirect)) else []
        return [*(f"({self.index_text(size)} > 0)" for size in sizes), *none]

    def _load(self, node: Node) -> tuple[str, frozenset[str]]:
        indirect = [self.get(arg) for arg in node.indirect]
        framed = self.framed(node, node.buffer, node.index[0], node.mask is not None)
        pointer, axes = framed or self.pointer(node.buffer, node.index[0], indirect)
        masks = []
        if node.mask is not None:
            mask = self.get(node.mask)
            masks.append(mask.text)
            if not axes >= mask.axes:
                axes = axes | mask.axes
                pointer, axes = self.pointer(node.buffer, node.index[0], indirect, axes)
        if framed is None:
            masks = [*self.tile_mask(axes), *masks, *self.not_empty(node.indirect)]
        else:
            masks = [*self.tile_mask({"x"}), "rload", *self._within(node)]
        parts = [pointer]
        if masks:
            parts.append(" & ".join(masks))
        if node.mask is not None:
            parts.append("other=0")
        if self.eviction.get(node):
            parts.append(f'eviction_policy="{self.eviction[node]}"')
        text = f"tl.load({', '.join(parts)})"
        return (f"{text}.to(tl.float32)" if node.dtype in HALF else text), axes

    def framed(
        self, site: Node | Store, buffer: str, offset: Expr, masked: bool = False
    ) -> tuple[str, frozenset[str]] | None:
        """Returns the text of the pointer, and the axes that it varies along, of an access in whole groups of the
        frame's lanes. None if the tiling has no frame or the frame does not hold the access."""
        frame = self.tiling.frame
        if frame is None or not frame.holds(site, buffer, offset, masked):
            return None
        rest = frame.rest(buffer, offset)
        text = "rstart" if not rest else f"rstart + {self.index_text(rest)}"
        # Of a row in one block the lanes are added last: their addresses are that of the row and small constants, where
        # each would take three instructions. In a loop such addresses would be counted up in 64 bits.
        first = text if not rest else f"({text})"
        where = f"{first} + rlane" if self.tiling.persistent else f"({text} + rlane)"
        return f"{self.names.buffers[buffer]} + {where}", self.level_axes(True)

    def _joined(self, offset: Expr) -> tuple[Expr, dict[Symbol, str]]:
        """An offset that goes through all ranges of an axis as through one, by the axis's own index: rows of 50257 that
        follow each other are contiguous, which nobody can tell from `50257*(i // 50257) + i % 50257`. And the names of
        such indices."""
        names: dict[Symbol, str] = {}
        for axis in self.tiling.axes:
            index = self.indices.get(axis.ranges)
            step = stride_of(offset, axis.ranges[-1].var) if index is not None and len(axis.ranges) > 1 else None
            if index is None or not step:
                continue
            sizes = [product(r.size for r in axis.ranges[n + 1 :]) for n in range(len(axis.ranges))]
            if any(stride_of(offset, r.var) != step * size for r, size in zip(axis.ranges, sizes, strict=True)):
                continue
            whole = Symbol(index, integer=True)
            walked = sympy.Add(*(r.var * step * size for r, size in zip(axis.ranges, sizes, strict=True)))
            offset = sympy.expand(offset - walked) + step * whole
            names[whole] = index
        return offset, names

    def _within(self, node: Node) -> list[str]:
        """A mask for a load of groups that are longer than 16 bytes: they may reach further beyond a buffer's end."""
        frame, span = self.tiling.frame, int(self.buffers[node.buffer].layout.span)
        lanes = VECTOR // node.dtype.itemsize
        if frame is None or lanes >= frame.lanes:
            return []
        rest = frame.rest(node.buffer, node.index[0])
        text = "rstart + rlane" if not rest else f"rstart + rlane + {self.index_text(rest)}"
        return [f"({text} < {-(-span // lanes) * lanes})"]

    def pointer(
        self, buffer: str, offset: Expr, indirect: list[Value], spread: frozenset[str] = frozenset()
    ) -> tuple[str, frozenset[str]]:
        """Returns the text of the pointer, `p0 + offset`, and the axes that it varies along: those of the offset, and
        `spread`."""
        names: dict[Symbol, str] = {
            **self.names.index_names,
            # The sizes allow 32-bit offsets where the index type is 32 bits wide, and then values of indices too.
            **{placeholder(n): f"{value.text}.to({self.index_type})" for n, value in enumerate(indirect)},
        }
        # Along a dimension of stride 0 an index does not count.
        axes = self.axes_of(
            offset, [value for n, value in enumerate(indirect) if placeholder(n) in offset.free_symbols]
        )
        joined, joint = self._joined(offset)
        text = IndexText({**names, **joint}, self.loop.extents)(joined)
        if not axes >= spread:
            axes = axes | spread
            zeros = f"tl.zeros({self.shape(axes)}, tl.int32)"
            text = zeros if offset == 0 else f"({text} + {zeros})"
        return f"{self.names.buffers[buffer]} + {text}", axes
