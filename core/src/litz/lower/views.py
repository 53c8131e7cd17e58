"""View ops as functions from Tensor to Tensor: each works out where an element of the result lies in its argument.

Sizes and positions are ints or expressions. Nothing here makes an operation or reads memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from litz.ir import Layout
from litz.ir.index import ONE, ZERO, Expr, fits, floordiv, mod, product, recombine, to_expr
from litz.ir.strides import dense_order, same_stride

from .view import Tensor, View, ranges_of, variables

Hint = Callable[[Expr], int]


def canonical_dim(dim: int, ndim: int) -> int:
    """Returns the number of a dimension, counted from the front. A 0-d tensor takes 0 and -1, as in eager. Errors:
    IndexError for a dimension that the tensor lacks."""
    extent = max(ndim, 1)
    if not -extent <= dim < extent:
        raise IndexError(f"dimension {dim} of a tensor with {ndim} dimensions")
    return dim % extent


def permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Returns x with its dimensions in another order: dimension d of the result is dimension dims[d] of x."""
    order = [canonical_dim(dim, x.ndim) for dim in dims]
    index: list[Expr] = [ZERO] * x.ndim
    for new, old in enumerate(order):
        index[old] = variables(x.ndim)[new]
    return x.reindex([x.size[old] for old in order], index)


def expand(x: Tensor, size: Sequence[int | Expr]) -> Tensor:
    """Returns x broadcast to `size`; new dimensions come in front, and -1 keeps an extent."""
    new, names = len(size) - x.ndim, variables(len(size))
    sizes = tuple(x.size[dim - new] if extent == -1 else to_expr(extent) for dim, extent in enumerate(size))
    index = [ZERO if extent == 1 else names[dim + new] for dim, extent in enumerate(x.size)]
    return x if sizes == x.size else x.reindex(sizes, index)


