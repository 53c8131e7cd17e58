# ruff: noqa: E501
"""Every op that takes indices, or positions computed from data, with what to call it with: the table of
`tests/core/lowering/test_index_bounds.py`. What never gets into a graph (`ctc_loss`, `bincount`), and
what asserts in the graph (`one_hot`), is not here.

A case is a function and its inputs as a function of one value, which goes among indices that are right. `n` is the
least index that is too large.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

aten = torch.ops.aten
Inputs = Callable[[Any], tuple[torch.Tensor, ...]]

NUMBERS = (0.0, 0.999, -1.0, 1.0, -1.001, 1e30, -1e30, float("inf"), float("-inf"), float("nan"))
"""Values of positions that are given as floats."""


@dataclass(frozen=True)
class IndexCase:
    """function: of the inputs, gives a tensor or a tuple. n: the size that indices count along; None where positions
    are floats. eager: does eager check the index, so that it may be asked? grad: also of the gradients, of the float
    inputs. values: what to try besides the usual. unlike: values at which eager is no judge, as its kernels differ
    (by device, or from what the documentation says) or torch's rule for compilers is wrong."""

    function: Callable[..., Any]
    inputs: Inputs
    n: int | None
    eager: bool = True
    grad: bool = False
    values: tuple[Any, ...] = ()
    unlike: tuple[Any, ...] = ()

    @property
    def tried(self) -> Sequence[Any]:
        if self.n is None:
            return (*NUMBERS, *self.values)
        return (0, self.n - 1, -1, -self.n, -self.n - 1, self.n, self.n + 1, 2**31 + 1, -(2**62), 2**62, *self.values)


