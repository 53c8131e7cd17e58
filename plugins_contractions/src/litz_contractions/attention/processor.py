"""Attention on a processor: a C++ kernel that calls BLAS on blocks. In: an `Attention` and its context. Out: a choice.

A thread takes a block of queries of one head and walks over blocks of keys: a product of BLAS makes a block of scores,
generated loops change and mask them, raise them by the maximum so far, and a second product adds the values they weigh.
Scores are never more than one block. Blocks of keys that a mask's comparisons of positions or a BlockMask's lists rule
out are not looked at. Sums and scores are float32; half types are converted a block at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import log

import torch

from litz.ir import KernelCall, Layout, Node, TensorRef
from litz.ir.index import ONE, ZERO, Expr, Symbol, floordiv, to_expr
from litz.ir.node import walk
from litz.schedule.choices import Replacement
from litz.target import figures_of
from litz.target.times import NONE, Limit, matrix, time_of
from litz.targets.cpp.body import Body, Lines
from litz.targets.cpp.codegen import SYMBOL
from litz.targets.cpp.dialect import ELEMENTS, read, written
from litz.targets.cpp.figures import CppFigures
from litz.targets.cpp.prelude import prelude
from litz.targets.cpp.text import IndexText
from litz_plugins import Choice, ChoiceContext, KernelSource

from ..subprogram import Meaning, cut
from .bounds import Bounds, find_bounds
from .offer import KINDS
from .offer import written as written_results
from .operation import SCORE, Attention, Blocks
from .plan import AttentionPlan, B, H, K, Q, Unsuitable, make_plan, offset_of

ROWS, KEYS = 64, 256
"""Queries and keys of a block: its scores are 64 KiB, and stay in the second-level cache with what makes them."""
ABILITY = "attention_blocks"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PASSES = 3
"""Eager's attention makes all scores and goes over them more often than this: many times what the kernel takes."""
CALLS_US = 20.0
"""Microseconds for the calls of these passes, about: a guess."""


def offer_blocked(template: Attention, context: ChoiceContext) -> list[Choice]:
    """Returns the blocked kernel as a choice for a processor. Where there cannot be one, it records the reason."""
    if not isinstance(template, Attention) or ABILITY not in context.target.abilities:
        return []
    try:
        plan = make_plan(template, context.program, written_results(template, context.program), False, scaled=True)
        source = write_blocked(plan, template.name, figures_of(context.target, CppFigures).parallel_values)
    except Unsuitable as why:
        context.record(template.target_name, f"no kernel: {why}")
        return []
    meaning = Meaning(cut(plan.program, [template], plan.outputs))
    call = KernelCall(
        template.name,
        template.device,
        meaning,
        meaning.arguments(),
        outputs=plan.outputs,
        origins=template.origins,
        source=source,
    )
    batch, heads, rows, keys = map(plan.program.hint, plan.size)
    bound = matrix(2.0 * batch * heads * rows * keys * sum(plan.widths), "fp32", context.target)
    own = time_of((bound,), context.target, NONE, why=f"{ROWS} queries by {KEYS} keys at a time")
    all_scores = Limit(PASSES * bound.us, why="all scores in memory, several times")
    other = time_of((all_scores,), context.target, NONE, added_us=CALLS_US)
    return [Choice("blocked attention", "template", Replacement((call,)), own, other)]


def write_blocked(plan: AttentionPlan, name: str, parallel: int) -> KernelSource:
    """Returns the C++ source of a kernel for one attention. parallel: scores from which threads share the work.
    Errors: Unsuitable for a dtype or a body that the kernel cannot compute."""
    if plan.dtype not in DTYPES:
        raise Unsuitable(f"no kernel of {plan.dtype}")
    if any(node.op in ("bounded", "reduce", "scan") for node in plan.body.nodes):
        raise Unsuitable("a position is checked in it")
    return _Kernel(plan, name, parallel).source()


