"""float8 in Triton: device functions that make float32 and half types of bytes, and bytes of float32, as torch does.

Not by Triton 3.6's own conversions: those, by the instructions of compute capability 8.9 and later, gave wrong values
on an H200 (2026-11-22): half of the elements of some tiles of float8_e4m3fn that were read, and NaN and small numbers
of bfloat16 that were written.

Bytes are read four at a time, by assembly for two numbers of a half type at once: sign, exponent and mantissa in their
places are the number times a power of two, subnormal numbers included, and a multiplication takes that away. A
number takes three instructions so, where float32's arithmetic takes ten. Every number of these types but
float8_e8m0fnu's is one of both half types. Bytes that come two at a time, as words of 16 bits, give the low bytes and
the high bytes of the words. On devices without PTX, and under TRITON_INTERPRET=1, which knows no assembly, the
functions say the same in Triton.

torch makes infinity, NaN or the greatest number of what is too large, by type and version, so `overflow` is the byte to
be made of it.
"""

# The functions below are Triton's language, not Python: a type hint would mean something else there.
from functools import partial

import triton
import triton.language as tl

from litz.targets.triton.backend import one_by_one, without_ptx

# The assembly.

_BF16, _F16 = ("bf16", 7, 127), ("f16", 10, 15)  # the type's name, bits of its mantissa, the bias of its exponent
_BYTES, _WORDS = ((0, 1), (2, 3)), ((0, 2), (1, 3))  # the bytes that a register of results is made of
# How to set the highest bit of each byte that is NaN: 0x7F with either sign, or -0.
_SIGNED = ("and.b32 nan, given, 0x7F7F7F7F;", "add.u32 nan, nan, 0x01010101;")
_UNSIGNED = ("and.b32 nan, given, 0x7F7F7F7F;", "add.u32 nan, nan, 0x7F7F7F7F;", "lop3.b32 nan, given, nan, 0, 0x30;")


def _selector(*bytes_):
    """Of prmt: which byte each byte of the result is. 4: 0 (of a second register that is 0). 8 + n: the sign of n."""
    return f"0x{sum(byte << 4 * place for place, byte in enumerate(bytes_)):04X}"


def _block(registers, lines):
    # The given bytes are read first: a result may have the same register.
    return "\n".join(["{", *registers, "mov.b32 given, $2;", *lines, "}"])


def _code(mantissa, bias, nan, pairs, half):
    """Assembly for a type without infinities: four bytes to two registers of a half type."""
    name, places, middle = half
    shift = places - mantissa
    kept, factor = 0x8000 | 0x7F << shift, (2 * middle - bias) << places
    lines = [*nan, f"mov.b32 factor, 0x{factor * 0x10001:08X};", "mov.b32 zero, 0x80008000;"]  # -0 + -0 is -0
    for out, (i, j) in enumerate(pairs):
        lines += [
            f"prmt.b32 x, given, 0, {_selector(i, 8 + i, j, 8 + j)};",
            f"prmt.b32 all, nan, 0, {_selector(8 + i, 8 + i, 8 + j, 8 + j)};",
            f"shl.b32 x, x, {shift};",
            f"lop3.b32 x, x, 0x{kept * 0x10001:08X}, all, 0xEA;",  # (a & b) | c
            f"fma.rn.{name}x2 ${out}, x, factor, zero;",
        ]
    return _block([".reg .b32 given, nan, x, all, factor, zero;"], lines)


def _e5m2_code(pairs, half):
    """float8_e5m2 is the higher byte of float16, and bfloat16 is made of that by way of float32."""
    registers, lines = [".reg .b32 given, x;", ".reg .b16 first, second;", ".reg .f32 low, high;"], []
    for out, (i, j) in enumerate(pairs):
        lines.append(f"prmt.b32 {f'${out}' if half is _F16 else 'x'}, given, 0, {_selector(4, i, 4, j)};")
        if half is _BF16:
            lines += ["mov.b32 {first, second}, x;", "cvt.f32.f16 low, first;", "cvt.f32.f16 high, second;"]
            lines.append(f"cvt.rn.bf16x2.f32 ${out}, high, low;")
    return _block(registers, lines)


_CODES = {
    (kind, half[0], pairs is _WORDS): code(pairs, half)
    for kind, code, halves in (
        ("f8e4m3fn", partial(_code, 3, 7, _SIGNED), (_BF16, _F16)),
        ("f8e4m3fnuz", partial(_code, 3, 8, _UNSIGNED), (_BF16, _F16)),
        ("f8e5m2", _e5m2_code, (_BF16, _F16)),
        ("f8e5m2fnuz", partial(_code, 2, 16, _UNSIGNED), (_BF16,)),  # float16 has no room for its large numbers
    )
    for half in halves
    for pairs in (_BYTES, _WORDS)
}


@tl.core.builtin
def _halves(given, kind, dtype, words, _semantic=None):
    """Numbers of a half type of bytes, four at a time, or of the low and the high bytes of words, two at a time. The
    numbers are bfloat16 where the kind has no assembly for `dtype`."""
    name, words = "bf16" if dtype == tl.bfloat16 or kind.value == "f8e5m2fnuz" else "f16", words.value
    half = tl.bfloat16 if name == "bf16" else tl.float16
    code, types = _CODES[kind.value, name, words], (half, half) if words else half
    return tl.inline_asm_elementwise(code, "=r,=r,r", [given], types, True, 2 if words else 4, _semantic=_semantic)


