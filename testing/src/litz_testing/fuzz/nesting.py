"""Statements with a graph inside: regions that are compiled once, checkpoints, branches on data. Programs with these go
through dynamo, and most have gradients."""

from __future__ import annotations

import torch

from .operations import Draft, Draw, operation_on

TYPES = (torch.float32, torch.float32, torch.float64)


def _matrix(draw: Draw) -> str:
    """A matrix at hand, or a new input."""
    found = draw.any(lambda t: t.dtype in TYPES and t.dim() == 2 and 1 < t.shape[1] < 20 and 0 < t.numel() < 1000)
    if found is not None and draw.chance(0.6):
        return found
    return draw.input((draw.rng.choice([2, 5, 8]), draw.rng.choice([3, 4, 8])), draw.rng.choice(TYPES))


def _weights(draw: Draw, name: str, count: int) -> list[str]:
    """New inputs that a product of rows takes: square, and of the matrix's type."""
    spec = next((s for n, s in enumerate(draw.new_inputs, draw.input_count) if f"x{n}" == name), None)
    columns, dtype = (
        (int(draw.value(name).shape[1]), draw.value(name).dtype) if spec is None else (spec.size[1], spec.dtype)
    )
    return [draw.input((columns, columns), dtype) for _ in range(count)]


REGIONS = ("region_linear", "region_linear", "region_sine", "region_weights")
CHECKPOINTS = (
    "checkpointed(gate, {0}, {1})", "checkpointed(lambda x, w: (x @ w.mT).tanh() + x, {0}, {1})",
    "checkpointed(turned, {0}, {1}).abs()", "polar(checkpointed(turned, {0}, {1}))",
    "checkpointed(lambda x, w: turned(x, w).real.sin(), {0}, {1})", "polar(turned({0}, {1}).mT)",
    "checkpointed(lambda x, w: chain(gate, x, w, w.mT), {0}, {1})", "polar(turned({0}, {1}).view(-1, 1).conj())",
    "checkpointed(lambda x, w: layers(region_linear, x, w, w * 0.5), {0}, {1})",
)  # fmt: skip
BRANCHES = (
    "branch({1}.sum() > 0, lambda t: t.sin(), lambda t: t * 2 + 1, {0})",
    "branch({1}.amax() > 3, lambda t: t.exp().clamp(0, 9), lambda t: t.abs() * 0.5, {0})",
    "branch({1}.sum() < 0, lambda t: t.softmax(-1), lambda t: t.cumsum(1), {0} * 0.5)",
    "branch({1}.sum() > 1, lambda t, u: t @ u, lambda t, u: (t @ u).tanh() - t.sum(), {0}, {0}.mT.cos())",
    "branch(({1} == 1).any(), lambda t, u: t / (u.abs() + 1), lambda t, u: t.where(u > t, u), {0}, {0}.flip(0))",
)
"""torch.cond takes neither branches that make views of what both use, nor operands that share memory."""


@operation_on(_matrix, 40.0, kind="nested")
def repeated_region(draw: Draw, name: str) -> Draft | None:
    """Makes layers of one region (`torch.compiler.nested_compile_region`), each with weights of its own."""
    weights = _weights(draw, name, draw.rng.choice([1, 2, 3, 3]))
    if draw.chance(0.2):
        weights.append(draw.rng.choice(weights))
    how = draw.rng.choice(["layers", "layers", "chain"])
    return Draft(f"{how}({draw.rng.choice(REGIONS)}, {', '.join([name, *weights])})", rough=True, deep=True)


@operation_on(_matrix, 30.0, kind="nested")
def checkpoint(draw: Draw, name: str) -> Draft | None:
    """Computes what the backward computes again, with complex numbers on the way in some."""
    return Draft(draw.rng.choice(CHECKPOINTS).format(name, *_weights(draw, name, 1)), rough=True, deep=True)


ROWS = (
    "rows(lambda r, w: (r @ w).sin() + r, {0}, {1})",
    "rows(lambda r, w: r.softmax(0) * w.sum(0), {0}, {1})",
    "rows(lambda r, w: torch.outer(r, r) + w.mT, {0}, {1})",
)


@operation_on(_matrix, 15.0, kind="nested")
def each_row(draw: Draw, name: str) -> Draft | None:
    """Computes each row of a matrix (`map`)."""
    return Draft(draw.rng.choice(ROWS).format(name, *_weights(draw, name, 1)), rough=True, deep=True)


@operation_on(_matrix, 25.0, kind="nested")
def branch(draw: Draw, name: str) -> Draft | None:
    """Takes one of two ways (`torch.cond`), by a variable that is free of rounding errors."""
    decides = draw.any(lambda t: t.numel() > 0 and not t.dtype.is_complex and t.dtype.itemsize > 1, exact=True)
    if decides is None:
        return None
    return Draft(draw.rng.choice(BRANCHES).format(name, decides), rough=True)
