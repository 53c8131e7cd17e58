"""Statements that eager refuses when it sees the data: compiled code must refuse them as well, with the same class of
error, and touch no memory that is not its own. One of them ends a program of this kind."""

from __future__ import annotations

import torch

from .data import told
from .operations import Draft, Draw, Place, operation, operation_on, place, some


def _index(draw: Draw, size: tuple[int, ...], extent: int) -> str:
    """Indices of which some are out of range: an input, or computed from one."""
    roll = draw.rng.random()
    if roll < 0.4:
        return draw.input(size, torch.int64, "index", 3 * extent + 5)
    inside = draw.input(size, torch.int64, "index", extent)
    return f"({inside} + {extent})" if roll < 0.7 else f"({inside} - {2 * extent})"


@operation_on(place(lambda t: t.dim() > 0 and 0 < t.numel() < 5000, 1), 3.0, kind="raising")
def index_out_of_range(draw: Draw, at: Place) -> Draft | None:
    """Reads or writes along a dimension by one vector of indices, some of them out of range."""
    name, dim, extent = at
    value, count = draw.value(name), draw.rng.choice([1, 2, 5, 33])
    index = _index(draw, (count,), extent)
    source = draw.input([count if d == dim else int(n) for d, n in enumerate(value.shape)], value.dtype)
    texts = [
        f"torch.index_select({name}, {dim}, {index})",
        f"{name}[{':, ' * dim}{index}]",
        f"torch.index_add({name}, {dim}, {index}, {source})",
        f"torch.index_fill({name}, {dim}, {index}, 1)",
        f"torch.index_copy({name}, {dim}, {index}, {source})",
        f"torch.index_reduce({name}, {dim}, {index}, {source}, 'amax')",
        f"torch.take({name}, {index} * {value.numel()})",
        f"torch.put({name}, {index} * {value.numel()}, {source}.flatten()[:{count}].expand({count}))",
    ]
    if dim == 0:
        texts.append(f"torch.index_put({name}, ({index},), {source}, accumulate=True)")
    if value.dim() == 2 and dim == 0 and value.dtype.is_floating_point:
        texts += [f"torch.nn.functional.embedding({index}, {name})"] * 3
    return Draft(draw.rng.choice(texts))


@operation_on(place(lambda t: t.dim() > 0 and 0 < t.numel() < 2000, 1), 2.0, kind="raising")
def places_out_of_range(draw: Draw, at: Place) -> Draft | None:
    """Gathers or scatters by an index for each element."""
    name, dim, extent = at
    value = draw.value(name)
    shape = tuple(int(n) for n in value.shape)
    index, source = _index(draw, shape, extent), draw.input(shape, value.dtype)
    texts = [
        f"torch.gather({name}, {dim}, {index})",
        f"torch.scatter({name}, {dim}, {index}, 1)",
        f"torch.scatter({name}, {dim}, {index}, {source})",
        f"torch.scatter_add({name}, {dim}, {index}, {source})",
        f"torch.scatter_reduce({name}, {dim}, {index}, {source}, 'amax')",
        f"torch.take_along_dim({name}, {index}, {dim})",
    ]
    return Draft(draw.rng.choice(texts))


@operation_on(some(lambda t: t.dim() == 2 and t.dtype == torch.float32 and 0 < t.numel() < 2000), 1.0, kind="raising")
def classes_out_of_range(draw: Draw, name: str) -> Draft | None:
    """Makes a loss or one_hot with class numbers that are out of range."""
    rows, classes = (int(n) for n in draw.value(name).shape)
    target = _index(draw, (rows,), classes)
    texts = [f"torch.nn.functional.{loss}({name}, {target})" for loss in ("nll_loss", "cross_entropy")]
    return Draft(draw.rng.choice([*texts, f"torch.nn.functional.one_hot({target}.abs() + 1, {classes})"]))


@operation(0.7, kind="raising")
def unpooled_out_of_range(draw: Draw) -> Draft | None:
    """Makes a max_unpool2d with places outside of its planes."""
    height, width = draw.rng.choice([2, 3, 5]), draw.rng.choice([2, 3, 9])
    value = draw.input((1, 2, height, width), torch.float32)
    index = _index(draw, (1, 2, height, width), 4 * height * width)
    return Draft(f"torch.nn.functional.max_unpool2d({value}, {index}, 2)")


@operation_on(some(lambda t: t.dim() > 0 and 1 < t.numel() < 500), 1.0, kind="raising")
def wrong_count(draw: Draw, name: str) -> Draft | None:
    """Tells torch numbers of elements that are wrong."""
    value = draw.value(name)
    repeats = draw.input((int(value.shape[0]),), torch.int64, "index", 4)
    mask, few = draw.input(value.shape, torch.bool), draw.input((1,), value.dtype)
    texts = [
        f"torch.repeat_interleave({name}, {repeats}, 0, output_size={draw.rng.choice([1, 7, 1000])})",
        f"{name}.masked_scatter(~({mask} & ~{mask}), {few})",
        f"torch.split({name}, ({repeats}.sum() + 100).item())[1]",
        f"torch.bincount({repeats} - 5)",
    ]
    return Draft(draw.rng.choice(texts))


@operation(2.0, kind="raising")
def told_falsely(draw: Draw) -> Draft | None:
    """Makes a tensor whose size comes from data, and a check of another size."""
    return told(draw, draw.rng.choice([-2, -1, 1, 2, 100]))


@operation_on(some(lambda t: t.dim() > 0 and 0 < t.numel() < 500 and not t.dtype.is_complex), 2.0, kind="raising")
def broken_fact(draw: Draw, name: str) -> Draft | None:
    """Makes an assertion about data that is false, or a read one or more elements beyond the end."""
    mask = draw.input(draw.value(name).shape, torch.bool)
    other = draw.rng.choice([-1, 1, 2])
    count = int((draw.value(name) > 0).sum()) + other
    texts = [
        f"torch._check({name}[{name} > 0].size(0) == {count})",
        f"torch._check(({name} > 0).sum().item() == {count})",
        f"torch._assert_async(({mask} & ~{mask}).any())",
        f"torch._assert_async(({mask} & ~{mask}).any(), 'none is')",
        f"torch._check_tensor_all({mask} & ~{mask})",
        f"{name}.flatten()[({mask} | ~{mask}).sum().item() + 3]",
        f"{name}.flatten().narrow(0, 0, ({mask} | ~{mask}).sum().item() + 3)",
    ]
    return Draft(draw.rng.choice(texts), effect=True)
