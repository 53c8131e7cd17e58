"""Statements that move elements: views, copies of views, joining and padding."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .inputs import is_inexact
from .operations import FLOATS, INTS, Draft, Draw, Place, operation_on, place, some, tuple_text


@operation_on(some(), 1.5)
def reshape(draw: Draw, name: str) -> Draft | None:
    """Merges dimensions, or splits one."""
    shape, rank = draw.shape(name), draw.value(name).dim()
    call = draw.rng.choice(["reshape", "reshape", "view"])
    roll = draw.rng.random()
    if roll < 0.25 and 0 not in draw.value(name).shape:
        return Draft(f"{name}.{call}(-1)")
    if roll < 0.6 and rank > 1:
        start = draw.rng.randrange(rank - 1)
        if draw.chance(0.3):
            return Draft(f"{name}.flatten({start}, {start + 1})")
        merged = [*shape[:start], f"{shape[start]} * {shape[start + 1]}", *shape[start + 2 :]]
        return Draft(f"{name}.{call}({tuple_text(merged)})")
    dim = draw.dim(name, 2)
    if dim is None:
        return Draft(f"{name}.{call}({tuple_text([*shape, '1'])})")
    extent = int(draw.value(name).shape[dim])
    factors = [k for k in range(2, min(extent, 9)) if extent % k == 0]
    if not factors:
        return None
    factor = draw.rng.choice(factors)
    parts = [f"{shape[dim]} // {factor}", str(factor)]
    return Draft(
        f"{name}.{call}({tuple_text([*shape[:dim], *(parts if draw.chance(0.5) else parts[::-1]), *shape[dim + 1 :]])})"
    )


@operation_on(some(lambda t: t.dim() > 1), 1.5)
def permute(draw: Draw, name: str) -> Draft | None:
    """Permutes dimensions, at times with a contiguous copy."""
    order = list(range(draw.value(name).dim()))
    draw.rng.shuffle(order)
    text = [f"{name}.permute({tuple(order)})", f"{name}.transpose({order[0]}, {order[1]})"]
    if draw.value(name).dim() >= 2:
        text.append(f"{name}.mT")
    return Draft(draw.rng.choice(text) + (".contiguous()" if draw.chance(0.2) else ""))


@operation_on(some(lambda t: t.numel() < 2000), 1.0)
def expand(draw: Draw, name: str) -> Draft | None:
    """Repeats dimensions of size 1, or adds one in front."""
    shape, value = draw.shape(name), draw.value(name)
    wide = [str(draw.rng.choice(draw.pool)) if n == 1 and draw.chance(0.7) else s for n, s in zip(value.shape, shape)]
    if draw.chance(0.5):
        wide = [str(draw.rng.choice((1, 2, 3))), *wide]
    return Draft(f"{name}.expand({tuple_text(wide)})")


@operation_on(some(lambda t: t.dim() > 0), 2.0)
def slice_(draw: Draw, name: str) -> Draft | None:
    """Slices one dimension, with steps and ends that may lie outside."""
    dim = draw.dim(name) or 0
    extent = int(draw.value(name).shape[dim])
    start = draw.rng.choice(["", "1", str(extent // 2), "-2", "0"])
    stop = draw.rng.choice(["", "", "-1", "1000", str(max(extent - 1, 0)), "2"])
    step = draw.rng.choice(["", "", ":2", ":3"])
    if draw.dynamic and draw.chance(0.5):
        stop = f"{name}.size({dim}) // 2 + 1"
    return Draft(f"{name}[{':, ' * dim}{start}:{stop}{step}]")


@operation_on(place(lambda t: t.dim() > 0, 1), 1.0)
def select(draw: Draw, at: Place) -> Draft | None:
    """Takes one entry along a dimension."""
    name, dim, extent = at
    return Draft(f"{name}.select({dim}, {draw.rng.choice(['0', '-1', str(extent // 2)])})")


@operation_on(some(), 1.0)
def dimension(draw: Draw, name: str) -> Draft | None:
    """Adds or removes dimensions of size 1."""
    rank = draw.value(name).dim()
    if draw.chance(0.6):
        return Draft(f"{name}.unsqueeze({draw.rng.randint(0, rank)})")
    return Draft(f"{name}.squeeze()" if draw.chance(0.3) else f"{name}.squeeze({draw.rng.randrange(max(rank, 1))})")


@operation_on(some(lambda t: t.dim() > 0), 1.0)
def flip(draw: Draw, name: str) -> Draft | None:
    """Flips dimensions, or rolls one."""
    dims = draw.dims(name)
    if draw.chance(0.4):
        return Draft(f"{name}.roll({draw.rng.choice(['1', '-2', '5'])}, {draw.dim(name)})")
    return Draft(f"{name}.flip({dims})")


@operation_on(place(lambda t: t.dim() > 0 and t.numel() < 3000, 2), 0.7)
def unfold(draw: Draw, at: Place) -> Draft | None:
    """Makes overlapping windows along a dimension."""
    name, dim, extent = at
    return Draft(f"{name}.unfold({dim}, {draw.rng.randint(1, min(extent, 4))}, {draw.rng.randint(1, 3)})")


@operation_on(some(lambda t: t.is_contiguous() and t.storage_offset() == 0 and t.numel() > 3), 0.5, static=True)
def as_strided(draw: Draw, name: str) -> Draft | None:
    """Makes a strided view of a variable that is dense from its storage's start, so that everything in between is
    defined."""
    value = draw.value(name)
    count, inner = value.numel(), draw.rng.randint(1, 3)
    size = [draw.rng.randint(1, max(count // inner, 1)), inner]
    stride = [draw.rng.choice([1, inner, 2]), draw.rng.choice([1, 1, 0])]
    offset = draw.rng.randint(0, 2)
    while offset + (size[0] - 1) * stride[0] + (size[1] - 1) * stride[1] >= count and size[0] > 1:
        size[0] -= 1
    if offset + (size[0] - 1) * stride[0] + (size[1] - 1) * stride[1] >= count:
        return None
    return Draft(f"{name}.as_strided({tuple(size)}, {tuple(stride)}, {offset})")


@operation_on(some(lambda t: t.dim() > 1), 0.6)
def diagonal(draw: Draw, name: str) -> Draft | None:
    """Takes a diagonal or a triangle."""
    offset = draw.rng.choice(["0", "1", "-1"])
    call = draw.rng.choice(
        [f"{name}.diagonal({offset})", f"torch.tril({name}, {offset})", f"torch.triu({name}, {offset})"]
    )
    return Draft(call)


@operation_on(place(lambda t: t.dim() > 0, 2), 1.0)
def split(draw: Draw, at: Place) -> Draft | None:
    """Takes the first or last piece of a dimension, by chunk, unbind or split."""
    name, dim, extent = at
    which = draw.rng.choice(["0", "-1"])
    if draw.chance(0.3):
        return Draft(f"{name}.chunk({draw.rng.randint(2, 3)}, {dim})[{which}]")
    if draw.chance(0.2) and extent < 8 and not draw.dynamic:
        return Draft(f"{name}.unbind({dim})[{which}]")
    size = draw.rng.randint(1, extent - 1)
    if draw.chance(0.5):
        return Draft(f"{name}.split({size}, {dim})[{which}]")
    return Draft(f"{name}.split(({size}, {draw.size(name, dim)} - {size}), {dim})[{which}]")


JOINS = (
    *(("torch.cat([{0}], {1})", False),) * 3,
    *(("torch.stack([{0}], {1})", True),) * 2,
    *(
        (f"torch.{name}([{{0}}])", name in ("dstack", "vstack"))
        for name in ("vstack", "hstack", "dstack", "column_stack")
    ),
)
"""Calls that join, and whether all parts must have one shape (or one that is sure to do)."""


@operation_on(place(lambda t: t.dim() > 0 and t.numel() < 5000), 2.0)
def join(draw: Draw, at: Place) -> Draft | None:
    """Joins tensors of equal shape along a dimension, by cat or stack, with parts of other dtypes among them."""
    name, dim, _ = at
    shape = draw.value(name).shape

    def fits(t: torch.Tensor) -> bool:
        return t.dim() == len(shape) and all(a == b or d == dim for d, (a, b) in enumerate(zip(t.shape, shape)))

    def part(fits: Callable[[torch.Tensor], bool]) -> str:
        """Another variable, a new input of any type, or a view or conversion of one."""
        roll = draw.rng.random()
        dtype = draw.rng.choice((*FLOATS, *INTS, torch.bool))
        if roll < 0.15:
            return draw.input(shape, dtype)
        other = draw.any(fits) or name
        views = [f".flip({dim})", f".roll(1, {dim})", " * 1", f".transpose(0, {dim}).contiguous().transpose(0, {dim})"]
        if is_inexact(dtype):
            views.append(f".to({dtype})")
        return other + (draw.rng.choice(views) if roll < 0.4 else "")

    parts = [name, *(part(fits) for _ in range(draw.rng.choice([1, 1, 2, 2, 3, 6])))]
    draw.rng.shuffle(parts)
    call, stacked = draw.rng.choice(JOINS)
    if stacked:
        parts = [name, *(part(lambda t: t.shape == shape) for _ in range(len(parts) - 1))]
        dim = draw.rng.randint(0, len(shape))
    return Draft(call.format(", ".join(parts), dim - (len(shape) + stacked if draw.chance(0.2) else 0)))


@operation_on(some(lambda t: t.dim() > 0), 1.0)
def pad(draw: Draw, name: str) -> Draft | None:
    """Pads with a constant or by copies of the edges; negative widths cut off."""
    rank = draw.value(name).dim()
    widths = [draw.rng.choice([0, 1, 2, 3, -1]) for _ in range(2 * draw.rng.randint(1, rank))]
    mode = draw.rng.choice(["constant"] * 5 + ["replicate", "reflect", "circular"])
    if mode != "constant":
        if rank < 2 or not draw.value(name).dtype.is_floating_point:
            return None
        return Draft(f"torch.nn.functional.pad({name}, {(1, 1) if rank < 4 else (1, 1, 0, 1)}, '{mode}')")
    value = draw.rng.choice(["0", "1", "0.5" if draw.value(name).dtype.is_floating_point else "2"])
    return Draft(f"torch.nn.functional.pad({name}, {tuple(widths)}, value={value})")


@operation_on(some(lambda t: t.numel() < 1000), 0.7)
def repeat(draw: Draw, name: str) -> Draft | None:
    """Repeats a tensor along its dimensions, or each element."""
    rank = draw.value(name).dim()
    if rank and draw.chance(0.4):
        return Draft(f"{name}.repeat_interleave({draw.rng.randint(1, 3)}, {draw.dim(name)})")
    times = tuple(draw.rng.randint(1, 3) for _ in range(rank + draw.rng.randint(0, 1)))
    return Draft(f"{name}.repeat({times})") if times else None


@operation_on(some(), 0.8)
def copy(draw: Draw, name: str) -> Draft | None:
    """Copies or detaches a tensor."""
    call = draw.rng.choice(["clone()", "contiguous()", "detach()", "clone(memory_format=torch.contiguous_format)"])
    return Draft(f"{name}.{call}")


@operation_on(some(), 1.5)
def cast(draw: Draw, name: str) -> Draft | None:
    """Converts a tensor to another dtype, if every value is in the range of the integers."""
    value, dtype = draw.value(name), draw.rng.choice((*FLOATS, *INTS[:2], torch.uint8, torch.int8, torch.bool))
    if value.dtype.is_floating_point and not dtype.is_floating_point:
        value = value.float() if value.dtype.itemsize == 1 else value  # float8 has no isfinite, abs or min
        # Beyond the range of the integers the result is the processor's.
        if not bool(value.isfinite().all()) or (
            dtype != torch.bool and value.numel() and float(value.abs().max()) > 120
        ):
            return None
        if dtype == torch.uint8 and value.numel() and float(value.min()) <= -1:
            return None
        return Draft(f"{name}.to({dtype})", exact=True)
    return Draft(f"{name}.to({dtype})")


@operation_on(some(lambda t: t.dim() > 0 and 0 < t.numel() < 3000), 0.7)
def create(draw: Draw, name: str) -> Draft | None:
    """Makes a new tensor of a variable's size: arange, full, ones, eye and the like."""
    dim = draw.dim(name) or 0
    size, shape = draw.size(name, dim), tuple_text(draw.shape(name))
    dtype = draw.rng.choice((*FLOATS[:2], *INTS[:2], torch.bool))
    texts = [
        f"torch.arange({size})",
        f"torch.arange({size} - 1, -1, -1, dtype=torch.float32)",
        f"torch.arange(0, {size} * 2, 2, dtype=torch.int32)",
        f"torch.full({shape}, {draw.rng.choice(['1', '2.5', 'True', '-1'])}, dtype={dtype})",
        f"torch.ones_like({name})",
        f"{name}.new_zeros({shape})",
        f"torch.full_like({name}, 3)",
        f"torch.eye({size})",
        f"torch.zeros({shape}, dtype={dtype})",
    ]
    return Draft(draw.rng.choice(texts))
