"""What lowerings take and give for a tensor: a View of a buffer, or a Computed value without one.

Views are index arithmetic, not operations: a View says, for each dimension of its buffer, where along it the element
at (i0, i1, ...) lies, and a view of a view substitutes. The variables are the canonical loop variables i0, i1, ..., one
per dimension of the tensor, so that reading a tensor in its own iteration space needs no substitution at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial, reduce
from typing import Any

import sympy
import torch

from litz.ir import Buffer, Layout, Node, TensorRef, build, transform
from litz.ir.index import (
    ZERO,
    Expr,
    FloorDiv,
    Mod,
    PythonMod,
    Symbol,
    flat_index,
    loop_var,
    placeholder,
    product,
    stride_of,
    substitute,
)
from litz.ir.node import rewrite, walk, with_args
from litz.ir.operation import expressions

Position = Expr | Node
"""A place along a dimension: an index expression, or an int64 node computed at run time."""
Size = tuple[Expr, ...]


@cache
def variables(count: int) -> tuple[Symbol, ...]:
    """Returns i0, i1, ..., the variables of a tensor with `count` dimensions."""
    return tuple(loop_var(dim) for dim in range(count))


def ranges_of(size: Sequence[Expr]) -> dict[Symbol, Expr]:
    """Returns the extent of each variable of a tensor of `size`."""
    return dict(zip(variables(len(size)), size, strict=True))


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor during lowering. size: an expression for each dimension."""

    dtype: torch.dtype  # of an element
    device: torch.device  # where it is
    size: tuple[Expr, ...]

    @property
    def ndim(self) -> int:
        """Returns the number of dimensions."""
        return len(self.size)

    @property
    def numel(self) -> Expr:
        """Returns the number of elements."""
        return product(self.size)

    def load(self, indices: Sequence[Position], mask: Node | None = None) -> Node:
        """Returns the element at `indices`, one per dimension; 0 where `mask` is False (nothing is read there).

        Nothing is checked: a negative or too large index is the caller's to prevent.
        """
        raise NotImplementedError

    def varies(self, dim: int) -> bool:
        """Returns whether elements along a dimension may differ. Every kind of tensor answers this itself."""
        raise NotImplementedError

    def reindex(self, size: Sequence[Expr], index: Sequence[Expr]) -> Tensor:
        """Returns the tensor of `size` whose element at (i0, i1, ...) is this one's at `index`, expressions over
        them."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class View(Tensor):
    """A tensor in memory. index: where in `buffer` element (i0, i1, ...) is, an expression for each dimension of the
    buffer."""

    buffer: Buffer  # the buffer that it shows
    index: tuple[Expr, ...]
    strided: Layout | None = None
    """The view's layout, if its making tells it (`as_strided`, or a reshape of what lies in order): with symbolic sizes
    `index` may not show the layout any more."""

    @staticmethod
    def whole(buffer: Buffer) -> View:
        """Returns a view of all of a buffer, with the buffer's strides."""
        size = buffer.layout.size
        return View(buffer.dtype, buffer.device, size, buffer, variables(len(size)))

    @staticmethod
    def of_flat(buffer: Buffer, layout: Layout) -> View:
        """Returns a view of a buffer of one dimension, laid out as `layout` says."""
        steps = zip(variables(len(layout.size)), layout.stride, strict=True)
        flat = layout.offset + sum((var * step for var, step in steps), start=ZERO)
        return View(buffer.dtype, buffer.device, layout.size, buffer, (flat,), layout)

    def varies(self, dim: int) -> bool:
        """Returns whether elements may differ along `dim`: False where the view repeats memory."""
        var, steps = variables(self.ndim)[dim], self.buffer.layout.stride
        return any(var in expr.free_symbols and step != 0 for expr, step in zip(self.index, steps, strict=True))

    @property
    def is_whole(self) -> bool:
        """Returns whether this is the buffer itself, dimension for dimension."""
        return self.index == variables(self.ndim) and self.size == self.buffer.layout.size

    def at(self, indices: Sequence[Position]) -> tuple[tuple[Expr, ...], tuple[Node, ...]]:
        """Returns the place of an element in the buffer: index expressions, and the nodes that their placeholders stand
        for."""
        indirect: list[Node] = []
        position: list[Expr] = []
        for item in indices:
            if isinstance(item, Node):
                position.append(placeholder(len(indirect)))
                indirect.append(item)
            else:
                position.append(item)
        own = variables(self.ndim)
        if tuple(position) == own:
            return self.index, ()
        mapping = dict(zip(own, position, strict=True))
        return tuple(substitute(expr, mapping) for expr in self.index), tuple(indirect)

    def load(self, indices: Sequence[Position], mask: Node | None = None) -> Node:
        """Returns a load of the element at `indices`. mask: a bool node; where false, nothing is read. A view without
        elements gives 0."""
        position, indirect = self.at(indices)
        if not indirect and any(extent == 0 for extent in self.size):
            # No point asks for this. A kernel would load before its loops what does not depend on their variables.
            return build.const(0, self.dtype)
        return build.load(self.buffer.name, position, self.dtype, indirect, mask)

    def reindex(self, size: Sequence[Expr], index: Sequence[Expr]) -> View:
        """Returns a view of `size` whose element (i0, i1, ...) is this one's at `index`."""
        mapping = dict(zip(variables(self.ndim), index, strict=True))
        extents = ranges_of(size)
        moved = tuple(substitute(expr, mapping, extents) for expr in self.index)
        strided = self.strided and _affine(index, self.strided.stride, self.strided.offset, tuple(size))
        return replace(self, size=tuple(size), index=moved, strided=strided)

    def layout(self) -> Layout | None:
        """Returns strides and offset (from the buffer's data) of the view, None if it is not affine in memory, or
        backwards.

        The strides of dimensions of size 1 mean nothing; those of the buffer are kept where they can be.
        """
        if self.is_whole:
            return Layout(self.size, self.buffer.layout.stride)
        if self.strided is not None:
            return self.strided
        if self.numel == 0:
            return Layout.contiguous(self.size)
        return _affine(self.index, self.buffer.layout.stride, ZERO, self.size)

    def ref(self) -> TensorRef | None:
        """Returns the view as a library call takes it; None if the view is not affine."""
        layout = self.layout()
        return None if layout is None else TensorRef(self.buffer.name, layout)