# Numbers of bytes, one by one: for the few that a register of four is too many for, and for the interpreter.


@triton.jit
def _finite(byte, shift: tl.constexpr, power: tl.constexpr, special: tl.constexpr):
    """Exponent and mantissa in a float's place are the value times a power of two, subnormal numbers included; from
    `special` on they are infinity and NaN."""
    word = byte.to(tl.uint32)
    magnitude = (word & 0x7F) << shift
    finite = (magnitude.to(tl.float32, bitcast=True) * power).to(tl.uint32, bitcast=True)
    found = tl.where((word & 0x7F) >= special, magnitude | 0x7F800000, finite)
    return (found | ((word & 0x80) << 24)).to(tl.float32, bitcast=True)


@triton.jit
def _one(byte, kind: tl.constexpr):
    """float32 of a byte."""
    if kind == "f8e4m3fn":
        return _finite(byte, 20, 1.329227995784916e36, 0x7F)  # 2 ** 120
    elif kind == "f8e5m2":
        return _finite(byte, 21, 5.192296858534828e33, 0x7C)  # 2 ** 112
    elif kind == "f8e4m3fnuz":
        return tl.where(byte == 0x80, float("nan"), _finite(byte, 20, 6.64613997892458e35, 0x80))  # 2 ** 119
    elif kind == "f8e5m2fnuz":
        return tl.where(byte == 0x80, float("nan"), _finite(byte, 21, 2.596148429267414e33, 0x80))  # 2 ** 111
    else:  # f8e8m0fnu: a power of two alone
        word = byte.to(tl.uint32)
        bits = tl.where(word == 0, 0x00400000, tl.where(word == 0xFF, 0x7FC00000, word << 23))
        return bits.to(tl.float32, bitcast=True)


# What kernels call: float32 of bytes, a half type, and that of the low and the high bytes of words.

if triton.knobs.runtime.interpret:

    def _from_float8(byte, kind):
        return _one(byte, kind)

    def _half_float8(byte, dtype, kind):
        # Triton's interpreter has no arithmetic of bfloat16, which stays in float32 there.
        return _one(byte, kind) if dtype == tl.bfloat16 else _one(byte, kind).to(dtype)

    def _word_float8(words, dtype, kind):
        return tuple(_half_float8(each.to(tl.uint8), dtype, kind) for each in (words & 255, words >> 8))

else:

    @triton.jit
    def _half_float8(byte, dtype: tl.constexpr, kind: tl.constexpr):
        if kind == "f8e8m0fnu" or one_by_one(byte):
            return _one(byte, kind).to(dtype)
        else:
            found = _halves(byte, kind, dtype, False)
            return found if found.dtype == dtype else found.to(tl.float32).to(dtype)

    @triton.jit
    def _word_float8(words, dtype: tl.constexpr, kind: tl.constexpr):
        if without_ptx():
            low, high = (words & 255).to(tl.uint8), (words >> 8).to(tl.uint8)
            return _half_float8(low, dtype, kind), _half_float8(high, dtype, kind)
        else:
            low, high = _halves(words, kind, dtype, True)
            if low.dtype == dtype:
                return low, high
            else:
                return low.to(tl.float32).to(dtype), high.to(tl.float32).to(dtype)

    @triton.jit
    def _from_float8(byte, kind: tl.constexpr):
        if kind == "f8e8m0fnu" or one_by_one(byte):
            return _one(byte, kind)
        else:
            return _halves(byte, kind, tl.float16, False).to(tl.float32)


# Bytes of numbers.


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
def _to_float8(value, kind: tl.constexpr, overflow: tl.constexpr):
    """The byte of a float32. Kinds that end in "fnuz" have neither infinities nor -0, whose byte is NaN."""
    if kind == "f8e4m3fn":
        return _signed_byte(_float8_written(value, 20, 120 << 23, 16384.0, 0x43E80001, overflow), value, 0x7F)
    elif kind == "f8e5m2":
        return _signed_byte(_float8_written(value, 21, 112 << 23, 128.0, 0x47700000, overflow), value, 0x7F)
    elif kind == "f8e8m0fnu":
        # Halfway between two powers is rounded up; infinity and NaN are NaN.
        bits = value.to(tl.uint32, bitcast=True)
        exponent, rest = (bits >> 23) & 0xFF, bits & 0x7FFFFF
        up = (rest > 0x400000) | ((rest == 0x400000) & (exponent > 0))
        return tl.where(exponent == 0xFF, overflow, exponent + up.to(tl.uint32)).to(tl.uint8)
    else:
        if kind == "f8e4m3fnuz":
            byte = _float8_written(value, 20, 119 << 23, 8192.0, 0x43780000, overflow)
        else:  # f8e5m2fnuz
            byte = _float8_written(value, 21, 111 << 23, 64.0, 0x47700000, overflow)
        return tl.where(byte == 0, 0, _signed_byte(byte, value, 0x80)).to(tl.uint8)
