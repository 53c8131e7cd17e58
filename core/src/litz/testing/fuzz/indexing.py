"""Statements that read and write where other tensors say."""

from __future__ import annotations

import torch

from ..conformance.known import TORCH
from .operations import FLOATS, INTS, Draft, Draw, operation


def _target(draw: Draw) -> tuple[str, int, int] | None:
    """(variable, a dimension of it that has elements, its extent)."""
    name = draw.any(lambda t: t.dim() > 0 and t.numel() < 5000)
    dim = None if name is None else draw.dim(name, 1)
    return None if name is None or dim is None else (name, dim, int(draw.value(name).shape[dim]))


def _positions(draw: Draw, name: str, dim: int, extent: int, count: int) -> str | None:
    """A vector of indices into the dimension: an input, or computed from integers that are at hand."""
    found = draw.any(lambda t: t.dtype == torch.int64 and t.dim() == 1 and 0 < t.numel() < 200)
    if found is not None and draw.chance(0.3):
        return f"({found} % {draw.size(name, dim)})"
    if draw.chance(0.15):
        # From the end: any index may be negative.
        given = draw.index((count,), extent)
        return None if given is None else f"({given} - {draw.size(name, dim)})"
    return draw.index((count,), extent)


def _count(draw: Draw) -> int:
    return draw.rng.choice([n for n in draw.pool if n < 100] or [1])


@operation(1.5)
def select_rows(draw: Draw) -> Draft | None:
    target = _target(draw)
    if target is None:
        return None
    name, dim, extent = target
    index = _positions(draw, name, dim, extent, _count(draw))
    if index is None:
        return None
    if draw.chance(0.5) and " - " not in index:
        return Draft(f"torch.index_select({name}, {dim}, {index})")
    return Draft(f"{name}[{':, ' * dim}{index}]")


@operation(1.0)
def gather(draw: Draw) -> Draft | None:
    target = _target(draw)
    if target is None:
        return None
    name, dim, extent = target
    size = [_count(draw) if d == dim else n for d, n in enumerate(draw.value(name).shape)]
    index = draw.index(size, extent)
    call = draw.rng.choice(["torch.gather({0}, {1}, {2})", "torch.take_along_dim({0}, {2}, {1})"])
    return None if index is None else Draft(call.format(name, dim, index))


@operation(1.0)
def advanced(draw: Draw) -> Draft | None:
    """Several index tensors, which broadcast."""
    name = draw.any(lambda t: t.dim() > 1 and 0 < t.numel() < 5000)
    if name is None:
        return None
    shape, count = draw.value(name).shape, _count(draw)
    first = draw.index((count,), int(shape[0]))
    second = draw.index((count,) if draw.chance(0.6) else (2, 1), int(shape[-1]))
    if first is None or second is None:
        return None
    between = ", ".join([":"] * (len(shape) - 2))
    return Draft(f"{name}[{first}, {between + ', ' if between else ''}{second}]")


@operation(0.5)
def embedding(draw: Draw) -> Draft | None:
    name = draw.any(lambda t: t.dim() == 2 and t.dtype.is_floating_point and 0 < t.numel() < 5000)
    if name is None:
        return None
    index = draw.index((2, _count(draw)), int(draw.value(name).shape[0]))
    return None if index is None else Draft(f"torch.nn.functional.embedding({index}, {name})")


@operation(1.5)
def scatter_rows(draw: Draw) -> Draft | None:
    """Adding at indices, or putting one value: what repeats does not matter."""
    target = _target(draw)
    if target is None:
        return None
    name, dim, extent = target
    value, count = draw.value(name), _count(draw)
    size = [count if d == dim else int(n) for d, n in enumerate(value.shape)]
    roll = draw.rng.random()
    if roll < 0.3:
        index, source = draw.index((count,), extent), draw.input(size, value.dtype)
        return None if index is None else Draft(f"torch.index_add({name}, {dim}, {index}, {source})")
    index = draw.index(size, extent)
    if index is None:
        return None
    if roll < 0.5:
        return Draft(f"torch.scatter({name}, {dim}, {index}, {draw.rng.choice(['0', '1', '2'])})")
    source = draw.input(size, value.dtype)
    if roll < 0.8:
        return Draft(f"torch.scatter_add({name}, {dim}, {index}, {source})")
    kind = draw.rng.choice(["sum", "amax", "amin"])
    own = draw.rng.choice(["", ", include_self=False"])
    return Draft(f"torch.scatter_reduce({name}, {dim}, {index}, {source}, '{kind}'{own})")


