"""Between which values a node of a loop lies, as far as that follows from ranges, constants, clamps, checks and masks.

In: nodes, and the extents of the loop variables. Out: bounds, which may be symbolic in the sizes. The lowerings leave
out a check that cannot fail, the verifier demands that every position computed from data has been limited, and neither
believes what is not proved here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import sympy
import torch

from .buffer import Buffer
from .dtypes import FLOAT8, INTEGER
from .index import (
    ONE,
    ZERO,
    Expr,
    FloorDiv,
    PythonMod,
    Ranges,
    Symbol,
    bounds,
    floordiv,
    known_less,
    known_nonnegative,
    placeholder,
    to_expr,
)
from .node import Node, walk
from .operation import Loop, Operation
from .reductions import REDUCTIONS

LARGEST = 2**62
"""A sum or product of two numbers beyond this may not fit into int64, so nothing is known of it."""

MOST_QUOTIENTS = 3
"""The most quotients of a position that a mask is compared with: all orders of them are tried."""

MOST_NESTED = 2
"""How deep choices by loop variables are followed into each other: each has a result for every choice around it."""

Span = tuple[float, float]
"""The least and the greatest value of a float that is neither infinite nor NaN."""


@dataclass(frozen=True)
class Interval:
    """low <= value <= high, expressions over the sizes; None where nothing is known. Of an integer node."""

    low: Expr | None = None
    high: Expr | None = None

    @property
    def known(self) -> bool:
        """Returns whether both bounds are known."""
        return self.low is not None and self.high is not None


UNKNOWN = Interval()


def conditions(mask: Node | None) -> Iterator[Node]:
    """Yields the conditions that all hold where a mask holds."""
    stack = [] if mask is None else [mask]
    while stack:
        node = stack.pop()
        if node.op == "bitwise_and" and node.dtype == torch.bool:
            stack.extend(node.args)
        else:
            yield node


class Contents:
    """The known bounds of what a program's temporaries hold, updated operation by operation."""

    def __init__(self) -> None:
        self.integers: dict[str, Interval] = {}
        self.floats: dict[str, Span | None] = {}

    def add(self, operation: Operation, buffers: Mapping[str, Buffer]) -> None:
        """Notes the bounds of the values that an operation writes."""
        if not isinstance(operation, Loop):
            for name in operation.writes:
                self.integers[name], self.floats[name] = UNKNOWN, None
            return
        intervals = Intervals(operation.extents, self)
        for store in operation.stores:
            name, value = store.buffer, store.value
            if name not in buffers or buffers[name].kind != "temporary":
                continue  # what a caller's tensor held is not known
            if value.dtype.is_floating_point:
                span = intervals.span(value) if store.mode == "set" else None
                if name in self.floats:
                    old = self.floats[name]
                    span = None if old is None or span is None else (min(old[0], span[0]), max(old[1], span[1]))
                self.floats[name] = span
            else:
                found = intervals.of(value) if store.mode == "set" else UNKNOWN
                self.integers[name] = _joined(self.integers.get(name, found), found)

    def forget(self, name: str) -> None:
        """Forgets the bounds of a buffer, whose name may be used again."""
        self.integers.pop(name, None)
        self.floats.pop(name, None)


