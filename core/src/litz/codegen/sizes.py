"""Index and size expressions as text: one walk over an expression, and Python's texts, for the wrapper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce

import sympy

from litz.ir.index import Expr, FloorDiv, Mod, PythonMod, Symbol

INT32 = 2**31 - 1
"""The greatest number of 32 bits."""


class ExpressionText:
    """Expressions in one language, for which a subclass says how it spells things. names: the texts of symbols.

    texts: of functions, by the name of their class, over operands {0}, {1}, ... and {all} arguments. pairs: names of
    functions of two arguments, applied to any number. times: between factors.
    """

    language, times = "Python", "*"
    texts: Mapping[str, str] = {}
    pairs: Mapping[str, str] = {}

    def __init__(self, names: Mapping[Symbol, str]) -> None:
        self.names = names

    def walk(self, expr: Expr) -> str:
        """Returns the text of an expression. Errors: NotImplementedError for an expression that the language has no
        text for."""
        if expr.is_Integer:
            return self.number(int(expr))
        if expr.is_Symbol:
            return self.name(expr)
        if expr.is_Add:
            return self.sum(expr)
        if expr.is_Mul:
            return self.product(expr)
        if expr.is_Pow and expr.exp.is_Integer and int(expr.exp) > 0:
            return self.power(self.operand(expr.base), int(expr.exp))
        if isinstance(expr, (FloorDiv, Mod, PythonMod)):
            return self.division(expr, *expr.args)
        kind = type(expr).__name__
        if kind in self.pairs:
            return reduce(lambda left, right: f"{self.pairs[kind]}({left}, {right})", self.paired(expr.args))
        if kind in self.texts:
            return self.texts[kind].format(*map(self.operand, expr.args), all=", ".join(self.all(expr.args)))
        return self.other(expr)

    def all(self, exprs: Iterable[Expr]) -> list[str]:
        """Returns the text of each expression."""
        return list(map(self.walk, exprs))

    def paired(self, exprs: Iterable[Expr]) -> Iterable[str]:
        """Returns the arguments of a function of two, as operands."""
        return map(self.operand, exprs)

    def operand(self, expr: Expr) -> str:
        """Returns the text of an expression as an operand of an operator that binds at least as tightly as a
        product."""
        text = self.walk(expr)
        product = isinstance(expr, sympy.Expr) and (expr.is_Mul or expr.is_Pow)
        return f"({text})" if product or text.startswith("-") else text

    def number(self, value: int) -> str:
        """Returns an integer as a literal."""
        return str(value)

    def name(self, symbol: Symbol) -> str:
        """Returns the name of a symbol. Errors: KeyError for a symbol that has no name."""
        return self.names[symbol]

    def sum(self, expr: Expr) -> str:
        """Returns a sum, in parentheses."""
        return f"({' + '.join(self.all(expr.args))})"

    def product(self, expr: Expr) -> str:
        """Returns a product, its factors joined by `times`."""
        return self.times.join(self.all(expr.args))

    def power(self, base: str, exponent: int) -> str:
        """Returns a power with a positive integer exponent as a product of its base."""
        return self.times.join([base] * exponent)

    def division(self, expr: Expr, value: Expr, divisor: Expr) -> str:
        """Returns text for a floor division or a remainder, whichever `expr` is, of `value` by `divisor`."""
        return f"({self.walk(value)} {'//' if isinstance(expr, FloorDiv) else '%'} {self.operand(divisor)})"

    def other(self, expr: Expr) -> str:
        """Returns the text of an expression that no other method is for. Errors: NotImplementedError where the language
        has none."""
        raise NotImplementedError(f"no {self.language} for the expression {expr} ({type(expr).__name__})")


_OPERATORS = (
    *(("**", "PowByNatural FloatPow Pow"), ("/", "FloatTrueDiv IntTrueDiv"), ("//", "CleanDiv"), ("<<", "LShift")),
    *((">>", "RShift"), ("&", "BitwiseFn_bitwise_and"), ("|", "BitwiseFn_bitwise_or"), ("^", "BitwiseFn_bitwise_xor")),
    *(("==", "Equality"), ("!=", "Unequality"), ("<", "StrictLessThan"), ("<=", "LessThan")),
    *((">", "StrictGreaterThan"), (">=", "GreaterThan")),
)
_FUNCTIONS = {
    **{name: f"({{0}} {sign} {{1}})" for sign, names in _OPERATORS for name in names.split()},
    "Max": "max({all})",
    "Min": "min({all})",
    "Abs": "abs({0})",
    "CeilToInt": "math.ceil({0})",
    "FloorToInt": "math.floor({0})",
    "TruncToInt": "math.trunc({0})",
    "RoundToInt": "round({0})",
    "RoundDecimal": "round({all})",
    "Identity": "({0})",
    "ModularIndexing": "({0} // {1} % {2})",
    "IsNonOverlappingAndDenseIndicator": "_is_dense({all})",
    "ToFloat": "float({0})",
    "TruncToFloat": "float(math.trunc({0}))",
    "CeilDiv": "(-(-{0} // {1}))",
    "Not": "(not {0})",
    "Where": "({1} if {0} else {2})",
}


class PythonText(ExpressionText):
    """Expressions as Python text, which the wrapper computes sizes and conditions with."""

    texts = _FUNCTIONS

    def name(self, symbol: Symbol) -> str:
        """Returns the symbol's own name, which the wrapper uses too."""
        return str(symbol.name)

    def power(self, base: str, exponent: int) -> str:
        """Returns the power with Python's operator."""
        return f"{base}**{exponent}"

    def other(self, expr: Expr) -> str:
        """Returns a function of `math`, a condition, a Piecewise, a constant or a truth value. Errors:
        NotImplementedError for any other expression."""
        name = type(expr).__name__
        if name.startswith(_OPAQUE):
            return f"math.{name.removeprefix(_OPAQUE)}({self.walk(expr.args[0])})"
        if isinstance(expr, (sympy.And, sympy.Or)):
            return f"({(' and ' if isinstance(expr, sympy.And) else ' or ').join(self.all(expr.args))})"
        if isinstance(expr, sympy.Piecewise):  # the value of the first condition that holds; sizes always have one
            *pieces, (last, _) = expr.args
            tail = "".join(f"{self.walk(value)} if {self.walk(condition)} else " for value, condition in pieces)
            return f"({tail}{self.walk(last)})"
        if expr.is_number:
            number = repr(float(expr))
            return number if number[-1].isdigit() else f'float("{number}")'
        if isinstance(expr, sympy.logic.boolalg.BooleanAtom):
            return str(bool(expr))
        return super().other(expr)


_OPAQUE = "OpaqueUnaryFn_"
"""What torch names a function of Python's `math` module."""


def python_text(expr: int | Expr) -> str:
    """Returns the text of an expression in Python, where its symbols are variables of the same name."""
    return str(expr) if isinstance(expr, int) else PythonText({}).walk(expr)


def tuple_text(values: tuple[int | Expr, ...]) -> str:
    """Returns sizes or strides as the text of a Python tuple."""
    items = ", ".join(map(python_text, values))
    return f"({items},)" if len(values) == 1 else f"({items})"