def x(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor of different values, none of them 0."""
    return (torch.arange(torch.Size(size).numel()).reshape(size) * 7 % 23 + 1).to(dtype)


def at(v: int, *others: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor([*others, v], dtype=dtype)


def _index(function: Callable[..., Any], n: int = 4, **more: Any) -> IndexCase:
    """A case of x [4, 3] and an index [3] along its first dimension."""
    return IndexCase(function, lambda v: (x(4, 3), at(v, 2, 0)), n, **more)


def _along(function: Callable[..., Any], **more: Any) -> IndexCase:
    """A case of x [4, 3], an index [3, 3] along its first dimension and a source [3, 3]."""
    return IndexCase(function, lambda v: (x(4, 3), at(v, 1, 2, 3, 0, 1, 1, 1, 2).reshape(3, 3), x(3, 3)), 4, **more)


def _sampled(dims: int, mode: str, padding: str, corners: bool, grad: bool = False) -> IndexCase:
    """Zeros: eager's kernel for the CPU gives NaN at what is not finite, the one for CUDA 0. Reflection: where 1e30 is
    reflected to is a matter of rounding. Gradients: of NaN, eager's kernel may end the process."""

    def inputs(v: float) -> tuple[torch.Tensor, ...]:
        grid = torch.linspace(-1.3, 1.2, 6 * dims).reshape(1, *([1] * (dims - 1)), 6, dims).clone()
        grid[..., 2, 0] = v
        grid[..., 4, dims - 1] = v
        return x(1, 2, *[4, 5, 3][:dims]), grid

    return IndexCase(
        lambda image, grid: F.grid_sample(image, grid, mode, padding, align_corners=corners), inputs, None, grad=grad,
        unlike=NUMBERS[-3:] if padding == "zeros" else NUMBERS[5:7] if padding == "reflection" else NUMBERS[-1:] if grad else (),
    )  # fmt: skip


def _unpool(dims: int) -> IndexCase:
    shape = [2, 3, 2][:dims]
    count = torch.Size(shape).numel()
    function = getattr(F, f"max_unpool{dims}d")

    def inputs(v: int) -> tuple[torch.Tensor, ...]:
        index = torch.arange(2 * count).reshape(1, 2, *shape) % count * (2**dims)
        index.view(-1)[-1] = v
        return x(1, 2, *shape), index

    return IndexCase(lambda y, index: function(y, index, 2), inputs, count * 2**dims)


def _max_pool_backward(dims: int, dilation: int = 1) -> IndexCase:
    kernel, size = [2] * dims, [1, 2, *([6] * dims)]
    op = {2: aten.max_pool2d_with_indices_backward, 3: aten.max_pool3d_with_indices_backward}[dims]
    forward = {2: aten.max_pool2d_with_indices, 3: aten.max_pool3d_with_indices}[dims]
    rest = (kernel, [2] * dims, [0] * dims, [dilation] * dims, False)

    def inputs(v: int) -> tuple[torch.Tensor, ...]:
        out, index = forward(x(*size), *rest)
        index = index.clone()
        index.view(-1)[-1] = v
        return torch.ones_like(out), x(*size), index

    return IndexCase(lambda g, y, index: op(g, y, *rest, index), inputs, 6**dims, eager=False)


def _pool_grad(function: Callable[..., Any], back: Callable[..., Any], size: Sequence[int]) -> IndexCase:
    """The gradient of a pool that gives indices, by its own op."""

    def inputs(v: int) -> tuple[torch.Tensor, ...]:
        out, index = function(x(*size))
        index = index.clone()
        index.view(-1)[-1] = v
        return torch.ones_like(out), x(*size), index

    return IndexCase(back, inputs, torch.Size(size[2:]).numel(), eager=False)


CASES: dict[str, IndexCase] = {
    # Reads.
    "index": _index(lambda t, i: t[i]),
    "index.second": IndexCase(lambda t, i: t[:, i], lambda v: (x(3, 4), at(v, 2)), 4),
    "index.two": IndexCase(lambda t, i, j: t[i, j], lambda v: (x(4, 4), at(v, 2), at(1, 3)), 4),
    "index.int32": IndexCase(lambda t, i: t[i], lambda v: (x(4, 3), at(max(min(v, 2**31 - 1), -(2**31)), 0, dtype=torch.int32)), 4),
    "_unsafe_index": _index(lambda t, i: aten._unsafe_index(t, [i])),
    "gather": _along(lambda t, i, s: t.gather(0, i)),
    "index_select": _index(lambda t, i: t.index_select(0, i)),
    "index_select.last": IndexCase(lambda t, i: t.index_select(1, i), lambda v: (x(3, 4), at(v, 2)), 4),
    "take": IndexCase(lambda t, i: t.take(i), lambda v: (x(4, 3), at(v, 2, 11)), 12),
    "take_along_dim": IndexCase(lambda t, i: t.take_along_dim(i, 0), lambda v: (x(4, 3), at(v, 2, 1).reshape(1, 3)), 4),
    "embedding": IndexCase(lambda w, i: F.embedding(i, w), lambda v: (x(4, 3), at(v, 2, 0)), 4),
    "embedding.2d": IndexCase(lambda w, i: F.embedding(i, w, padding_idx=0), lambda v: (x(4, 3), at(v, 2, 0, 1).reshape(2, 2)), 4),
    "embedding.grad": IndexCase(lambda w, i: F.embedding(i, w).sin().sum(), lambda v: (x(4, 3), at(v, 2, 0)), 4, grad=True),
    "embedding_bag": IndexCase(lambda w, i: F.embedding_bag(i, w, mode="sum"), lambda v: (x(4, 3), at(v, 2, 0, 1).reshape(2, 2)), 4),
    "embedding_bag.offsets": IndexCase(lambda w, i: F.embedding_bag(i, w, torch.tensor([0, 2])), lambda v: (x(4, 3), at(v, 2, 0, 1)), 4),
    "masked": IndexCase(lambda t, i, m: torch.where(m, t[i], 0.0), lambda v: (x(4), at(v, 1, 2), torch.tensor([True, True, False])), 4),
    "chosen": IndexCase(lambda t, i, m: torch.where(m, torch.where(m, t[:3], t[i]), 0.0), lambda v: (x(4), at(v, 1, 2), torch.ones(3, dtype=torch.bool)), 4),
    "uniform": IndexCase(lambda i: torch.ones(4)[i] + 1, lambda v: (at(v, 1),), 4),
    "expanded": IndexCase(lambda t, i: t.expand(4)[i], lambda v: (x(1), at(v, 1)), 4),
    "sliced": IndexCase(lambda t, i: t[i][1:] + 1, lambda v: (x(4), at(v, 1, 2)), 4),
    "cat": IndexCase(lambda t, i: torch.cat([t, t[i], t]), lambda v: (x(4), at(v, 1, 2)), 4),
    "pad": IndexCase(lambda t, i: F.pad(t[i], (1, 2)), lambda v: (x(4), at(v, 1, 2)), 4),
    "reduced": IndexCase(lambda t, i: t[i].sum(0), lambda v: (x(4, 3), at(v, 1, 2)), 4),
    "scanned": IndexCase(lambda t, i: t[i].cumsum(0), lambda v: (x(4, 3), at(v, 1, 2)), 4),
    "chained": IndexCase(lambda t, i, j: t[i[j]], lambda v: (x(4), at(3, 1, 2), at(v, 0)), 3),
    "computed": IndexCase(lambda t, i: t[i * 2 - 1], lambda v: (x(4), at(v, 1, 2)), 3),
    # Writes.
    "index_put": IndexCase(lambda t, i, s: t.index_put([i], s), lambda v: (x(4, 3), at(v, 2), x(2, 3)), 4),
    "index_put.add": IndexCase(lambda t, i, s: t.index_put([i], s, accumulate=True), lambda v: (x(4, 3), at(v, 2), x(2, 3)), 4),
    "_unsafe_index_put": IndexCase(lambda t, i, s: aten._unsafe_index_put(t, [i], s, False), lambda v: (x(4, 3), at(v, 2), x(2, 3)), 4),
    "scatter": _along(lambda t, i, s: t.scatter(0, i, s)),
    "scatter.value": _along(lambda t, i, s: t.scatter(0, i, 2.0)),
    "scatter.reduce": _along(lambda t, i, s: t.scatter(0, i, s, reduce="multiply")),
    "scatter_add": _along(lambda t, i, s: t.scatter_add(0, i, s)),
    "scatter_add.half": IndexCase(lambda t, i, s: t.scatter_add(0, i, s), lambda v: (x(4).bfloat16(), at(v, 1), x(2).bfloat16()), 4),
    **{f"scatter_reduce.{r}": _along(lambda t, i, s, r=r: t.scatter_reduce(0, i, s, r)) for r in ("sum", "prod", "mean", "amax", "amin")},
    "scatter_reduce.other": _along(lambda t, i, s: t.scatter_reduce(0, i, s, "mean", include_self=False)),
    "index_add": IndexCase(lambda t, i, s: t.index_add(0, i, s, alpha=2), lambda v: (x(4, 3), at(v, 2), x(2, 3)), 4),
    "index_copy": IndexCase(lambda t, i, s: t.index_copy(0, i, s), lambda v: (x(4, 3), at(v, 2), x(2, 3)), 4),
    "index_fill": _index(lambda t, i: t.index_fill(0, i, 2.0)),
    **{f"index_reduce.{r}": IndexCase(lambda t, i, s, r=r: t.index_reduce(0, i, s, r), lambda v: (x(4, 3), at(v, 2), x(2, 3)), 4) for r in ("prod", "mean", "amax", "amin")},
    "put": IndexCase(lambda t, i, s: t.put(i, s), lambda v: (x(4, 3), at(v, 2), x(2)), 12),
    "put.add": IndexCase(lambda t, i, s: t.put(i, s, accumulate=True), lambda v: (x(4, 3), at(v, 2), x(2)), 12),
    "written": IndexCase(lambda t, i: t.clone().index_fill_(0, i, 0.0) + 1, lambda v: (x(4), at(v, 2)), 4),
    # Losses.
    "nll_loss": IndexCase(lambda t, i: F.nll_loss(t, i), lambda v: (x(3, 4), at(v, 2, 0)), 4, values=(-100,)),
    "nll_loss.weight": IndexCase(lambda t, i, w: F.nll_loss(t, i, w, ignore_index=1), lambda v: (x(3, 4), at(v, 2, 1), x(4)), 4),
    "nll_loss.none": IndexCase(lambda t, i: F.nll_loss(t, i, reduction="none"), lambda v: (x(3, 4), at(v, 2, 0)), 4, values=(-100,)),
    "nll_loss.grad": IndexCase(lambda t, i: F.nll_loss(t, i), lambda v: (x(3, 4), at(v, 2, 0)), 4, grad=True, values=(-100,)),
    "nll_loss2d": IndexCase(lambda t, i: F.nll_loss(t, i), lambda v: (x(1, 4, 1, 3), at(v, 2, 0).reshape(1, 1, 3)), 4, values=(-100,)),
    "cross_entropy": IndexCase(lambda t, i: F.cross_entropy(t, i), lambda v: (x(3, 4), at(v, 2, 0)), 4, values=(-100,), grad=True),
    "cross_entropy.smooth": IndexCase(lambda t, i: F.cross_entropy(t, i, label_smoothing=0.1), lambda v: (x(3, 4), at(v, 2, 0)), 4, values=(-100,)),
    "multi_margin_loss": IndexCase(lambda t, i: F.multi_margin_loss(t, i), lambda v: (x(3, 4), at(v, 2, 0)), 4),
    "multi_margin_loss.weight": IndexCase(lambda t, i, w: F.multi_margin_loss(t, i, weight=w), lambda v: (x(3, 4), at(v, 2, 0), x(4)), 4),
    "multilabel_margin_loss": IndexCase(lambda t, i: F.multilabel_margin_loss(t, i), lambda v: (x(1, 4), at(v, 2, 0, 1).reshape(1, 4)), 4, unlike=(-1,)),
    # Pools.
    "max_unpool1d": _unpool(1),
    "max_unpool2d": _unpool(2),
    "max_unpool3d": _unpool(3),
    "max_pool2d_backward": _max_pool_backward(2),
    "max_pool2d_backward.dilated": _max_pool_backward(2, 2),
    "max_pool3d_backward": _max_pool_backward(3),
    "adaptive_max_pool2d_backward": _pool_grad(lambda t: aten.adaptive_max_pool2d(t, [2, 3]), lambda g, t, i: aten.adaptive_max_pool2d_backward(g, t, i), (1, 2, 5, 6)),
    "adaptive_max_pool3d_backward": _pool_grad(lambda t: aten.adaptive_max_pool3d(t, [2, 2, 2]), lambda g, t, i: aten.adaptive_max_pool3d_backward(g, t, i), (1, 2, 4, 4, 3)),
    "fractional_max_pool2d_backward": _pool_grad(
        lambda t: aten.fractional_max_pool2d(t, [2, 2], [3, 3], torch.full((1, 2, 2), 0.3)),
        lambda g, t, i: aten.fractional_max_pool2d_backward(g, t, [2, 2], [3, 3], i), (1, 2, 6, 6)),
    "fractional_max_pool3d_backward": _pool_grad(
        lambda t: aten.fractional_max_pool3d(t, [2, 2, 2], [2, 2, 2], torch.full((1, 2, 3), 0.3)),
        lambda g, t, i: aten.fractional_max_pool3d_backward(g, t, [2, 2, 2], [2, 2, 2], i), (1, 2, 4, 4, 4)),
    "fractional_max_pool2d.samples": IndexCase(lambda t, s: F.fractional_max_pool2d(t, 2, 3, _random_samples=s),
        lambda v: (x(1, 2, 6, 6), torch.tensor([[[0.2, v], [0.5, 0.1]]])), None),
    "fractional_max_pool3d.samples": IndexCase(lambda t, s: F.fractional_max_pool3d(t, 2, 2, _random_samples=s),
        lambda v: (x(1, 1, 4, 4, 4), torch.tensor([[[0.2, v, 0.3]]])), None),
    # Masks and counts.
    "_unsafe_masked_index": IndexCase(lambda t, m, i: aten._unsafe_masked_index(t, m, [i], 0.5),
        lambda v: (x(4), torch.tensor([True, True, 0 <= v < 4]), at(v, 2, 1)), 4),
    "_unsafe_masked_index_put_accumulate": IndexCase(lambda t, m, i, s: aten._unsafe_masked_index_put_accumulate(t, m, [i], s),
        lambda v: (x(4), torch.tensor([True, True, 0 <= v < 4]), at(v, 2, 1), x(3)), 4),
    "masked_scatter": IndexCase(lambda t, m, s: t.masked_scatter(m, s), lambda v: (x(6), torch.arange(6) < v, x(4)), 5, values=(3, 4, 5, 6)),
    "repeat_interleave": IndexCase(lambda t, r: t.repeat_interleave(r, output_size=6), lambda v: (x(3), at(min(max(v, -9), 9), 2, 1)), 4, values=(3,)),
    "histc": IndexCase(lambda t: t.histc(4, -1.0, 1.0), lambda v: (torch.tensor([0.5, v, -0.5]),), None),
    "bucketize": IndexCase(lambda t, b: b[torch.bucketize(t, b).clamp(max=2)], lambda v: (torch.tensor([0.5, v]), torch.tensor([-1.0, 0.0, 1.0])), None),
    "searchsorted": IndexCase(lambda t, b: b[torch.searchsorted(b, t).clamp(max=2)], lambda v: (torch.tensor([0.5, v]), torch.tensor([-1.0, 0.0, 1.0])), None),
    "cast": IndexCase(lambda t, p: t[p.to(torch.int64)], lambda v: (x(4), torch.tensor([1.0, v])), None, values=(3.5, 4.0)),
    "cast.clamped": IndexCase(lambda t, p: t[p.clamp(0, 3).nan_to_num().to(torch.int64)], lambda v: (x(4), torch.tensor([1.0, v])), None),
    # Samples.
    **{
        f"grid_sample2d.{mode}.{padding}": _sampled(2, mode, padding, False)
        for mode in ("bilinear", "nearest")
        for padding in ("zeros", "border", "reflection")
    },
    "grid_sample2d.bicubic.zeros": _sampled(2, "bicubic", "zeros", True),
    "grid_sample2d.corners": _sampled(2, "bilinear", "reflection", True),
    "grid_sample3d": _sampled(3, "bilinear", "border", False),
    "grid_sample2d.grad": _sampled(2, "bilinear", "border", False, grad=True),
}  # fmt: skip