class Intervals:
    """Works out the intervals of a loop's nodes, each once. extents: of the loop variables. contents: of the buffers
    that are read."""

    def __init__(self, extents: Ranges, contents: Contents | None = None) -> None:
        self.extents, self.contents = extents, contents or Contents()
        self._found: dict[Node, Interval] = {}
        self._floats: dict[Node, Span | None] = {}
        self._masked: dict[Node, _Where] = {}
        self._held: tuple[Node, ...] = ()
        self._below: tuple[Expr, ...] = ()
        self._spans: Mapping[Symbol, Interval] = _whole(extents)
        self._depth = 0

    def of(self, node: Node) -> Interval:
        """Returns the interval of an integer or bool node, under any mask."""
        self._walk(node)
        return self._found[node]

    def span(self, node: Node) -> Span | None:
        """Returns the bounds of a float node; None where they are not known."""
        self._walk(node)
        return self._floats[node]

    def _walk(self, node: Node) -> None:
        for each in walk(node) if node not in self._found else ():
            if each not in self._found:
                # What a mask compares may be made of the node that it narrows: inside of itself a node is anything.
                self._found[each], self._floats[each] = _DTYPES.get(each.dtype, UNKNOWN), None
                self._found[each] = self._interval(each)
                self._floats[each] = self._float(each)

    def where(self, node: Node, mask: Node | None) -> Interval:
        """Returns the interval of an integer node at those points at which the mask holds."""
        return (self if mask is None else self._where(mask)).of(node)

    def _where(self, mask: Node) -> _Where:
        if mask not in self._masked:
            self._masked[mask] = _Where(self, mask)
        return self._masked[mask]

    def inside(self, position: Expr, indirect: tuple[Node, ...], mask: Node | None, size: Expr) -> bool:
        """Returns whether 0 <= position < size, where placeholders stand for the nodes `indirect` and a mask holds."""
        below = list(self._below_zero(indirect, mask))
        spans = _whole(self.extents)
        spans |= {placeholder(number): self.where(node, mask) for number, node in enumerate(indirect)}
        found = _spanned(position, _all_narrowed(spans, below), below)
        if found.low is None or found.high is None:
            return False
        return known_nonnegative(found.low) and known_less(found.high, size)

    def _below_zero(self, indirect: tuple[Node, ...], mask: Node | None) -> Iterator[Expr]:
        """Yields expressions (placeholders for `indirect`) that are at most 0 where the mask's comparisons hold."""
        for condition in conditions(mask):
            if condition.op not in _MIRRORED or condition.args[0].dtype not in INTEGER:
                continue
            left, right = condition.args
            step = 1 if condition.op in ("lt", "gt") else 0
            for kinds, one, other in ((("lt", "le", "eq"), left, right), (("gt", "ge", "eq"), right, left)):
                smaller, larger = expression(one, indirect), expression(other, indirect)
                smaller = self.of(one).low if smaller is None else smaller
                larger = self.of(other).high if larger is None else larger
                if condition.op in kinds and smaller is not None and larger is not None:
                    yield from _implied(smaller - larger + step)

    # ------------------------------------------------------------------------------------------------------- integers

    def _interval(self, node: Node) -> Interval:
        if node.dtype != torch.bool and node.dtype not in INTEGER:
            return UNKNOWN
        found = self._by_op(node)
        whole = _DTYPES.get(node.dtype, UNKNOWN)
        # Small types wrap around: what does not fit into them says nothing.
        if whole.known and not (found.known and _within(found, whole)):
            return whole
        return found

    def _by_op(self, node: Node) -> Interval:
        if node.op == "const":
            return Interval(to_expr(int(node.attrs[0])), to_expr(int(node.attrs[0])))
        if node.op == "index":
            return Interval(*bounds(node.attrs[0], self.extents))
        if node.op == "load":
            found = self.contents.integers.get(node.buffer, UNKNOWN)
            return found if node.mask is None else _joined(found, Interval(ZERO, ZERO))
        if node.op == "bounded":
            return Interval(ZERO, node.attrs[0] - 1)
        if node.op == "cast":
            source = node.args[0]
            if source.dtype.is_floating_point:
                return _truncated(self._floats[source])
            return self._found[source]
        if node.op == "reduce" and REDUCTIONS[node.attrs[0]].ordered:
            return Interval(ZERO, None)
        args = [self._found[arg] for arg in node.args]
        if node.op == "where":
            condition, first, second = node.args
            return _joined(self._chosen(condition, first, False), self._chosen(condition, second, True))
        if node.op == "minimum":
            low = _smaller(args[0].low, args[1].low)
            return Interval(low, _least(args[0].high, args[1].high))
        if node.op == "maximum":
            high = _larger(args[0].high, args[1].high)
            return Interval(_greatest(args[0].low, args[1].low), high)
        if node.op == "remainder":
            divisor = args[1]
            positive = divisor.low is not None and known_less(ZERO, divisor.low)
            return Interval(ZERO, None if divisor.high is None else divisor.high - 1) if positive else UNKNOWN
        if node.op == "bitwise_and" and node.dtype != torch.bool:
            limits = [arg.high for arg in args if arg.known and known_nonnegative(arg.low)]
            known = [limit for limit in limits if limit is not None and limit.is_Integer]
            return Interval(ZERO, min(known, default=limits[0])) if limits else UNKNOWN
        if not all(arg.known for arg in args):
            # A sum with one end open may have wrapped around, and then the other end does not hold either.
            return UNKNOWN
        return _checked(_combined(node.op, [(arg.low, arg.high) for arg in args]))

    def _chosen(self, condition: Node, value: Node, negated: bool) -> Interval:
        """Returns the interval of a value that is chosen where a condition holds (or does not). The condition narrows
        it if the value is the node that the condition is about, or that node plus a number, as in an index that counts
        from the end."""
        if not negated and self._depth < MOST_NESTED and any(map(_is_of_variables, conditions(condition))):
            return self.where(value, condition)
        if condition.op not in _NEGATED:
            return self._found[value]
        kind = _NEGATED[condition.op] if negated else condition.op
        base, offset = value, Interval(ZERO, ZERO)
        if value.op == "add" and value.args[0] in condition.args:
            base, offset = value.args[0], self._found[value.args[1]]
        if base not in condition.args:
            return self._found[value]
        found = _limited(base, self._found[base], [(kind, condition.args)], self.of)
        if base is value:
            return found
        if not (found.known and offset.known):
            return UNKNOWN
        return _checked(_combined("add", [(found.low, found.high), (offset.low, offset.high)]))

    # --------------------------------------------------------------------------------------------------------- floats

    def _float(self, node: Node) -> Span | None:
        """Returns the bounds of a float node whose operands have numeric bounds, a little widened, as each op
        rounds."""
        if not node.dtype.is_floating_point or node.dtype in FLOAT8:  # which round coarsely, and overflow early
            return None
        if node.op == "load":
            found = self.contents.floats.get(node.buffer)
            return found if found is None or node.mask is None else (min(found[0], 0.0), max(found[1], 0.0))
        if node.op == "const":
            value = float(node.attrs[0])
            return (value, value) if math.isfinite(value) else None
        if node.op == "cast":
            source = node.args[0]
            if source.dtype.is_floating_point:
                found = self._floats[source]
            elif source.dtype == torch.bool:
                found = (0.0, 1.0)
            else:
                whole = self._found[source]
                low, high = whole.low, whole.high
                numbers = low is not None and high is not None and low.is_Integer and high.is_Integer
                found = (float(low), float(high)) if numbers else None  # type: ignore[arg-type]
        else:
            args = [self._floats[arg] for arg in node.args]
            function = SPANS.get(node.op)
            if function is None or any(arg is None for arg in args):
                return None
            found = function(*args)
        if found is None or not all(map(math.isfinite, found)):
            return None
        rounding = 0.0 if node.op in _EXACT else 2 * torch.finfo(node.dtype).eps
        low_, high_ = found
        return low_ - rounding * abs(low_), high_ + rounding * abs(high_)


