"""Index arithmetic: sympy expressions over loop variables and sizes.

In: integer sympy expressions and the range of each loop variable. Out: simplified expressions. Floor division and
modulus are the only non-affine operations, and both are simplified as they are built, from the ranges, so that a
chain of reshapes ends as the affine expression that it is. Static shapes take the fast paths at the top of each
function and reach sympy's own simplifiers never.

No other file of the IR touches `torch.utils._sympy`; this one must, because the sizes that a ShapeEnv hands out are
built from these functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from math import gcd
from typing import Literal, TypeAlias

import sympy
from torch.utils._sympy import functions as torch_functions
from torch.utils._sympy.functions import FloorDiv as FloorDiv
from torch.utils._sympy.functions import Max as Max
from torch.utils._sympy.functions import Min as Min
from torch.utils._sympy.functions import Mod as Mod
from torch.utils._sympy.functions import PythonMod as PythonMod
from torch.utils._sympy.functions import ToFloat as ToFloat
from torch.utils._sympy.functions import Where as Where

FUNCTIONS: Mapping[str, type] = {
    name: each
    for name, each in vars(torch_functions).items()
    if isinstance(each, type) and issubclass(each, sympy.Basic) and each.__module__ == torch_functions.__name__
}
"""The functions of torch's that an expression may have, by the names that they print."""

Expr: TypeAlias = sympy.Expr
Symbol: TypeAlias = sympy.Symbol
Ranges: TypeAlias = Mapping[Symbol, Expr]
"""The exclusive upper bound of each loop variable; every loop variable starts at 0."""

ZERO = sympy.Integer(0)
ONE = sympy.Integer(1)


def to_expr(value: int | Expr) -> Expr:
    """Returns an int or an expression as a sympy expression."""
    return sympy.Integer(value) if isinstance(value, int) else value


# Kept here, as sympy's own memory of symbols is small: two symbols of one name are equal, but comparing them takes two
# dozen calls, and what is remembered of an expression is found by comparing.
@cache
def loop_var(position: int) -> Symbol:
    """Returns the canonical variable of output range `position`: i0, i1, ... Shared names make equal kernels equal
    text."""
    return sympy.Symbol(f"i{position}", integer=True, nonnegative=True)


@cache
def reduction_var(position: int) -> Symbol:
    """Returns the canonical variable of reduction range `position`: r0, r1, ..."""
    return sympy.Symbol(f"r{position}", integer=True, nonnegative=True)


@cache
def placeholder(position: int) -> Symbol:
    """Returns the symbol (arg0, arg1, ...) that stands in an index for the value of indirect argument `position` of a
    node."""
    return sympy.Symbol(f"arg{position}", integer=True)


SymbolKind = Literal["output", "reduction", "placeholder", "size"]
_NUMBERED = re.compile(r"(arg|i|r)(\d+)")
_KINDS: Mapping[str, SymbolKind] = {"i": "output", "r": "reduction", "arg": "placeholder"}
_MAKERS: Mapping[str, Callable[[int], Symbol]] = {"i": loop_var, "r": reduction_var, "arg": placeholder}


def kind_of(symbol: Symbol) -> SymbolKind:
    """Returns what a symbol stands for, by its name: "output" for a variable of `loop_var`, "reduction" for one of
    `reduction_var`, "placeholder" for one of `placeholder`, else "size". A loop may have other variables too
    (`Loop.extents` has them all)."""
    named = _NUMBERED.fullmatch(symbol.name)
    return _KINDS[named[1]] if named else "size"


def is_canonical(symbol: Symbol) -> bool:
    """Returns whether the name alone says what the symbol is: of `loop_var`, `reduction_var` or `placeholder`."""
    return canonical(symbol.name) == symbol


def canonical(name: str) -> Symbol | None:
    """Returns the symbol of `loop_var`, `reduction_var` or `placeholder` that has a name; None for another name."""
    named = _NUMBERED.fullmatch(name)
    return _MAKERS[named[1]](int(named[2])) if named else None


@cache
def size_var(name: str) -> Symbol:
    """Returns the symbol of a size as torch makes most: a positive integer."""
    return sympy.Symbol(name, integer=True, positive=True)


