"""What generated C++ stands on, instead of headers: a kernel that includes nothing builds in a tenth of a second.

In: the text of a kernel. Out: the text of the helpers that it uses. Each piece is keyed by the names that it defines,
and pulls in the pieces that it uses itself.

Half floats are converted with integer arithmetic, because that vectorizes in any loop. `VECTOR` declares that the
C library has SIMD variants of a function (glibc's libmvec); the builder sets LITZ_LIBMVEC where it has them.
clang knows them by a flag of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from litz.ir.dtypes import FLOAT8, STORAGE
from litz.runtime.cpp_compiler import WIDEST

from .float8 import FLOAT8_PIECES
from .moves import MOVES
from .philox import RANDOM

_TYPES = {
    "i8": "signed char",
    "i16": "short",
    "i64": "long",
    "u8": "unsigned char",
    "u16": "unsigned short",
    "u32": "unsigned int",
    "u64": "unsigned long",
    "f16": "unsigned short",
    "bf16": "unsigned short",
    **{STORAGE[dtype].name: "unsigned char" for dtype in sorted(FLOAT8, key=str)},
}

_VECTOR = """\
#if LITZ_LIBMVEC && !__clang__
#define VECTOR __attribute__((simd("notinbranch"), const))
#else
#define VECTOR __attribute__((const))
#endif
#define LOCAL __attribute__((used, visibility("hidden")))
#define VECTORS_OF(T) \\
  typedef T Half_##T __attribute__((vector_size(16))); \\
  typedef T Wide_##T __attribute__((vector_size(32))); \\
  typedef T Full_##T __attribute__((vector_size(64)));
VECTORS_OF(float) VECTORS_OF(double)
template <class To, class From> static inline To resized(From x) {  // again and again, or the first part
  To y;
  for (unsigned long at = 0; at < sizeof y; at += sizeof x)
    __builtin_memcpy((char*)&y + at, &x, sizeof x < sizeof y ? sizeof x : sizeof y);
  return y;
}
#if __has_builtin(__builtin_shufflevector)
#define REPEATED(To, x, ...) __builtin_shufflevector(x, x, __VA_ARGS__)
#else  // g++ 11, through memory
#define REPEATED(To, x, ...) resized<To>(x)
#endif
"""

_INSTRUCTIONS = {"abs": ("fabs", 1), "copysign": ("copysign", 2), "fma": ("fma", 3)}
_INSTRUCTIONS |= {name: (name, 1) for name in ("floor", "ceil", "trunc", "nearbyint", "sqrt")}
"""The compiler's names of functions that are an instruction, and how many arguments they take."""
VECTOR_UNARY = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
    "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc",
)  # fmt: skip
VECTOR_BINARY = ("pow", "atan2", "hypot")
_VECTORS = {**dict.fromkeys(VECTOR_UNARY, 1), **dict.fromkeys(VECTOR_BINARY, 2)}
_OF_FLOAT = {"erf": "erf_of_float"}
"""Functions of a float that are pieces of the prelude."""
_SCALAR = {"lgamma": 1, "fmod": 2, "nextafter": 2}


def _builtin(name: str, builtin: str, count: int) -> str:
    lines, arguments = [], ", ".join("xyz"[:count])
    for type_, suffix in (("float", "f"), ("double", "")):
        parameters = ", ".join(f"{type_} {x}" for x in "xyz"[:count])
        lines.append(
            f"static inline {type_} {name}({parameters}) {{ return __builtin_{builtin}{suffix}({arguments}); }}\n"
        )
    return "".join(lines)


def _library(name: str, count: int, attribute: str = "") -> str:
    doubles, floats = ", ".join(["double"] * count), ", ".join(["float"] * count)
    parameters, arguments = ", ".join(f"float {x}" for x in "xy"[:count]), ", ".join("xy"[:count])
    return (
        f'extern "C" {attribute}double {name}({doubles}) noexcept;\n'
        f'extern "C" {attribute}float {name}f({floats}) noexcept;\n'
        f"static inline float {name}({parameters}) {{ return {_OF_FLOAT.get(name, name + 'f')}({arguments}); }}\n"
    )


_SIMD = {"e": ("Full", WIDEST, "__AVX512F__ && !__clang__"), "d": ("Wide", 32, "__AVX2__"), "b": ("Half", 16, "1")}
"""libmvec's letters for variants of 512, 256 and 128 bits: the name of the vector's type, its bytes, and where the
variant gives the results of all: the first whose condition holds. clang calls no variants of 512 bits."""


