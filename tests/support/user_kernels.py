"""Triton kernels as users write them, and functions that launch them: what is captured, and what it gives.

`CASES` has for each function its inputs. A function is for CUDA tensors; `expected` of a case says in torch what it
returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < n
    tl.store(out + offset, tl.load(x + offset, inside) + tl.load(y + offset, inside), inside)


@triton.jit
def double_kernel(x, n, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + offset, tl.load(x + offset, offset < n) * 2, offset < n)


@triton.jit
def rows_kernel(x, out, bias, scale, rows, columns, xrow, xcolumn, outrow, FLIP: tl.constexpr, BLOCK: tl.constexpr):
    """out[r] = x[r] * scale (+ bias, where there is one), of any strides; rows from the last where FLIP."""
    row = tl.program_id(0)
    if FLIP:
        row = rows - 1 - row
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * xrow + column * xcolumn, column < columns) * scale
    if bias is not None:
        value += tl.load(bias + column, column < columns)
    tl.store(out + tl.program_id(0) * outrow + column, value, column < columns)


@triton.autotune(
    configs=[triton.Config({"BLOCK": 32}, num_warps=1), triton.Config({"BLOCK": 128}, num_warps=4, num_stages=2)],
    key=["n"],
)
@triton.jit
def tuned_kernel(x, n, BLOCK: tl.constexpr):
    """In place, and not the same when it is done twice."""
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + offset, tl.load(x + offset, offset < n) + 1, offset < n)


@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def heuristic_kernel(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out + offset, tl.load(x + offset) * 3)
    else:
        tl.store(out + offset, tl.load(x + offset, offset < n) * 3, offset < n)


def blocks(n: Any) -> Callable[[Any], tuple[Any]]:
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


def chain(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Between kernels of litz's own: into fresh memory, and into what a product made, which nobody else reads."""
    x, y = x.sin(), y * 1
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 128),)](x, y, out, x.numel(), BLOCK=128)
    z = x @ y.t()
    double_kernel[blocks(z.numel())](z, z.numel(), BLOCK=64)
    return out.cos(), z


def chain_expected(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x.sin() + y).cos(), (x.sin() @ y.t()) * 2


def old_needed(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What is written is read afterwards as it was."""
    z = x @ y.t()
    kept = z + 1
    changed = z.clone()
    double_kernel[blocks(z.numel())](changed, z.numel(), BLOCK=64)
    return kept, changed, z


def old_needed_expected(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = x @ y.t()
    return z + 1, z * 2, z


def strided(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Parts of tensors, transposed and with an offset; a bias or none; float and bool; a grid of two dimensions."""
    part, turned = x[1:, 2:], y.t()
    first, second = torch.empty_like(part, memory_format=torch.contiguous_format), turned.new_zeros(turned.shape)
    rows, columns = part.shape
    rows_kernel[(rows, triton.cdiv(columns, 16))](
        part, first, y[0, 2:], 0.5, rows, columns, *part.stride(), first.stride(0), FLIP=True, BLOCK=16
    )
    rows, columns = turned.shape
    rows_kernel[(rows, triton.cdiv(columns, 16))](
        turned, second, None, -3.0, rows, columns, *turned.stride(), second.stride(0), FLIP=False, BLOCK=16
    )
    return first, second


def strided_expected(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x[1:, 2:] * 0.5 + y[0, 2:]).flip(0), y.t() * -3.0


def tuned(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x = x @ y.t()
    tuned_kernel[blocks(x.numel())](x, x.numel())
    return (x,)


def tuned_expected(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x @ y.t() + 1,)


def heuristic(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    out = torch.empty_like(x)
    heuristic_kernel[blocks(x.numel())](x, out, x.numel(), BLOCK=32)
    return (out + y,)


def heuristic_expected(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x * 3 + y,)


@torch.library.triton_op("litz_tests::added", mutates_args={})
def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    n = out.numel()
    torch.library.wrap_triton(add_kernel)[(triton.cdiv(n, 64),)](x, y, out, n, BLOCK=64)
    return out


def as_op(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (added(x * 2, y).relu(),)


def as_op_expected(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return ((x * 2 + y).relu(),)


def part_written(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A part of a tensor is written."""
    z = x + y
    row = z[1]
    double_kernel[blocks(row.numel())](row, row.numel(), BLOCK=16)
    return (z,)


def part_written_expected(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = x + y
    return (torch.cat([z[:1], z[1:2] * 2, z[2:]]),)


@dataclass(frozen=True)
class Case:
    """run: launches kernels. expected: the same in torch. launches: of kernels of the user's."""

    run: Callable[..., tuple[torch.Tensor, ...]]
    expected: Callable[..., tuple[torch.Tensor, ...]]
    launches: int = 1


CASES = {
    "chain": Case(chain, chain_expected, 2),
    "old-needed": Case(old_needed, old_needed_expected),
    "strided": Case(strided, strided_expected, 2),
    "tuned": Case(tuned, tuned_expected),
    "heuristic": Case(heuristic, heuristic_expected),
    "op": Case(as_op, as_op_expected),
    "part-written": Case(part_written, part_written_expected),
}
SIZES = [(30, 20), (1, 20), (16, 16)]
