"""What the IR needs to know of torch's dtypes."""

from __future__ import annotations

import torch

HALF = frozenset({torch.float16, torch.bfloat16})
FLOAT = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
SIGNED = frozenset({torch.int8, torch.int16, torch.int32, torch.int64})
UNSIGNED = frozenset({torch.uint8, torch.uint16, torch.uint32, torch.uint64})
INTEGER = SIGNED | UNSIGNED
SUPPORTED = FLOAT | INTEGER | {torch.bool}
"""The element types that Loops compute with. Others (complex, quantized, float8) go through Extern."""

SHORT = {
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.bool: "bool",
}


def short(dtype: torch.dtype) -> str:
    """f32 for torch.float32, and so on; torch's own name for what has none."""
    return SHORT.get(dtype, str(dtype).removeprefix("torch."))


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type that values of `dtype` are computed in: half types compute in float32 and round when they are cast
    or stored, everything else in itself."""
    return torch.float32 if dtype in HALF else dtype


def least(dtype: torch.dtype) -> bool | int | float:
    """The value that no other is less than."""
    if dtype.is_floating_point:
        return -float("inf")
    return False if dtype == torch.bool else torch.iinfo(dtype).min


def greatest(dtype: torch.dtype) -> bool | int | float:
    """The value that no other is greater than."""
    if dtype.is_floating_point:
        return float("inf")
    return True if dtype == torch.bool else torch.iinfo(dtype).max