def _vector_library(name: str, count: int, types: Sequence[str] = ("float", "double")) -> str:
    """A function of the C library with SIMD variants: one element has the same bits in a vector and on its own.

    A value that is computed again elsewhere (the partitioner saves memory so) may be compared with the first one.
    libmvec's variants differ from each other and from libm in the last bit, so one of them gives the results of all
    (`_SIMD`). types: the kernel's.
    """
    ways = (
        f"LITZ_LIBMVEC && {condition}\n" + "".join(_by_one_variant(name, count, type_, letter) for type_ in types)
        for letter, (*_, condition) in _SIMD.items()
    )
    return _library(name, count, "VECTOR ") + "#if " + "#elif ".join(ways) + "#endif\n"


def _by_one_variant(name: str, count: int, type_: str, letter: str) -> str:
    """The variants of a function for one type, and the function of one element, by the variant with this letter."""
    symbol, each = f"{name}f" if type_ == "float" else name, "xy"[:count]
    lanes = {other: n // (4 if type_ == "float" else 8) for other, (_, n, _) in _SIMD.items()} | {"": 1}
    names = {other: f"_ZGV{other}N{n}{'v' * count}_{symbol}" for other, n in lanes.items()} | {"": symbol}
    kinds = {other: f"{kind}_{type_}" for other, (kind, *_) in _SIMD.items()} | {"": type_}
    given, vector = names[letter], kinds[letter]
    text = f'extern "C" {vector} {given}({", ".join([vector] * count)});\n'
    for alias, kind, n in ((names[other], kinds[other], lanes[other]) for other in lanes if other < letter):
        places = ", ".join(str(place % n) for place in range(lanes[letter]))
        wide = ", ".join(f"REPEATED({vector}, {x}, {places})" if n > 1 else f"{x} - {vector}{{}}" for x in each)
        own = f"{kind} one_{alias}({', '.join(f'{kind} {x}' for x in each)})"
        text += f'extern "C" LOCAL {own} {{ return resized<{kind}>({given}({wide})); }}\n'
        text += f'asm(".set {alias}, one_{alias}");\n'
    return text


_BITS = """\
static inline u32 bits(float x) { u32 b; __builtin_memcpy(&b, &x, 4); return b; }
static inline u64 bits(double x) { u64 b; __builtin_memcpy(&b, &x, 8); return b; }
static inline float float_of(u32 b) { float x; __builtin_memcpy(&x, &b, 4); return x; }
"""

SIGNS = {"max": ">", "min": "<"}
EXTREMES = {"max": "greatest", "min": "least"}
"""The names of the reductions in `omp simd reduction(...)`."""

_ORDERED = ("float", "double", "int", *(text for name, text in _TYPES.items() if "f" not in name))
_DECLARED = "".join(
    f"#pragma omp declare reduction({EXTREMES[kind]} : {type_} : omp_out = omp_in {sign} omp_out ? omp_in : omp_out) "
    "initializer(omp_priv = omp_orig)\n"
    for kind, sign in SIGNS.items()
    for type_ in _ORDERED
)
_REDUCTIONS = f"""\
// clang's own max of floats begins at the least finite number, which is not -infinity.
#if __clang__
{_DECLARED}\
#else
#define greatest max
#define least min
#endif
"""


def _beats(kind: str) -> str:
    return (
        "// NaN is the extreme; of equals the first counts.\n"
        f"template <class T> static inline bool beats_{kind}(T x, T best) "
        f"{{ return x {SIGNS[kind]} best || (x != x && best == best); }}\n"
    )


def _arg_block(kind: str) -> str:
    """Positions in a block: the extreme by lanes, then the first place that has it. NaN goes one by one."""
    sign = SIGNS[kind]
    return f"""\
template <class T> static inline void arg{kind}_block(const T* x, int count, i64 start, T& best, i64& position) {{
  T top = best;
  int nans = 0, first = count;
#pragma omp simd reduction({EXTREMES[kind]} : top) reduction(| : nans)
  for (int k = 0; k < count; ++k) {{
    top = x[k] {sign} top ? x[k] : top;
    nans |= x[k] != x[k];
  }}
  if (nans) {{
    for (int k = 0; k < count; ++k)
      if (beats_{kind}(x[k], best)) {{ best = x[k]; position = start + k; }}
  }} else if (top {sign} best) {{
#pragma omp simd reduction(min : first)
    for (int k = 0; k < count; ++k) {{
      const int here = x[k] == top ? k : count;
      first = here < first ? here : first;
    }}
    best = top;
    position = start + first;
  }}
}}
"""


PIECES: Mapping[tuple[str, ...], str] = {
    **{(name,): f"typedef {meaning} {name};\n" for name, meaning in _TYPES.items()},
    ("VECTOR", "LOCAL", "resized", "REPEATED"): _VECTOR,
    ("bits", "float_of"): _BITS,
    ("greatest", "least"): _REDUCTIONS,
    ("ONE_BY_ONE",): """\
#define ONE_BY_ONE asm("")  // no compiler vectorizes a loop around it; it is no instruction
""",
    ("bitcast",): """\
template <class To, class From> static inline To bitcast(From x) { To y; __builtin_memcpy(&y, &x, sizeof y); return y; }
""",
    ("from_bf16",): """\
static inline float from_bf16(bf16 h) { return float_of((u32)h << 16); }
""",
    ("to_bf16",): """\
static inline bf16 to_bf16(float x) {  // to nearest, ties to even
  const u32 b = bits(x);
  return x != x ? (bf16)0x7fc0 : (bf16)((b + 0x7fff + ((b >> 16) & 1)) >> 16);
}
""",
    ("from_f16",): """\
static inline float from_f16(f16 h) {
  // Exponent and mantissa in a float's place are the value times 2^-112, subnormals included; infinity and NaN are not.
  const u32 magnitude = (u32)(h & 0x7fff) << 13;
  const float finite = float_of(magnitude) * 0x1p112f;
  const u32 b = magnitude >= 0x0f800000 ? (magnitude | 0x7f800000) : bits(finite);
  return float_of(b | (u32)(h & 0x8000) << 16);
}
""",
    ("to_f16",): """\
static inline f16 to_f16(float x) {  // to nearest, ties to even
  const u32 b = bits(x), magnitude = b & 0x7fffffff;
  const u32 normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Adding 0.5 rounds to multiples of 2^-24, the spacing of subnormal halves.
  const u32 subnormal = bits(float_of(magnitude) + 0.5f) - 0x3f000000;
  u32 h = magnitude < 0x38800000 ? subnormal : normal;
  h = magnitude >= 0x477ff000 ? 0x7c00 : h;
  h = magnitude > 0x7f800000 ? 0x7e00 : h;
  return (f16)(h | (b >> 16 & 0x8000));
}
""",
    ("rounded_bf16",): """\
static inline float rounded_bf16(float x) {  // from_bf16(to_bf16(x)), in vectors of floats throughout
  const u32 b = bits(x);
  return float_of(x != x ? 0x7fc00000 : (b + 0x7fff + ((b >> 16) & 1)) & 0xffff0000);
}
""",
    ("rounded_f16",): """\
static inline float rounded_f16(float x) {  // from_f16(to_f16(x)), likewise
  const u32 b = bits(x), magnitude = b & 0x7fffffff;
  const u32 normal = (magnitude + 0xfff + ((magnitude >> 13) & 1)) & 0xffffe000;
  const float subnormal = float_of(magnitude) + 0.5f - 0.5f;
  u32 r = magnitude < 0x38800000 ? bits(subnormal) : normal;
  r = magnitude >= 0x477ff000 ? 0x7f800000 : r;
  r = magnitude > 0x7f800000 ? 0x7fc00000 : r;
  return float_of(r | (b & 0x80000000));
}
""",
    **FLOAT8_PIECES,
    **MOVES,
    **RANDOM,
    ("multiply_add",): """\
// a * b + c, rounded once where the processor does that in one instruction.
#if __FMA__ || __aarch64__
static inline float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double multiply_add(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
template <class T> static inline T multiply_add(T a, T b, T c) { return a * b + c; }
#endif
""",
    ("abs_int",): """\
template <class T> static inline T abs_int(T x) { return x < 0 ? (T)(0 - (u64)x) : x; }
""",
    ("is_inf",): """\
static inline bool is_inf(float x) { return __builtin_fabsf(x) > 0x1.fffffep127f; }
static inline bool is_inf(double x) { return __builtin_fabs(x) > 0x1.fffffffffffffp1023; }
""",
    ("signbit",): """\
template <class T> static inline bool signbit(T x) { return bits(x) >> (8 * sizeof x - 1); }
""",
    ("sign",): """\
template <class T> static inline T sign(T x) { return (T)((x > 0) - (x < 0)); }
""",
    ("maximum", "minimum"): """\
// NaN if either argument is NaN. Of two zeros the first: eager's relu and clamp leave -0.0 alone. Where b is a
// constant, as it mostly is, one comparison is left.
template <class T> static inline T maximum(T a, T b) { return a < b || b != b ? b : a; }
template <class T> static inline T minimum(T a, T b) { return a > b || b != b ? b : a; }
""",
    ("fmax", "fmin"): """\
// The other argument if one is NaN.
template <class T> static inline T fmax(T a, T b) { return a >= b || b != b ? a : b; }
template <class T> static inline T fmin(T a, T b) { return a <= b || b != b ? a : b; }
""",
    # Division by zero gives 0 instead of a trap: masked values may divide by anything.
    ("truncdiv_int",): """\
template <class T> static inline T truncdiv_int(T a, T b) {
  const bool negates = (T)-1 < 0 && b == (T)-1;  // the least number divided by -1 would trap as well
  return b == 0 ? (T)0 : negates ? (T)(0 - (u64)a) : (T)(a / (b == 0 || negates ? 1 : b));
}
""",
    ("ALL_BITS",): """\
extern "C" { extern i64 ALL_BITS; __attribute__((weak)) i64 ALL_BITS = -1; }
""",
    ("floordiv_int",): """\
template <class T> static inline T floordiv_int(T a, T b) {
  const T quotient = truncdiv_int(a, b), rest = (T)(a - quotient * b);
  return b != 0 && rest != 0 && (rest < 0) != (b < 0) ? (T)(quotient - 1) : quotient;
}
""",
    ("fmod_int",): """\
template <class T> static inline T fmod_int(T a, T b) { return (T)(a - (u64)truncdiv_int(a, b) * b); }
""",
    ("remainder_int",): """\
template <class T> static inline T remainder_int(T a, T b) {
  const T rest = fmod_int(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? (T)(rest + b) : rest;
}
""",
    ("pow_int",): """\
template <class T> static inline T pow_int(T base, T exponent) {
  if (exponent < 0) return base == 1 ? (T)1 : base == (T)-1 ? (exponent % 2 ? (T)-1 : (T)1) : (T)0;
  u64 result = 1, square = (u64)base;
  for (; exponent; exponent = (T)(exponent / 2), square *= square)
    if (exponent % 2) result *= square;
  return (T)result;
}
""",
    ("power",): """\
// g++ makes square roots of vectors of pow(x, 0.5), also where x is -0.0 or -infinity, and that is no root.
template <class T> static inline T power(T x, T y) {
  if (__builtin_constant_p(y) && y == (T)0.5) return x == -(T)__builtin_inf() ? -x : sqrt(x + (T)0);
  return pow(x, y);
}
""",
    ("shift_left", "shift_right"): """\
template <class T> static inline T shift_left(T a, T b) {
  return b < 0 || b >= (T)(8 * sizeof(T)) ? (T)0 : (T)((u64)a << b);
}
template <class T> static inline T shift_right(T a, T b) {  // a negative number keeps its sign
  return a >> (b < 0 || b >= (T)(8 * sizeof(T)) ? (T)(8 * sizeof(T) - 1 + ((T)-1 > 0)) % 64 : b);
}
""",
    ("remainder_float",): """\
template <class T> static inline T remainder_float(T a, T b) {  // with the sign of b
  const T rest = fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
""",
    ("floordiv_float",): """\
template <class T> static inline T floordiv_float(T a, T b) {
  // Through the exact remainder: the rounded quotient a / b may lie on the other side of an integer.
  if (b == 0) return a / b;
  const T rest = fmod(a, b);
  T quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
  if (quotient == 0) return copysign((T)0, a / b);
  const T whole = floor(quotient);
  return quotient - whole > (T)0.5 ? whole + 1 : whole;
}
""",
    ("erf_of_float",): """\
// libmvec's of 512 bits is off by 4.0 units in the last place, of 256 bits by 1.9; this one by 1.5.
#if LITZ_LIBMVEC && !__AVX512F__
#define erf_of_float erff
#else
static inline float powers(float x, float c) { return c; }  // c + rest[0] * x + rest[1] * x * x ...
template <class... C> static inline float powers(float x, float c, C... rest) {
  return multiply_add(powers(x, rest...), x, c);
}
static inline float erf_of_float(float x) {
  const float a = __builtin_fabsf(x) > 4.0f ? 4.0f : __builtin_fabsf(x);
  const float near = powers(  // the quotient by a, less 1
      a * a, 0.128379151f, -0.376125574f, 0.112825245f, -2.67939549e-2f, 5.03587211e-3f, -6.22242165e-4f);
  const float y = powers(  // the logarithm of 1 - the result: whole times that of 2, and r
      a, -1.44207719e-4f, -1.12788939f, -0.636820614f, -0.104250230f, 2.23810449e-2f, -3.08200009e-3f, 1.99901828e-4f);
  const float shifted = multiply_add(y, 1.44269502f, 12582912.0f), whole = shifted - 12582912.0f;
  const float r = multiply_add(whole, -0.693147182f, y);
  const float e_to_r = powers(r, 1.00000012f, 0.999999702f, 0.499988884f, 0.166675791f, 4.19159904e-2f, 8.29756539e-3f);
  const float far = 1.0f - float_of(bits(e_to_r) + (bits(shifted) << 23));
  return __builtin_copysignf(a < 0.875f ? multiply_add(near, a, a) : far, x);
}
#endif
""",
    ("erfinv",): """\
static inline double erfinv(double y) {
  // Giles's approximation ("Approximating the erfinv function", 2010), then two of Halley's steps on erf(x) - y.
  if (!(abs(y) < 1)) return abs(y) == 1 ? copysign(__builtin_inf(), y) : __builtin_nan("");
  double w = -log((1 - y) * (1 + y)), p;
  if (w < 5) {
    w -= 2.5;
    p = 2.81022636e-08; p = 3.43273939e-07 + p * w; p = -3.5233877e-06 + p * w; p = -4.39150654e-06 + p * w;
    p = 0.00021858087 + p * w; p = -0.00125372503 + p * w; p = -0.00417768164 + p * w;
    p = 0.246640727 + p * w; p = 1.50140941 + p * w;
  } else if (w < 16) {
    w = sqrt(w) - 3;
    p = -0.000200214257; p = 0.000100950558 + p * w; p = 0.00134934322 + p * w; p = -0.00367342844 + p * w;
    p = 0.00573950773 + p * w; p = -0.0076224613 + p * w; p = 0.00943887047 + p * w; p = 1.00167406 + p * w;
    p = 2.83297682 + p * w;
  } else p = sqrt(w + 0.5 * log(1.2732395447351628 / w));  // no float32 is so near 1; erfc's first term
  double x = p * y;
  for (int step = 0; step < 2; ++step) {
    // Near 1, erf(x) - y cancels; the complements do not.
    const double error = y > 0.5 ? (1 - y) - erfc(x) : y < -0.5 ? erfc(-x) - (1 + y) : erf(x) - y;
    x -= error / (1.1283791670955126 * exp(-x * x) + x * error);
  }
  return x;
}
static inline float erfinv(float y) { return (float)erfinv((double)y); }
""",
    ("combined_add", "combined_prod", "combined_max", "combined_min"): """\
template <class T> static inline T combined_add(T a, T b) { return (T)(a + b); }
template <class T> static inline T combined_prod(T a, T b) { return (T)(a * b); }
template <class T> static inline T combined_max(T a, T b) { return a > b || a != a ? a : b; }
template <class T> static inline T combined_min(T a, T b) { return a < b || a != a ? a : b; }
""",
    ("atomic_add", "atomic_prod", "atomic_max", "atomic_min", "atomic_update"): """\
template <class T, class F> static inline void atomic_update(T* place, F change) {
  T old, fresh;
  __atomic_load(place, &old, __ATOMIC_RELAXED);
  do fresh = change(old);
  while (!__atomic_compare_exchange(place, &old, &fresh, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}
// The steps themselves: combined_add and its like.
#define ATOMIC(NAME) \\
  template <class T> static inline void atomic_##NAME(T* p, T value) { \\
    atomic_update(p, [=](T old) { return combined_##NAME(old, value); }); \\
  }
ATOMIC(add) ATOMIC(prod) ATOMIC(max) ATOMIC(min)
""",
    ("welford_block", "welford_merge"): """\
static inline void welford_merge(
    double& mean, double& m2, double& weight, double other_mean, double other_m2, double other_weight) {
  const double total = weight + other_weight, delta = other_mean - mean;
  const double share = total > 0 ? other_weight / total : 0;
  mean += delta * share;
  m2 += other_m2 + delta * delta * weight * share;
  weight = total;
}
struct Moments { double mean, m2; };
template <class A> static inline A total(A* lanes) {  // by halves: lanes one after another take four times as long
#pragma GCC unroll 4
  for (int half = 8; half > 0; half /= 2)
#pragma omp simd
    for (int n = 0; n < half; ++n) lanes[n] += lanes[n + half];
  return lanes[0];
}
template <class A, class T> static inline Moments welford_sums(const T* x, int count) {
  // Two passes over a block that is in the nearest cache vectorize; blocks join as Chan et al. do. The first mean is of
  // distances from the first value, as values far from 0 have no digits for it. The sum of distances from that mean
  // says how far it is off.
  const int whole = count & ~15;
  const A first = x[0];
  A sums[16] = {}, squares[16] = {}, offs[16] = {}, sum = 0, square = 0, off = 0;
  for (int k = 0; k < whole; k += 16)
#pragma omp simd
    for (int n = 0; n < 16; ++n) sums[n] += x[k + n] - first;
  for (int k = whole; k < count; ++k) sum += x[k] - first;
  const A centre = (A)(first + (double)(sum + total(sums)) / count);
  for (int k = 0; k < whole; k += 16)
#pragma omp simd
    for (int n = 0; n < 16; ++n) {
      const A distance = x[k + n] - centre;
      offs[n] += distance;
      squares[n] += distance * distance;
    }
  for (int k = whole; k < count; ++k) {
    const A distance = x[k] - centre;
    off += distance;
    square += distance * distance;
  }
  const double rest = (double)(off + total(offs)) / count;
  const double own = rest == rest ? centre + rest : centre;  // no number: an infinite value
  return {own, square + total(squares) - rest * rest * count};
}
template <class T> __attribute__((noinline)) static Moments welford_again(const T* x, int count, Moments own) {
  int varies = 0;
#pragma omp simd reduction(| : varies)
  for (int k = 0; k < count; ++k) varies |= x[k] != x[0];
  return varies ? welford_sums<double>(x, count) : own;
}
template <class T>
static inline void welford_block(const T* x, int count, double& mean, double& m2, double& weight) {
  Moments own = welford_sums<T>(x, count);
  const bool held = own.m2 > 1e-30 && own.m2 < 1e38;  // all squares, by float
  if (sizeof(T) < 8 && __builtin_expect(!held, 0)) own = welford_again(x, count, own);
  welford_merge(mean, m2, weight, own.mean, own.m2, count);
}
""",
    **{(f"beats_{kind}",): _beats(kind) for kind in ("max", "min")},
    **{(f"arg{kind}_block",): _arg_block(kind) for kind in ("max", "min")},
    **{(name,): _builtin(name, *builtin) for name, builtin in _INSTRUCTIONS.items()},
    **{(name,): _vector_library(name, count) for name, count in _VECTORS.items()},
    **{(name,): _library(name, count) for name, count in _SCALAR.items()},
}

_WORD = re.compile(r"[A-Za-z_]\w*")
_BY_NAME = {name: names for names in PIECES for name in names}


def prelude(text: str) -> str:
    """Returns the text of the helpers that `text` uses. Types come first, and each helper comes after those it uses."""
    chosen, visiting, types = list[tuple[str, ...]](), set[tuple[str, ...]](), set(_WORD.findall(text))

    def visit(source: str) -> None:
        for word in (words := _WORD.findall(source)):
            types.update(words if word in _VECTORS else ())
            names = _BY_NAME.get(word)
            if names is not None and names not in visiting:
                visiting.add(names)
                visit(f"VECTOR {_OF_FLOAT.get(word)}" if word in _VECTORS else PIECES[names])
                chosen.append(names)

    visit(text)
    chosen.sort(key=lambda names: names[0] not in _TYPES)  # types first
    of = [type_ for type_ in ("float", "double") if type_ in types] or ("float", "double")
    return "".join(_vector_library(n[0], _VECTORS[n[0]], of) if n[0] in _VECTORS else PIECES[n] for n in chosen)