class _Where(Intervals):
    """The intervals at those points at which a mask holds. An inlined loop brings its positions with it. The
    positions are then over the variables of a larger loop, and the mask keeps them to the points of the inlined one."""

    def __init__(self, outer: Intervals, mask: Node) -> None:
        super().__init__(outer.extents, outer.contents)
        self._outer = outer
        self._held = (*outer._held, *conditions(mask))
        self._below = (*outer._below, *outer._below_zero((), mask))
        self._spans = _all_narrowed(outer._spans, self._below)
        self._depth = outer._depth + 1

    def _interval(self, node: Node) -> Interval:
        if node.op == "const":
            return super()._interval(node)
        comparisons = [(each.op, each.args) for each in self._held]
        return _limited(node, super()._interval(node), comparisons, self._outer.of)

    def _by_op(self, node: Node) -> Interval:
        if node.op == "index":
            return _spanned(node.attrs[0], self._spans, self._below)
        if node.op == "where" and node.args[0] in self._held:
            return self._found[node.args[1]]
        if node.op == "load" and node.mask is not None and set(self._held).issuperset(conditions(node.mask)):
            return self.contents.integers.get(node.buffer, UNKNOWN)
        return super()._by_op(node)


_NEGATED: Mapping[str, str] = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}
_MIRRORED: Mapping[str, str] = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq"}

