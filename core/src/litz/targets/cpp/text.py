"""Index expressions over loop variables, sizes and placeholders as C++ text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from litz.codegen.sizes import INT32, ExpressionText
from litz.ir.index import Expr, FloorDiv, Symbol, bounds, known_nonnegative


class IndexText(ExpressionText):
    """Index expressions as C++.

    `names` has the text of each loop variable and size, `extents` the exclusive upper bound of each loop variable.
    Loop variables are `int` where their extent is known to fit (`narrow`), so that the compiler can use 32-bit lanes
    for what is computed from them; an expression that may not fit is computed in 64 bits (`wide`).
    """

    language, times = "C++", " * "
    pairs = {"Max": "maximum", "Min": "minimum"}

    def __init__(self, names: Mapping[Symbol, str], extents: Mapping[Symbol, Expr], wide: bool = False) -> None:
        self.names, self.extents, self.wide = names, extents, wide

    def narrow(self, extent: Expr) -> bool:
        """Returns whether every value below `extent` provably fits in an int."""
        return extent.is_Integer and int(extent) < INT32

    def var_type(self, extent: Expr) -> str:
        """Returns the C++ type of a loop variable below `extent`: `int` where that is known to fit, else `i64`."""
        return "int" if self.narrow(extent) else "i64"

    def fits_int(self, expr: Expr) -> bool:
        """Returns whether every value, and everything on the way to it, is within 32 bits."""
        if expr.is_Symbol:
            return expr in self.extents and self.narrow(self.extents[expr])
        if any(end is None or not end.is_Integer or abs(int(end)) > INT32 for end in bounds(expr, self.extents)):
            return False
        return all(self.fits_int(arg) for arg in expr.args)

    def text(self, expr: Expr, values: Mapping[Symbol, str] | None = None, narrow: bool = False) -> str:
        """Returns `expr` in C++. values: the texts (64-bit, unless `narrow`) of placeholders and others."""
        if expr.is_Integer:
            return str(expr)
        names = {**self.names, **values} if values else self.names
        return IndexText(names, self.extents, not (narrow or self.fits_int(expr))).walk(expr)

    def number(self, value: int) -> str:
        """Returns an integer literal, of type long where 64-bit arithmetic needs one."""
        return f"{value}L" if self.wide and abs(value) > INT32 else str(value)

    def name(self, symbol: Symbol) -> str:
        """Returns the name of a symbol, cast to 64 bits where the expression is wide and the variable is not."""
        name, extent = super().name(symbol), self.extents.get(symbol)
        return f"(i64){name}" if self.wide and extent is not None and self.narrow(extent) else name

    def sum(self, expr: Expr) -> str:
        """Returns the sum, positive terms first and constants last."""

        def order(term: Expr) -> tuple[bool, bool, str]:
            # Positive terms first, constants last: i0 * 8 + i1 - 1.
            return term.is_Integer, bool(term.as_coeff_Mul()[0].is_negative), str(term)

        text = ""
        for term in sorted(expr.args, key=order):
            negative = term.as_coeff_Mul()[0].is_negative
            part = self.walk(-term if negative else term)
            sign = "-" if negative else "+"
            text = f"{text} {sign} {part}" if text else f"-{part}" if negative else part
        return text

    def product(self, expr: Expr) -> str:
        """Returns the product, an integer factor last."""
        coefficient, rest = expr.as_coeff_Mul()
        if coefficient != 1 and coefficient.is_Integer:
            return f"{self.operand(rest)} * {self.walk(coefficient)}"
        return " * ".join(self.operand(arg) for arg in sorted(expr.args, key=str))

    def operand(self, expr: Expr) -> str:
        """Returns the expression as an operand: in parentheses, unless it is a symbol or an integer."""
        text = self.walk(expr)
        return text if expr.is_Symbol or expr.is_Integer else f"({text})"

    def paired(self, exprs: Iterable[Expr]) -> Iterable[str]:
        """Returns each expression in 64 bits, as the arguments of a function of two have to be of one type."""
        return [f"(i64)({IndexText(self.names, self.extents, True).walk(expr)})" for expr in exprs]

    def division(self, expr: Expr, value: Expr, divisor: Expr) -> str:
        """Returns a floor division or remainder: C's own operator where the value is known not to be negative, else a
        helper."""
        floor, left, right = isinstance(expr, FloorDiv), self.operand(value), self.operand(divisor)
        low, _ = bounds(value, self.extents)
        if low is not None and known_nonnegative(low):
            return f"{left} / {right}" if floor else f"({left} % {right})"
        return f"{'floordiv_int' if floor else 'remainder_int'}((i64){left}, (i64){right})"
