"""Triton kernels that `tests/triton_kernels/test_template.py` calls in contractions' places."""

import triton
import triton.language as tl


@triton.jit
def scaled(value, FACTOR: tl.constexpr):
    return value * FACTOR


@triton.jit
def first_column(
    a, out, rows, a_row, FACTOR: tl.constexpr, TYPE: tl.constexpr, BLOCK: tl.constexpr, INDEX: tl.constexpr
):
    row = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(a + row * a_row, mask=row < rows)
    tl.store(out + row, scaled(value.to(TYPE), FACTOR), mask=row < rows)


@triton.jit
def counted(a, out, counters, rows, BLOCK: tl.constexpr):
    """The last program to be counted stores the sum of what all programs have stored before."""
    number = tl.program_id(0)
    row = number * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + row, tl.load(a + row, mask=row < rows), mask=row < rows)
    tl.debug_barrier()
    if tl.atomic_add(counters, 1, sem="acq_rel") == tl.num_programs(0) - 1:
        tl.store(counters, 0)
        tl.store(out, rows.to(tl.float32))