_DTYPES: Mapping[torch.dtype, Interval] = {
    torch.bool: Interval(ZERO, ONE),
    **{
        dtype: Interval(to_expr(torch.iinfo(dtype).min), to_expr(torch.iinfo(dtype).max))
        for dtype in INTEGER
        if dtype.itemsize < 8
    },
}


def _limited(
    node: Node, found: Interval, comparisons: Iterable[tuple[str, tuple[Node, ...]]], of: Callable[[Node], Interval]
) -> Interval:
    """Returns what is left of a node's interval where comparisons hold. of: the interval of the other side."""
    low, high = found.low, found.high
    for kind, args in comparisons:
        if kind not in _MIRRORED:
            continue
        left, right = args
        if right is node:
            left, right, kind = right, left, _MIRRORED[kind]
        if left is not node or left.dtype not in INTEGER:
            continue
        other = of(right)
        step = 1 if kind in ("lt", "gt") else 0
        if kind in ("lt", "le", "eq") and other.high is not None:
            high = _least(high, other.high - step)
        if kind in ("gt", "ge", "eq") and other.low is not None:
            low = _greatest(low, other.low + step)
    return Interval(low, high)


def _is_of_variables(condition: Node) -> bool:
    """Returns whether the condition compares loop variables and sizes, as one that says where a part of a loop lies."""
    return condition.op in _MIRRORED and all(expression(arg) is not None for arg in condition.args)


def expression(node: Node, indirect: tuple[Node, ...] = ()) -> Expr | None:
    """Returns an int64 node as an index expression with placeholders for the nodes `indirect`; None if that is
    impossible."""
    if node in indirect:
        return placeholder(indirect.index(node))
    if node.op in ("index", "const") and node.dtype == torch.int64:
        return to_expr(node.attrs[0])
    if node.op not in _EXPRESSIONS or node.dtype != torch.int64:
        return None
    left, right = (expression(arg, indirect) for arg in node.args)
    if left is None or right is None or (node.op in ("floordiv", "remainder") and not right.is_positive):
        return None
    return _EXPRESSIONS[node.op](left, right)


_EXPRESSIONS: Mapping[str, Callable[[Expr, Expr], Expr]] = {
    "add": lambda left, right: left + right,
    "sub": lambda left, right: left - right,
    "mul": lambda left, right: left * right,
    "floordiv": FloorDiv,
    "remainder": PythonMod,
}


def _implied(expr: Expr) -> Iterator[Expr]:
    """Yields expressions that are at most 0 where `expr` is: that, and the same without its quotients."""
    yield expr
    for sign, number, divisor, rest in _quotients(expr):
        slack = divisor - 1 if sign > 0 else ZERO
        yield from _implied(sympy.expand(sign * number + divisor * rest - slack))


def _quotients(expr: Expr) -> Iterator[tuple[int, Expr, Expr, Expr]]:
    """(1 or -1, n, d, rest) where an expression is n // d or -(n // d), and a rest without that; not of too many."""
    quotients = expr.atoms(FloorDiv)
    for quotient in quotients if len(quotients) <= MOST_QUOTIENTS else ():
        for sign in (1, -1):
            rest = sympy.expand(expr - sign * quotient)
            if not rest.has(quotient) and quotient.args[1].is_positive:
                yield sign, *quotient.args, rest


