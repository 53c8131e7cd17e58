"""The table of decompositions: distances, norms of batches, `_foreach_*` ops, and in place of core's what a lowering of
this dist does better whole, or what eager's kernels take or refuse otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import torch
from torch._ops import OpOverload

from litz.capture import torch_api
from litz.capture.decompositions import decompositions, in_format_of_input
from litz.capture.eager_types import holds
from litz.lower import find_op

from .batch_norms import own_batch_norms
from .distances import cdist_forward, masked_scatter, pdist_forward
from .foreach import foreach_decompositions
from .refusals import with_refusals
from .sources import blocks

aten = torch.ops.aten

LIMITED = (aten.threshold.default, aten.threshold_backward.default)
"""Ops that compare with a number."""
NEAREST = tuple(
    f"aten.{name}{ndim}d.default" for name in ("upsample_nearest", "_upsample_nearest_exact") for ndim in (1, 2, 3)
)
"""Ops that resample by the nearest neighbour."""


@cache  # for torch's list of all ops, a twentieth of a small compile, each of which asks
def own_decompositions() -> Mapping[OpOverload, Callable[..., Any]]:
    """Returns the decompositions by op."""
    core = decompositions()
    ops = (op for op in map(find_op, NEAREST) if isinstance(op, OpOverload))
    found: dict[OpOverload, Callable[..., Any]] = {
        aten._cdist_forward.default: cdist_forward,
        aten._pdist_forward.default: pdist_forward,
        aten.masked_scatter.default: masked_scatter,
        aten.celu.default: partial(_celu, core[aten.celu.default]),
        **{op: partial(_logit, core[op]) for op in (aten.logit.default, aten.logit_backward.default)},
        **{op: partial(_unless_a_multiple, op, core[op]) for op in ops},
        **{op: partial(_compared_in_float32, core[op]) for op in LIMITED},
        aten.sgn.default: _sgn,
        aten.ldexp.Tensor: partial(_ldexp, core[aten.ldexp.Tensor]),
        aten.grid_sampler_2d.default: _grid_sampler_2d,
        aten._adaptive_avg_pool2d.default: _adaptive_avg_pool2d,
        aten.logspace.default: _logspace,
        **own_batch_norms(core),
        **foreach_decompositions(),
        **with_refusals(core),
    }
    return MappingProxyType(found)


def _celu(rule: Callable[..., Any], x: torch.Tensor, alpha: Any = 1.0) -> Any:
    """Leaves the op whole where eager refuses alpha: its kernels take 1 / alpha, which the type has to hold as well."""
    if isinstance(alpha, (int, float)) and (alpha == 0 or not holds(x.dtype, 1 / alpha)):
        return NotImplemented
    return rule(x, alpha)


def _compared_in_float32(rule: Callable[..., Any], *given: Any) -> Any:
    """Goes by core's rule, in float32 for half types that do not hold the numbers: as in eager's kernels, a number that
    lies beside such a limit is not the limit, which the rule rounds to the type."""
    dtype = given[0].dtype
    is_half = dtype.is_floating_point and dtype.itemsize <= 2
    if not is_half or all(isinstance(value, torch.Tensor) or _is_held(dtype, value) for value in given):
        return rule(*given)
    wide = (value.to(torch.float32) if isinstance(value, torch.Tensor) else value for value in given)
    return rule(*wide).to(dtype)


def _is_held(dtype: torch.dtype, number: Any) -> bool:
    """Says whether a number is known while compiling, and a type holds it without rounding it."""
    if not isinstance(number, (int, float)) or not math.isfinite(number):
        return isinstance(number, (int, float))
    return (math.frexp(number)[0] * 2 / torch.finfo(dtype).eps).is_integer()


def _sgn(x: torch.Tensor) -> Any:
    """Leaves complex numbers to the op, as torch's rule gives NaN for both parts where one is infinite."""
    return NotImplemented if x.is_complex() else aten.sign(x)


def _logit(rule: Callable[..., Any], *given: Any) -> Any:
    """Goes by core's rule for logit or its gradient, which takes a negative eps for a bound; eager's kernels do
    not."""
    *tensors, eps = given if not isinstance(given[-1], torch.Tensor) else (*given, None)
    return rule(*tensors, None if eps is not None and eps < 0 else eps)


def _ldexp(rule: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> Any:
    """Leaves the op whole for floats and whole exponents: from torch 2.13 eager's kernel is exact where the power
    leaves the type, and its result is of the type of x. Else goes by core's rule."""
    return NotImplemented if x.is_floating_point() and not y.is_floating_point() else rule(x, y)


def _grid_sampler_2d(x: torch.Tensor, grid: torch.Tensor, mode: int, padding: int, align_corners: bool) -> torch.Tensor:
    """Applies torch's rule, which gives 0 where a coordinate is NaN. With padding by the border (1) NaN is taken as -1,
    by reflection (2) infinity as well, as grid_sample's documentation and eager's kernels say. Bicubic interpolation
    (2) gives NaN, and so do eager's kernels on a CPU for bilinear interpolation (0) with padding by zeros (0)."""
    if mode != 2 and padding:
        known = ~grid.isnan() if padding == 1 else grid.isfinite()
        grid = torch.where(known, grid, -1)
    rule = torch_api.decomposition_registry()[aten.grid_sampler_2d.default]
    result = rule(x, grid, mode, padding, align_corners)
    if mode == padding == 0 and x.device.type == "cpu":
        result = torch.where(grid.isfinite().all(-1).unsqueeze(1), result, float("nan"))
    return result


def _adaptive_avg_pool2d(x: torch.Tensor, output_size: Sequence[Any]) -> Any:
    """Applies torch's rule, which divides by the output's sizes; the op stays where one of them is 0."""
    if any(isinstance(size, int) and size == 0 for size in (*x.shape[-2:], *output_size)):
        return NotImplemented
    return in_format_of_input(aten._adaptive_avg_pool2d.default, x, output_size)


def _logspace(start: Any, end: Any, steps: Any, base: float = 10.0, **kwargs: Any) -> Any:
    """Applies torch's rule, which makes integers of the ends where the result has integers; eager's does not where the
    result has one element, so that the op stays."""
    if steps == 1:
        return NotImplemented
    return torch_api.decomposition_registry()[aten.logspace.default](start, end, steps, base, **kwargs)


def _unless_a_multiple(
    op: OpOverload,
    rule: Callable[..., Any],
    x: torch.Tensor,
    output_size: Sequence[Any],
    *scales: float | None,
) -> Any:
    """Leaves the op whole where the output is an exact multiple of the input, as such an output is a view; else goes
    by core's rule."""
    sizes = x.shape[-len(output_size) :]
    if all(isinstance(size, int) for size in (*sizes, *output_size)):
        if blocks(sizes, output_size, scales, "exact" in op.name()) is not None:
            return NotImplemented
    return rule(x, output_size, *scales)
