"""What counts as equal. In: flat lists of results, from eager, compiled, and float64. Out: what differs, in words.

Results are right if they are as near to eager's as torch.testing's own tolerances, or as near to the exact value
(float64) as eager's, but for a few roundings: a fused kernel that keeps float32 between two float16 operators is
nearer to the truth than eager is. Where bits count, each value has to be eager's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from litz_testing.tensors import lies_otherwise, other_bits

ROUNDING = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 5e-6, torch.float64: 1e-12}
"""Relative error that any result may have, if eager has none: a few roundings."""
SMALL = {torch.float16: 1e-3, torch.bfloat16: 1e-3, torch.float32: 1e-5, torch.float64: 1e-10}
"""Absolute error that any result may have; somewhat more than torch.testing's."""
WORSE = 2.0
"""How much larger than eager's greatest error an error may be."""

Judge = Callable[[], Sequence[Any] | None]


def differences(
    actual: Sequence[Any],
    expected: Sequence[Any],
    judge: Judge = lambda: None,
    *,
    values: bool = True,
    strides: bool = True,
    bits: bool = False,
) -> list[str]:
    """Returns what is wrong with `actual`, a sentence for each; empty if nothing.

    judge: computes the results in float64, or None; called where eager's alone do not decide. values: False for
    random numbers and uninitialised memory. strides: False where eager promises none (gradients). bits: values are to
    be eager's bit for bit, and the judge is not asked.
    """
    if len(actual) != len(expected):
        return [f"{len(actual)} results, eager has {len(expected)}"]
    found: list[str] = []
    exact: Sequence[Any] | None = None
    asked = False
    for position, (got, want) in enumerate(zip(actual, expected, strict=True)):
        if not isinstance(want, torch.Tensor) or not isinstance(got, torch.Tensor):
            if values and not _same_object(got, want, bits):
                found.append(f"result {position} is {got!r}, eager's is {want!r}")
            continue
        problem = _metadata(got, want)
        problems = [problem, None if problem or not strides else _other_strides(got, want)]
        if problem is None and values and bits:
            problems.append(_other_values(got, want))
        elif problem is None and values and not _near(got, want):
            if not asked:
                exact, asked = judge(), True
            problems.append(_judged(got, want, None if exact is None else exact[position]))
        found += [f"result {position}: {problem}" for problem in problems if problem]
    return found


def _same_object(got: Any, want: Any, bits: bool) -> bool:
    if isinstance(want, float) and isinstance(got, (int, float)):
        near = 0.0 if bits else 1e-6
        return got == want or (got != got and want != want) or abs(got - want) <= near * abs(want)
    return type(got) is type(want) and bool(got == want)


def _metadata(got: torch.Tensor, want: torch.Tensor) -> str | None:
    for name in ("dtype", "shape", "device", "layout", "requires_grad"):
        mine, theirs = getattr(got, name), getattr(want, name)
        if mine != theirs:
            return f"{name} {mine}, eager has {theirs}"
    return None


def _other_strides(got: torch.Tensor, want: torch.Tensor) -> str | None:
    if want.layout == torch.strided and lies_otherwise(got, want):
        return f"strides {tuple(got.stride())} for shape {tuple(got.shape)}, eager has {tuple(want.stride())}"
    return None


def _near(got: torch.Tensor, want: torch.Tensor) -> bool:
    try:
        torch.testing.assert_close(got, want, equal_nan=True, check_stride=False)
    except AssertionError:
        return False
    except Exception:  # layouts that assert_close has no rule for
        return bool((got.to_dense() == want.to_dense()).all())
    return True


def _other_values(got: torch.Tensor, want: torch.Tensor) -> str | None:
    """Returns None where each value has eager's bits."""
    mine, theirs = _parts(got), _parts(want)
    if mine.shape != theirs.shape:
        return f"{mine.numel()} values, eager has {theirs.numel()}"
    other = other_bits(mine, theirs)
    return f"{other} of {theirs.numel()} values have other bits; {_example(mine, theirs)}" if other else None


def _parts(value: torch.Tensor) -> torch.Tensor:
    """The values of a tensor as real numbers: of a sparse one those of the dense tensor."""
    value = value.detach().resolve_conj().resolve_neg()
    value = value if value.layout == torch.strided else value.to_dense()
    return torch.view_as_real(value) if value.dtype.is_complex else value


def _judged(got: torch.Tensor, want: torch.Tensor, exact: Any) -> str | None:
    """None if the result is as good as eager's."""
    if not want.dtype.is_floating_point or want.layout != torch.strided:
        wrong = int((got != want).sum()) if want.layout == torch.strided else -1
        return f"{wrong} of {want.numel()} elements differ; {_example(got, want)}"
    if not isinstance(exact, torch.Tensor) or exact.shape != want.shape or exact.dtype.is_complex:
        return f"differs by up to {_largest(got, want):.3e} from eager; {_example(got, want)}"
    rounding, small = ROUNDING[want.dtype], SMALL[want.dtype]
    rounded = exact.detach().to(want.dtype)
    g, w, e = (tensor.detach().double().flatten() for tensor in (got, want, exact))
    special = ~(g.isfinite() & w.isfinite() & rounded.flatten().isfinite())
    # Where any is infinite or NaN, the result must be eager's or the exact one (eager's float16 may have overflowed).
    same = (g == w) | (g.isnan() & w.isnan())
    exactly = (g == rounded.double().flatten()) | (g.isnan() & e.isnan())
    finite_exact = g.isfinite() & e.isfinite() & ((g - e).abs() <= 4 * rounding * e.abs() + small)
    bad = special & ~same & ~exactly & ~finite_exact
    eager_error = (w - e)[~special].abs()
    allowed = 4 * rounding * e.abs() + small + WORSE * (float(eager_error.max()) if eager_error.numel() else 0.0)
    bad |= ~special & ((g - e).abs() > allowed)
    if not bool(bad.any()):
        return None
    return f"{int(bad.sum())} of {bad.numel()} elements are off; {_example(g, w, e, bad)}"


def _largest(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want.double()).abs().nan_to_num(posinf=float("inf")).max()) if got.numel() else 0.0


def _example(
    got: torch.Tensor, want: torch.Tensor, exact: torch.Tensor | None = None, bad: torch.Tensor | None = None
) -> str:
    """Returns the first element that differs, as text."""
    if want.layout != torch.strided:
        return "not strided"
    got, want = got.detach().flatten(), want.detach().flatten()
    bad = ~((got == want) | ((got != got) & (want != want))) if bad is None else bad
    if not bool(bad.any()):
        return "none by =="
    first = int(bad.nonzero()[0, 0])
    text = f"element {first} is {got[first].item()}, eager's {want[first].item()}"
    return text if exact is None else f"{text}, exactly {exact[first].item()}"


def aliases(inputs: Sequence[torch.Tensor], outputs: Sequence[Any]) -> list[str]:
    """Returns what each output shares memory with: the first such input, else the first such output."""
    owners: dict[int, str] = {}
    for position, tensor in enumerate(inputs):
        key = _storage(tensor)
        if key is not None:
            owners.setdefault(key, f"input {position}")
    found = []
    for position, tensor in enumerate(outputs):
        key = _storage(tensor) if isinstance(tensor, torch.Tensor) else None
        found.append("nothing" if key is None else owners.setdefault(key, f"output {position}"))
    return found


def _storage(tensor: torch.Tensor) -> int | None:
    """Returns a number that tells the tensor's storage from others; None for memory that nobody can share."""
    if tensor.layout != torch.strided or tensor.untyped_storage().nbytes() == 0:
        return None
    return int(tensor.untyped_storage()._cdata)