def _whole(extents: Ranges) -> dict[Symbol, Interval]:
    """Returns the intervals of loop variables."""
    return {var: Interval(ZERO, extent - 1) for var, extent in extents.items()}


def _all_narrowed(spans: Mapping[Symbol, Interval], below: Sequence[Expr]) -> dict[Symbol, Interval]:
    """Returns the intervals of symbols where the expressions of `below` are 0 at most."""
    return {symbol: _narrowed(symbol, span, below, spans) for symbol, span in spans.items()}


def _narrowed(symbol: Symbol, span: Interval, below: Sequence[Expr], variables: Collection[Symbol]) -> Interval:
    """The values of a symbol where expressions are 0 at most, of which some may be about this symbol alone."""
    low, high = span.low, span.high
    for expr in below:
        if not expr.has(symbol):
            continue
        factor = sympy.expand(expr).coeff(symbol)
        rest = sympy.expand(expr - factor * symbol)
        if not factor.is_Integer or factor == 0 or any(other in variables for other in rest.free_symbols):
            continue
        end = floordiv(-rest, abs(factor))
        if factor > 0:
            high = _least(high, end)
        else:
            low = _greatest(low, -end)
    return Interval(low, high)


def _spanned(expr: Expr, spans: Mapping[Symbol, Interval], below: Sequence[Expr]) -> Interval:
    """Returns the interval of an expression over symbols with intervals, where those of `below` are 0 at most."""
    ranges, lengths, moved = {}, {}, {}
    for symbol, span in spans.items():
        if span.low is None or span.high is None:
            continue
        if known_nonnegative(span.low):
            ranges[symbol] = span.high + 1
        lengths[symbol] = span.high - span.low + 1
        if span.low != 0:
            moved[symbol] = symbol + span.low
    low, high = _bounds(expr, ranges, below)
    if moved:  # ranges begin at 0, and a symbol that is counted down has its least value to thank for its end
        below = [each.xreplace(moved) for each in below]
        nearer_low, nearer_high = _bounds(expr.xreplace(moved), lengths, below)
        low, high = _greatest(low, nearer_low), _least(high, nearer_high)
    return Interval(low, high)


def _bounds(expr: Expr, ranges: Ranges, below: Sequence[Expr]) -> tuple[Expr | None, Expr | None]:
    """The least and greatest value of an expression where those of `below` are 0 at most."""
    low, high = bounds(expr, ranges)
    for other in below:
        for times in _multiples(expr, other):
            low = _greatest(low, bounds(sympy.expand(expr + times * other), ranges)[0])
            high = _least(high, bounds(sympy.expand(expr - times * other), ranges)[1])
    for sign, number, divisor, rest in _quotients(expr) if below else ():
        # A sum with a quotient is the quotient of a sum, which is what is compared.
        ends = _bounds(sympy.expand(number + divisor * sign * rest), ranges, below)
        least, most = (None if end is None else floordiv(end, divisor) for end in ends)
        if sign < 0:
            least, most = (None if end is None else -end for end in (most, least))
        low, high = _greatest(low, least), _least(high, most)
    return low, high


def _multiples(expr: Expr, other: Expr) -> set[Expr]:
    """Returns how often `other` may be added to `expr` to cancel a term, and 1: 2*x - 2 contains x - 1 twice."""
    terms, others = (sympy.expand(each).as_coefficients_dict() for each in (expr, other))
    ratios = {abs(terms[term] / others[term]) for term in others if not term.is_number and term in terms}
    return {ratio for ratio in ratios if ratio.is_Integer} | {sympy.S.One}


def _within(inner: Interval, outer: Interval) -> bool:
    assert inner.low is not None and inner.high is not None and outer.low is not None and outer.high is not None
    return known_nonnegative(inner.low - outer.low) and known_nonnegative(outer.high - inner.high)


def _least(left: Expr | None, right: Expr | None) -> Expr | None:
    """Returns an upper bound of what both limits bound: the smaller where that is known, else either."""
    if left is None or right is None:
        return right if left is None else left
    return right if known_nonnegative(left - right) else left


