"""A stand-in for the part of Gluon that generated kernels use, for Triton's interpreter: see `gluon_helpers`.

Layouts are None. Shared memory is a list of tensors, one for each buffer; a copy is done at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import triton
import triton.language


def _number(index: Any) -> int:
    """A scalar of the interpreter as an int."""
    return int(index.handle.data.item()) if hasattr(index, "handle") else int(index)


class Shared:
    """Buffers of shared memory, or one of them. turned: are its two dimensions exchanged where it is read?"""

    def __init__(self, buffers: list[Any], number: int | None = None, turned: bool = False) -> None:
        self.buffers, self.number, self.turned = buffers, number, turned

    def index(self, number: Any) -> Shared:
        return Shared(self.buffers, _number(number))

    def permute(self, order: Sequence[int]) -> Shared:
        assert tuple(order) == (1, 0)
        return Shared(self.buffers, self.number, not self.turned)

    @property
    def value(self) -> Any:
        found = self.buffers[self.number or 0]
        assert found is not None, "shared memory is read before it is written"
        return triton.language.trans(found) if self.turned else found


class _Language:
    """triton.language, but for what Gluon has in its own way."""

    def __getattr__(self, name: str) -> Any:
        return getattr(triton.language, name)

    def arange(self, start: Any, end: Any, layout: Any = None) -> Any:
        return triton.language.arange(start, end)

    def zeros(self, shape: Any, dtype: Any, layout: Any = None) -> Any:
        return triton.language.zeros(shape, dtype)

    def full(self, shape: Any, value: Any, dtype: Any, layout: Any = None) -> Any:
        return triton.language.full(shape, value, dtype)

    def convert_layout(self, value: Any, layout: Any) -> Any:
        return value

    def allocate_shared_memory(self, dtype: Any, shape: Sequence[Any], layout: Any, value: Any = None) -> Shared:
        return Shared([None] * int(shape[0]) if value is None else [value])

    def barrier(self) -> None:
        pass

    def __repr__(self) -> str:
        return "Gluon's stand-in"


def _no_layout(*_: Any, **__: Any) -> None:
    return None


tl = _Language()
for _name in ("BlockedLayout", "DotOperandLayout", "NVMMADistributedLayout", "NVMMASharedLayout", "SliceLayout"):
    setattr(tl, _name, _no_layout)


def _copy(target: Shared, pointers: Any, mask: Any = None) -> None:
    target.buffers[target.number or 0] = triton.language.load(pointers, mask=mask)


async_copy = SimpleNamespace(async_copy_global_to_shared=_copy, commit_group=_no_layout, wait_group=_no_layout)


def fence_async_shared() -> None:
    pass


def warpgroup_mma(a: Any, b: Any, acc: Any, use_acc: bool = True, is_async: bool = False) -> Any:
    left = a.value if isinstance(a, Shared) else a
    # numpy has no bfloat16.
    left, right = (x.to(triton.language.float32) for x in (left, b.value))
    product = triton.language.dot(left, right, input_precision="ieee")
    return acc + product if use_acc else product


def warpgroup_mma_wait(pending: int = 0, deps: Sequence[Any] = ()) -> Any:
    return deps[0] if len(deps) == 1 else tuple(deps)


def _jit(function: Callable[..., Any]) -> Any:
    return triton.jit(function)


gluon = SimpleNamespace(jit=_jit)

__all__ = ["Shared", "async_copy", "fence_async_shared", "gluon", "tl", "warpgroup_mma", "warpgroup_mma_wait"]
