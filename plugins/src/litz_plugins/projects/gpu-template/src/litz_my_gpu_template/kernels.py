"""The kernel. Imported where a GPU's program is compiled, so nothing else needs Triton."""

import triton
import triton.language as tl


# Triton's language, not Python: parameters have no type hints but tl.constexpr.
@triton.jit
def thin_product(
    a,
    b,
    out,
    rows,
    depth,
    columns,
    a_row,
    a_column,
    b_row,
    b_column,
    out_row,
    out_column,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    SILU: tl.constexpr,
    INDEX: tl.constexpr,
):
    """ROWS rows of out = a @ b, or of silu(a @ b). COLUMNS is at least `columns`."""
    row = tl.program_id(0).to(INDEX) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, depth, DEPTH):
        inner = start + tl.arange(0, DEPTH)
        left_at = a + row[:, None] * a_row + inner[None, :] * a_column
        right_at = b + inner[:, None] * b_row + column[None, :] * b_column
        left = tl.load(left_at, mask=(row < rows)[:, None] & (inner < depth)[None, :], other=0)
        right = tl.load(right_at, mask=(inner < depth)[:, None] & (column < columns)[None, :], other=0)
        total = tl.dot(left, right, total, input_precision="ieee")
    # Rounded as the product alone would be, so that the result is the same with and without the kernel.
    value = total.to(out.dtype.element_ty).to(tl.float32)
    if SILU:
        value = value * tl.sigmoid(value)
    out_at = out + row[:, None] * out_row + column[None, :] * out_column
    tl.store(out_at, value.to(out.dtype.element_ty), mask=(row < rows)[:, None] & (column < columns)[None, :])