def _greatest(left: Expr | None, right: Expr | None) -> Expr | None:
    if left is None or right is None:
        return right if left is None else left
    return right if known_nonnegative(right - left) else left


def _smaller(left: Expr | None, right: Expr | None) -> Expr | None:
    """Returns a lower bound of both; None if none is known."""
    if left is None or right is None:
        return None
    if known_nonnegative(right - left):
        return left
    if known_nonnegative(left - right):
        return right
    # Which of 1 and size - 1 is smaller is not known; that neither is negative may be.
    return ZERO if known_nonnegative(left) and known_nonnegative(right) else None


def _larger(left: Expr | None, right: Expr | None) -> Expr | None:
    if left is None or right is None:
        return None
    return left if known_nonnegative(left - right) else right if known_nonnegative(right - left) else None


def _joined(left: Interval, right: Interval) -> Interval:
    return Interval(_smaller(left.low, right.low), _larger(left.high, right.high))


def _checked(found: Interval) -> Interval:
    """Returns the interval, or nothing known where numbers are so large that int64 may have wrapped around."""
    if any(end is not None and end.is_Integer and abs(int(end)) > LARGEST for end in (found.low, found.high)):
        return UNKNOWN
    return found


def _combined(op: str, args: Sequence[tuple[Expr, Expr]]) -> Interval:
    """Returns the interval of an arithmetic op on operands whose bounds are both known."""
    low, high = args[0]
    if op == "neg":
        return Interval(-high, -low)
    if op == "add":
        return Interval(low + args[1][0], high + args[1][1])
    if op == "sub":
        return Interval(low - args[1][1], high - args[1][0])
    if op == "mul":
        if all(end.is_Integer for pair in args for end in pair):
            corners = [x * y for x in args[0] for y in args[1]]
            return Interval(min(corners), max(corners))
        if known_nonnegative(low) and known_nonnegative(args[1][0]):
            return Interval(low * args[1][0], high * args[1][1])
    if op == "abs":
        if known_nonnegative(low):
            return Interval(low, high)
        largest = _larger(-low, high)
        return Interval(ZERO, largest)
    if op in ("floordiv", "truncdiv") and known_nonnegative(low) and args[1] == (args[1][0], args[1][0]):
        divisor = args[1][0]
        if low.is_Integer and high.is_Integer and divisor.is_Integer and int(divisor) > 0:
            return Interval(to_expr(int(low) // int(divisor)), to_expr(int(high) // int(divisor)))
        if divisor.is_Integer and int(divisor) > 0:
            return Interval(ZERO, high)
    if op == "shift_right" and all(end.is_Integer for pair in args for end in pair) and args[1][0] == args[1][1]:
        bits = int(args[1][0])
        return Interval(to_expr(int(low) >> bits), to_expr(int(high) >> bits)) if 0 <= bits < 64 else UNKNOWN
    return UNKNOWN


def _truncated(found: Span | None) -> Interval:
    """Returns the interval of a float that becomes an integer; nothing known where it may not fit, which C leaves
    undefined."""
    if found is None or max(map(abs, found)) > LARGEST:
        return UNKNOWN
    return Interval(to_expr(math.trunc(found[0])), to_expr(math.trunc(found[1])))


def _products(a: Span, b: Span) -> Span:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


_EXACT = frozenset({"const", "neg", "abs", "floor", "ceil", "trunc", "round", "maximum", "minimum", "where"})
SPANS: Mapping[str, Callable[..., Span]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _products,
    "neg": lambda a: (-a[1], -a[0]),
    "floor": lambda a: (float(math.floor(a[0])), float(math.floor(a[1]))),
    "ceil": lambda a: (float(math.ceil(a[0])), float(math.ceil(a[1]))),
    "trunc": lambda a: (float(math.trunc(a[0])), float(math.trunc(a[1]))),
    "round": lambda a: (float(round(a[0])), float(round(a[1]))),
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
}
"""The bounds that ops make of the bounds of their arguments."""
