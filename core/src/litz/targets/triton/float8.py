"""float8 in Triton: device functions that make float32 and half types of bytes, and bytes of float32, as torch does.

Not by Triton 3.6's own conversions: those, by the instructions of compute capability 8.9 and later, gave wrong values
on an H200 (2026-11-22): half of the elements of some tiles of float8_e4m3fn that were read, and NaN and small numbers
of bfloat16 that were written.

Bytes are read four at a time, by assembly for two numbers of a half type at once: sign, exponent and mantissa in their
places are the number times a power of two, subnormal numbers included, and a multiplication takes that away. That is
three instructions for a number, where float32's arithmetic for each takes ten. Every number of these types but
float8_e8m0fnu's is one of both half types. Bytes that come two at a time, as words of 16 bits, give the low bytes and
the high bytes of the words. On devices without PTX, and under TRITON_INTERPRET=1, which knows no assembly, the
functions say the same in Triton.

torch makes infinity, NaN or the greatest number of what is too large, by type and version, so `overflow` is the byte to
be made of it.
"""

# The functions below are Triton's language, not Python: a type hint would mean something else there.
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
    return tl.constexpr("\n".join(["{", *registers, "mov.b32 given, $2;", *lines, "}"]))


def _code(pairs, mantissa, bias, nan, half):
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


_E4M3FN_BF16, _E4M3FN_F16 = (_code(_BYTES, 3, 7, _SIGNED, half) for half in (_BF16, _F16))
_E4M3FNUZ_BF16, _E4M3FNUZ_F16 = (_code(_BYTES, 3, 8, _UNSIGNED, half) for half in (_BF16, _F16))
_E5M2_BF16, _E5M2_F16 = (_e5m2_code(_BYTES, half) for half in (_BF16, _F16))
_E5M2FNUZ_BF16 = _code(_BYTES, 2, 16, _UNSIGNED, _BF16)  # in a float16's place its large numbers would be infinity
_WORD_E4M3FN_BF16, _WORD_E4M3FN_F16 = (_code(_WORDS, 3, 7, _SIGNED, half) for half in (_BF16, _F16))
_WORD_E4M3FNUZ_BF16, _WORD_E4M3FNUZ_F16 = (_code(_WORDS, 3, 8, _UNSIGNED, half) for half in (_BF16, _F16))
_WORD_E5M2_BF16, _WORD_E5M2_F16 = (_e5m2_code(_WORDS, half) for half in (_BF16, _F16))
_WORD_E5M2FNUZ_BF16 = _code(_WORDS, 2, 16, _UNSIGNED, _BF16)


# Numbers of bytes, one by one: for the few that a register of four is too many for, and for the interpreter.


@triton.jit
def _one(byte, shift: tl.constexpr, power: tl.constexpr, special: tl.constexpr):
    """Exponent and mantissa in a float's place are the value times a power of two, subnormal numbers included; from
    `special` on they are infinity and NaN."""
    word = byte.to(tl.uint32)
    magnitude = (word & 0x7F) << shift
    finite = (magnitude.to(tl.float32, bitcast=True) * power).to(tl.uint32, bitcast=True)
    found = tl.where((word & 0x7F) >= special, magnitude | 0x7F800000, finite)
    return (found | ((word & 0x80) << 24)).to(tl.float32, bitcast=True)


@triton.jit
def _one_f8e4m3fn(byte):
    return _one(byte, 20, 1.329227995784916e36, 0x7F)  # 2 ** 120


@triton.jit
def _one_f8e5m2(byte):
    return _one(byte, 21, 5.192296858534828e33, 0x7C)  # 2 ** 112


@triton.jit
def _one_f8e4m3fnuz(byte):
    return tl.where(byte == 0x80, float("nan"), _one(byte, 20, 6.64613997892458e35, 0x80))  # 2 ** 119


@triton.jit
def _one_f8e5m2fnuz(byte):
    return tl.where(byte == 0x80, float("nan"), _one(byte, 21, 2.596148429267414e33, 0x80))  # 2 ** 111


@triton.jit
def _from_f8e8m0fnu(byte):
    # A power of two alone.
    word = byte.to(tl.uint32)
    bits = tl.where(word == 0, 0x00400000, tl.where(word == 0xFF, 0x7FC00000, word << 23))
    return bits.to(tl.float32, bitcast=True)


# What kernels call: `_from_` gives float32 of bytes, `_half_` a half type, `_word_` that of the low and the high bytes
# of words.

