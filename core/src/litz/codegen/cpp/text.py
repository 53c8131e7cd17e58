"""Index expressions as C++ text.

In: sympy expressions over loop variables, sizes and placeholders. Out: C++ text.
"""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from litz.ir.index import Expr, FloorDiv, Mod, PythonMod, Symbol, bounds, known_nonnegative

INT32 = 2**31 - 1


class IndexText:
    """Index expressions as C++.

    `names` has the text of each loop variable and size, `extents` the exclusive upper bound of each loop variable.
    Loop variables are `int` where their extent is known to fit (`narrow`), so that the compiler can use 32-bit lanes
    for what is computed from them; an expression that may not fit is computed in 64 bits.
    """

    def __init__(self, names: Mapping[Symbol, str], extents: Mapping[Symbol, Expr]) -> None:
        self.names, self.extents = names, extents

    def narrow(self, extent: Expr) -> bool:
        """Does every value below `extent` fit in an int, provably?"""
        return extent.is_Integer and int(extent) < INT32

    def var_type(self, extent: Expr) -> str:
        return "int" if self.narrow(extent) else "i64"

    def interval(self, expr: Expr) -> tuple[int, int] | None:
        """Least and greatest value, if both are known numbers."""
        low, high = bounds(expr, self.extents)
        if low is None or high is None or not (low.is_Integer and high.is_Integer):
            return None
        return int(low), int(high)

    def fits_int(self, expr: Expr) -> bool:
        """Is every value, and everything on the way to it, within 32 bits?"""
        if expr.is_Symbol:
            return expr in self.extents and self.narrow(self.extents[expr])
        known = self.interval(expr)
        if known is None or max(abs(known[0]), abs(known[1])) > INT32:
            return False
        return all(self.fits_int(arg) for arg in expr.args)

    def text(self, expr: Expr, values: Mapping[Symbol, str] | None = None) -> str:
        """`expr` in C++; `values` are the texts (64-bit) of its placeholders."""
        if expr.is_Integer:
            return str(expr)
        return self._text(expr, values or {}, not self.fits_int(expr))

    def _text(self, expr: Expr, values: Mapping[Symbol, str], wide: bool) -> str:
        if expr.is_Integer:
            return f"{expr}L" if wide and abs(int(expr)) > INT32 else str(expr)
        if expr.is_Symbol:
            name = values.get(expr) or self.names[expr]
            if wide and expr in self.extents and self.narrow(self.extents[expr]):
                return f"(i64){name}"
            return name
        if expr.is_Add:
            return self._sum(expr, values, wide)
        if expr.is_Mul:
            coefficient, rest = expr.as_coeff_Mul()
            if coefficient != 1 and coefficient.is_Integer:
                return f"{self._factor(rest, values, wide)} * {self._text(coefficient, values, wide)}"
            return " * ".join(self._factor(arg, values, wide) for arg in sorted(expr.args, key=str))
        if expr.is_Pow and expr.exp.is_Integer and 0 < int(expr.exp) <= 32:
            return " * ".join([self._factor(expr.base, values, wide)] * int(expr.exp))
        if isinstance(expr, (FloorDiv, Mod, PythonMod)):
            return self._division(expr, values, wide)
        if isinstance(expr, (sympy.Max, sympy.Min)) or type(expr).__name__ in ("Max", "Min"):
            name = "maximum" if type(expr).__name__ == "Max" else "minimum"
            texts = [f"(i64)({self._text(arg, values, True)})" for arg in expr.args]
            result = texts[0]
            for other in texts[1:]:
                result = f"{name}({result}, {other})"
            return result
        raise NotImplementedError(f"no C++ for the index expression {expr}")

    def _sum(self, expr: Expr, values: Mapping[Symbol, str], wide: bool) -> str:
        def order(term: Expr) -> tuple[bool, bool, str]:
            # Positive terms first, constants last: i0 * 8 + i1 - 1.
            return term.is_Integer, bool(term.as_coeff_Mul()[0].is_negative), str(term)

        text = ""
        for term in sorted(expr.args, key=order):
            negative = term.as_coeff_Mul()[0].is_negative
            part = self._text(-term if negative else term, values, wide)
            sign = "-" if negative else "+"
            text = f"{text} {sign} {part}" if text else f"-{part}" if negative else part
        return text

    def _factor(self, expr: Expr, values: Mapping[Symbol, str], wide: bool) -> str:
        text = self._text(expr, values, wide)
        return text if expr.is_Symbol or expr.is_Integer else f"({text})"

    def _division(self, expr: Expr, values: Mapping[Symbol, str], wide: bool) -> str:
        base, divisor = expr.args
        left, right = self._factor(base, values, wide), self._factor(divisor, values, wide)
        low, _ = bounds(base, self.extents)
        if low is not None and known_nonnegative(low):
            return f"{left} / {right}" if isinstance(expr, FloorDiv) else f"({left} % {right})"
        name = "floordiv_int" if isinstance(expr, FloorDiv) else "remainder_int"
        return f"{name}((i64){left}, (i64){right})"
