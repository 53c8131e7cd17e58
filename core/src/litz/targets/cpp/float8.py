"""Conversions of float8 in C++, from the rows of `litz.ir.dtypes.STORAGE`. Out: pieces of the prelude, by name.

The conversions are integer arithmetic without branches, which vectorizes in any loop: eight values at a time with AVX2,
sixteen with AVX-512.
"""

from __future__ import annotations

from collections.abc import Mapping

from litz.ir.dtypes import FLOAT8, STORAGE, Bits, Storage


def _from(row: Storage, bits: Bits) -> str:
    """Returns the C function that makes a float of a float8. Exponent and mantissa in a float's place are the value
    times a power of two, subnormals included; infinity and NaN are treated apart."""
    shift, power = 23 - bits.mantissa, 127 - bits.bias
    special = f"magnitude >= 0x{bits.special:x}u ? (magnitude << {shift} | 0x7f800000) : bits(finite)"
    if not bits.signed_zero:
        special = "h == 0x80 ? 0x7fc00000 : bits(finite)"
    return f"""\
static inline float from_{row.name}({row.name} h) {{
  const u32 magnitude = h & 0x7f;
  const float finite = float_of(magnitude << {shift}) * 0x1p{power}f;
  return float_of(({special}) | (u32)(h & 0x80) << 24);
}}
"""


def _to(row: Storage, bits: Bits) -> str:
    shift, lift = 23 - bits.mantissa, (127 - bits.bias) << 23
    spacing = f"0x1p{24 - bits.bias - bits.mantissa}f"
    greatest = (row.overflow << shift) + lift
    nan = "" if row.overflow == bits.nan else f"  h = magnitude > 0x7f800000 ? 0x{bits.nan:x} : h;\n"
    signed = "(h | (b >> 24 & 0x80))"
    return f"""\
static inline {row.name} to_{row.name}(float x) {{  // to nearest, ties to even
  const u32 b = bits(x), magnitude = b & 0x7fffffff;
  // As a number of this type, what is too large would be this.
  const u32 m = magnitude < 0x{greatest:x}u ? magnitude : 0x{greatest:x}u;
  const u32 normal = (m - 0x{lift:x}u + 0x{(1 << shift - 1) - 1:x} + (m >> {shift} & 1)) >> {shift};
  // Adding this rounds to multiples of the spacing of subnormal numbers.
  const u32 subnormal = bits(float_of(m) + {spacing}) - bits({spacing});
  u32 h = m < 0x{lift + (1 << 23):x}u ? subnormal : normal;
{nan}\
  return ({row.name}){signed if bits.signed_zero else f"(h == 0 ? 0 : {signed})"};
}}
"""


_POWERS = """\
static inline float from_f8e8m0fnu(f8e8m0fnu h) {
  const u32 normal = h == 0xff ? 0x7fc00000 : (u32)h << 23;
  return float_of(h == 0 ? 0x00400000 : normal);
}
"""
_TO_POWERS = """\
static inline f8e8m0fnu to_f8e8m0fnu(float x) {  // to nearest; halfway between two powers is rounded up
  const u32 b = bits(x), exponent = b >> 23 & 0xff, rest = b & 0x7fffff;
  const u32 up = rest > 0x400000 || (rest == 0x400000 && exponent > 0) ? 1 : 0;
  return (f8e8m0fnu)(exponent == 0xff ? 0xff : exponent + up);
}
"""


def _pieces() -> Mapping[tuple[str, ...], str]:
    found: dict[tuple[str, ...], str] = {("from_f8e8m0fnu",): _POWERS, ("to_f8e8m0fnu",): _TO_POWERS}
    for row in (STORAGE[dtype] for dtype in sorted(FLOAT8, key=str)):
        if row.bits is not None:
            found[f"from_{row.name}",] = _from(row, row.bits)
            found[f"to_{row.name}",] = _to(row, row.bits)
    return found


FLOAT8_PIECES = _pieces()
