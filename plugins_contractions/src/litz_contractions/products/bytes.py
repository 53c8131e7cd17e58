"""Integers of 4 and 8 bits as half types, four bytes at a time: device functions that generated kernels call.

The bits of 2**n are those of a half type whose last bit counts 1 (0x4300 is 128 in bfloat16, 0x6400 is 1024 in
float16), so `2**n | v` are the bits of 2**n + v. `prmt` spreads two bytes over a register and `lop3` masks and marks
both: one instruction for a value, where Triton's own conversion takes five. Bytes that come two at a time, as words of
16 bits, lie where the values belong: nothing has to be spread, and matrices of words come from shared memory by the
instruction that brings matrices of half types. On devices without PTX, and under TRITON_INTERPRET=1, which knows no
assembly, the functions say the same in Triton.
"""

# The functions below are Triton's language, not Python: a type hint would mean something else there.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
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
        return "\n".join(["{", head, *start, *filled, "}"])

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

_CODES = {
    (kind, half, words): code
    for (kind, half), codes in {
        ("nibbles", "bf16"): _codes({"c": 0x43004300}, *_NIBBLES),
        ("nibbles", "f16"): _codes({"c": 0x64006400}, *_NIBBLES),
        # Less 128 or, where the highest bit is set, 256.
        ("signed", "bf16"): _codes(
            {"c": 0x43004300, "d": 0xBF80BF80},
            (_LOW, "lop3.b32 t, {in}, 0x00800080, c, " + _MARKED, "fma.rn.bf16x2 {out}, t, d, {out};"),
        ),
        # Less 128, and then 128 where the highest bit is set: 0x80 * 0x86 are the bits of 128. (256 + an odd number
        # would be rounded.)
        ("unsigned", "bf16"): _codes(
            {"c": 0x43004300, "d": 0x3F803F80, "e": 0xC300C300},
            (
                _LOW,
                "and.b32 t, {in}, 0x00800080;",
                "mul.lo.u32 t, t, 0x86;",
                "fma.rn.bf16x2 {out}, {out}, d, e;",
                "fma.rn.bf16x2 {out}, {out}, d, t;",
            ),
        ),
        # 1024 + a byte, its sign turned round where it has one, less 1024 (and 128). 0xBE: (a ^ b) | c
        ("signed", "f16"): _codes(
            {"c": 0x64006400, "d": 0x64806480},
            (
                "and.b32 t, {in}, 0x00FF00FF;",
                "lop3.b32 {out}, t, 0x00800080, c, 0xBE;",
                "sub.rn.f16x2 {out}, {out}, d;",
            ),
        ),
        ("unsigned", "f16"): _codes(
            {"c": 0x64006400},
            ("lop3.b32 {out}, {in}, 0x00FF00FF, c, " + _MARKED, "sub.rn.f16x2 {out}, {out}, c;"),
        ),
    }.items()
    for words, code in zip((False, True), codes, strict=True)
}


@tl.core.builtin
def _assembled(given, dtype, kind, words, _semantic=None):
    """The numbers of bytes, four at a time, or of the low and then the high bytes of words, two at a time."""
    half, words = tl.bfloat16 if dtype == tl.bfloat16 else tl.float16, words.value
    code = _CODES[kind.value, "bf16" if half == tl.bfloat16 else "f16", words]
    registers = 4 if kind.value == "nibbles" else 2
    count = registers if words else registers // 2
    types, places = (half,) * count if count > 1 else half, ",".join(["=r"] * registers + ["r"])
    return tl.inline_asm_elementwise(code, places, [given], types, True, 2 if words else 4, _semantic=_semantic)


_HELD = tl.constexpr(triton.knobs.runtime.interpret)
"""Is bfloat16 held as float32? The interpreter has no arithmetic of it."""


@triton.jit
def _marked(bits, dtype: tl.constexpr):
    """2**n + small integers."""
    unit: tl.constexpr = 0x4300 if dtype == tl.bfloat16 else 0x6400
    return (bits.to(tl.uint16) | unit).to(dtype, bitcast=True)


@triton.jit
def _half_integer(byte, dtype: tl.constexpr, kind: tl.constexpr):
    """The `signed` or `unsigned` number of each byte; of `nibbles` 2**n + the low and 2**n + the high 4 bits."""
    if without_ptx():
        if kind == "nibbles":
            return _marked(byte & 15, dtype), _marked(byte >> 4, dtype)
        else:
            number = byte.to(tl.int8, bitcast=True) if kind == "signed" else byte
            return number.to(tl.float32 if _HELD and dtype == tl.bfloat16 else dtype)
    else:
        return _assembled(byte, dtype, kind, False)


@triton.jit
def _word_integer(words, dtype: tl.constexpr, kind: tl.constexpr):
    """The same of the low and of the high byte of each word."""
    if without_ptx():
        low = _half_integer((words & 255).to(tl.uint8), dtype, kind)
        high = _half_integer((words >> 8).to(tl.uint8), dtype, kind)
        if kind == "nibbles":
            return low[0], low[1], high[0], high[1]
        else:
            return low, high
    else:
        return _assembled(words, dtype, kind, True)
