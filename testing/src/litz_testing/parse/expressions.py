"""Size and index expressions, and conditions, from the text that sympy prints. Nothing is evaluated as Python.

A condition is `a | b`, `a & b`, `~a`, a comparison of sums, or a sum. A sum has products (`a * b`, `a / b`, `a // b`,
`a**2`, `-a`) of numbers, names, conditions in parentheses, and functions of conditions (`Max(1, s0)`, `Eq(s0, 4)`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import sympy
from sympy.core.parameters import distribute

from litz.ir.index import FUNCTIONS, FloorDiv, Symbol

from .cursor import NAME, Cursor, ParseError

NUMBER = re.compile(r"\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|\d+|\.\d+(?:e[+-]?\d+)?")
MOST_EXPONENT = 64
_RELATIONS: Mapping[str, Any] = {"<=": sympy.Le, ">=": sympy.Ge, "<": sympy.Lt, ">": sympy.Gt}
_NAMED: Mapping[str, Any] = {"Eq": sympy.Eq, "Ne": sympy.Ne, "Abs": sympy.Abs, "floor": sympy.floor, **FUNCTIONS}
_VALUES: Mapping[str, Any] = {
    "True": sympy.true,
    "False": sympy.false,
    "oo": sympy.oo,
    "inf": sympy.Float("inf"),
    "nan": sympy.nan,
    "pi": sympy.pi,
    "E": sympy.E,
}


class Expressions:
    """Reads expressions. symbol: returns the symbol of a name, or None if there is none."""

    def __init__(self, symbol: Callable[[str], Symbol | None]) -> None:
        self._symbol = symbol

    def condition(self, line: Cursor) -> Any:
        """Returns the condition, or the expression, that comes next."""
        return self._made(line, self._condition)

    def sum(self, line: Cursor) -> Any:
        """Returns the sum that comes next; a product or an atom is one of one term."""
        return self._made(line, self._sum)

    @staticmethod
    def _made(line: Cursor, read: Callable[[Cursor], Any]) -> Any:
        start = line.at
        try:
            return read(line)
        except ParseError:
            raise
        except (ArithmeticError, AttributeError, RecursionError, TypeError, ValueError) as error:
            line.fail(f"an expression that sympy can make ({type(error).__name__}: {error})", start)

    def _condition(self, line: Cursor) -> Any:
        return self._joined(line, "|", sympy.Or, lambda: self._joined(line, "&", sympy.And, lambda: self._not(line)))

    def _joined(self, line: Cursor, mark: str, join: Any, part: Callable[[], Any]) -> Any:
        found = [part()]
        while line.takes(mark):
            found.append(part())
        return found[0] if len(found) == 1 else join(*found)

    def _not(self, line: Cursor) -> Any:
        return sympy.Not(self._not(line)) if line.takes("~") else self._relation(line)

    def _relation(self, line: Cursor) -> Any:
        left = self._sum(line)
        for mark, relation in _RELATIONS.items():
            if line.takes(mark):
                return relation(left, self._sum(line), evaluate=False)
        return left

    def _sum(self, line: Cursor) -> Any:
        terms = [self._product(line)]
        while True:
            if line.takes("+"):
                terms.append(self._product(line))
            elif line.takes("-"):
                terms.append(_times(sympy.S.NegativeOne, self._product(line)))
            else:
                return terms[0] if len(terms) == 1 else sympy.Add(*terms)

    def _product(self, line: Cursor) -> Any:
        if line.takes("-"):
            return _times(sympy.S.NegativeOne, self._product(line))
        factors = [self._power(line)]
        while True:
            if line.takes("//"):
                factors = [FloorDiv(_times(*factors), self._power(line))]
            elif line.takes("*"):
                factors.append(self._power(line))
            elif line.takes("/"):
                factors.append(sympy.Pow(self._power(line), -1))
            else:
                return _times(*factors)

    def _power(self, line: Cursor) -> Any:
        base = self._atom(line)
        if not line.takes("**"):
            return base
        start, exponent = line.at, self._exponent(line)
        if exponent.is_number and not abs(exponent) <= MOST_EXPONENT:
            line.fail(f"an exponent of at most {MOST_EXPONENT}", start)  # a text is not to take years and all memory
        return sympy.Pow(base, exponent)

    def _exponent(self, line: Cursor) -> Any:
        return -self._exponent(line) if line.takes("-") else self._power(line)

    def _atom(self, line: Cursor) -> Any:
        if line.takes("("):
            inner = self._condition(line)
            line.take(")")
            return inner
        number = line.find(NUMBER)
        if number is not None:
            return sympy.Integer(number) if number.isdigit() else sympy.Float(float(number))
        start = line.at
        name = line.find(NAME)
        if name is None:
            line.fail("a number, a name or '('")
        if line.takes("("):
            function = _NAMED.get(name)
            if function is None:
                line.fail("a function of sizes", start)
            arguments = line.inside(")", lambda: self._condition(line))
            return function(*arguments, evaluate=False) if name in ("Eq", "Ne") else function(*arguments)
        symbol = self._symbol(name)
        found = _VALUES.get(name) if symbol is None else symbol
        if found is None:
            line.fail("a loop's variable or a size that a line `size ...` declares", start)
        return found


def _times(*factors: Any) -> Any:
    """The product as it was printed: a number in front of a sum is not multiplied into it."""
    if len(factors) == 1:
        return factors[0]
    if not any(part.is_Add for factor in factors for part in (factor, *factor.args)):
        return sympy.Mul(*factors)
    with distribute(False):
        return sympy.Mul(*factors)