if triton.knobs.runtime.interpret:

    def _half_by(read):
        # Triton's interpreter has no arithmetic of bfloat16, which stays in float32 there.
        return lambda byte, dtype: read(byte) if dtype == tl.bfloat16 else read(byte).to(dtype)

    def _word_by(half):
        return lambda words, dtype: (half((words & 255).to(tl.uint8), dtype), half((words >> 8).to(tl.uint8), dtype))

    _from_f8e4m3fn, _from_f8e5m2 = _one_f8e4m3fn, _one_f8e5m2
    _from_f8e4m3fnuz, _from_f8e5m2fnuz = _one_f8e4m3fnuz, _one_f8e5m2fnuz
    _half_f8e4m3fn, _half_f8e5m2 = _half_by(_from_f8e4m3fn), _half_by(_from_f8e5m2)
    _half_f8e4m3fnuz, _half_f8e5m2fnuz = _half_by(_from_f8e4m3fnuz), _half_by(_from_f8e5m2fnuz)
    _half_f8e8m0fnu = _half_by(_from_f8e8m0fnu)
    _word_f8e4m3fn, _word_f8e5m2 = _word_by(_half_f8e4m3fn), _word_by(_half_f8e5m2)
    _word_f8e4m3fnuz, _word_f8e5m2fnuz = _word_by(_half_f8e4m3fnuz), _word_by(_half_f8e5m2fnuz)

else:

    @triton.jit
    def _bytes_of(words):
        return (words & 255).to(tl.uint8), (words >> 8).to(tl.uint8)

    @triton.jit
    def _half_f8e4m3fn(byte, dtype: tl.constexpr):
        if one_by_one(byte):
            return _one_f8e4m3fn(byte).to(dtype)
        elif dtype == tl.bfloat16:
            return tl.inline_asm_elementwise(_E4M3FN_BF16, "=r,=r,r", [byte], tl.bfloat16, True, 4)
        else:
            return tl.inline_asm_elementwise(_E4M3FN_F16, "=r,=r,r", [byte], tl.float16, True, 4)

    @triton.jit
    def _word_f8e4m3fn(words, dtype: tl.constexpr):
        if without_ptx():
            low, high = _bytes_of(words)
            return _half_f8e4m3fn(low, dtype), _half_f8e4m3fn(high, dtype)
        elif dtype == tl.bfloat16:
            return tl.inline_asm_elementwise(_WORD_E4M3FN_BF16, "=r,=r,r", [words], (tl.bfloat16, tl.bfloat16), True, 2)
        else:
            return tl.inline_asm_elementwise(_WORD_E4M3FN_F16, "=r,=r,r", [words], (tl.float16, tl.float16), True, 2)

    @triton.jit
    def _from_f8e4m3fn(byte):
        return _one_f8e4m3fn(byte) if one_by_one(byte) else _half_f8e4m3fn(byte, tl.float16).to(tl.float32)

    @triton.jit
    def _half_f8e5m2(byte, dtype: tl.constexpr):
        if one_by_one(byte):
            return _one_f8e5m2(byte).to(dtype)
        elif dtype == tl.bfloat16:
            return tl.inline_asm_elementwise(_E5M2_BF16, "=r,=r,r", [byte], tl.bfloat16, True, 4)
        else:
            return tl.inline_asm_elementwise(_E5M2_F16, "=r,=r,r", [byte], tl.float16, True, 4)

    @triton.jit
    def _word_f8e5m2(words, dtype: tl.constexpr):
        if without_ptx():
            low, high = _bytes_of(words)
            return _half_f8e5m2(low, dtype), _half_f8e5m2(high, dtype)
        elif dtype == tl.bfloat16:
            return tl.inline_asm_elementwise(_WORD_E5M2_BF16, "=r,=r,r", [words], (tl.bfloat16, tl.bfloat16), True, 2)
        else:
            return tl.inline_asm_elementwise(_WORD_E5M2_F16, "=r,=r,r", [words], (tl.float16, tl.float16), True, 2)

    @triton.jit
    def _from_f8e5m2(byte):
        return _one_f8e5m2(byte) if one_by_one(byte) else _half_f8e5m2(byte, tl.float16).to(tl.float32)

    @triton.jit
    def _half_f8e4m3fnuz(byte, dtype: tl.constexpr):
        if one_by_one(byte):
            return _one_f8e4m3fnuz(byte).to(dtype)
        elif dtype == tl.bfloat16:
            return tl.inline_asm_elementwise(_E4M3FNUZ_BF16, "=r,=r,r", [byte], tl.bfloat16, True, 4)
        else:
            return tl.inline_asm_elementwise(_E4M3FNUZ_F16, "=r,=r,r", [byte], tl.float16, True, 4)

    @triton.jit
    def _word_f8e4m3fnuz(words, dtype: tl.constexpr):
        if without_ptx():
            low, high = _bytes_of(words)
            return _half_f8e4m3fnuz(low, dtype), _half_f8e4m3fnuz(high, dtype)
        elif dtype == tl.bfloat16:
            return tl.inline_asm_elementwise(
                _WORD_E4M3FNUZ_BF16, "=r,=r,r", [words], (tl.bfloat16, tl.bfloat16), True, 2
            )
        else:
            return tl.inline_asm_elementwise(_WORD_E4M3FNUZ_F16, "=r,=r,r", [words], (tl.float16, tl.float16), True, 2)

    @triton.jit
    def _from_f8e4m3fnuz(byte):
        return _one_f8e4m3fnuz(byte) if one_by_one(byte) else _half_f8e4m3fnuz(byte, tl.float16).to(tl.float32)

    @triton.jit
    def _half_f8e5m2fnuz(byte, dtype: tl.constexpr):
        if one_by_one(byte):
            return _one_f8e5m2fnuz(byte).to(dtype)
        else:
            found = tl.inline_asm_elementwise(_E5M2FNUZ_BF16, "=r,=r,r", [byte], tl.bfloat16, True, 4)
            return found if dtype == tl.bfloat16 else found.to(tl.float32).to(dtype)

    @triton.jit
    def _ptx_f8e5m2fnuz(words):
        types: tl.constexpr = (tl.bfloat16, tl.bfloat16)
        return tl.inline_asm_elementwise(_WORD_E5M2FNUZ_BF16, "=r,=r,r", [words], types, True, 2)

    @triton.jit
    def _word_f8e5m2fnuz(words, dtype: tl.constexpr):
        if without_ptx():
            low, high = _bytes_of(words)
            return _half_f8e5m2fnuz(low, dtype), _half_f8e5m2fnuz(high, dtype)
        elif dtype == tl.bfloat16:
            return _ptx_f8e5m2fnuz(words)
        else:
            low, high = _ptx_f8e5m2fnuz(words)
            return low.to(tl.float32).to(dtype), high.to(tl.float32).to(dtype)

    @triton.jit
    def _from_f8e5m2fnuz(byte):
        return _one_f8e5m2fnuz(byte) if one_by_one(byte) else _half_f8e5m2fnuz(byte, tl.bfloat16).to(tl.float32)

    @triton.jit
    def _half_f8e8m0fnu(byte, dtype: tl.constexpr):
        return _from_f8e8m0fnu(byte).to(dtype)


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
def _to_f8e4m3fn(value, overflow: tl.constexpr):
    return _signed_byte(_float8_written(value, 20, 120 << 23, 16384.0, 0x43E80001, overflow), value, 0x7F)


