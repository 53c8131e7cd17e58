"""The prelude's random numbers. Out: pieces of C++ text.

Words are Philox 4x32-10's (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), whose counter is the
position; the counter's upper three words are 0. g++ makes eight shuffles for each product of two words, so that its
variants for vectors are written here: even and odd words lie in two vectors of 64-bit lanes, whose low halves count.
"""

from __future__ import annotations

from collections.abc import Mapping

_VARIANTS = (
    ("b", 4, "1", "__builtin_ia32_pmuludq128(x, y)"),
    ("c", 4, "1", ""),
    ("d", 8, "__AVX2__", "__builtin_ia32_pmuludq256(x, y)"),
    ("e", 16, "__AVX512F__", "__builtin_ia32_pmuludq512_mask(x, y, Longs16{}, -1)"),
)
"""The letter of a variant for vectors in x86-64's ABI, its words, where it exists, and the product of low halves, where
no other row has it."""

_ROUNDS = """\
static inline u64 low_product(u64 x, u64 y) { return (u64)(u32)x * (u32)y; }
template <class T> struct Words { T first, second; };
template <int N, class V> static inline void philox(Words<V> (&words)[N], V k0, V k1) {
  V c2[N] = {}, c3[N] = {};
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) {
      const V a = low_product(words[n].first, 0xD2511F53u), b = low_product(c2[n], 0xCD9E8D57u);
      words[n].first = (b >> 32) ^ words[n].second ^ k0;
      words[n].second = b;
      c2[n] = (a >> 32) ^ c3[n] ^ k1;
      c3[n] = a;
    }
  }
}
template <class V, class W> static inline Words<W> philox_lanes(W k0, W k1, W position) {
  Words<V> words[2] = {{(V)position, V{}}, {(V)position >> 32, V{}}};
  philox<2, V>(words, (V)k0, (V)k1);
  return {(W)((words[0].first & 0xFFFFFFFFu) | (words[1].first << 32)),
          (W)((words[0].second & 0xFFFFFFFFu) | (words[1].second << 32))};
}
"""


def _lanes(words: int, product: str) -> str:
    """Returns the types of a vector of so many words, and the product of the low halves of its 64-bit lanes."""
    types, text = {"Words": "u32", "Lanes": "u64", "Ints": "int", "Longs": "long long"}, ""
    for name, element in types.items():
        text += f"typedef {element} {name}{words} __attribute__((vector_size({4 * words})));\n"
    return f"""\
{text}static inline Lanes{words} low_product(Lanes{words} a, u64 b) {{
  const Ints{words} x = (Ints{words})a, y = (Ints{words})(b - Lanes{words}{{}});
  return (Lanes{words}){product};
}}
"""


def _variants(name: str, which: str) -> str:
    """Returns a function of a seed's halves and a position to one word, and its variants for vectors."""
    text = f'extern "C" __attribute__((simd("notinbranch"), const)) u32 {name}(u32 k0, u32 k1, u32 position);\n'
    ways = [("one", "u32", name, "1", "philox_lanes<u64>")]
    for letter, n, condition, _ in _VARIANTS:
        ways.append((letter, f"Words{n}", f"_ZGV{letter}N{n}vvv_{name}", condition, f"philox_lanes<Lanes{n}>"))
    for own, type_, alias, condition, call in ways:
        text += f"""\
#if {condition}
extern "C" LOCAL {type_} {own}_{name}({type_} k, {type_} l, {type_} p) {{ return {call}(k, l, p).{which}; }}
asm(".set {alias}, {own}_{name}");
#endif
"""
    return text


def _words() -> str:
    ours, vectors, plain = "#if __x86_64__ && __linux__ && !__clang__\n", "", ""
    lanes = (f"#if {condition}\n{_lanes(n, product)}#endif\n" for _, n, condition, product in _VARIANTS if product)
    for name, which in (("philox_first", "first"), ("philox_second", "second")):
        vectors += _variants(name, which)
        plain += f"static inline u32 {name}(u32 k, u32 l, u32 p) {{ return philox_lanes<u64>(k, l, p).{which}; }}\n"
    return f"{ours}{''.join(lanes)}#endif\n{_ROUNDS}{ours}{vectors}#else\n{plain}#endif\n"


RANDOM: Mapping[tuple[str, ...], str] = {
    ("philox_first", "philox_second", "WORD"): f"""\
{_words()}#define WORD(which) philox_##which((u32)seed, (u32)((u64)seed >> 32), (u32)position)
""",
    ("uniform_of",): """\
static inline float uniform_of(u32 word) {
  const int number = (int)word;
  return (float)(number < 0 ? -number - 1 : number) * 4.6566127342e-10f;
}
""",
    ("random_bits",): """\
static inline i64 random_bits(i64 seed, i64 position) { return WORD(first); }
""",
    ("random_uniform",): """\
static inline float random_uniform(i64 seed, i64 position) { return uniform_of(WORD(first)); }
""",
    ("random_normal",): """\
static inline float random_normal(i64 seed, i64 position) {  // Box and Muller
  const float u = uniform_of(WORD(first));
  return sqrt(-2.0f * log(u > 1.0e-7f ? u : 1.0e-7f)) * cos(6.2831853071795862f * uniform_of(WORD(second)));
}
""",
}
