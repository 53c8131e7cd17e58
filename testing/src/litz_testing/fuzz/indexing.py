"""Statements that read and write where other tensors say."""

from __future__ import annotations

import torch

from litz_testing.torch_compile import TORCH

from .operations import FLOATS, INTS, Draft, Draw, Place, operation_on, place, some

_target = place(lambda t: t.dim() > 0 and t.numel() < 5000, 1)


def _positions(draw: Draw, name: str, dim: int, extent: int, count: int) -> str:
    """A vector of indices into the dimension: an input, or computed from integers that are at hand."""
    found = draw.any(lambda t: t.dtype == torch.int64 and t.dim() == 1 and 0 < t.numel() < 200)
    if found is not None and draw.chance(0.3):
        return f"({found} % {draw.size(name, dim)})"
    if draw.chance(0.15):
        # From the end: any index may be negative.
        return f"({draw.index((count,), extent)} - {draw.size(name, dim)})"
    return draw.index((count,), extent)


def _count(draw: Draw) -> int:
    return draw.rng.choice([n for n in draw.pool if n < 100] or [1])


@operation_on(_target, 1.5)
def select_rows(draw: Draw, at: Place) -> Draft | None:
    """Reads entries along one dimension, by index_select or by an index tensor."""
    name, dim, extent = at
    index = _positions(draw, name, dim, extent, _count(draw))
    if draw.chance(0.5) and " - " not in index:
        return Draft(f"torch.index_select({name}, {dim}, {index})")
    return Draft(f"{name}[{':, ' * dim}{index}]")


@operation_on(_target, 1.0)
def gather(draw: Draw, at: Place) -> Draft | None:
    """Reads single elements, by gather or take_along_dim."""
    name, dim, extent = at
    size = [_count(draw) if d == dim else n for d, n in enumerate(draw.value(name).shape)]
    index = draw.index(size, extent)
    call = draw.rng.choice(["torch.gather({0}, {1}, {2})", "torch.take_along_dim({0}, {2}, {1})"])
    return Draft(call.format(name, dim, index))


@operation_on(some(lambda t: t.dim() > 1 and 0 < t.numel() < 5000), 1.0)
def advanced(draw: Draw, name: str) -> Draft | None:
    """Indexes with several index tensors, which broadcast."""
    shape, count = draw.value(name).shape, _count(draw)
    first = draw.index((count,), int(shape[0]))
    second = draw.index((count,) if draw.chance(0.6) else (2, 1), int(shape[-1]))
    between = ", ".join([":"] * (len(shape) - 2))
    return Draft(f"{name}[{first}, {between + ', ' if between else ''}{second}]")


@operation_on(some(lambda t: t.dim() == 2 and t.dtype.is_floating_point and 0 < t.numel() < 5000), 0.5)
def embedding(draw: Draw, name: str) -> Draft | None:
    """Reads rows of a matrix by a matrix of indices."""
    index = draw.index((2, _count(draw)), int(draw.value(name).shape[0]))
    return Draft(f"torch.nn.functional.embedding({index}, {name})")


@operation_on(_target, 1.5)
def scatter_rows(draw: Draw, at: Place) -> Draft | None:
    """Adds at indices, or puts one value there, so that repeated indices do not matter."""
    name, dim, extent = at
    value, count = draw.value(name), _count(draw)
    size = [count if d == dim else int(n) for d, n in enumerate(value.shape)]
    roll = draw.rng.random()
    if roll < 0.3:
        index, source = draw.index((count,), extent), draw.input(size, value.dtype)
        return Draft(f"torch.index_add({name}, {dim}, {index}, {source})")
    index = draw.index(size, extent)
    if roll < 0.5:
        return Draft(f"torch.scatter({name}, {dim}, {index}, {draw.rng.choice(['0', '1', '2'])})")
    source = draw.input(size, value.dtype)
    if roll < 0.8:
        return Draft(f"torch.scatter_add({name}, {dim}, {index}, {source})")
    kind = draw.rng.choice(["sum", "amax", "amin"])
    own = draw.rng.choice(["", ", include_self=False"])
    return Draft(f"torch.scatter_reduce({name}, {dim}, {index}, {source}, '{kind}'{own})")


@operation_on(_target, 1.2)
def put(draw: Draw, at: Place) -> Draft | None:
    """Writes at computed positions out of place: index_put (accumulated or by mask) or index_fill."""
    name, dim, extent = at
    value, count = draw.value(name), _count(draw)
    if draw.chance(0.4):
        index = _positions(draw, name, dim, extent, count)
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
    if draw.chance(0.5):
        return Draft(f"torch.index_fill({name}, {dim}, {index}, {draw.rng.choice(['1', '0', '-1'])})")
    mask = draw.partner(name, lambda t: t.dtype == torch.bool)
    filler = draw.input((), value.dtype)
    return Draft(f"torch.index_put({name}, ({mask}.expand({name}.shape),), {filler})")


@operation_on(some(lambda t: t.dim() > 0), 1.2)
def choose(draw: Draw, name: str) -> Draft | None:
    """Chooses among several tensors, element by element or all at once."""
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
        count = _count(draw)
        index = draw.index((count,), value.numel()) if value.numel() or not count else None
        texts += [
            f"torch.take({name}, {index})",
            f"torch.index_copy({name}, {dim}, torch.arange(1), {name}.narrow({dim}, 0, 1) * 1)",
        ]
    return Draft(draw.rng.choice(texts))


@operation_on(_target, 1.0)
def put_view(draw: Draw, at: Place) -> Draft | None:
    """Replaces a part of a tensor, and gives a new tensor."""
    name, dim, extent = at
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


@operation_on(some(lambda t: t.dtype in (torch.float32, torch.int64) and t.numel() > 0, exact=True), 0.4)
def search(draw: Draw, name: str) -> Draft | None:
    """Finds the places of values among sorted edges, by bucketize."""
    edges = draw.input((4,), draw.value(name).dtype)
    right = draw.rng.choice(["", ", right=True"])
    return Draft(f"torch.bucketize({name}, {edges}.sort()[0]{right})", exact=True)