def is_plain_size(symbol: Symbol) -> bool:
    """Returns whether nothing is known of a symbol but that it is a positive integer."""
    return size_var(symbol.name) == symbol


def is_placeholder(symbol: Symbol) -> bool:
    """Returns whether the symbol stands for a position that is computed from data."""
    return kind_of(symbol) == "placeholder"


def placeholder_number(symbol: Symbol) -> int:
    """Returns the position of the indirect argument that a placeholder stands for."""
    return int(symbol.name.removeprefix("arg"))


@lru_cache(maxsize=1 << 15)
def symbols_in(exprs: tuple[Expr, ...]) -> frozenset[Symbol]:
    """Returns every symbol in some expressions. Answers are remembered, as a program asks about few positions many
    times."""
    return frozenset(symbol for expr in exprs for symbol in expr.free_symbols)


def product(values: Iterable[int | Expr]) -> Expr:
    """Returns the product of numbers and expressions. Numbers alone, the common case, are multiplied without sympy."""
    number, result = 1, None
    for value in values:
        if result is None and (isinstance(value, int) or value.is_Integer):
            number *= int(value)
        else:
            result = (sympy.Integer(number) if result is None else result) * value
    return sympy.Integer(number) if result is None else result


def bounds(expr: Expr, ranges: Ranges) -> tuple[Expr | None, Expr | None]:
    """Returns the least and greatest value (inclusive) of `expr`; None where a bound is not known. A size symbol bounds
    itself, so the result may be symbolic."""
    if expr.is_Integer:
        return expr, expr
    if expr.is_Symbol:
        if expr in ranges:
            return ZERO, ranges[expr] - 1
        return (None, None) if is_placeholder(expr) else (expr, expr)
    if expr.is_Add:
        ends = zip(*(bounds(term, ranges) for term in expr.args), strict=True)
        low, high = (None if any(end is None for end in each) else sympy.Add(*each) for each in ends)
        return low, high
    if expr.is_Mul:
        coefficient, rest = expr.as_coeff_Mul()
        if coefficient == 1:
            low, high = ONE, ONE
            for factor in expr.args:
                factor_low, factor_high = bounds(factor, ranges)
                if factor_low is None or factor_high is None or not factor_low.is_nonnegative:
                    return None, None
                low, high = low * factor_low, high * factor_high
            return low, high
        low, high = bounds(rest, ranges)
        if low is not None:
            low = low * coefficient
        if high is not None:
            high = high * coefficient
        return (low, high) if coefficient.is_positive else (high, low)
    if isinstance(expr, FloorDiv):
        low, high = bounds(expr.args[0], ranges)
        divisor = expr.args[1]
        if low is None or not low.is_nonnegative or not divisor.is_positive:
            return None, None
        return floordiv(low, divisor), None if high is None else floordiv(high, divisor)
    if isinstance(expr, (Mod, PythonMod)) and expr.args[1].is_positive:
        return ZERO, expr.args[1] - 1
    if not any(symbol in ranges or is_placeholder(symbol) for symbol in expr.free_symbols):
        return expr, expr
    return None, None


def known_nonnegative(expr: Expr) -> bool:
    """Returns whether the expression is provably 0 or more for all values of its symbols."""
    if expr.is_Integer:
        return int(expr) >= 0
    return bool(expr.is_nonnegative) or bool(sympy.expand(expr).is_nonnegative)


def known_less(left: Expr, right: Expr) -> bool:
    """Returns whether provably left < right for every value of the size symbols, which are integers."""
    return known_nonnegative(right - left - 1)


def may_be_empty(size: Expr) -> bool:
    """Returns whether a dimension may have no element. A symbol's assumptions do not count: torch gives positive
    symbols to sizes that it does not guard against 0."""
    return not (size.is_Integer and int(size) > 0)


def fits(expr: Expr, divisor: Expr, ranges: Ranges) -> bool:
    """Returns whether provably 0 <= expr < divisor for all values of its variables."""
    low, high = bounds(expr, ranges)
    return low is not None and high is not None and known_nonnegative(low) and known_less(high, divisor)


