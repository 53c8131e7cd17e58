"""Integers of 4 and 8 bits as half types, four bytes at a time: device functions that generated kernels call.

The bits of 2**n are those of a half type whose last bit counts 1 (0x4300 is 128 in bfloat16, 0x6400 is 1024 in
float16), so `2**n | v` are the bits of 2**n + v. `prmt` spreads two bytes over a register and `lop3` masks and marks
both: one instruction for a value, where Triton's own conversion takes five. Bytes that come two at a time, as words of
16 bits, lie where the values belong: nothing has to be spread, and matrices of words come from shared memory by the
instruction that brings matrices of half types. On devices without PTX, and under TRITON_INTERPRET=1, which knows no
assembly, the functions say the same in Triton.
"""

# The functions below are Triton's language, not Python: a type hint would mean something else there.
# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
import triton
import triton.language as tl

if triton.knobs.runtime.interpret:

    def without_ptx():
        """Returns True: the interpreter knows no assembly, and has no device to ask."""
        return True

else:
    from litz.targets.triton.backend import without_ptx


def _codes(constants, *registers):
    """Two pieces of assembly that fill, for each of `registers` and each half of a register's four bytes, a register of
    results by those lines. In them {in} is the half, {out} the result, t a spare register. The first piece is for
    bytes, of which neighbours are a half; the second for two words, whose low bytes are a half, and the high ones."""
    count, given = len(registers), f"${2 * len(registers)}"
    known = [f"mov.b32 {name}, 0x{value:08X};" for name, value in constants.items()]

    def code(start, places):
        head = f".reg .b32 low, high, t, {', '.join(constants)};"
        filled = [
            line.format(**{"in": ("low", "high")[half], "out": f"${out}"})
            for out, (half, number) in enumerate(places)
            for line in registers[number]
        ]
        return tl.constexpr("\n".join(["{", head, *start, *filled, "}"]))

    spread = [f"prmt.b32 low, {given}, 0, 0x4140;", f"prmt.b32 high, {given}, 0, 0x4342;"]
    # Read before a result is written, which may have the same register.
    split = [f"mov.b32 low, {given};", f"shr.u32 high, {given}, 8;"]
    pairs = [(half, number) for number in range(count) for half in range(2)]
    return code([*known, *spread], pairs), code([*split, *known], sorted(pairs))


_MARKED = "0xEA;"  # of lop3: (a & b) | c
_NIBBLES = (
    ("lop3.b32 {out}, {in}, 0x000F000F, c, " + _MARKED,),
    (
        "shr.u32 t, {in}, 4;",
        "lop3.b32 {out}, t, 0x000F000F, c, " + _MARKED,
    ),
)
# 128 + the low 7 bits.
_LOW = "lop3.b32 {out}, {in}, 0x007F007F, c, " + _MARKED

_NIBBLES_BF16, _WORD_NIBBLES_BF16 = _codes({"c": 0x43004300}, *_NIBBLES)
_NIBBLES_F16, _WORD_NIBBLES_F16 = _codes({"c": 0x64006400}, *_NIBBLES)
# Less 128 or, where the highest bit is set, 256.
_SIGNED_BF16, _WORD_SIGNED_BF16 = _codes(
    {"c": 0x43004300, "d": 0xBF80BF80},
    (_LOW, "lop3.b32 t, {in}, 0x00800080, c, " + _MARKED, "fma.rn.bf16x2 {out}, t, d, {out};"),
)
# Less 128, and then 128 where the highest bit is set: 0x80 * 0x86 are the bits of 128. (256 + an odd number would be
# rounded.)
_UNSIGNED_BF16, _WORD_UNSIGNED_BF16 = _codes(
    {"c": 0x43004300, "d": 0x3F803F80, "e": 0xC300C300},
    (
        _LOW,
        "and.b32 t, {in}, 0x00800080;",
        "mul.lo.u32 t, t, 0x86;",
        "fma.rn.bf16x2 {out}, {out}, d, e;",
        "fma.rn.bf16x2 {out}, {out}, d, t;",
    ),
)
# 1024 + a byte, its sign turned round where it has one, less 1024 (and 128).
_SIGNED_F16, _WORD_SIGNED_F16 = _codes(
    {"c": 0x64006400, "d": 0x64806480},
    ("and.b32 t, {in}, 0x00FF00FF;", "lop3.b32 {out}, t, 0x00800080, c, 0xBE;", "sub.rn.f16x2 {out}, {out}, d;"),
)  # 0xBE: (a ^ b) | c
_UNSIGNED_F16, _WORD_UNSIGNED_F16 = _codes(
    {"c": 0x64006400},
    ("lop3.b32 {out}, {in}, 0x00FF00FF, c, " + _MARKED, "sub.rn.f16x2 {out}, {out}, c;"),
)


_HELD = tl.constexpr(tl.float32 if triton.knobs.runtime.interpret else tl.bfloat16)
"""What bfloat16 is held as: the interpreter has no arithmetic of it."""


