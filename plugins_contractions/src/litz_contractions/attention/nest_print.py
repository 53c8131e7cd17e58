"""Prints the Nest of an attention as C++: core's printer, and the text of this plugin's lines (`nest_lines.py`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from litz.ir.index import Expr
from litz.targets.cpp.codegen import SYMBOL
from litz.targets.cpp.dialect import ELEMENTS
from litz.targets.cpp.forms import Form, form_of
from litz.targets.cpp.prelude import prelude
from litz.targets.cpp.print import Lines, Printer
from litz.tiles import program as tile
from litz.tiles.program import Held, Nest

from .nest_lines import Keys, Matrix, Product, When

BELOW = "below"
"""The exponential of what is not above 0 (`Op.near`)."""


def print_attention(nest: Nest, note: str, written: Collection[str], parallel: int) -> str:
    """Returns the whole source. note: its first line. written: names of buffers that the kernel writes. parallel: work
    from which threads share it."""
    names, lines = nest.names, Lines()
    _Printer(nest, lines, parallel).whole()
    parameters = [
        f"{'' if name in written else 'const '}{ELEMENTS[nest.buffers[name].dtype]}* {short}"
        for name, short in names.buffers.items()
    ]
    parameters += [f"i64 {short}" for short in names.sizes.values()]
    header = f'{_HELPERS}extern "C" int {SYMBOL}({", ".join(parameters)}) {{'
    text = "\n".join((header, *lines.text, "}", ""))
    return f"// {note}\n{prelude(text)}\n{text}"


def _form(held: Held) -> Form:
    """Returns the form of a held reduction. The greatest score leaves NaN out: the weights' sum becomes NaN anyway."""
    form = form_of(held)
    return replace(form, states=form.states[:1], join=form.join[:1], finish=()) if held.kind == "max" else form


class _Printer(Printer):
    def __init__(self, nest: Nest, lines: Lines, parallel: int) -> None:
        super().__init__(nest, lines, parallel)
        self.form, self.block = _form, "?"

    def _op(self, op: tile.Op) -> None:
        if op.near == BELOW:
            self.lines.add(f"const float {op.value.text} = exp_below({self.operand(op.args[0])});")
        else:
            super()._op(op)

    def element(self, element: tile.Element) -> str:
        """Returns the text of a room's element: of a row, as g++ keeps in memory what lanes add up beside an array."""
        if len(element.at) == 1:
            return super().element(element)
        (row, start, times), (column, block, _) = element.at
        place = f"{self.index.text(column)} - {block}" if block else self.index.text(column)
        return f"({element.room} + ({self.index.text(row)} - {start}) * {times})[{place}]"

    def _when(self, line: When) -> None:
        with self.lines.block(f"if ({'!' * line.otherwise}{self.operand(line.of)})"):
            self.print(line.body)

    # Which keys. Numbered from 0, g++ knows where there are as many as lanes, or a multiple of that.

    def _header(self, each: tile.Each, *span: int) -> str:
        return "for (int lane = 0; lane < keys; ++lane)" if each.within == self.block else super()._header(each, *span)

    def _first(self, each: tile.Each) -> Iterator[str]:
        if each.within == self.block:
            yield f"const {self.index.var_type(each.size)} {each.axis} = {self.block} + lane;"
        yield from super()._first(each)

    def _keys(self, line: Keys) -> None:
        add, size, type_ = self.lines.add, self.index.text(line.size), self.index.var_type(line.size)
        add(f"i64 least = 0, most = {size}, all_least = 0, all_most = {size};")
        self._limits(line)
        self.block = line.axis
        with self.lines.block(f"auto block = [&]({type_} {line.axis}, int keys, bool {line.value.text})"):
            self.print(line.body)
        self.lines.text[-1] += ";"
        inside = "begin >= all_least && end <= all_most" if line.exact else "false"
        if not line.lists:
            self._blocks(line.step, "least", "most", inside)
        for listed in line.lists:
            place = self.nest.names.variables[listed.place]
            with self.lines.block(f"for (i64 {place} = 0; {place} < {self.place(listed.counts)}; ++{place})"):
                add(f"const i64 start = (i64){self.place(listed.entries)} * {listed.length};")
                add("const i64 from = start > least ? start : least;")
                add(f"const i64 to = start + {listed.length} < most ? start + {listed.length} : most;")
                self._blocks(line.step, "from", "to", "true" if listed.known else inside)

    def _blocks(self, step: int, start: str, stop: str, inside: str) -> None:
        with self.lines.block(f"for (i64 begin = {start}; begin < {stop}; begin += {step})"):
            end = f"{stop} - begin < {step} ? {stop} : begin + {step}"
            self.lines.add(f"const i64 end = {end};", f"block(begin, end - begin, {inside});")

    def _limits(self, line: Keys) -> None:
        """`least` and `most`: the keys that any query of the block may look at; `all_...`: those that all do."""
        for exprs, sign, own, more in ((line.upper, "<", "most", " + 1"), (line.lower, ">", "least", "")):
            for expr in exprs:
                one, other = (self._limit(line, expr, at) for at in (line.block, f"({line.block}_end - 1)"))
                far, near = (">", "<") if own == "most" else ("<", ">")
                self.lines.add(
                    f"{{ const i64 one = {one}{more}, other = {other}{more};",
                    f"  const i64 far = one {far} other ? one : other;",
                    f"  const i64 near = one {near} other ? one : other;",
                    f"  {own} = far {sign} {own} ? far : {own};",
                    f"  all_{own} = near {sign} all_{own} ? near : all_{own}; }}",
                )

    def _limit(self, line: Keys, expr: Expr, query: str) -> str:
        return f"(i64)({self.index.text(expr, {line.query: query})})"

    # Products.

    def _product(self, line: Product) -> None:
        counts = {self.block: "keys"}
        rows, columns, depth = (
            counts.get(size, f"{size}_end - {size}") if isinstance(size, str) else size for size in line.sizes
        )
        left, right, into = map(self._matrix, (line.left, line.right, line.into))
        turned, adds = "T" if line.turned else "N", int(line.adds)
        # BLAS takes columns for rows: the factors change places.
        given = f"'{turned}', 'N', {columns}, {rows}, {depth}, {line.scale!r}f, {right}, {left}, {adds}, {into}"
        self.lines.add(f"gemm({given});")

    def _matrix(self, matrix: Matrix) -> str:
        return f"{matrix.of if isinstance(matrix.of, str) else f'&{self.place(matrix.of)}'}, {matrix.step}"


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
