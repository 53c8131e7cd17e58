"""What litz knows of torch's dtypes, as data: a row for each type that Loops load and store.

A row says how an element lies in memory and what it is computed in. Types that are only stored (float8) are moved and
converted in Loops, and nothing else: torch computes with them as little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Literal

import torch

Kind = Literal["float", "signed", "unsigned", "bool"]


@dataclass(frozen=True)
class Bits:
    """A float of 8 bits: sign, exponent, `mantissa` bits; with exponent e it is 2 ** (e - bias) times 1 + the mantissa.

    special: the bytes without a sign from here on are infinity or NaN. signed_zero: is there a -0? Where there is none,
    its byte is NaN.
    """

    mantissa: int
    bias: int
    special: int
    signed_zero: bool = True

    @property
    def nan(self) -> int:
        """Returns the byte of NaN."""
        return 0x7F if self.signed_zero else 0x80


@dataclass(frozen=True)
class Storage:
    """A type as it is stored.

    dtype: torch's. name: litz's, for names and reports. kind: of number. computed: the dtype that its values are held
    in between a load and a store, which rounds. sums: the dtype in which tensor cores sum its products; None where they
    have none, or kernels leave those to the library (float64). only_stored: is it moved and converted, but not computed
    with? bits: how its 8 bits are read, where no language has the type.
    """

    dtype: torch.dtype
    name: str
    kind: Kind
    computed: torch.dtype
    sums: torch.dtype | None = None
    only_stored: bool = False
    bits: Bits | None = None

    @cached_property
    def overflow(self) -> int:
        """Returns the byte of a float8 that infinity, and values that are too large, are converted to. The byte
        depends on torch's version (2.12 made float8_e4m3fn saturate)."""
        byte = torch.tensor(float("inf"), device="cpu").to(self.dtype).view(torch.uint8)
        return int(byte)


def _own(dtype: torch.dtype, name: str, kind: Kind, sums: torch.dtype | None = None) -> Storage:
    return Storage(dtype, name, kind, dtype, sums)


def _float8(name: str, bits: Bits | None, sums: torch.dtype | None = None) -> Storage:
    dtype = getattr(torch, f"float8_{name}")
    return Storage(dtype, f"f8{name}", "float", torch.float32, sums, only_stored=True, bits=bits)


_ROWS = (
    Storage(torch.float16, "f16", "float", torch.float32, torch.float32),
    Storage(torch.bfloat16, "bf16", "float", torch.float32, torch.float32),
    _own(torch.float32, "f32", "float", torch.float32),
    _own(torch.float64, "f64", "float"),
    _float8("e4m3fn", Bits(3, 7, 0x7F), torch.float32),
    _float8("e5m2", Bits(2, 15, 0x7C), torch.float32),
    _float8("e4m3fnuz", Bits(3, 8, 0x80, signed_zero=False)),
    _float8("e5m2fnuz", Bits(2, 16, 0x80, signed_zero=False)),
    _float8("e8m0fnu", None),  # a power of two alone
    _own(torch.int8, "i8", "signed", torch.int32),
    *(_own(getattr(torch, f"int{n}"), f"i{n}", "signed") for n in (16, 32, 64)),
    *(_own(getattr(torch, f"uint{n}"), f"u{n}", "unsigned") for n in (8, 16, 32, 64)),
    _own(torch.bool, "bool", "bool"),
)
STORAGE: Mapping[torch.dtype, Storage] = MappingProxyType({row.dtype: row for row in _ROWS})
"""Every type that Loops load and store. Others (complex, quantized, packed float4) go through Extern."""


def _of(*kinds: Kind) -> frozenset[torch.dtype]:
    return frozenset(row.dtype for row in _ROWS if row.kind in kinds)


STORED = frozenset(STORAGE)
"""The element types that Loops load, store, move and convert."""
FLOAT8 = frozenset(row.dtype for row in _ROWS if row.only_stored)
"""The dtypes that are stored and converted but never computed with."""
FLOAT = _of("float") - FLOAT8
SIGNED = _of("signed")
UNSIGNED = _of("unsigned")
INTEGER = SIGNED | UNSIGNED
SUPPORTED = STORED - FLOAT8
"""The element types that Loops compute with."""
ROUNDED = frozenset(row.dtype for row in _ROWS if row.computed != row.dtype)
"""The dtypes whose values are held in float32 and rounded where they are cast or stored."""
HALF = ROUNDED - FLOAT8

SHORT: Mapping[torch.dtype, str] = {row.dtype: row.name for row in _ROWS}


def short(dtype: torch.dtype) -> str:
    """Returns litz's short name of a dtype, such as "f32"; torch's own name for a dtype without one."""
    return SHORT.get(dtype, str(dtype).removeprefix("torch."))


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype that values of `dtype` are computed in: float32 for half types, which round when they are cast
    or stored, and `dtype` itself for everything else."""
    row = STORAGE.get(dtype)
    return dtype if row is None else row.computed


def survives(small: torch.dtype, large: torch.dtype) -> bool:
    """Returns whether every value of `small`, a float dtype, survives a conversion to `large` and back."""
    if not (small.is_floating_point and large.is_floating_point) or large in FLOAT8:
        return False
    if small in FLOAT8:
        return large != torch.float16 or small != torch.float8_e8m0fnu  # whose exponents are float32's
    return torch.promote_types(small, large) == large


def least(dtype: torch.dtype) -> bool | int | float:
    """Returns the value of a dtype that no other is less than."""
    if dtype.is_floating_point:
        return -float("inf")
    return False if dtype == torch.bool else torch.iinfo(dtype).min


def greatest(dtype: torch.dtype) -> bool | int | float:
    """Returns the value of a dtype that no other is greater than."""
    if dtype.is_floating_point:
        return float("inf")
    return True if dtype == torch.bool else torch.iinfo(dtype).max