class _Kernel:
    def __init__(self, plan: AttentionPlan, name: str, parallel: int) -> None:
        self.parallel = parallel
        self.plan, self.name, self.lines = plan, name, Lines()
        variables = {B: "b", H: "h", Q: "q", K: "k"}
        self.index = IndexText({**variables, **plan.names.sizes}, plan.body.extents)
        self.body = Body(plan.body, plan.names.buffers, self.index, self.lines)
        self.attention = plan.attention
        self.bounds = find_bounds(plan.mask, Q, K) if plan.mask is not None else Bounds()
        self.blocks = self._usable(plan.attention.blocks)

    def _usable(self, blocks: Blocks | None) -> Blocks | None:
        """Lists of blocks are a hint where a mask says the same: they are used if no block of queries has two."""
        if blocks is None or not (blocks.queries.is_Integer and blocks.keys.is_Integer):
            return None
        return blocks if int(blocks.queries) % ROWS == 0 and int(blocks.keys) > 0 else None

    # ------------------------------------------------------------------ text

    def source(self) -> KernelSource:
        names = self.plan.names
        with self.lines.block(f'extern "C" int {SYMBOL}({", ".join(self._parameters())})'):
            self._items()
            self.lines.add("return 0;")
        text = "\n".join(line.removeprefix("  ") for line in self.lines.text) + "\n"
        text = text.replace('extern "C" int kernel', f'{_HELPERS}extern "C" int kernel', 1)
        return KernelSource(
            self.name,
            "cpp",
            f"// attention, {ROWS} queries by {KEYS} keys at a time\n{prelude(text)}\n{text}",
            SYMBOL,
            (*names.buffers, *names.sizes),
            {"bounds": [], "sizes": len(names.sizes), "threads": True, "blas": True},
        )

    def _parameters(self) -> Iterator[str]:
        outputs = set(self.plan.outputs)
        for name, short in self.plan.names.buffers.items():
            constant = "" if name in outputs else "const "
            yield f"{constant}{ELEMENTS[self.plan.buffers[name].dtype]}* {short}"
        yield from (f"i64 {short}" for short in self.plan.names.sizes.values())

    def _text(self, expr: Expr | int) -> str:
        return self.index.text(to_expr(expr))

    def _at(self, ref: TensorRef, position: Sequence[Expr]) -> str:
        """An element of a reference. Its position may have variables that are declared as int."""
        offset = IndexText(self.index.names, self.index.extents, wide=True).walk(offset_of(ref, position))
        return f"{self.plan.names.buffers[ref.buffer]}[{offset}]"

    def _items(self) -> None:
        add = self.lines.add
        batch, heads, rows, keys = map(self._text, self.plan.size)
        add(f"const i64 groups = ({rows} + {ROWS - 1}) / {ROWS}, items = (i64){batch} * {heads} * groups;")
        add(f"#pragma omp parallel for schedule(dynamic) if (items * {ROWS} * {keys} >= {self.parallel})")
        with self.lines.block("for (i64 item = 0; item < items; ++item)"):
            b, h, q, _ = (self.index.var_type(size) for size in self.plan.size)
            add(f"const {h} h = item / groups % {heads};", f"const {b} b = item / groups / {heads};")
            add(f"const {q} first = item % groups * {ROWS};")
            add(f"const int count = {rows} - first < {ROWS} ? {rows} - first : {ROWS};")
            self._block(keys)

    def _block(self, keys: str) -> None:
        """A block of queries, from `first`, `count` of them."""
        add, (wide, deep) = self.lines.add, self.plan.widths
        size = {name: f"alignas(64) float {name}[{count}];" for name, count in self._arrays().items()}
        add(*size.values())
        self._query(wide)
        with self.lines.block("for (int i = 0; i < count; ++i)"):
            add("top[i] = -__builtin_inff();", "total[i] = 0;")
            with self.lines.block(f"for (int e = 0; e < {deep}; ++e)"):
                add(f"out[i * {deep} + e] = 0;")
        self._limits(keys)
        with self._scope("auto block = [&](i64 begin, i64 end, bool open)"):
            self._keys(wide, deep)
        self.lines.text[-1] += ";"
        self._walk(keys)
        self._finish(deep)

    def _arrays(self) -> dict[str, int]:
        wide, deep = self.plan.widths
        found = {"query": ROWS * wide, "score": ROWS * KEYS, "out": ROWS * deep, "top": ROWS, "total": ROWS}
        for name, ref, width in (("key", self.attention.key, wide), ("value", self.attention.value, deep)):
            if not self._direct(ref, width):
                found[name] = KEYS * width
        return found

    def _direct(self, ref: TensorRef, width: int) -> bool:
        """Can BLAS read it as it lies?"""
        step, along = ref.layout.stride[2:]
        dense = along == ONE and step.is_Integer and int(step) >= width
        return bool(dense) and self.plan.buffers[ref.buffer].dtype == torch.float32

    @contextmanager
    def _scope(self, *header: str) -> Iterator[None]:
        with self.body.scope(*header):
            yield

    def _copy(self, ref: TensorRef, name: str, width: int, count: str, start: str, batch: Expr, head: Expr) -> None:
        """Rows of a reference as float32, side by side."""
        row, column = (Symbol(each, integer=True, nonnegative=True) for each in ("row", "column"))
        names = {**self.index.names, row: f"((i64){start} + i)", column: "d"}
        offset = IndexText(names, self.index.extents, wide=True).walk(offset_of(ref, (batch, head, row, column)))
        place = f"{self.plan.names.buffers[ref.buffer]}[{offset}]"
        with self.lines.block(f"for (int i = 0; i < {count}; ++i)"):
            self.lines.add("#pragma omp simd")
            with self.lines.block(f"for (int d = 0; d < {width}; ++d)"):
                self.lines.add(f"{name}[i * {width} + d] = {read(self.plan.buffers[ref.buffer].dtype, place)};")

    def _query(self, wide: int) -> None:
        self._copy(self.attention.query, "query", wide, "count", "first", B, H)

    def _shared(self, ref: TensorRef) -> tuple[Expr, Expr]:
        """The batch and the head of a key or a value."""
        group = floordiv(self.plan.size[1], ref.layout.size[1])
        return B if ref.layout.size[0] != ONE else ZERO, floordiv(H, group, self.plan.body.extents)

    # ------------------------------------------------------------------ which keys

    def _limits(self, keys: str) -> None:
        """`least` and `most`: the keys that any query of the block may look at; `inner_...`: those that all do."""
        self.lines.add(f"i64 least = 0, most = {keys}, all_least = 0, all_most = {keys};")
        for exprs, sign, own, each in (
            (self.bounds.upper, "<", "most", "all_most"),
            (self.bounds.lower, ">", "least", "all_least"),
        ):
            for expr in exprs:
                ends = (self._limit(expr, "first"), self._limit(expr, "first + count - 1"))
                more = " + 1" if own == "most" else ""
                outer, inner = ("maximum", "minimum") if own == "most" else ("minimum", "maximum")
                self.lines.add(
                    f"{{ const i64 one = {ends[0]}{more}, other = {ends[1]}{more};",
                    f"  const i64 far = one {'>' if outer == 'maximum' else '<'} other ? one : other;",
                    f"  const i64 near = one {'>' if inner == 'maximum' else '<'} other ? one : other;",
                    f"  {own} = far {sign} {own} ? far : {own};",
                    f"  {each} = near {sign} {each} ? near : {each}; }}",
                )

    def _limit(self, expr: Expr, query: str) -> str:
        names = {**self.index.names, Q: f"((i64)({query}))"}
        return f"(i64)({IndexText(names, self.index.extents, wide=True).walk(expr)})"

    def _walk(self, keys: str) -> None:
        add = self.lines.add
        inside = "begin >= all_least && end <= all_most" if self.bounds and self.bounds.exact else "false"
        if self.plan.mask is None:
            inside = "true"
        if self.blocks is None:
            with self.lines.block(f"for (i64 begin = least; begin < most; begin += {KEYS})"):
                add(f"const i64 end = most - begin < {KEYS} ? most : begin + {KEYS};", f"block(begin, end, {inside});")
            return
        length = int(self.blocks.keys)
        lists = [(self.blocks.counts, self.blocks.indices, inside)]
        if self.blocks.full_counts is not None and self.blocks.full_indices is not None:
            lists.append((self.blocks.full_counts, self.blocks.full_indices, "true"))
        for counts, indices, open_ in lists:
            row, place = (Symbol(each, integer=True, nonnegative=True) for each in ("row", "place"))
            names = {**self.index.names, row: f"((i64)first / {int(self.blocks.queries)})", place: "n"}
            text = IndexText(names, self.index.extents, wide=True)
            buffers = self.plan.names.buffers
            listed = text.walk(offset_of(counts, (B, H, row)))
            entry = text.walk(offset_of(indices, (B, H, row, place)))
            with self.lines.block(f"for (i64 n = 0; n < {buffers[counts.buffer]}[{listed}]; ++n)"):
                add(f"const i64 start = (i64){buffers[indices.buffer]}[{entry}] * {length};")
                add("const i64 from = start > least ? start : least;")
                add(f"const i64 to = start + {length} < most ? start + {length} : most;")
                with self.lines.block(f"for (i64 begin = from; begin < to; begin += {KEYS})"):
                    add(f"const i64 end = to - begin < {KEYS} ? to : begin + {KEYS};", f"block(begin, end, {open_});")

    # ------------------------------------------------------------------ a block of keys

    def _keys(self, wide: int, deep: int) -> None:
        add = self.lines.add
        add("const int keys = end - begin;")
        places = {}
        for name, ref, width in (("key", self.attention.key, wide), ("value", self.attention.value, deep)):
            batch, head = self._shared(ref)
            if self._direct(ref, width):
                names = {**self.index.names, K: "begin"}
                offset = offset_of(ref, (batch, head, K, ZERO))
                text = IndexText(names, self.index.extents, wide=True).walk(offset)
                places[name] = (f"&{self.plan.names.buffers[ref.buffer]}[{text}]", int(ref.layout.stride[2]))
            else:
                self._copy(ref, name, width, "keys", "begin", batch, head)
                places[name] = (name, width)
        scale = float(self.attention.scale)
        (key, key_step), (value, value_step) = places["key"], places["value"]
        add(f"gemm('T', 'N', keys, count, {wide}, {scale!r}f, {key}, {key_step}, query, {wide}, 0, score, {KEYS});")
        with self._scope("for (int i = 0; i < count; ++i)"):
            add(f"const {self.index.var_type(self.plan.size[2])} q = first + i;")
            add(f"float* const row = score + i * {KEYS};", "float most_here = top[i];")
            self._changed()
            self._raised(deep)
        add(f"gemm('N', 'N', {deep}, count, keys, 1, {value}, {value_step}, score, {KEYS}, 1, out, {deep});")

    def _changed(self) -> None:
        """Scores as the bodies change them, and their maximum."""
        if self.plan.mask is None:
            self._loop(self.plan.score, None)
            return
        with self.lines.block("if (open)"):
            self._loop(self.plan.score, None)
        with self.lines.block("else"):
            self._loop(self.plan.score, self.plan.mask)

    def _loop(self, score: Node | None, mask: Node | None) -> None:
        body, add = self.body, self.lines.add
        roots = [node for node in (score, mask) if node is not None]
        given = [node for node in self.plan.body.nodes if node.op == "load" and node.buffer == SCORE]
        with self._scope(""):
            inner = [node for node in body.missing(roots) if node not in given]
            varying = {node for node in inner if K in body.variables[node] or any(g in _below(node) for g in given)}
            body.write([node for node in inner if node not in varying])
            with self._scope("#pragma omp simd reduction(greatest : most_here)", "for (int j = 0; j < keys; ++j)"):
                add(f"const {self.index.var_type(self.plan.size[3])} k = begin + j;")
                body.visible.update(dict.fromkeys(given, "row[j]"))
                body.write([node for node in inner if node in varying])
                value = "row[j]" if score is None else body.value(score)
                if mask is not None:
                    value = f"({body.value(mask)} ? {value} : -__builtin_inff())"
                add(f"const float now = {value};", "row[j] = now;", "most_here = now > most_here ? now : most_here;")

    def _raised(self, deep: int) -> None:
        self.lines.add(
            "const float shift = most_here == -__builtin_inff() ? 0 : most_here;",
            "float sum = 0;",
            "#pragma omp simd reduction(+ : sum)",
            "for (int j = 0; j < keys; ++j) {",
            "  const float now = exp_below(row[j] - shift);",
            "  row[j] = now;",
            "  sum += now;",
            "}",
            "const float fades = exp_below(top[i] - shift);",
            "total[i] = total[i] * fades + sum;",
            "top[i] = most_here;",
            "if (fades != 1) {",
            "  #pragma omp simd",
            f"  for (int e = 0; e < {deep}; ++e) out[i * {deep} + e] *= fades;",
            "}",
        )

    # ------------------------------------------------------------------ results

    def _finish(self, deep: int) -> None:
        template, add = self.attention, self.lines.add
        first, *others = template.outputs
        assert first is not None
        with self._scope("for (int i = 0; i < count; ++i)"):
            add(f"const {self.index.var_type(self.plan.size[2])} q = first + i;")
            add("const float by = total[i] == 0 ? 0 : 1 / total[i];")
            column = Symbol("column", integer=True, nonnegative=True)
            buffer = self.plan.buffers[first]
            names = {**self.index.names, column: "e"}
            ref = TensorRef(first, self._own(first))
            text = IndexText(names, self.index.extents, wide=True).walk(offset_of(ref, (B, H, Q, column)))
            add("#pragma omp simd")
            with self.lines.block(f"for (int e = 0; e < {deep}; ++e)"):
                value = written(buffer.dtype, f"(out[i * {deep} + e] * by)")
                add(f"{self.plan.names.buffers[first]}[{text}] = {value};")
            values = (
                f"total[i] == 0 ? -__builtin_inff() : (top[i] + log(total[i])) * {1 / log(2)!r}f",
                f"top[i] * {1 / log(2)!r}f",
            )
            for name, value in zip(others, values):
                if name is not None and name in self.plan.outputs:
                    place = self._at(TensorRef(name, self._own(name)), (B, H, Q))
                    add(f"{place} = {value};")

    def _own(self, name: str) -> Layout:
        layout = self.plan.buffers[name].layout
        return Layout(layout.size, layout.stride)


