"""Blocks that move between memory and rooms, in C++: float16 converted, rows and columns swapped. Out: pieces of the
prelude, by name.

The processor converts eight halves in one instruction. The last block of a row is whole, and does again what another
one has done, so that few elements are left to move one by one.
"""

from __future__ import annotations

from collections.abc import Mapping


def _transpose(n: int) -> str:
    """Returns a function that transposes n rows of n elements within registers: pairs of rows are interleaved at
    distances 1, 2 and 4."""
    rows, stages, name = f"#pragma GCC unroll 8\n  for (int k = 0; k < {n}; ++k)", "", "a"
    for d in (1, 2, 4)[: n.bit_length() - 1]:
        old, name = name, "b" if name == "a" else "a"
        low = ", ".join(str(n + j - d if j & d else j) for j in range(n))
        high = ", ".join(str(n + j if j & d else j + d) for j in range(n))
        pair = f"SHUFFLE({old}[k & ~{d}], {old}[k | {d}]"
        stages += f"{rows} {name}[k] = k & {d} ? {pair}, {high}) : {pair}, {low});\n"
    return f"""\
template <class A, class B> static inline void transpose{n}(const A* from, i64 from_step, B* to, i64 to_step) {{
  typedef decltype(true ? A() : B()) T;
  typedef T V __attribute__((vector_size({n} * sizeof(T))));
  V a[{n}], b[{n}];
{rows} copy(from + k * from_step, (T*)&a[k], {n});
{stages}{rows} copy((const T*)&{name}[k], to + k * to_step, {n});
}}
"""


MOVES: Mapping[tuple[str, ...], str] = {
    ("widen_f16", "narrow_f16"): """\
typedef short Halves __attribute__((vector_size(16)));
typedef float Floats __attribute__((vector_size(32)));
typedef float Four __attribute__((vector_size(16)));
typedef i64 Longs __attribute__((vector_size(16)));
static inline void widen_f16(const f16* from, float* to, i64 count) {
  i64 k = 0;
#ifdef __F16C__
  for (; k + 8 <= count; k += 8) {
    Halves halves;
    __builtin_memcpy(&halves, from + k, sizeof halves);
    const Floats floats = __builtin_ia32_vcvtph2ps256(halves);
    __builtin_memcpy(to + k, &floats, sizeof floats);
  }
  for (; k + 4 <= count; k += 4) {
    i64 halves;
    __builtin_memcpy(&halves, from + k, sizeof halves);
    const Four floats = __builtin_ia32_vcvtph2ps((Halves)(Longs){halves});
    __builtin_memcpy(to + k, &floats, sizeof floats);
  }
#endif
  for (; k < count; ++k) to[k] = from_f16(from[k]);
}
static inline void narrow_f16(const float* from, f16* to, i64 count) {
  i64 k = 0;
#ifdef __F16C__
  for (; k + 8 <= count; k += 8) {
    Floats floats;
    __builtin_memcpy(&floats, from + k, sizeof floats);
    const Halves halves = __builtin_ia32_vcvtps2ph256(floats, 0);  // 0: to nearest, ties to even
    __builtin_memcpy(to + k, &halves, sizeof halves);
  }
  for (; k + 4 <= count; k += 4) {
    Four floats;
    __builtin_memcpy(&floats, from + k, sizeof floats);
    const i64 halves = ((Longs)__builtin_ia32_vcvtps2ph(floats, 0))[0];
    __builtin_memcpy(to + k, &halves, sizeof halves);
  }
#endif
  for (; k < count; ++k) to[k] = to_f16(from[k]);
}
""",
    ("SHUFFLE",): """\
// Elements of two vectors by number; g++ 11 has its own name for it only.
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, decltype(a < b){__VA_ARGS__})
#endif
""",
    ("transpose",): """\
template <class T> static inline void copy(const T* from, T* to, i64 count) {
  __builtin_memcpy(to, from, count * sizeof(T));
}
static inline void copy(const f16* from, float* to, i64 count) { widen_f16(from, to, count); }
static inline void copy(const float* from, f16* to, i64 count) { narrow_f16(from, to, count); }
"""
    + "".join(map(_transpose, (4, 8)))
    + """\
template <int N, class A, class B>
static inline void transpose_blocks(const A* from, i64 from_step, B* to, i64 to_step, i64 rows, i64 columns) {
  for (i64 r = 0; r < rows; r += N) {
    if (r + N > rows) r = rows - N;
    for (i64 c = 0; c < columns; c += N) {
      if (c + N > columns) c = columns - N;
      const auto block = N == 8 ? transpose8<A, B> : transpose4<A, B>;
      block(from + r * from_step + c, from_step, to + c * to_step + r, to_step);
    }
  }
}
// to[c][r] = from[r][c]
template <class A, class B>
static inline void transpose(const A* from, i64 from_step, B* to, i64 to_step, i64 rows, i64 columns) {
  const i64 least = rows < columns ? rows : columns;
  if (least >= 8 && sizeof(A) < 8) return transpose_blocks<8>(from, from_step, to, to_step, rows, columns);
  if (least >= 4) return transpose_blocks<4>(from, from_step, to, to_step, rows, columns);
  for (i64 r = 0; r < rows; ++r)
    for (i64 c = 0; c < columns; ++c) copy(from + r * from_step + c, to + c * to_step + r, 1);
}
""",
}
