"""Compiled against eager, with float64 as the judge."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_map

from litz import report as reports
from litz_testing.tensors import eager_or_exact

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])]
device_param = pytest.mark.parametrize("device", DEVICES)


def t(*size: int, device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random numbers, the same for the same size."""
    torch.manual_seed(sum(size) + len(size))
    return torch.randn(size, device=device).to(dtype)


def litz(fn: Any, **options: Any) -> Any:
    """Compiled, with nothing left of what was compiled before."""
    torch._dynamo.reset()
    return torch.compile(fn, backend="litz", **options)


def train(model: Callable[..., Any], module: torch.nn.Module, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """The loss and every gradient of one step."""
    module.zero_grad()
    loss = model(*inputs).square().mean()
    loss.backward()
    return [loss.detach().clone(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]


def same(ours: Any, theirs: Any) -> None:
    """Tensor by tensor, within float32's rounding of a few operations."""
    for got, want in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def check(fn: Callable[..., Any], *args: Any, tolerance: float = 2.0, **compile_options: Any) -> list[Any]:
    """`fn(*args)` compiled equals eager: values, dtype, shape, strides of dense outputs, and mutations of `args`.

    Floating point may differ from float64 by `tolerance` times eager's own error, plus a rounding of the dtype. Returns
    the reports of what was compiled.
    """
    torch._dynamo.reset()
    eager_args, litz_args, exact_args = copy.deepcopy(args), copy.deepcopy(args), tree_map(_double, copy.deepcopy(args))
    expected = fn(*eager_args)
    try:
        exact = fn(*exact_args)
    except (RuntimeError, TypeError, NotImplementedError):
        exact = expected  # an op that has no float64, or is particular about mixed types
    with reports.collect() as collected:
        actual = torch.compile(fn, backend="litz", **compile_options)(*litz_args)
    close(actual, expected, exact, tolerance)
    close(litz_args, eager_args, exact_args, tolerance)
    return list(collected)


def close(
    actual: Any,
    expected: Any,
    exact: Any,
    tolerance: float = 2.0,
    rounding: float | None = None,
    least_scale: float = 0.0,
    peers: Sequence[Any] = (),
) -> None:
    """Each leaf of `actual` is as good as `expected`, judged by `exact`.

    rounding: what one rounding may cost, relative to the leaf's largest element; by its dtype if None. least_scale:
    taken for the largest element where that is less, for leaves that are differences of larger numbers. peers: what
    eager gives for inputs that differ by a rounding; the worst of `expected` and these is eager's error.
    """
    flat, spec = tree_flatten(actual)
    flat_expected, expected_spec = tree_flatten(expected)
    flat_exact, _ = tree_flatten(exact)
    assert spec == expected_spec
    others = zip(*(tree_flatten(peer)[0] for peer in peers), strict=True) if peers else [()] * len(flat)
    leaves = zip(flat, flat_expected, flat_exact, others, strict=True)
    for position, (got, want, judge, also) in enumerate(leaves):
        try:
            _close_leaf(got, want, judge, tolerance, rounding, least_scale, also)
        except AssertionError as error:
            error.add_note(f"leaf {position} of {len(flat)}: {got}\neager: {want}")
            raise


def _close_leaf(
    got: Any,
    want: Any,
    judge: Any,
    tolerance: float,
    rounding: float | None,
    least_scale: float,
    peers: Sequence[Any],
) -> None:
    if not isinstance(want, torch.Tensor):
        assert got == want or (got != got and want != want)
        return
    assert (got.dtype, got.shape, got.device) == (want.dtype, want.shape, want.device)
    if want.numel() > 1 and _dense(want):
        # The stride of a dimension of size 1 is never used, and eager's own kernels disagree about it.
        ours, theirs = ([s for n, s in zip(t.shape, t.stride(), strict=True) if n != 1] for t in (got, want))
        assert ours == theirs, f"strides {got.stride()}, eager has {want.stride()}"
    if not want.dtype.is_floating_point:
        assert torch.equal(got.cpu(), want.cpu())
        return
    if judge.shape != want.shape:  # the bits of a double are another number of elements
        judge = want
    rounding = ROUNDING[want.dtype] if rounding is None else rounding
    # On the tensors' own device: a real model's gradients are gigabytes.
    dtype = want.dtype
    got, want, judge = (t.detach().to(want.device, torch.float64) for t in (got, want, judge))
    eager = (eager_or_exact(got, want, _rounded(judge, dtype)), *(peer.detach() for peer in peers))
    _as_good(got, eager, judge, tolerance, rounding, least_scale)


def _rounded(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return exact.to(dtype).double()


def every_element(
    actual: torch.Tensor,
    eager: torch.Tensor,
    exact: Callable[[slice], torch.Tensor],
    tolerance: float = 1e-2,
    rows: int = 8192,
) -> None:
    """No element is further from float64's than `tolerance`, absolute and relative, or than twice eager's furthest.

    Of shape [rows, columns]. exact: float64's result for some of the rows, as all of a large product in float64 would
    not fit on a device. (Eager's furthest counts where it multiplies in TF32.)
    """
    assert (actual.dtype, actual.shape, actual.device) == (eager.dtype, eager.shape, eager.device)
    worst, allowed = 0.0, tolerance
    for start in range(0, len(eager), rows):
        part = slice(start, start + rows)
        right = exact(part)
        assert right.dtype == torch.float64 and right.isfinite().all()

        def beyond(values: torch.Tensor, part: slice = part, right: torch.Tensor = right) -> float:
            return float(((values[part].double() - right).abs() - tolerance * right.abs()).amax().nan_to_num(inf))

        worst, allowed = max(worst, beyond(actual)), max(allowed, 2 * beyond(eager))
    assert worst <= allowed, f"an element is {worst:.3e} from float64's, beyond {tolerance} of it; {allowed:.3e} may be"


ROUNDING = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 2e-6, torch.float64: 1e-12}
"""What one rounding of the result may cost, relative to its largest element."""


def _as_good(
    got: torch.Tensor,
    eager: Sequence[torch.Tensor],
    exact: torch.Tensor,
    tolerance: float,
    rounding: float,
    least_scale: float,
) -> None:
    """eager: what it gives, and what its peers give. In float64, as `got` and `exact`, or to be converted to it."""
    want = eager[0]
    assert torch.equal(got.isnan(), want.isnan()), "NaN in other places than eager"
    others = ~want.isfinite()
    assert torch.equal(got.where(others, 0.0).nan_to_num(7.0), want.where(others, 0.0).nan_to_num(7.0))
    finite = want.isfinite() & exact.isfinite()
    if not finite.any():
        return

    def error_of(values: torch.Tensor) -> float:
        return float((values.to(exact) - exact).where(finite, 0.0).abs().max())

    scale = max(float(exact.where(finite, 0.0).abs().max()), least_scale)
    eager_error = max(map(error_of, eager))
    allowed = tolerance * eager_error + scale * rounding + 1e-12
    error = error_of(got)
    assert error <= allowed, f"error {error:.3e} against float64, eager has {eager_error:.3e}"


def _double(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16, torch.float32):
        return value.detach().double().requires_grad_(value.requires_grad)
    return value.double() if isinstance(value, torch.nn.Module) else value


def _dense(tensor: torch.Tensor) -> bool:
    order = sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n != 1)
    step = 1
    for stride, extent in order:
        if stride != step:
            return False
        step *= extent
    return True
