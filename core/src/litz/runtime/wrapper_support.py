"""What generated wrappers call besides kernels and ATen: allocation, views, moves between devices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from litz.errors import ForeignResultError, LitzError, MissingMemoryError
from litz.origins.plugin_call import PluginCall

from .pool import Pool
from .torch_runtime import empty_cpu, empty_cuda, view


def empty(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns a new tensor whose elements are not set. stride: in elements."""
    return torch.empty_strided(size, stride, dtype=dtype, device=device)


def reuse(dead: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor in the memory of `dead`, which nobody needs. Autograd sees no relation between the two."""
    if dead.dtype == dtype:
        return view(dead, size, stride, 0)
    return torch.empty(0, dtype=dtype, device=dead.device).set_(  # type: ignore[call-overload, no-any-return]
        dead.untyped_storage(), dead.storage_offset() * dead.itemsize // dtype.itemsize, size, stride
    )


def planned(tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """Returns a library call's result with the strides that the kernels after it were made for: a copy where it has
    others.

    What a call returns is known from fake tensors, which are wrong for some ops on some devices.
    """
    if tensor._is_zerotensor():
        return tensor.clone()  # zeros without memory
    return tensor if tensor.stride() == stride else restrided(tensor, size, stride)


def restrided(tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """Returns a tensor whose strides differ from the planned ones with the planned strides: a view if possible, else a
    copy."""
    # The same elements may have others too; a user may compare strides.
    return view(tensor, size, stride, 0) if _lies_as(tensor, size, stride) else copy_to(tensor, size, stride)


def planned_inside(tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """Returns the tensor with the planned strides, for kernels alone: strides along dimensions of size 1 stay as they
    are."""
    if tensor._is_zerotensor():
        return tensor.clone()
    if tensor.stride() == stride or _lies_as(tensor, size, stride):
        return tensor
    return copy_to(tensor, size, stride)


def given(
    tensor: Any,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    call: str | PluginCall,
) -> torch.Tensor:
    """Does what `planned` does, for a call that is not torch's own: its fake kernel, which says what it returns, may be
    wrong; of a plugin's function, the plugin's word for it.

    ForeignResultError where it is, or PluginHookError, since what follows was made for what was said.
    """
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        found = type(tensor).__name__ if not isinstance(tensor, torch.Tensor) else f"a tensor of {tensor.layout}"
        raise _unexpected(call, found, f"a tensor of {torch.strided}")
    if tensor.shape != size or tensor.dtype != dtype or tensor.device.type != device.type:
        found, expected = (
            f"{t} {list(n)} on {d}"
            for t, n, d in ((tensor.dtype, tensor.shape, tensor.device.type), (dtype, size, device.type))
        )
        raise _unexpected(call, found, expected)
    tensor = resolved(tensor)
    return tensor if tensor.stride() == stride else restrided(tensor, size, stride)


def apart(tensor: torch.Tensor, others: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Returns a result of a call that is not torch's own, a copy where it is a view of one of `others` (arguments,
    results before it), which the op's schema does not say: their memory is used again once they are read."""
    memory = tensor.untyped_storage()._cdata
    if not any(memory == other.untyped_storage()._cdata for other in others):
        return tensor
    return tensor.conj().clone().conj() if tensor.is_conj() else tensor.clone()


def _unexpected(call: str | PluginCall, found: str, expected: str) -> LitzError:
    if isinstance(call, PluginCall):
        return call.failure(f"it returned {found}, where {expected} was promised")
    return ForeignResultError(call, found, expected)


def resolved(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor, or a copy with equal strides of one whose memory does not hold its elements: those of torch's
    zero tensor lie nowhere, those of one with the negative bit are the opposite of what lies there."""
    if not (tensor.is_neg() or tensor._is_zerotensor()):
        return tensor
    return copy_to(tensor, tuple(tensor.shape), tensor.stride(), negated=False)


def present(tensor: torch.Tensor, name: str, written: bool) -> torch.Tensor:
    """Returns an input whose address is so low that it may have no memory; zeros for torch's zero tensor, if not
    written. MissingMemoryError for what has elements, and no memory."""
    if tensor.numel() == 0:
        return tensor
    if tensor._is_zerotensor() and not written:
        return resolved(tensor)
    memory = tensor.untyped_storage()
    if memory.data_ptr() == 0:
        raise MissingMemoryError(name, str(tensor.device), memory.nbytes())
    return tensor


def _lies_as(tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Returns whether the strides lead to each element where `stride` does."""
    have = tensor.stride()
    for dim, extent in enumerate(size):  # a quarter of the time of `all` with `zip`
        if extent > 1 and have[dim] != stride[dim]:
            return tensor.numel() == 0
    return True


def copy_to(
    tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], *, negated: bool | None = None
) -> torch.Tensor:
    """Returns a copy with these strides that is read off its memory as the tensor is: lazily conjugated and negated
    (negated: or not), as an op may undo that, or take no tensor that is read so (`view_as_real`)."""
    one = [1 if step == 0 and n > 1 else n for n, step in zip(size, stride, strict=True)]
    fresh = torch.empty_strided(one, stride, dtype=tensor.dtype, device=tensor.device)
    if tensor.is_conj():
        fresh = fresh.conj()
    if tensor.is_neg() if negated is None else negated:
        fresh = torch._neg_view(fresh)
    if tuple(one) == size:
        return fresh.copy_(tensor)
    first = tuple(slice(n) for n in one)  # what is expanded from one element is that element, once
    return fresh.copy_(tensor[first]).as_strided(size, stride)


def results(value: Any) -> Any:
    """Returns the result of a call without a schema as a sequence."""
    return value if isinstance(value, (list, tuple)) else (value,)


def results_of(call: PluginCall, value: Any, count: int) -> Any:
    """Does what `results` does for a plugin's function. Raises the call's failure unless there are `count` results."""
    found = results(value)
    if len(found) != count:
        raise call.failure(f"it returned {len(found)} results, where {count} were promised")
    return found


def unlike(call: str, result: torch.Tensor, size: Sequence[int], dtype: torch.dtype) -> ForeignResultError:
    """Returns the error for a call whose result has another type or other sizes than tracing said: kernels after the
    call would read its memory wrongly, or outside of that memory."""
    return ForeignResultError(call, f"{result.dtype} {list(result.shape)}", f"{dtype} {list(size)}")


def is_dense(*layout: int) -> int:
    """Returns 1 if a tensor of these sizes and then these strides has no gaps and no element twice, else 0."""
    rank = len(layout) // 2
    step = 1
    for stride, size in sorted(zip(layout[rank:], layout[:rank], strict=True)):
        if size == 1:
            continue
        if stride != step:
            return 0
        step *= size
    return 1


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor, or a copy where its data does not start at a multiple of 16 bytes, as kernels assume."""
    return tensor if tensor.data_ptr() % 16 == 0 else copy_to(tensor, tuple(tensor.shape), tensor.stride())


def number_on(device: torch.device, number: torch.Tensor) -> torch.Tensor:
    """Returns a CPU tensor of one element on another device. The value goes as the argument of a fill: `to` would copy
    memory that is not pinned, for which the host waits."""
    return torch.full((), number.item(), dtype=number.dtype, device=device)


def support(pool: Pool) -> dict[str, object]:
    """Returns the globals of every wrapper. Names begin with `_`, as graph inputs have names of ops (`view`)."""
    functions = (
        aligned,
        empty,
        given,
        apart,
        is_dense,
        number_on,
        planned,
        planned_inside,
        present,
        restrided,
        results,
        results_of,
        reuse,
        unlike,
    )
    return {f"_{function.__name__}": function for function in functions} | {
        "_empty_cpu": empty_cpu,
        "_empty_cuda": empty_cuda,
        "_part": lambda base, size, stride, offset: base.as_strided(size, stride, base.storage_offset() + offset),
        "_pool": pool,
        "_view": view,
        "math": math,
        "torch": torch,
    }