def _affine(index: Sequence[Expr], stride: Size, offset: Expr, size: Size) -> Layout | None:
    """Returns the layout of a tensor of `size` whose elements are at `index` of a tensor with `stride` and `offset`;
    None if its strides are unknown, or negative, which torch does not allow."""
    flat = flat_index(tuple(index), stride, offset)
    strides: list[Expr] = []
    for var in variables(len(size)):
        step = stride_of(flat, var)
        if step is None or step.is_negative:
            return None
        strides.append(step)
    return Layout(size, tuple(strides), substitute(flat, {var: ZERO for var in variables(len(size))}))


@dataclass(frozen=True, eq=False)
class Computed(Tensor):
    """A tensor without memory: full, arange, eye. value: the expression of an element in its indices, without loads."""

    value: Node

    @staticmethod
    def full(size: Sequence[Expr], value: Any, dtype: torch.dtype, device: torch.device) -> Computed:
        """Returns a tensor whose elements are all `value`."""
        return Computed(dtype, device, tuple(size), build.const(value, dtype))

    def varies(self, dim: int) -> bool:
        """Returns whether elements may differ along `dim`: False where no index of the dimension is in the value."""
        var = variables(self.ndim)[dim]
        return any(var in expr.free_symbols for node in walk(self.value) for expr in expressions(node))

    def load(self, indices: Sequence[Position], mask: Node | None = None) -> Node:
        """Returns the value at `indices`, with the checks of positions that are computed from data. The mask is not
        needed."""
        if any(isinstance(item, Node) for item in indices):
            value = _replace_index(self.value, dict(zip(variables(self.ndim), indices, strict=True)))
            return build.with_checks(value, [item for item in indices if isinstance(item, Node)])
        if tuple(indices) == variables(self.ndim):
            return self.value
        mapping = dict(zip(variables(self.ndim), indices, strict=True))
        return transform.rename_nodes((self.value,), mapping, {})[0]

    def reindex(self, size: Sequence[Expr], index: Sequence[Expr]) -> Computed:
        """Returns a tensor of `size` whose element (i0, i1, ...) is this one's at `index`."""
        mapping = dict(zip(variables(self.ndim), index, strict=True))
        value = transform.rename_nodes((self.value,), mapping, ranges_of(size))[0]
        return replace(self, size=tuple(size), value=value)


def _replace_index(root: Node, mapping: Mapping[Symbol, Position]) -> Node:
    """Returns `root` with the loop variables in its `index` nodes replaced by positions, some of which only a run
    tells."""

    def change(node: Node, args: tuple[Node, ...]) -> Node:
        return index_node(node.attrs[0], mapping) if node.op == "index" else with_args(node, args)

    return rewrite((root,), change)[0]


def index_node(expr: Expr, mapping: Mapping[Symbol, Position]) -> Node:
    """Returns an index expression as an int64 node, with symbols replaced by expressions or by nodes. Errors:
    NotImplementedError for an operation that a position computed at run time cannot have."""
    nodes = {symbol for symbol, item in mapping.items() if isinstance(item, Node)}
    if not expr.free_symbols & nodes:
        return build.index(substitute(expr, {s: e for s, e in mapping.items() if not isinstance(e, Node)}))
    if expr.is_Symbol:
        found = mapping[expr]
        assert isinstance(found, Node)
        return found
    args = [index_node(arg, mapping) for arg in expr.args]
    if isinstance(expr, FloorDiv):
        return build.call("floordiv", args[0], args[1])
    if isinstance(expr, (Mod, PythonMod)):
        return build.call("remainder", args[0], args[1])
    if not (expr.is_Add or expr.is_Mul):
        raise NotImplementedError(f"{expr} at a position that is computed at run time")
    return combined("add" if expr.is_Add else "mul", args)


def combined(op: str, values: Iterable[Node]) -> Node:
    """Returns the sum, product or the like of at least one node, from the left."""
    return reduce(partial(build.call, op), values)


def as_position(item: Position | int) -> Position:
    """Returns an int, expression or node as a Position; a node that is an index expression or a constant becomes
    that."""
    if isinstance(item, Node) and item.op in ("index", "const"):
        item = item.attrs[0]
    return sympy.Integer(item) if isinstance(item, int) else item