def _below(node: Node) -> set[Node]:
    return set(walk(node))


_HELPERS = """\
// exp of what is not above 0, within 2 units in the last place; 0 below the least normal number. Cody and Waite's
// reduction, and exp's series: what is left of x is at most log(2) / 2.
static inline float exp_below(float x) {
  const float shifted = multiply_add(x, 0x1.715476p+0f, 0x1.8p23f), n = shifted - 0x1.8p23f;
  const float r = multiply_add(n, 0x1.05c61p-29f, multiply_add(n, -0x1.62e43p-1f, x));
  float y = multiply_add(r, 0x1.a01a02p-13f, 0x1.6c16c2p-10f);
  y = multiply_add(y, r, 0x1.111112p-7f);
  y = multiply_add(y, r, 0x1.555556p-5f);
  y = multiply_add(y, r, 0x1.555556p-3f);
  y = multiply_add(y, r, 0.5f);
  y = multiply_add(y, r, 1.0f);
  y = multiply_add(y, r, 1.0f);
  const float found = float_of(bits(y) + (bits(shifted) << 23));
  return x < -87.33f ? 0 : found;
}
extern "C" void sgemm_(
  const char*, const char*, const int*, const int*, const int*, const float*, const float*, const int*, const float*,
  const int*, const float*, float*, const int*);
static inline void gemm(
    char left, char right, int m, int n, int k, float alpha, const float* a, int a_step, const float* b, int b_step,
    float beta, float* c, int c_step) {
  sgemm_(&left, &right, &m, &n, &k, &alpha, a, &a_step, b, &b_step, &beta, c, &c_step);
}
"""

__all__ = ["ABILITY", "KINDS", "offer_blocked", "write_blocked"]
