"""Are these outputs as right as eager's? Values by the judges of `reference`, and type, shape, strides, aliases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from litz_testing.tensors import lies_otherwise, other_bits

from .inputs import is_inexact
from .reference import parts, same_specials, smallest_of

ROUNDINGS = {torch.float16: 4, torch.bfloat16: 4, torch.float32: 64, torch.float64: 64,
             torch.complex64: 64, torch.complex128: 64, torch.float8_e4m3fn: 0, torch.float8_e5m2: 0}  # fmt: skip
"""Roundings that a result may be off by, beyond what the judges say: long sums have many, and halves sum in float32."""
SMALLEST = 64
"""Roundings of the smallest numbers of a type that a result may be off by, where inputs are tiny."""


@dataclass(frozen=True)
class Complaint:
    """A fault of a value. about: "values", "type", "shape", "strides" or "aliases"."""

    name: str
    about: str
    text: str

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


@dataclass(frozen=True)
class Expected:
    """One expected value: by eager, in float64, and in float64 with noise. dtypes: the other dtypes that it was
    computed in. tiny: some inputs are tiny numbers."""

    name: str
    eager: torch.Tensor
    exact: torch.Tensor
    noisy: torch.Tensor
    dtypes: frozenset[torch.dtype] = frozenset()
    tiny: bool = False


def complaints(
    actual: Sequence[torch.Tensor], expected: Sequence[Expected], aliases: bool = True, bits: bool = False
) -> list[Complaint]:
    """Returns what is wrong with the values; empty if nothing is. aliases: compares what shares memory, too. bits:
    values are to be eager's bit for bit."""
    found = []
    for got, want in zip(actual, expected, strict=True):
        is_tensor = isinstance(got, torch.Tensor)  # where torch's tracing of `==` raises, Python compares identities
        about, text = _complaint(got.detach().cpu(), want, bits) if is_tensor else ("type", f"{got!r} for a tensor")
        if text:
            found.append(Complaint(want.name, about, text))
    if aliases and not found:
        found += _aliases(actual, expected)
    return found


def _complaint(got: torch.Tensor, want: Expected, bits: bool) -> tuple[str, str]:
    eager = want.eager.detach()
    if got.dtype != eager.dtype:
        return "type", f"{got.dtype} for {eager.dtype}"
    if got.shape != eager.shape:
        return "shape", f"{tuple(got.shape)} for {tuple(eager.shape)}"
    if lies_otherwise(got, eager):
        return "strides", f"strides {got.stride()} for {eager.stride()}"
    if bits and is_inexact(eager.dtype):
        other = other_bits(parts(got.detach()), parts(eager))
        return ("values", f"{other} of {eager.numel()} elements have other bits than eager's") if other else ("", "")
    if not is_inexact(eager.dtype):
        if torch.equal(got, eager):
            return "", ""
        return "values", f"{int((got != eager).sum())} of {eager.numel()} elements differ"
    actual, wide, exact, noisy = (parts(t.detach()).double() for t in (got, eager, want.exact, want.noisy))
    if not same_specials(actual, wide):
        return "values", "infinities or NaN in other places"
    finite = wide.isfinite() & exact.isfinite() & noisy.isfinite()
    if not bool(finite.any()):
        return "", ""
    actual, wide, exact, noisy = actual[finite], wide[finite], exact[finite], noisy[finite]
    scale = float(exact.abs().max())
    drift = max(float((noisy - exact).abs().max()), float((wide - exact).abs().max()))
    dtypes = {eager.dtype, *want.dtypes}
    roundings = max(ROUNDINGS[dtype] * torch.finfo(dtype).eps for dtype in dtypes)
    smallest = SMALLEST * max(map(smallest_of, dtypes)) if want.tiny else 1e-30
    allowed = 8 * drift + roundings * scale + smallest
    error = float((actual - exact).abs().max())
    if error <= allowed:
        return "", ""
    off = int(((actual - exact).abs() > allowed).sum())
    return "values", f"{off} of {eager.numel()} elements are off by up to {error:.3e}; {allowed:.1e} is allowed"


def _aliases(actual: Sequence[torch.Tensor], expected: Sequence[Expected]) -> list[Complaint]:
    found = []
    for i, (a, x) in enumerate(zip(actual, expected, strict=True)):
        for b, y in zip(actual[:i], expected[:i], strict=True):
            if x.eager.numel() == 0 or y.eager.numel() == 0 or _shares(a, b) == _shares(x.eager, y.eager):
                continue
            where = "eager" if _shares(x.eager, y.eager) else "litz"
            found.append(Complaint(x.name, "aliases", f"shares memory with {y.name} in {where} only"))
    return found


def _shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
