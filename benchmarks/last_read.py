"""Is a tensor that one kernel has read still in the L2 cache for the next, if that begins at the end?

    python -m benchmarks.last_read

Two kernels as of a batch norm in channels last: sums of the columns of x (rows x 256, bfloat16), then relu(x * scale),
whose programs take the rows in the same order, or in the opposite one. A line for each size of x: microseconds of both
kernels together from a cold cache (median of 30; each time includes the 3 us of an event), and of the second alone by
torch.profiler. Takes about 20 s.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl

from .gpu_kernels import Timer

COLUMNS, ROWS = 256, 64
MEGABYTES = (13, 26, 51, 103, 206)


@triton.jit
def sums(x, out, rows, R: tl.constexpr, C: tl.constexpr, EACH: tl.constexpr):  # type: ignore[no-untyped-def]
    first = tl.program_id(0) * EACH
    columns = tl.arange(0, C)[None, :]
    total = tl.zeros([R, C], tl.float32)
    for start in range(0, EACH, R):
        row = first + start + tl.arange(0, R)[:, None]
        total += tl.load(x + row * C + columns, row < rows, other=0.0).to(tl.float32)
    tl.store(out + tl.program_id(0) * C + tl.arange(0, C), tl.sum(total, 0))


@triton.jit
def apply(x, scale, out, rows, R: tl.constexpr, C: tl.constexpr, BACK: tl.constexpr):  # type: ignore[no-untyped-def]
    number = tl.program_id(0)
    if BACK:
        number = tl.num_programs(0) - 1 - number
    row = number * R + tl.arange(0, R)[:, None]
    columns = tl.arange(0, C)[None, :]
    value = tl.load(x + row * C + columns, row < rows, other=0.0).to(tl.float32)
    value = tl.maximum(value * tl.load(scale + columns), 0.0)
    tl.store(out + row * C + columns, value, row < rows)


def both(x: torch.Tensor, out: torch.Tensor, scale: torch.Tensor, partial_sums: torch.Tensor, back: bool) -> None:
    """Launches both kernels. Rows a program: 16 of the second, and of the first as many as give 4 programs an SM."""
    rows, programs = x.shape[0], partial_sums.shape[0]
    each = triton.cdiv(triton.cdiv(rows, programs), ROWS) * ROWS
    sums[(triton.cdiv(rows, each),)](x, partial_sums, rows, ROWS, COLUMNS, each, num_warps=8)
    apply[(triton.cdiv(rows, 16),)](x, scale, out, rows, 16, COLUMNS, back, num_warps=8)


def second_us(step: Any) -> float:
    """Microseconds of the second kernel alone."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(10):
            step()
        torch.cuda.synchronize()
    return sum(row.self_device_time_total / row.count for row in seen.key_averages() if row.key == "apply")


def main() -> None:
    """Print the table."""
    timer = Timer()
    print(f"{torch.cuda.get_device_name()}: both kernels, and the second alone, us")
    print(f"{'MB':>6}{'same order':>14}{'opposite':>12}{'same order':>14}{'opposite':>12}")
    for size in MEGABYTES:
        rows = size * 1_000_000 // (2 * COLUMNS)
        x = torch.randn(rows, COLUMNS, device="cuda").bfloat16()
        out, scale = torch.empty_like(x), torch.randn(COLUMNS, device="cuda")
        programs = 4 * torch.cuda.get_device_properties(0).multi_processor_count
        made = torch.empty(programs, COLUMNS, device="cuda")
        steps = [partial(both, x, out, scale, made, back) for back in (False, True)]
        cells = [timer(step, 30) for step in steps] + [second_us(step) for step in steps]
        print(f"{size:6}{cells[0]:14.1f}{cells[1]:12.1f}{cells[2]:14.1f}{cells[3]:12.1f}", flush=True)


if __name__ == "__main__":
    main()
