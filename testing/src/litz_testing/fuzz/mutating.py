"""Statements that work in place: on inputs, on intermediates, and on views of either."""

from __future__ import annotations

import torch

from .operations import Draft, Draw, Place, operation_on, place, some

PLAIN = (
    "{0}.mul_({2})",
    "{0}.add_({2})",
    "{0}.clamp_(-2, 2)",
    "{0}.zero_()",
    "{0}.fill_(2)",
    "{0}.neg_()",
    "{0}.abs_()",
)
ROUNDED = ("{0}.sin_()", "{0}.sigmoid_()", "{0}.div_(3)", "{0}.tanh_()")
PAIRS = (
    "{0}.add_({1})",
    "{0}.sub_({1})",
    "{0}.mul_({1})",
    "{0}.copy_({1})",
    "{0}.copy_({1})",
    "{0}.add_({1}, alpha=2)",
)


_written = some(lambda t: t.numel() > 0 and t.dtype != torch.bool)


@operation_on(_written, 1.0, mutates=True)
def alone(draw: Draw, name: str) -> Draft | None:
    """Changes a variable in place, with no operand but numbers."""
    rough = draw.value(name).dtype.is_floating_point and draw.chance(0.3)
    text = draw.rng.choice(ROUNDED if rough else PLAIN)
    return Draft(text.format(name, name, draw.scalar(name)), writes=name, rough=rough)


@operation_on(_written, 2.0, mutates=True)
def with_other(draw: Draw, name: str) -> Draft | None:
    """Changes a variable in place with another, which broadcasts to it."""
    shape, dtype = draw.value(name).shape, draw.value(name).dtype

    def fits(t: torch.Tensor) -> bool:
        # copy_ from floats to integers would have to be exact and in range.
        kind = dtype.is_floating_point or not t.dtype.is_floating_point
        return (
            kind
            and t.dim() <= len(shape)
            and all(m in (n, 1) for m, n in zip(reversed(t.shape), reversed(shape), strict=False))
        )

    other = draw.any(fits) or name
    if (
        draw.value(other).untyped_storage().data_ptr() == draw.value(name).untyped_storage().data_ptr()
        and other != name
    ):
        other = f"{other}.clone()"  # what a write reads of its own target, shifted, is undefined
    return Draft(draw.rng.choice(PAIRS).format(name, other), writes=name)


@operation_on(place(lambda t: t.numel() > 0 and t.dim() > 0 and t.dtype != torch.bool, 1), 1.0, mutates=True)
def part(draw: Draw, at: Place) -> Draft | None:
    """Writes to a view of the variable in one statement."""
    name, dim, _ = at
    view = draw.rng.choice([f"[{':, ' * dim}1:]", f"[{':, ' * dim}::2]", f".select({dim}, -1)", f"[{':, ' * dim}:-1]"])
    action = draw.rng.choice(["mul_(2)", "add_(1)", "zero_()", "fill_(3)", "copy_({0}.flip({1}){2})", "neg_()"])
    return Draft(f"{name}{view}.{action.format(name, dim, view)}", writes=name)


@operation_on(_written, 1.0, mutates=True)
def masked(draw: Draw, name: str) -> Draft | None:
    """Fills elements in place where a mask holds."""
    mask = draw.partner(name, lambda t: t.dtype == torch.bool)
    return Draft(f"{name}.masked_fill_({mask}, {draw.rng.choice(['0', '1', '-2'])})", writes=name)


@operation_on(place(lambda t: t.dim() > 0 and 0 < t.numel() < 5000 and t.dtype != torch.bool, 1), 1.0, mutates=True)
def indexed(draw: Draw, at: Place) -> Draft | None:
    """Writes at computed positions in place: index_add_, scatter_ or scatter_add_."""
    name, dim, extent = at
    value = draw.value(name)
    count = draw.rng.choice([n for n in draw.pool if n < 50] or [1])
    size = [count if d == dim else int(n) for d, n in enumerate(value.shape)]
    roll = draw.rng.random()
    if roll < 0.5:
        index, source = draw.index((count,), extent), draw.input(size, value.dtype)
        return Draft(f"{name}.index_add_({dim}, {index}, {source})", writes=name)
    index = draw.index(size, extent)
    if roll < 0.75:
        return Draft(f"{name}.scatter_({dim}, {index}, 2)", writes=name)
    return Draft(f"{name}.scatter_add_({dim}, {index}, {draw.input(size, value.dtype)})", writes=name)