def _quotient(term: Expr, divisor: Expr) -> Expr | None:
    """Returns term / divisor where the division is visibly exact, else None."""
    if divisor.is_Integer:
        coefficient, rest = term.as_coeff_Mul()
        if coefficient.is_Integer and int(coefficient) % int(divisor) == 0:
            return sympy.Integer(int(coefficient) // int(divisor)) * rest
        return None
    quotient = term / divisor
    numerator, denominator = quotient.as_numer_denom()
    return numerator if denominator == 1 else None


def _split(expr: Expr, divisor: Expr) -> tuple[Expr, Expr]:
    """Returns (q, r) with expr == q * divisor + r, where q has every term that the divisor divides."""
    quotient, rest = ZERO, ZERO
    for term in sympy.Add.make_args(expr if expr.is_Add or expr.is_Symbol else sympy.expand(expr)):
        exact = _quotient(term, divisor)
        if exact is None:
            rest = rest + term
        else:
            quotient = quotient + exact
    return quotient, rest


MOST_STEPS = 8
"""The most terms of a quotient that `_divided` looks for."""


def _divided(expr: Expr, divisor: Expr, ranges: Ranges) -> tuple[Expr, Expr] | None:
    """Returns (q, r) with expr == q * divisor + r and 0 <= r < divisor, by long division, where the divisor is a sum;
    None if there is no such pair. i*n - i + j is i * (n - 1) + j, and its terms do not show that."""
    if not divisor.is_Add:
        return None
    rows = {term: sum(map(_degree, sympy.Mul.make_args(term))) for term in divisor.args}
    for leading in (term for term in divisor.args if rows[term] == max(rows.values())):
        quotient, rest = ZERO, expr
        for _ in range(MOST_STEPS):
            found = (_quotient(term, leading) for term in sympy.Add.make_args(rest))
            step = next((each for each in found if each is not None), None)
            if step is None:
                break
            quotient, rest = quotient + step, sympy.expand(rest - step * divisor)
        if quotient != 0 and (rest == 0 or fits(rest, divisor, ranges)):
            return quotient, rest
    return None


def _degree(factor: Expr) -> int:
    """Returns how many factors that are no numbers a factor of a term stands for."""
    if factor.is_number:
        return 0
    return int(factor.exp) if factor.is_Pow and factor.exp.is_Integer else 1


def _common_factor(expr: Expr, divisor: Expr, ranges: Ranges) -> tuple[int, Expr, Expr] | None:
    """Returns (g, y, r) with expr == g * y + r, 0 <= r < g and g > 1 dividing the divisor; None if there is none."""
    if not divisor.is_Integer:
        return None
    terms = [(term.as_coeff_Mul()[0], term) for term in sympy.Add.make_args(expr)]
    for candidate in sorted({int(c) for c, _ in terms if c.is_Integer and abs(int(c)) > 1}, key=abs):
        factor = gcd(candidate, int(divisor))
        if factor <= 1:
            continue
        quotient, rest = _split(expr, sympy.Integer(factor))
        if quotient != 0 and fits(rest, sympy.Integer(factor), ranges):
            return factor, quotient, rest
    return None


def _turns(expr: Expr, divisor: Expr, ranges: Ranges) -> Expr | None:
    """Returns expr // divisor where that is one number for all values of the variables, else None."""
    low, high = bounds(expr, ranges)
    if not divisor.is_Integer or any(end is None or not end.is_Integer for end in (low, high)):
        return None
    first, last = (int(end) // int(divisor) for end in (low, high))  # type: ignore[arg-type]
    return sympy.Integer(first) if first == last else None


def floordiv(expr: Expr, divisor: Expr, ranges: Ranges | None = None) -> Expr:
    """Returns expr // divisor, simplified by the variables' `ranges`. The divisor is positive, or the 0 of a loop
    without iterations, in which nothing asks what a position is: 0."""
    ranges = ranges or {}
    if divisor == 1 or divisor == 0:
        return expr if divisor == 1 else ZERO
    if expr.is_Integer and divisor.is_Integer:
        return sympy.Integer(int(expr) // int(divisor))
    quotient, rest = _split(recombine(expr), divisor)
    if rest == 0 or fits(rest, divisor, ranges):
        return quotient
    turns = _turns(rest, divisor, ranges)
    if turns is not None:
        return quotient + turns
    if rest.is_Integer and rest.is_negative and known_nonnegative(rest + divisor):
        return quotient - 1  # the last of n * divisor elements is in the n-th row
    divided = _divided(rest, divisor, ranges)
    if divided is not None:
        return quotient + divided[0]
    common = _common_factor(rest, divisor, ranges)
    if common is not None:
        factor, inner, _ = common
        return quotient + floordiv(inner, sympy.Integer(int(divisor) // factor), ranges)
    if isinstance(rest, FloorDiv):
        return quotient + floordiv(rest.args[0], rest.args[1] * divisor, ranges)
    if isinstance(rest, (Mod, PythonMod)):
        base, modulus = rest.args
        shrunk = _quotient(modulus, divisor)
        if shrunk is not None:
            return quotient + mod(floordiv(base, divisor, ranges), shrunk, ranges)
    return quotient + FloorDiv(rest, divisor)


def mod(expr: Expr, divisor: Expr, ranges: Ranges | None = None) -> Expr:
    """Returns expr mod divisor, simplified by the variables' `ranges`. The divisor is positive, and so is the result,
    as in Python; of the divisor 0 see `floordiv`."""
    ranges = ranges or {}
    if divisor == 1 or divisor == 0:
        return ZERO
    if expr.is_Integer and divisor.is_Integer:
        return sympy.Integer(int(expr) % int(divisor))
    _, rest = _split(recombine(expr), divisor)
    if rest == 0 or fits(rest, divisor, ranges):
        return rest
    turns = _turns(rest, divisor, ranges)
    if turns is not None:
        return rest - turns * divisor
    if rest.is_Integer and rest.is_negative and known_nonnegative(rest + divisor):
        return rest + divisor
    divided = _divided(rest, divisor, ranges)
    if divided is not None:
        return divided[1]
    common = _common_factor(rest, divisor, ranges)
    if common is not None:
        factor, inner, small = common
        return factor * mod(inner, sympy.Integer(int(divisor) // factor), ranges) + small
    if isinstance(rest, (Mod, PythonMod)) and _quotient(rest.args[1], divisor) is not None:
        return mod(rest.args[0], divisor, ranges)
    unwrapped = _without_moduli(rest, divisor)
    return mod(unwrapped, divisor, ranges) if unwrapped is not None else PythonMod(rest, divisor)


def _without_moduli(expr: Expr, divisor: Expr) -> Expr | None:
    """A sum with c * (x mod n) replaced by c * x wherever c * n is a multiple of the divisor: the same, mod the
    divisor. A roll of a roll is one roll. None where there is no such term."""
    terms = list(sympy.Add.make_args(expr))
    changed = False
    for number, term in enumerate(terms):
        coefficient, rest = term.as_coeff_Mul()
        if isinstance(rest, (Mod, PythonMod)) and _quotient(coefficient * rest.args[1], divisor) is not None:
            terms[number] = coefficient * rest.args[0]
            changed = True
    return sympy.expand(sympy.Add(*terms)) if changed else None


def substitute(expr: Expr, mapping: Mapping[Symbol, Expr], ranges: Ranges | None = None) -> Expr:
    """Returns `expr` with each symbol of `mapping` replaced, divisions and moduli simplified again by `ranges`.

    `ranges` are those of the variables that the result is over. Remembered: the layers of a model ask the same.
    """
    if expr.is_Symbol:
        return mapping.get(expr, expr)
    if not expr.args:
        return expr
    return _substitute(expr, tuple(mapping.items()), None if ranges is None else tuple(ranges.items()))


@lru_cache(maxsize=1 << 15)
def _substitute(
    expr: Expr, mapping: tuple[tuple[Symbol, Expr], ...], ranges: tuple[tuple[Symbol, Expr], ...] | None
) -> Expr:
    return _substituted(expr, dict(mapping), None if ranges is None else dict(ranges), {})


def _substituted(expr: Expr, mapping: Mapping[Symbol, Expr], ranges: Ranges | None, done: dict[Expr, Expr]) -> Expr:
    """done: what has been replaced so far. A quotient and a remainder of one number are in most positions."""
    if expr.is_Symbol:
        return mapping.get(expr, expr)
    if expr.is_Integer or not expr.args:
        return expr
    found = done.get(expr)
    if found is None:
        found = done[expr] = _replaced(expr, mapping, ranges, done)
    return found


def _replaced(expr: Expr, mapping: Mapping[Symbol, Expr], ranges: Ranges | None, done: dict[Expr, Expr]) -> Expr:
    arguments = [_substituted(argument, mapping, ranges, done) for argument in expr.args]
    if isinstance(expr, FloorDiv):
        return floordiv(arguments[0], arguments[1], ranges)
    if isinstance(expr, (Mod, PythonMod)):
        return mod(arguments[0], arguments[1], ranges)
    if all(new is old for new, old in zip(arguments, expr.args, strict=True)):
        return expr
    result = expr.func(*arguments)
    return sympy.expand(result) if result.is_Mul else recombine(result)


@lru_cache(maxsize=1 << 15)
def recombine(expr: Expr) -> Expr:
    """Undoes a split whose parts are added again: c*(x mod n) + c*n*(x // n) becomes c*x, nested splits too."""
    while expr.is_Add and (merged := _recombine_once(expr)) is not None:
        expr = merged
    return expr


def _moduli(term: Expr) -> Iterator[tuple[Expr, Expr]]:
    """(c, x mod n) for each modulus among the factors of c * (x mod n)."""
    factors = sympy.Mul.make_args(term)
    for modulus in factors:
        if isinstance(modulus, (Mod, PythonMod)):
            yield product(factor for factor in factors if factor is not modulus), modulus


def _recombine_once(expr: Expr) -> Expr | None:
    terms = list(sympy.Add.make_args(expr))
    for term in terms:
        for coefficient, modulus in _moduli(term):
            base, divisor = modulus.args
            partner = sympy.expand(coefficient * divisor * floordiv(base, divisor))
            partner_terms = sympy.Add.make_args(partner)
            if all(candidate in terms for candidate in partner_terms):
                rest = [other for other in terms if other is not term and other not in partner_terms]
                return sympy.expand(sympy.Add(*rest) + coefficient * base)
            wider = _wider_modulus(terms, coefficient, base, divisor)
            if wider is not None:
                partner, merged = wider
                return sympy.Add(*(other for other in terms if other is not term and other is not partner), merged)
    return None


def _wider_modulus(terms: list[Expr], coefficient: Expr, base: Expr, divisor: Expr) -> tuple[Expr, Expr] | None:
    """c*(x mod n) + c*n*((x // n) mod m) is c*(x mod n*m): the second term, and the sum."""
    quotient = floordiv(base, divisor)
    for term in terms:
        for own, modulus in _moduli(term):
            if modulus.args[0] == quotient and sympy.expand(own - coefficient * divisor) == 0:
                return term, coefficient * PythonMod(base, divisor * modulus.args[1])
    return None


@lru_cache(maxsize=1 << 15)
def flat_index(index: tuple[Expr, ...], stride: tuple[Expr, ...], offset: Expr) -> Expr:
    """Returns the storage offset, in elements, of a multi-dimensional index."""
    total = offset
    for position, step in zip(index, stride, strict=True):
        total = total + position * step
    if total.is_Integer or total.is_Symbol:
        return total
    return recombine(sympy.expand(total))


@lru_cache(maxsize=1 << 15)
def stride_of(expr: Expr, var: Symbol) -> Expr | None:
    """Returns how much `expr` grows when `var` grows by one; None if the growth is not the same everywhere."""
    if var not in expr.free_symbols:
        return ZERO
    slope = ZERO
    for term in sympy.Add.make_args(expr):
        if var not in term.free_symbols:
            continue
        factors = sympy.Mul.make_args(term)
        others = [factor for factor in factors if factor != var]
        if len(others) == len(factors) or any(var in factor.free_symbols for factor in others):
            return None
        slope = slope + sympy.Mul(*others)
    return slope
