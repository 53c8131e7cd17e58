"""FLOPs of the library's matmuls, convolutions and attention. In: a library call. Out: a `Contraction`, None for any
other call. A kind of call that a plugin adds answers itself (`Extern.contraction`).

A multiply-add is two FLOPs. A contraction of an (m, k) with a (k, n) matrix is 2*m*n*k; a convolution is the matmul
that it is equivalent to (m output pixels of all images, n output channels, k = input channels of a group times the
kernel's elements); its backward is one such for each gradient asked for. Attention is its two matmuls forward and five
backward (the forward's first again, as the flash algorithm does: Dao et al., 2022), half of each if the mask is causal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod
from typing import Any

import torch

from litz.ir import Contraction, Extern, Program
from litz.ir.operation import Use

TILE = 64
"""Edge of the smallest output tile that matmul libraries give a unit of their own, in elements."""
SPLIT = 1024
"""Length of the reduced dimension from which they split it among units."""


@dataclass(frozen=True)
class _Call:
    """A library call's arguments by name, with sizes as numbers."""

    extern: Extern
    program: Program
    arguments: Mapping[str, Any]

    def size(self, name: str) -> tuple[int, ...]:
        return tuple(self.program.hint(extent) for extent in self.arguments[name].layout.size)

    def dtype(self, name: str) -> torch.dtype:
        return self.program.buffers[self.arguments[name].buffer].dtype

    def output(self) -> tuple[int, ...]:
        """Returns the likely sizes of the first output that is a buffer."""
        name = next(name for name in self.extern.outputs if name is not None)
        return tuple(map(self.program.hint, self.program.buffers[name].layout.size))


def count_contraction(extern: Extern, program: Program) -> Contraction | None:
    """Returns the FLOPs of a library call that contracts, or of a kernel in the place of such calls; None for any other
    (or with arguments unlike the op's schema)."""
    meaning = getattr(extern.target, "program", None)
    if isinstance(meaning, Program):
        return _in_one_kernel(meaning)
    own = extern.contraction(program)
    if own is not None:
        return own
    schema = getattr(extern.target, "_schema", None)
    formula = _FORMULAS.get(schema.name) if schema is not None else None
    if formula is None:
        return None
    try:
        return formula(_Call(extern, program, argument_names(extern)))
    except (KeyError, AttributeError, IndexError, StopIteration, ValueError):
        # A call with arguments in places where the formula does not look for them is counted by its bytes.
        return None


def _in_one_kernel(meaning: Program) -> Contraction | None:
    """Returns the contraction of a kernel that does all that the program does, and keeps intermediate results to
    itself; None if the program has no contraction."""
    calls = (operation for operation in meaning.operations if isinstance(operation, Extern))
    found = [contraction for call in calls if (contraction := count_contraction(call, meaning)) is not None]
    if not found:
        return None
    flops, pieces = sum(each.flops for each in found), sum(each.pieces for each in found)
    return Contraction(found[0].use, flops, found[0].dtype, pieces)


def argument_names(extern: Extern) -> dict[str, Any]:
    """Returns a call's arguments by the names of the op's schema, defaults included; {} for a plain function without a
    schema."""
    if not isinstance(extern.target, torch._ops.OpOverload):
        return {}
    schema = _schema_of(extern.target)
    bound = dict(schema)
    bound.update(zip((name for name, _ in schema), extern.args))
    bound.update(extern.kwargs)
    return bound


