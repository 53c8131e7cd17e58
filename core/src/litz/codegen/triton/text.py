"""Index expressions as Triton text.

In: sympy expressions over loop variables, sizes and placeholders. Out: text in which loop variables are the kernel's
tile indices. Device code divides as C does, so a floor division whose numerator may be negative goes through a helper.
"""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from litz.ir.index import Expr, FloorDiv, Mod, PythonMod, Ranges, Symbol, bounds, known_nonnegative


class IndexText:
    """Prints index expressions. `names` has the text of each loop variable, size symbol and placeholder."""

    def __init__(self, names: Mapping[Symbol, str], ranges: Ranges) -> None:
        self.names = names
        self.ranges = ranges

    def __call__(self, expr: Expr) -> str:
        """The expression, in parentheses if it is more than a name, a number or a call."""
        text = self._text(expr)
        return f"({text})" if expr.is_Add or expr.is_Mul or expr.is_Pow else text

    def _text(self, expr: Expr) -> str:
        if expr.is_Integer:
            return _integer(int(expr))
        if expr.is_Symbol:
            return self.names[expr]
        if expr.is_Add:
            # Sorted by text: sympy's own order depends on names that are not in the text.
            return " + ".join(sorted(self(term) if term.is_Add else self._text(term) for term in expr.args))
        if expr.is_Mul:
            return "*".join(sorted(self(factor) for factor in expr.args))
        if isinstance(expr, FloorDiv):
            return self._divide(expr.args[0], expr.args[1], "//", "_floordiv_int")
        if isinstance(expr, (Mod, PythonMod)):
            return self._divide(expr.args[0], expr.args[1], "%", "_remainder_int")
        if expr.is_Pow and expr.exp.is_Integer and int(expr.exp) > 0:
            return "*".join([self(expr.base)] * int(expr.exp))
        args = [self(arg) for arg in expr.args]
        if isinstance(expr, sympy.Max) or type(expr).__name__ == "Max":
            return _nested("tl.maximum", args)
        if isinstance(expr, sympy.Min) or type(expr).__name__ == "Min":
            return _nested("tl.minimum", args)
        if type(expr).__name__ == "CleanDiv":
            return f"({args[0]} // {args[1]})"
        if type(expr).__name__ == "CeilDiv":
            return f"(({args[0]} + {args[1]} - 1) // {args[1]})"
        raise NotImplementedError(f"index expression {expr} ({type(expr).__name__}) has no Triton text")

    def _divide(self, value: Expr, divisor: Expr, sign: str, helper: str) -> str:
        low, _ = bounds(value, self.ranges)
        if low is not None and known_nonnegative(low):
            return f"({self(value)} {sign} {self(divisor)})"
        return f"{helper}({self(value)}, {self(divisor)})"


def _integer(value: int) -> str:
    if 2**31 <= value < 2**32:
        # Triton takes it for an unsigned number of 32 bits, and compares those as if they were signed.
        return f"tl.full([], {value}, tl.int64)"
    return str(value) if value >= 0 else f"({value})"


def _nested(function: str, args: list[str]) -> str:
    result = args[0]
    for arg in args[1:]:
        result = f"{function}({result}, {arg})"
    return result


def size_text(expr: Expr, names: Mapping[Symbol, str]) -> str:
    """A size expression in Python, for the host: what the launcher computes grids from."""
    if expr.is_Integer:
        return str(int(expr))
    if expr.is_Symbol:
        return names[expr]
    args = [size_text(arg, names) for arg in expr.args]
    if expr.is_Add:
        return f"({' + '.join(sorted(args))})"
    if expr.is_Mul:
        return f"({'*'.join(sorted(args))})"
    kind = type(expr).__name__
    if isinstance(expr, FloorDiv) or kind == "CleanDiv":
        return f"({args[0]} // {args[1]})"
    if isinstance(expr, (Mod, PythonMod)):
        return f"({args[0]} % {args[1]})"
    if kind == "CeilDiv":
        return f"(-(-{args[0]} // {args[1]}))"
    if expr.is_Pow and expr.exp.is_Integer and int(expr.exp) > 0:
        return f"({args[0]}**{int(expr.exp)})"
    if kind in ("Max", "Min"):
        return f"{kind.lower()}({', '.join(sorted(args))})"
    raise NotImplementedError(f"size expression {expr} ({kind}) has no host text")
