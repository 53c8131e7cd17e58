"""What eager takes although the result depends on what lies beside a tensor, or on the order of reads and writes:
nobody can judge a program with such a call."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from .inputs import addresses
from .program import Statement


class UndefinedError(Exception):
    """A call whose result eager does not define."""


def defined(statement: Statement) -> AbstractContextManager[Any]:
    """While it lasts, the statement raises UndefinedError where its result is undefined."""
    return Defined() if statement.writes or any(word in statement.text for word in _MAY_BE) else nullcontext()


_MAY_BE = ("scaled_dot_product_attention", "index_add", "linear'", "prod(")
"""Words of statements whose result may be undefined. `linear'` ends the name of a mode of `interpolate`."""


class Defined(TorchFunctionMode):
    """Raises UndefinedError for a call on real tensors whose result is undefined.

    Eager refuses to write what the same call reads, shifted, of tensors without gaps. Of others eager does not know,
    and what is read is the old value or the new one. Attention on the CPU reads as many keys as there are values, from
    beyond the end of the keys if there are fewer (torch 2.11 to 2.13). `index_add` looks at no position of a matrix
    without elements, which has none. Eager's interpolation multiplies an infinity by a weight of 0 on a GPU, and in
    some places leaves the infinity out on a CPU. A product of many values whose partial products may be infinite or 0
    is one of several values, by the order of the factors.
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Looks at the call, and makes it: what eager refuses, eager refuses."""
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name == "scaled_dot_product_attention":
            _, key, value = args[:3]
            if key.size(-2) != value.size(-2):
                raise UndefinedError(f"{key.size(-2)} keys and {value.size(-2)} values")
        if name.startswith("index_add") and args[0].ndim > 1 and not args[0].numel():
            raise UndefinedError("positions in a tensor without elements")
        if name == "interpolate" and kwargs.get("mode", "").endswith("linear") and not bool(args[0].isfinite().all()):
            raise UndefinedError("interpolation of infinities")
        if name == "prod" and _hangs_on_order(args[0]):
            raise UndefinedError("partial products that are infinite or 0")
        undefined = any(_meet(*each) for each in _written_and_read(name, args, kwargs))
        result = func(*args, **kwargs)
        if undefined:
            raise UndefinedError(f"{name} reads memory that it writes")
        return result


def _hangs_on_order(factors: torch.Tensor) -> bool:
    """Says whether some factors multiply to more or less than float32 holds (float64 of float64), and others lead
    back."""
    if not factors.is_floating_point():
        return False
    powers = factors.detach().double().abs().log2().flatten()
    above, below = powers[powers.isfinite()].clamp_min(0).sum(), powers[powers.isfinite()].clamp_max(0).sum()
    most = 1024 if factors.dtype == torch.float64 else 128
    return bool((above >= most and (powers < 0).any()) or (below <= -most and above > 0))


def _written_and_read(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[torch.Tensor, torch.Tensor, bool]]:
    """Pairs of a tensor that a call writes and one that it reads, with whether the positions are data."""
    by_index = name.startswith(("index_", "scatter_", "put_"))
    if name == "__setitem__":
        by_index = any(isinstance(index, torch.Tensor) for index in tree_leaves(args[1]))
        written, read = [args[0] if by_index else args[0][args[1]]], args[2:]
    elif kwargs.get("out") is not None:
        written, read = tree_leaves(kwargs["out"]), (args, {**kwargs, "out": None})
    elif (name.endswith("_") and not name.startswith("_")) or (name.startswith("__i") and hasattr(operator, name)):
        written, read = list(args[:1]), (args[1:], kwargs)
    else:
        return
    for target in written:
        for other in tree_leaves(read):
            if isinstance(target, torch.Tensor) and isinstance(other, torch.Tensor):
                yield target, other, by_index


def _meet(written: torch.Tensor, read: torch.Tensor, by_index: bool) -> bool:
    if written.untyped_storage().data_ptr() != read.untyped_storage().data_ptr():
        return False
    places = [(t.data_ptr(), t.dtype, t.shape, t.stride()) for t in (written, read)]
    return (by_index or places[0] != places[1]) and not addresses(written).isdisjoint(addresses(read))
