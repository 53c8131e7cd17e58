"""What generated C++ is made of, as far as a compiler may get it wrong: a row per construct.

In: the text of a kernel. Out: the names of the constructs in it. A compiler is qualified construct by construct
(`litz.targets.cpp.qualify`), and a kernel is built in the safe forms of those of its constructs that the compiler
failed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .prelude import VECTOR_BINARY, VECTOR_UNARY

WITHOUT_VECTORS = ("without vectors", "unoptimized")
"""Safe forms in the order in which they are tried (`litz.runtime.cpp_compiler.FORMS` has the flags of each)."""


@dataclass(frozen=True)
class Construct:
    """A construct: `pattern` finds it in a kernel's text, the prelude aside; `forms` are its safe forms, most cautious
    last; `about` says what it is."""

    name: str
    pattern: str
    about: str
    forms: tuple[str, ...] = WITHOUT_VECTORS


_row = Construct
_MATH = "|".join((*VECTOR_UNARY, *VECTOR_BINARY, "power"))
_ROW = r"alignas\(64\) \w+ "

CONSTRUCTS: tuple[Construct, ...] = (
    _row("vector loops", r"#pragma omp (simd|\w+ simd|parallel for simd)", "arithmetic in a loop of vectors"),
    _row("threads", r"#pragma omp (parallel|for)", "loops that threads share, segments one after the other"),
    _row("float16", r"(from|to|rounded)_f16\(", "float16 converted by bits"),
    _row("float16 blocks", r"(widen|narrow)_f16\(", "float16 converted a block at a time"),
    _row("bfloat16", r"(from|to|rounded)_bf16\(", "bfloat16 converted by bits"),
    _row("float8", r"(from|to)_f8\w+\(", "float8 converted by bits"),
    _row("masked loads", r"\? (from_\w+\()?p\d+\[", "loads that are made where a mask holds"),
    _row("masked stores", r"if \(\w+\) (\w+\(&|\{ auto& place = )?p\d+\[", "stores that are made where a mask holds"),
    _row("selections", r"\? v\d+ : v\d+", "one of two values that are both there"),
    _row("tests as positions", r"\bALL_BITS\b", "an index of a test, an integer of a float"),
    _row("unrolled loops", r"#pragma GCC unroll", "a short loop unrolled within a loop of vectors"),
    _row("steps apart", r"ONE_BY_ONE", "a short loop around which nothing is vectorized"),
    _row("tiles", r"\btranspose\(", "tiles transposed in registers"),
    _row("sums", r"reduction\([+*] :", "sums and products along a row, partial ones by lanes"),
    _row("extremes", r"reduction\((greatest|least|max|min) : (max|min)|\b(greatest|least)\b", "extremes along a row"),
    _row("tests", r"reduction\([|&] : (any|all|nan|odd)", "any, all, and whether there was a NaN along a row"),
    _row("positions", r"arg(max|min)_block|beats_(max|min)", "where an extreme is"),
    _row("moments", r"welford_", "means and squared deviations"),
    _row("rows together", r"\bi\d+_g\b|multiply_add\(", "several rows in one walk, and what they share in an array"),
    _row("columns", _ROW + r"(sum|prod|any|all|max|min|best|mean)\d+(_\w+)?\[", "reductions with an array of lanes"),
    _row("kept rows", _ROW + r"(row|apart)\d+\[", "values of a row kept for a second walk"),
    _row("scans", r"\brun\d+", "running sums, products and extremes"),
    _row("vector math", rf"\b({_MATH})\(", "libmvec's functions", ("without libmvec", *WITHOUT_VECTORS)),
    _row("scalar math", r"\b(lgamma|fmod|nextafter|erfinv|remainder_float|floordiv_float)\(", "libm's functions"),
    _row("roundings", r"\b(floor|ceil|trunc|nearbyint|sqrt|fma)\(", "functions that are an instruction"),
    _row("special values", r"\b(maximum|minimum|fmax|fmin|is_inf|signbit|copysign|sign|abs)\b", "NaN, infinity, -0"),
    _row("integers", r"\(u(32|64)\)|\b(abs_int|pow_int)\(|\((i8|i16|u8|u16)\)", "integers that wrap, of every width"),
    _row("divisions", r"\b(truncdiv|floordiv|fmod|remainder)_int\(| [/%] ", "divisions, of integers rounded all ways"),
    _row("shifts", r"\bshift_(left|right)\(", "shifts, also by more than there are bits"),
    _row("bits", r"\bbitcast<", "bits taken for another type"),
    _row("atomics", r"\batomic_", "elements that several threads change"),
    _row("combinations", r"\bcombined_", "elements that are changed in order"),
    _row("bounds", r"\bbad = ", "indices that are checked"),
    _row("random numbers", r"\brandom_", "Philox"),
)
"""Everything that `codegen.generate` writes besides plain statements in plain loops."""

_BY_NAME: Mapping[str, Construct] = {construct.name: construct for construct in CONSTRUCTS}


def constructs_in(text: str) -> tuple[str, ...]:
    """Returns the names of the constructs in a kernel's text (its function, without the prelude), in the order of the
    table CONSTRUCTS."""
    return tuple(construct.name for construct in CONSTRUCTS if re.search(construct.pattern, text))


def find_construct(name: str) -> Construct:
    """Returns the construct of that name. Errors: KeyError."""
    return _BY_NAME[name]