@triton.jit
def _to_f8e5m2(value, overflow: tl.constexpr):
    return _signed_byte(_float8_written(value, 21, 112 << 23, 128.0, 0x47700000, overflow), value, 0x7F)


# Without infinities and -0, whose byte is NaN.


@triton.jit
def _without_negative_zero(byte, value):
    return tl.where(byte == 0, 0, _signed_byte(byte, value, 0x80)).to(tl.uint8)


@triton.jit
def _to_f8e4m3fnuz(value, overflow: tl.constexpr):
    byte = _float8_written(value, 20, 119 << 23, 8192.0, 0x43780000, overflow)
    return _without_negative_zero(byte, value)


@triton.jit
def _to_f8e5m2fnuz(value, overflow: tl.constexpr):
    byte = _float8_written(value, 21, 111 << 23, 64.0, 0x47700000, overflow)
    return _without_negative_zero(byte, value)


# A power of two alone.


@triton.jit
def _to_f8e8m0fnu(value, overflow: tl.constexpr):
    # Halfway between two powers is rounded up; infinity and NaN are NaN.
    bits = value.to(tl.uint32, bitcast=True)
    exponent = (bits >> 23) & 0xFF
    rest = bits & 0x7FFFFF
    up = (rest > 0x400000) | ((rest == 0x400000) & (exponent > 0))
    return tl.where(exponent == 0xFF, overflow, exponent + up.to(tl.uint32)).to(tl.uint8)