def squeeze(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Returns x without those of the dimensions `dims` that have size 1."""
    chosen = {canonical_dim(dim, x.ndim) for dim in dims}
    kept = [dim for dim in range(x.ndim) if dim not in chosen or x.size[dim] != 1]
    index: list[Expr] = [ZERO] * x.ndim
    for new, old in enumerate(kept):
        index[old] = variables(len(kept))[new]
    return x if len(kept) == x.ndim else x.reindex([x.size[dim] for dim in kept], index)


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """Returns x with a new dimension of size 1 at `dim`."""
    dim = canonical_dim(dim, x.ndim + 1)
    names = variables(x.ndim + 1)
    return x.reindex([*x.size[:dim], ONE, *x.size[dim:]], [*names[:dim], *names[dim + 1 :]])


def with_dims(x: Tensor) -> Tensor:
    """Returns x, with one dimension of size 1 if x has none."""
    return x if x.ndim else unsqueeze(x, 0)


def from_front(position: int | Expr, extent: Expr) -> Expr:
    """Returns a position along a dimension of `extent`, counted from the front; negative positions count from the end.
    Errors: NotImplementedError for a position of unknown sign."""
    where = to_expr(position)
    if where.is_negative:
        return where + extent
    if not where.is_nonnegative:
        raise NotImplementedError(f"select at {where}, whose sign is not known")
    return where


def select(x: Tensor, dim: int, position: int | Expr) -> Tensor:
    """Returns x at `position` along `dim`, counted from the front; the result lacks that dimension."""
    dim = canonical_dim(dim, x.ndim)
    where = to_expr(position)
    names = variables(x.ndim - 1)
    return x.reindex([*x.size[:dim], *x.size[dim + 1 :]], [*names[:dim], where, *names[dim:]])


def narrow(x: Tensor, dim: int, start: int | Expr, length: int | Expr, step: int | Expr = 1) -> Tensor:
    """Returns `length` elements of x along `dim`, from `start` >= 0 on, `step` apart."""
    dim = canonical_dim(dim, x.ndim)
    size = [*x.size]
    size[dim] = to_expr(length)
    index: list[Expr] = list(variables(x.ndim))
    index[dim] = index[dim] * to_expr(step) + to_expr(start)
    return x.reindex(size, index)


def flip(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Returns x in the opposite order along `dims`."""
    index: list[Expr] = list(variables(x.ndim))
    for dim in {canonical_dim(dim, x.ndim) for dim in dims} if x.ndim else ():
        index[dim] = x.size[dim] - 1 - index[dim]
    return x.reindex(x.size, index)


def unfold(x: Tensor, dim: int, length: int, step: int) -> Tensor:
    """Returns windows of `length` along `dim`, `step` apart; the position in the window is the last dimension."""
    names = variables(x.ndim + 1)
    if x.ndim == 0:
        return x.reindex([to_expr(length)], [])
    dim = canonical_dim(dim, x.ndim)
    size = [*x.size, to_expr(length)]
    size[dim] = floordiv(x.size[dim] - length, to_expr(step)) + 1
    index: list[Expr] = list(names[:-1])
    index[dim] = index[dim] * step + names[-1]
    return x.reindex(size, index)


def diagonal(x: Tensor, offset: int, first: int, second: int, length: Expr) -> Tensor:
    """Returns the diagonal of two dimensions, `length` elements long, as a new last dimension."""
    a, b = canonical_dim(first, x.ndim), canonical_dim(second, x.ndim)
    kept = [dim for dim in range(x.ndim) if dim not in (a, b)]
    names = variables(len(kept) + 1)
    index: list[Expr] = [ZERO] * x.ndim
    for new, old in enumerate(kept):
        index[old] = names[new]
    index[a], index[b] = names[-1] + max(-offset, 0), names[-1] + max(offset, 0)
    return x.reindex([*(x.size[dim] for dim in kept), length], index)


# ------------------------------------------------------------------------------------------------------------- reshape


def infer_size(size: Sequence[int | Expr], numel: Expr) -> tuple[Expr, ...]:
    """Returns `size` with its -1, if any, replaced by what is left of `numel`."""
    rest = product(extent for extent in size if extent != -1)
    return tuple(to_expr(extent) if extent != -1 else ZERO if rest == 0 else floordiv(numel, rest) for extent in size)


def reshape(x: Tensor, size: Sequence[int | Expr], hint: Hint) -> Tensor:
    """Returns x with the same elements in row-major order as `size` (with at most one -1).

    Dimensions are matched from the front into groups of equal numbers of elements, so that a dimension that a reshape
    leaves alone keeps its variable. `hint` says which of two unequal symbolic products to extend; any answer is right.
    """
    sizes = infer_size(size, x.numel)
    if sizes == x.size:
        return x
    if product(sizes) == 0:
        return x.reindex(sizes, [ZERO] * x.ndim)
    names = variables(len(sizes))
    index: list[Expr] = [ZERO] * x.ndim
    old = [dim for dim in range(x.ndim) if x.size[dim] != 1]
    new = [dim for dim in range(len(sizes)) if sizes[dim] != 1]
    extents = ranges_of(sizes)
    groups: list[tuple[list[int], list[int]]] = []
    while old or new:
        old_group, new_group = _next_group(x.size, old, sizes, new, hint)
        groups.append((old_group, new_group))
        old, new = old[len(old_group) :], new[len(new_group) :]
        if len(old_group) == 1 and len(new_group) == 1:
            index[old_group[0]] = names[new_group[0]]
            continue
        flat: Expr = ZERO
        for dim in new_group:
            flat = flat * sizes[dim] + names[dim]
        flat = flat.expand()
        for dim in reversed(old_group[1:]):
            index[dim] = mod(flat, x.size[dim], extents)
            flat = floordiv(flat, x.size[dim], extents)
        if old_group:
            # The outermost needs no modulus: what is left is less than its extent.
            index[old_group[0]] = flat
    result = x.reindex(sizes, index)
    if isinstance(x, View) and isinstance(result, View) and any(not extent.is_Integer for extent in (*x.size, *sizes)):
        return replace(result, strided=_reshaped_layout(x, sizes, groups))
    return result


def _reshaped_layout(
    x: View, sizes: tuple[Expr, ...], groups: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> Layout | None:
    """Returns the layout of x after a reshape, None if it is not known to be possible without a copy: in each group of
    dimensions with equally many elements, x's dimensions must follow each other in memory. The result's index does not
    show this, as it consists of quotients and remainders of symbolic sizes."""
    lies = x.layout()
    if lies is None:
        return None
    strides: list[Expr] = [ONE] * len(sizes)
    for old, new in groups:
        if not all(same_stride(lies.stride[a], lies.stride[b] * x.size[b]) for a, b in pairwise(old)):
            return None
        step = lies.stride[old[-1]] if old else ONE
        for dim in reversed(new):
            strides[dim] = step
            step = step * sizes[dim]
    return Layout(sizes, tuple(strides), lies.offset)


def _next_group(
    old_size: Sequence[Expr], old: list[int], new_size: Sequence[Expr], new: list[int], hint: Hint
) -> tuple[list[int], list[int]]:
    """Returns the leading dimensions of both sizes, as few as possible, that have provably equally many elements; all
    of them if there are no such groups."""
    left, right = min(len(old), 1), min(len(new), 1)
    while left < len(old) or right < len(new):
        a, b = product(old_size[dim] for dim in old[:left]), product(new_size[dim] for dim in new[:right])
        if a == b or (a.free_symbols | b.free_symbols and (a - b).expand() == 0):
            break
        if left < len(old) and (right == len(new) or hint(a) < hint(b)):
            left += 1
        elif right < len(new):
            right += 1
        else:
            left += 1
    return old[:left], new[:right]


# ---------------------------------------------------------------------------------------------------------- as_strided


def as_strided(x: View, size: Sequence[Expr], stride: Sequence[Expr], offset: Expr, hint: Hint) -> View | None:
    """Returns the strided view of x's buffer whose first element is `offset` elements behind the buffer's first.

    None where the buffer's own layout has gaps or overlaps, since then an offset says not which element is meant, and
    where the view is not known to lie within the buffer: the library looks at the storage when it runs.
    `hint` orders symbolic strides; the answer is right whether or not it is.
    """
    layout = x.buffer.layout
    if product(size) == 0:
        return View(x.dtype, x.device, tuple(size), x.buffer, (ZERO,) * len(layout.size))
    order = dense_order(layout.size, layout.stride, hint)
    if order is None:
        return None
    names, extents = variables(len(size)), ranges_of(size)
    flat = offset + sum((names[dim] * stride[dim] for dim in range(len(size))), start=ZERO)
    flat = recombine(flat.expand())
    step: Expr = ONE
    index: list[Expr] = [ZERO] * len(layout.size)
    several = [dim for dim in order if layout.size[dim] != 1]
    for position, dim in enumerate(reversed(several)):
        last = position == len(several) - 1
        rest = floordiv(flat, step, extents)
        index[dim] = rest if last else mod(rest, layout.size[dim], extents)
        step = step * layout.size[dim]
    if not fits(flat, step, extents):
        return None
    return View(x.dtype, x.device, tuple(size), x.buffer, tuple(index), Layout(tuple(size), tuple(stride), offset))
