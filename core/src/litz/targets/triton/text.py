"""Index expressions as Triton text, and sizes as Python text for its launcher.

In: sympy expressions over loop variables, sizes and placeholders. Out: text in which loop variables are the kernel's
tile indices. Device code divides as C does, so a floor division whose numerator may be negative goes through a helper.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from litz.codegen.sizes import ExpressionText, PythonText
from litz.ir.index import Expr, FloorDiv, Ranges, Symbol, bounds, known_nonnegative


class IndexText(ExpressionText):
    """Prints index expressions. `names` has the text of each loop variable, size symbol and placeholder."""

    language = "Triton"
    texts = {"CleanDiv": "({0} // {1})", "CeilDiv": "(({0} + {1} - 1) // {1})"}
    pairs = {"Max": "tl.maximum", "Min": "tl.minimum"}

    def __init__(self, names: Mapping[Symbol, str], ranges: Ranges) -> None:
        self.names, self.ranges = names, ranges

    def __call__(self, expr: Expr) -> str:
        """Returns the text of an expression, in parentheses if it is more than a name, a number or a call."""
        text = self.walk(expr)
        return f"({text})" if expr.is_Add or expr.is_Mul or expr.is_Pow else text

    operand = __call__

    def number(self, value: int) -> str:
        """Returns an integer literal: negative ones in parentheses, those from 2**31 to 2**32 - 1 as int64."""
        if 2**31 <= value < 2**32:
            # Triton takes it for an unsigned number of 32 bits, and compares those as if they were signed.
            return f"tl.full([], {value}, tl.int64)"
        return str(value) if value >= 0 else f"({value})"

    def sum(self, expr: Expr) -> str:
        """Returns the sum, its terms sorted by their text."""
        # Sorted by text: sympy's own order depends on names that are not in the text.
        return " + ".join(sorted(self(term) if term.is_Add else self.walk(term) for term in expr.args))

    def product(self, expr: Expr) -> str:
        """Returns the product, its factors sorted by their text."""
        return "*".join(sorted(map(self, expr.args)))

    def division(self, expr: Expr, value: Expr, divisor: Expr) -> str:
        """Returns a floor division or remainder: Triton's operator where its rounding is right for the value's range,
        else a helper."""
        floor = isinstance(expr, FloorDiv)
        low, _ = bounds(value, self.ranges)
        if low is not None and known_nonnegative(low):
            return f"({self(value)} {'//' if floor else '%'} {self(divisor)})"
        if not floor and low is not None and divisor.is_Integer and known_nonnegative(low + divisor):
            return f"({self(value + divisor)} % {self(divisor)})"  # a roll: it wraps once
        return f"{'_floordiv_int' if floor else '_remainder_int'}({self(value)}, {self(divisor)})"


class _SizeText(PythonText):
    """Python text that does not depend on the names of symbols: terms are in the order of their texts."""

    def walk(self, expr: Expr) -> str:
        text = super().walk(expr)
        return f"({text})" if expr.is_Mul or expr.is_Pow else text

    name, operand = ExpressionText.name, walk

    def all(self, exprs: Iterable[Expr]) -> list[str]:
        return sorted(map(self.walk, exprs))


def size_text(expr: Expr, names: Mapping[Symbol, str]) -> str:
    """Returns a size expression in Python, for the host: the launcher computes grids from such texts."""
    return _SizeText(names).walk(expr)