@triton.jit
def _nibbles_bf16(packed):
    """128 + the low and 128 + the high 4 bits of each byte."""
    if without_ptx():
        low, high = (packed & 15).to(tl.uint16) | 0x4300, (packed >> 4).to(tl.uint16) | 0x4300
        return low.to(tl.bfloat16, bitcast=True), high.to(tl.bfloat16, bitcast=True)
    else:
        return tl.inline_asm_elementwise(_NIBBLES_BF16, "=r,=r,=r,=r,r", [packed], (tl.bfloat16, tl.bfloat16), True, 4)


@triton.jit
def _nibbles_f16(packed):
    """1024 + the low and 1024 + the high 4 bits of each byte."""
    if without_ptx():
        low, high = (packed & 15).to(tl.uint16) | 0x6400, (packed >> 4).to(tl.uint16) | 0x6400
        return low.to(tl.float16, bitcast=True), high.to(tl.float16, bitcast=True)
    else:
        return tl.inline_asm_elementwise(_NIBBLES_F16, "=r,=r,=r,=r,r", [packed], (tl.float16, tl.float16), True, 4)


@triton.jit
def _signed_bf16(value):
    if without_ptx():
        return value.to(_HELD)
    else:
        return tl.inline_asm_elementwise(_SIGNED_BF16, "=r,=r,r", [value], tl.bfloat16, True, 4)


@triton.jit
def _unsigned_bf16(value):
    if without_ptx():
        return value.to(_HELD)
    else:
        return tl.inline_asm_elementwise(_UNSIGNED_BF16, "=r,=r,r", [value], tl.bfloat16, True, 4)


@triton.jit
def _signed_f16(value):
    if without_ptx():
        return value.to(tl.float16)
    else:
        return tl.inline_asm_elementwise(_SIGNED_F16, "=r,=r,r", [value], tl.float16, True, 4)


@triton.jit
def _unsigned_f16(value):
    if without_ptx():
        return value.to(tl.float16)
    else:
        return tl.inline_asm_elementwise(_UNSIGNED_F16, "=r,=r,r", [value], tl.float16, True, 4)


# Of the words' low byte, then of their high one.


@triton.jit
def _word_nibbles_bf16(words):
    """128 + each of the four times 4 bits of a word, from the lowest on."""
    if without_ptx():
        low, high = (words & 255).to(tl.uint8), (words >> 8).to(tl.uint8)
        first, second = _nibbles_bf16(low)
        third, fourth = _nibbles_bf16(high)
        return first, second, third, fourth
    else:
        types: tl.constexpr = (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16)
        return tl.inline_asm_elementwise(_WORD_NIBBLES_BF16, "=r,=r,=r,=r,r", [words], types, True, 2)


@triton.jit
def _word_nibbles_f16(words):
    """1024 + each of the four times 4 bits of a word, from the lowest on."""
    if without_ptx():
        low, high = (words & 255).to(tl.uint8), (words >> 8).to(tl.uint8)
        first, second = _nibbles_f16(low)
        third, fourth = _nibbles_f16(high)
        return first, second, third, fourth
    else:
        types: tl.constexpr = (tl.float16, tl.float16, tl.float16, tl.float16)
        return tl.inline_asm_elementwise(_WORD_NIBBLES_F16, "=r,=r,=r,=r,r", [words], types, True, 2)


@triton.jit
def _word_signed_bf16(words):
    if without_ptx():
        low, high = (words & 255).to(tl.uint8), (words >> 8).to(tl.uint8)
        return low.to(tl.int8, bitcast=True).to(_HELD), high.to(tl.int8, bitcast=True).to(_HELD)
    else:
        return tl.inline_asm_elementwise(_WORD_SIGNED_BF16, "=r,=r,r", [words], (tl.bfloat16, tl.bfloat16), True, 2)


@triton.jit
def _word_unsigned_bf16(words):
    if without_ptx():
        low, high = (words & 255).to(tl.uint8), (words >> 8).to(tl.uint8)
        return low.to(_HELD), high.to(_HELD)
    else:
        return tl.inline_asm_elementwise(_WORD_UNSIGNED_BF16, "=r,=r,r", [words], (tl.bfloat16, tl.bfloat16), True, 2)


@triton.jit
def _word_signed_f16(words):
    if without_ptx():
        low, high = (words & 255).to(tl.uint8), (words >> 8).to(tl.uint8)
        return low.to(tl.int8, bitcast=True).to(tl.float16), high.to(tl.int8, bitcast=True).to(tl.float16)
    else:
        return tl.inline_asm_elementwise(_WORD_SIGNED_F16, "=r,=r,r", [words], (tl.float16, tl.float16), True, 2)


@triton.jit
def _word_unsigned_f16(words):
    if without_ptx():
        low, high = (words & 255).to(tl.uint8), (words >> 8).to(tl.uint8)
        return low.to(tl.float16), high.to(tl.float16)
    else:
        return tl.inline_asm_elementwise(_WORD_UNSIGNED_F16, "=r,=r,r", [words], (tl.float16, tl.float16), True, 2)