@lru_cache(maxsize=1024)
def _schema_of(target: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((argument.name, argument.default_value) for argument in target._schema.arguments)


def _matmul(
    m: int, n: int, k: int, batch: int, dtype: torch.dtype, use: Use = "matmul", times: float = 1
) -> Contraction:
    pieces = batch * ceil(m / TILE) * ceil(n / TILE) * max(1, k // SPLIT)
    return Contraction(use, 2.0 * batch * m * n * k * times, dtype, pieces * max(1.0, times))


def _two(left: str, right: str | None) -> Callable[[_Call], Contraction]:
    """A matmul of `left` (..., m, k) and `right` (..., k, n), or a vector (None)."""

    def formula(call: _Call) -> Contraction:
        *batch, m, k = call.size(left)
        return _matmul(m, call.size(right)[-1] if right else 1, k, prod(batch), call.dtype(left))

    return formula


def _summed(call: _Call) -> Contraction:
    """addbmm: the products of a batch are added up."""
    batch, m, k = call.size("batch1")
    return _matmul(m, call.size("batch2")[-1], k * batch, 1, call.dtype("batch1"))


def _dot(call: _Call) -> Contraction:
    return _matmul(1, 1, call.size("self")[0], 1, call.dtype("self"))


def _linear(call: _Call) -> Contraction:
    *rows, k = call.size("input")
    return _matmul(prod(rows), call.size("weight")[0], k, 1, call.dtype("input"))


def _convolve(call: _Call, image: tuple[int, ...], result: tuple[int, ...], times: int = 1) -> Contraction:
    """A convolution of `image` into `result`, sizes (batch, channels, pixels...); transposed, they change places."""
    out_channels, *kernel = call.size("weight")
    smaller = image if call.arguments.get("transposed") else result
    groups = int(call.arguments.get("groups", 1) or 1)
    pixels = smaller[0] * prod(smaller[2:])
    return _matmul(pixels, out_channels // groups, prod(kernel), groups, call.dtype("weight"), "convolution", times)


def _convolution(call: _Call) -> Contraction:
    return _convolve(call, call.size("input"), call.output())


def _convolution_backward(call: _Call) -> Contraction | None:
    wanted = call.arguments.get("output_mask", (True, True, True))
    times = sum(bool(w) for w in wanted[:2])
    if times == 0:
        return None  # only the bias's gradient: a sum, which its bytes bound
    return _convolve(call, call.size("input"), call.size("grad_output"), times)


def _attention(times: float, heads_last: bool = False, whole: bool = False) -> Callable[[_Call], Contraction]:
    """`times`: matmuls done, where the forward is 2. heads_last: tensors are (batch, sequence, heads, width). whole: a
    unit reads all keys and values of a head, however few queries there are: they are not split."""

    def formula(call: _Call) -> Contraction:
        *batch, queries, width = call.size("query")
        if heads_last:
            first, queries, heads = *batch, queries
            batch = [first, heads]
        keys, value_width = call.size("key")[-3 if heads_last else -2], call.size("value")[-1]
        share = 0.5 if call.arguments.get("is_causal") else 1.0
        flops = 2.0 * prod(batch) * queries * keys * (width + value_width) * share * times / 2
        dtype, pieces = call.dtype("query"), prod(batch) * ceil(queries / TILE)
        alone = keys * (width + value_width) * dtype.itemsize if whole and share == 1.0 else 0.0
        return Contraction("attention", flops, dtype, pieces, alone=alone)

    return formula


_KERNELS = (
    *("flash_attention", "efficient_attention", "cudnn_attention", "fused_attention_overrideable"),
    "flash_attention_for_cpu",
)
"""The kernels that scaled_dot_product_attention calls, forward and backward."""

_FORMULAS: Mapping[str, Callable[[_Call], Contraction | None]] = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::_int_mm"), _two("self", "mat2")),
    **dict.fromkeys(("aten::_scaled_mm", "aten::_scaled_mm_v2"), _two("self", "mat2")),
    **dict.fromkeys(("aten::addmm", "aten::addmm_", "aten::_addmm_activation"), _two("mat1", "mat2")),
    "aten::matmul": _two("self", "other"),
    "aten::baddbmm": _two("batch1", "batch2"),
    "aten::addbmm": _summed,
    "aten::mv": _two("self", None),
    "aten::addmv": _two("mat", None),
    **dict.fromkeys(("aten::dot", "aten::vdot"), _dot),
    "aten::linear": _linear,
    **dict.fromkeys(("aten::convolution", "aten::_convolution"), _convolution),
    "aten::convolution_backward": _convolution_backward,
    "aten::scaled_dot_product_attention": _attention(2),
    **{f"aten::_scaled_dot_product_{kind}": _attention(2) for kind in _KERNELS},
    "aten::_scaled_dot_product_efficient_attention": _attention(2, whole=True),
    **{f"aten::_scaled_dot_product_{kind}_backward": _attention(5) for kind in _KERNELS},
    **{f"aten::_{kind}_attention_forward": _attention(2, heads_last=True) for kind in ("flash", "efficient")},
    **{f"aten::_{kind}_attention_backward": _attention(5, heads_last=True) for kind in ("flash", "efficient")},
}