@operation(1.2)
def put(draw: Draw) -> Draft | None:
    target = _target(draw)
    if target is None:
        return None
    name, dim, extent = target
    value, count = draw.value(name), _count(draw)
    if draw.chance(0.4):
        index = _positions(draw, name, dim, extent, count)
        if index is None:
            return None
        rows = [n for d, n in enumerate(value.shape)]
        rows[dim] = 1
        source = draw.input(() if draw.chance(0.5) else rows[dim + 1 :], value.dtype)
        where = ["None"] * dim + [index]
        if dim:  # a tensor for each leading dimension
            where = [f"torch.arange({draw.size(name, d)}).unsqueeze(1)" for d in range(dim)][:1] + [index]
            if dim > 1:
                return None
        # Accumulated, as the last write of several to one place is anyone's.
        return Draft(f"torch.index_put({name}, ({', '.join(where)},), {source}, accumulate=True)")
    index = draw.index((count,), extent)
    if index is None:
        return None
    if draw.chance(0.5):
        return Draft(f"torch.index_fill({name}, {dim}, {index}, {draw.rng.choice(['1', '0', '-1'])})")
    mask = draw.partner(name, lambda t: t.dtype == torch.bool)
    filler = draw.input((), value.dtype)
    return Draft(f"torch.index_put({name}, ({mask}.expand({name}.shape),), {filler})")


@operation(1.2)
def choose(draw: Draw) -> Draft | None:
    """Which of several tensors, element by element or all at once."""
    name = draw.any(lambda t: t.dim() > 0)
    if name is None:
        return None
    value, dim = draw.value(name), draw.dim(name, 1)
    mask, other = draw.partner(name, lambda t: t.dtype == torch.bool), draw.partner(name)
    texts = [
        f"torch.where({mask}, {name}, {draw.input((), draw.rng.choice((*FLOATS, *INTS, torch.bool)))})",
        f"torch.where({mask}, torch.where(~{mask}, {other}, {name}), {name})",
        f"{name}.masked_fill({mask}, {draw.input((), value.dtype)})",
        f"{name} * {mask}",
    ]
    if dim is not None:
        texts += [
            f"torch.where({mask}, {name}, {other}).select({dim}, 0)",
            f"torch.cat([{name}, {name}], {dim})[{mask}.sum() * 0]",
        ]
        index = draw.index((_count(draw),), value.numel())
        texts += [
            f"torch.take({name}, {index})",
            f"torch.index_copy({name}, {dim}, torch.arange(1), {name}.narrow({dim}, 0, 1) * 1)",
        ]
    return Draft(draw.rng.choice(texts))


@operation(1.0)
def put_view(draw: Draw) -> Draft | None:
    """A part replaced, as a new tensor."""
    target = _target(draw)
    if target is None:
        return None
    name, dim, extent = target
    shape = [int(n) for n in draw.value(name).shape]
    if TORCH < (2, 13) and any(step == 0 for step in draw.value(name).stride()):
        return None  # torch 2.11's eager writes into memory that elements of an expanded tensor share
    if draw.chance(0.5):
        source = draw.partner(name)
        part = f"({source}).expand({name}.shape).select({dim}, 0)"
        return Draft(
            f"torch.select_scatter({name}, {part}.to({draw.value(name).dtype}), {dim}, {draw.rng.choice(['0', '-1'])})"
        )
    if extent < 2:
        return None
    source = draw.input([n if d != dim else 1 for d, n in enumerate(shape)], draw.value(name).dtype)
    return Draft(f"torch.slice_scatter({name}, {source}, {dim}, 1, 2)")


@operation(0.4)
def search(draw: Draw) -> Draft | None:
    name = draw.any(lambda t: t.dtype in (torch.float32, torch.int64) and t.numel() > 0, exact=True)
    if name is None:
        return None
    edges = draw.input((4,), draw.value(name).dtype)
    right = draw.rng.choice(["", ", right=True"])
    return Draft(f"torch.bucketize({name}, {edges}.sort()[0]{right})", exact=True)
