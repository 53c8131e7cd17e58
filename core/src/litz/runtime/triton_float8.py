"""float8 in Triton: device functions that make float32 of bytes, and bytes of float32, as torch does.

By integer arithmetic, on every device. Triton 3.6's own conversions, by the instructions of compute capability 8.9 and
later, gave wrong values on an H200 (2026-11-22): half of the elements of some tiles of float8_e4m3fn that were read,
and NaN and small numbers of bfloat16 that were written. torch makes infinity, NaN or the greatest number of what is too
large, by type and version, so `overflow` is the byte to be made of it.
"""

# The functions below are Triton's language, not Python: a type hint would mean something else there.
import triton
import triton.language as tl


@triton.jit
def _float8_read(byte, shift: tl.constexpr, power: tl.constexpr, special: tl.constexpr):
    """Exponent and mantissa in a float's place are the value times a power of two, subnormal numbers included; from
    `special` on they are infinity and NaN."""
    word = byte.to(tl.uint32)
    magnitude = (word & 0x7F) << shift
    finite = (magnitude.to(tl.float32, bitcast=True) * power).to(tl.uint32, bitcast=True)
    found = tl.where((word & 0x7F) >= special, magnitude | 0x7F800000, finite)
    return (found | ((word & 0x80) << 24)).to(tl.float32, bitcast=True)


@triton.jit
def _float8_written(
    value, shift: tl.constexpr, lift: tl.constexpr, spacing: tl.constexpr, least: tl.constexpr, overflow: tl.constexpr
):
    """The byte without a sign, to nearest, ties to even, of what is no NaN. lift: the bits of the least normal number's
    half. spacing: what to add to round to multiples of the spacing of subnormal numbers. least: the bits of the least
    magnitude that is too large."""
    magnitude = value.to(tl.uint32, bitcast=True) & 0x7FFFFFFF
    half: tl.constexpr = (1 << (shift - 1)) - 1
    normal = (magnitude - lift + half + ((magnitude >> shift) & 1)) >> shift
    base = tl.full([], spacing, tl.float32).to(tl.uint32, bitcast=True)
    subnormal = (magnitude.to(tl.float32, bitcast=True) + spacing).to(tl.uint32, bitcast=True) - base
    byte = tl.where(magnitude < lift + (1 << 23), subnormal, normal)
    return tl.where(magnitude >= least, overflow, byte)


@triton.jit
def _signed_byte(byte, value, nan: tl.constexpr):
    """With the sign of the value, or NaN."""
    bits = value.to(tl.uint32, bitcast=True)
    byte = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, nan, byte)
    return (byte | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def _from_f8e4m3fn(byte):
    return _float8_read(byte, 20, 1.329227995784916e36, 0x7F)  # 2 ** 120


@triton.jit
def _to_f8e4m3fn(value, overflow: tl.constexpr):
    return _signed_byte(_float8_written(value, 20, 120 << 23, 16384.0, 0x43E80001, overflow), value, 0x7F)


@triton.jit
def _from_f8e5m2(byte):
    return _float8_read(byte, 21, 5.192296858534828e33, 0x7C)  # 2 ** 112


@triton.jit
def _to_f8e5m2(value, overflow: tl.constexpr):
    return _signed_byte(_float8_written(value, 21, 112 << 23, 128.0, 0x47700000, overflow), value, 0x7F)


# Without infinities and -0, whose byte is NaN.


@triton.jit
def _without_negative_zero(byte, value):
    return tl.where(byte == 0, 0, _signed_byte(byte, value, 0x80)).to(tl.uint8)


@triton.jit
def _from_f8e4m3fnuz(byte):
    return tl.where(byte == 0x80, float("nan"), _float8_read(byte, 20, 6.64613997892458e35, 0x80))  # 2 ** 119


@triton.jit
def _to_f8e4m3fnuz(value, overflow: tl.constexpr):
    byte = _float8_written(value, 20, 119 << 23, 8192.0, 0x43780000, overflow)
    return _without_negative_zero(byte, value)


@triton.jit
def _from_f8e5m2fnuz(byte):
    return tl.where(byte == 0x80, float("nan"), _float8_read(byte, 21, 2.596148429267414e33, 0x80))  # 2 ** 111


@triton.jit
def _to_f8e5m2fnuz(value, overflow: tl.constexpr):
    byte = _float8_written(value, 21, 111 << 23, 64.0, 0x47700000, overflow)
    return _without_negative_zero(byte, value)


# A power of two alone.


@triton.jit
def _from_f8e8m0fnu(byte):
    word = byte.to(tl.uint32)
    bits = tl.where(word == 0, 0x00400000, tl.where(word == 0xFF, 0x7FC00000, word << 23))
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _to_f8e8m0fnu(value, overflow: tl.constexpr):
    # Halfway between two powers is rounded up; infinity and NaN are NaN.
    bits = value.to(tl.uint32, bitcast=True)
    exponent = (bits >> 23) & 0xFF
    rest = bits & 0x7FFFFF
    up = (rest > 0x400000) | ((rest == 0x400000) & (exponent > 0))
    return tl.where(exponent == 0xFF, overflow, exponent + up.to(tl.uint32)).to(tl.uint8)


# As half types. Triton's interpreter has no arithmetic of bfloat16, which stays in float32 there.

if triton.knobs.runtime.interpret:

    def _as_half(value, dtype):
        return value if dtype == tl.bfloat16 else value.to(dtype)

else:

    @triton.jit
    def _as_half(value, dtype: tl.constexpr):
        return value.to(dtype)
