"""Iteration spaces: do two loops go over the same points, and how do the points of one map onto the other's?

In: two loops. Out: an `Alignment`, a common space and each loop's variables as expressions over it; or the reason why
there is none. The map is found from a buffer that both touch (a store and a load, or two loads, at the same element),
else from equal sizes. Whatever was guessed is verified: a map must be one-to-one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import sympy

from litz.ir import Loop, Range
from litz.ir.accesses import Access
from litz.ir.index import (
    ONE,
    ZERO,
    Expr,
    FloorDiv,
    Mod,
    PythonMod,
    Symbol,
    fits,
    floordiv,
    loop_var,
    mod,
    product,
    recombine,
    reduction_var,
    stride_of,
    substitute,
)
from litz.ir.transform import rename_loop

Index = tuple[Expr, ...]
Map = Mapping[Symbol, Expr]
_Digit = tuple[Symbol, Expr, Expr]
"""A variable, its size, and its step: what a number grows by where the variable grows by one."""
Level = Literal["full", "outer"]
"""The level at which a pointwise loop runs in a reduction's space: at every point, or at every output."""


@dataclass(frozen=True)
class Alignment:
    """A space for two loops, and the map of each loop's variables into it (None: the loop is in it already).

    `level` says, for a pointwise loop put into a reduction's space, whether it runs at every point or every output.
    """

    ranges: tuple[Range, ...]
    reduction_ranges: tuple[Range, ...]
    first: Map | None = None
    second: Map | None = None
    level: Level | None = None

    def placed(self, first: Loop, second: Loop) -> tuple[Loop, Loop]:
        """Returns the two loops in the common space."""
        return self._moved(first, self.first), self._moved(second, self.second)

    def _moved(self, loop: Loop, mapping: Map | None) -> Loop:
        return loop if mapping is None else rename_loop(loop, mapping, self.ranges, self.reduction_ranges)


NOT_ALIGNED = "iteration spaces do not align"
DIFFERENT_REDUCTION = "reduction over different ranges"


def align(first: Loop, second: Loop) -> Alignment | str:
    """Returns a common space for both loops, or the reason why there is none."""
    found = _align(first, second)
    return found if isinstance(found, str) else refined(found, first, second)


def _align(first: Loop, second: Loop) -> Alignment | str:
    if first.ranges == second.ranges and first.reduction_ranges == second.reduction_ranges and _agree(first, second):
        return Alignment(first.ranges, first.reduction_ranges)
    if first.is_reduction and second.is_reduction:
        return _align_reductions(first, second)
    if first.is_reduction or second.is_reduction:
        target, source = (first, second) if first.is_reduction else (second, first)
        return _into_reduction(target, source, source is first)
    return _align_pointwise(first, second)


def _agree(first: Loop, second: Loop) -> bool:
    """Returns whether, with equal ranges, one iteration touches each element that one loop stores and one loads."""
    for name, there, here in _shared(first, second):
        if there != here and (name in first.writes or name in second.writes):
            return False
    return True


def _align_pointwise(first: Loop, second: Loop) -> Alignment | str:
    if not _same_count(first.numel, second.numel):
        return NOT_ALIGNED
    forward = _match(second, first, first.ranges, second.ranges)
    if forward is not None and _is_simple(forward):
        return _moving(forward, first, is_first=False)
    backward = _match(first, second, second.ranges, first.ranges)
    if backward is not None and (forward is None or _is_simple(backward)):
        return _moving(backward, second, is_first=True)
    return NOT_ALIGNED if forward is None else _moving(forward, first, is_first=False)


def _into_reduction(target: Loop, source: Loop, source_is_first: bool) -> Alignment | str:
    """A pointwise loop into a reduction's space."""
    levels: list[tuple[Level, tuple[Range, ...], Expr]] = [
        ("full", target.all_ranges, target.numel * target.reduction_numel),
        ("outer", target.ranges, target.numel),
    ]
    for level, ranges, count in levels:
        if not _same_count(source.numel, count):
            continue
        mapping = _match(source, target, ranges, source.ranges)
        if mapping is not None:
            return _moving(mapping, target, source_is_first, level)
    return NOT_ALIGNED


def into(target: Loop, source: Loop) -> Alignment | None:
    """Returns a pointwise loop, rewritten over the ranges of another loop; None if no map leads to it."""
    if source.is_reduction or target.is_reduction or not _same_count(target.numel, source.numel):
        return None
    mapping = _match(source, target, target.ranges, source.ranges)
    return None if mapping is None else _moving(mapping, target, is_first=False)


def _align_reductions(first: Loop, second: Loop) -> Alignment | str:
    if not _same_count(first.numel, second.numel) or not _same_count(first.reduction_numel, second.reduction_numel):
        return DIFFERENT_REDUCTION
    for target, source in ((first, second), (second, first)):
        outer = _match(source, target, target.ranges, source.ranges)
        inner = _match(source, target, target.reduction_ranges, source.reduction_ranges)
        if outer is None or inner is None:
            continue
        if source.ordered and not _keeps_order(inner, source.reduction_ranges, target.reduction_ranges):
            continue
        return _moving({**outer, **inner}, target, source is first)
    return DIFFERENT_REDUCTION


def _moving(mapping: Map, target: Loop, is_first: bool, level: Level | None = None) -> Alignment:
    """Returns the alignment that moves one loop, the first or the second, into the space of the other."""
    first, second = (mapping, None) if is_first else (None, mapping)
    return Alignment(target.ranges, target.reduction_ranges, first, second, level)


# ------------------------------------------------------------------------------------------------ finer ranges


def refined(alignment: Alignment, first: Loop, second: Loop) -> Alignment:
    """Returns the same alignment without divisions: where one loop goes over (B*T, C) and the other over (B, T, C),
    both get a space of (B, T, C). Unchanged where that is impossible."""
    mapping = alignment.second if alignment.first is None else alignment.first
    if mapping is None or _is_simple(mapping):
        return alignment
    source, target = (second, first) if alignment.first is None else (first, second)
    if target.has_scan:
        return alignment  # a scan needs its one range
    parts = {r.var: _digits_of(r, mapping, source.extents) for r in target.all_ranges}
    if any(part is None for part in parts.values()):
        return alignment
    finer: dict[Symbol, Expr] = {}
    new: dict[Symbol, Symbol] = {}
    groups: list[tuple[Range, ...]] = []
    for ranges, make in ((target.ranges, loop_var), (target.reduction_ranges, reduction_var)):
        group: list[Range] = []
        for r in ranges:
            finer[r.var] = ZERO
            for var, size, step in parts[r.var] or ((None, r.size, ONE),):
                group.append(Range(make(len(group)), size))
                finer[r.var] = finer[r.var] + group[-1].var * step
                if var is not None:
                    new[var] = group[-1].var
        groups.append(tuple(group))
    extents = {r.var: r.size for group in groups for r in group}
    moved = {var: new.get(var, substitute(expr, finer, extents)) for var, expr in mapping.items()}
    if not _is_simple(moved):
        return alignment
    first_map, second_map = (finer, moved) if alignment.first is None else (moved, finer)
    return Alignment(groups[0], groups[1], first_map, second_map, alignment.level)


def _digits_of(r: Range, mapping: Map, extents: Mapping[Symbol, Expr]) -> list[_Digit] | None:
    """The variables that are digits of a range, largest step first; None if they do not make it up. Empty if nothing
    takes it apart."""
    digits: list[_Digit] = []
    for var, image in mapping.items():
        if r.var not in image.free_symbols or image.is_Symbol or not image.has(FloorDiv, Mod, PythonMod):
            continue
        step = _digit_step(image, r.var)
        if step is None:
            return None
        digits.append((var, extents[var], step))
    found = _in_order(digits)
    if digits and (found is None or not _same_count(product(size for _, size, _ in found), r.size)):
        return None
    return (found or [])[::-1]


def _in_order(digits: Sequence[_Digit]) -> list[_Digit] | None:
    """Digits of steps 1, n0, n0*n1, ..., where n0, n1, ... are their sizes, in this order; None if steps are others."""
    left, found = list(digits), list[_Digit]()
    base: Expr = ONE
    while left:
        place = next((n for n, (_, _, step) in enumerate(left) if _same_count(step, base)), None)
        if place is None:
            return None
        found.append(left.pop(place))
        base = base * found[-1][1]
    return found


def _digit_step(image: Expr, var: Symbol) -> Expr | None:
    """The step of a digit of `var`: 1 for var mod n, a for var // a and for (var // a) mod n."""
    if image == var:
        return ONE
    if isinstance(image, (Mod, PythonMod)) and not image.args[1].has(var):
        return _digit_step(image.args[0], var)
    if isinstance(image, FloorDiv):
        base = image.args[0]
        if base == var or (isinstance(base, (Mod, PythonMod)) and base.args[0] == var):
            return image.args[1]
    return None


def _keeps_order(mapping: Map, source: tuple[Range, ...], target: tuple[Range, ...]) -> bool:
    return len(source) == len(target) and all(
        a.size == b.size and (mapping[a.var] == b.var or a.size == ONE) for a, b in zip(source, target, strict=True)
    )


def _same_count(left: Expr, right: Expr) -> bool:
    return left == right or (not (left.is_Integer and right.is_Integer) and sympy.expand(left - right) == 0)


def _is_simple(mapping: Map) -> bool:
    return not any(expr.has(FloorDiv, Mod, PythonMod) for expr in mapping.values())


# ------------------------------------------------------------------------------------------------ finding a map


def _accesses(loop: Loop) -> list[Access]:
    """All accesses at positions that are known without running the loop, stores first."""
    first_store = len(loop.loads)
    return [each for each in (*loop.accesses[first_store:], *loop.accesses[:first_store]) if not each.is_indirect]


def _shared(first: Loop, second: Loop) -> list[tuple[str, Index, Index]]:
    """(buffer, index in first, index in second) per buffer that both touch; where one stores first of all."""
    stores: dict[str, Index] = {}
    loads: dict[str, Index] = {}
    for access in _accesses(first):
        (stores if access.is_store else loads).setdefault(access.buffer, access.index)
    strong: list[tuple[str, Index, Index]] = []
    weak: list[tuple[str, Index, Index]] = []
    seen: set[tuple[str, Index]] = set()
    for access in _accesses(second):
        name, index = access.buffer, access.index
        if (name, index) in seen:
            continue
        seen.add((name, index))
        if name in stores:
            strong.append((name, stores[name], index))
        elif name in loads:
            (strong if access.is_store else weak).append((name, loads[name], index))
    # An index with more variables says more.
    weak.sort(key=lambda item: -sum(len(expr.free_symbols) for expr in item[2]))
    return strong + weak


def _match(source: Loop, target: Loop, into: Sequence[Range], ranges: Sequence[Range]) -> dict[Symbol, Expr] | None:
    """Source's variables of `ranges` over target's variables `into`, one-to-one; None if no such map is found."""
    mapping: dict[Symbol, Expr] = {r.var: ZERO for r in ranges if r.size == ONE}
    wanted = {r.var: r.size for r in ranges if r.size != ONE}
    allowed = {r.var: r.size for r in into}
    extents = target.extents
    for _, there, here in _shared(target, source):
        if len(mapping) == len(ranges):
            break
        found = _solve(here, there, wanted, extents)
        for var, expr in found.items():
            inside = all(s in allowed or s not in extents for s in expr.free_symbols)
            if var in wanted and var not in mapping and inside:
                mapping[var] = expr
    if not _fill(mapping, wanted, allowed):
        return None
    return mapping if is_bijection(mapping, ranges, into) else None


def _solve(here: Index, there: Index, wanted: Mapping[Symbol, Expr], extents: Mapping[Symbol, Expr]) -> Map:
    """The wanted variables in `here`, such that here == there, as far as they follow from it."""
    found: dict[Symbol, Expr] = {}
    if len(here) != len(there):
        return found
    for left, right in zip(here, there, strict=True):
        if left.is_Symbol:
            if left in wanted:
                found.setdefault(left, right)
        elif not left.is_Integer:
            for var, expr in _digits(left, right, wanted, extents).items():
                found.setdefault(var, expr)
    return found


def _digits(left: Expr, right: Expr, wanted: Mapping[Symbol, Expr], extents: Mapping[Symbol, Expr]) -> Map:
    """The variables of left = c + v0 + n0*v1 + n0*n1*v2 + ... (v_k < n_k) where left == right: the digits of right."""
    digits: list[_Digit] = []
    constant: Expr = ZERO
    for term in sympy.Add.make_args(left):
        variables = [s for s in term.free_symbols if s in wanted]
        if not variables:
            constant = constant + term
            continue
        step = stride_of(term, variables[0]) if len(variables) == 1 else None
        if step is None:
            return {}
        digits.append((variables[0], wanted[variables[0]], step))
    rest = right - constant if constant != 0 else right
    found: dict[Symbol, Expr] = {}
    ordered = _in_order(digits) or ()
    for number, (var, size, step) in enumerate(ordered, 1):
        digit = floordiv(rest, step, extents)
        # The last digit is what is left over: no modulus, its range is checked with the whole map.
        found[var] = mod(digit, size, extents) if number < len(ordered) else digit
    return found


def _fill(mapping: dict[Symbol, Expr], wanted: Mapping[Symbol, Expr], allowed: Mapping[Symbol, Expr]) -> bool:
    """Map what is left by equal sizes, in order; else all of it as one number with the same count of values."""
    left = [var for var in wanted if var not in mapping]
    if not left:
        return True
    used = {s for expr in mapping.values() for s in expr.free_symbols}
    free = [var for var, size in allowed.items() if var not in used and size != ONE]
    spare = list(free)
    pairs: dict[Symbol, Expr] = {}
    for var in left:
        twin = next((other for other in spare if allowed[other] == wanted[var]), None)
        if twin is not None:
            pairs[var] = twin
            spare.remove(twin)
    if len(pairs) == len(left) == len(free):
        mapping.update(pairs)
        return True
    count = product(wanted[var] for var in left)
    if not free or not _same_count(count, product(allowed[var] for var in free)):
        return False
    flat: Expr = ZERO
    for var in free:
        flat = flat * allowed[var] + var
    flat = sympy.expand(flat)
    step: Expr = ONE
    for var in reversed(left):
        digit = floordiv(flat, step, allowed)
        step = step * wanted[var]
        mapping[var] = mod(digit, wanted[var], allowed) if var is not left[0] else digit
    return True


def is_bijection(mapping: Map, source: Sequence[Range], target: Sequence[Range]) -> bool:
    """Returns whether the map takes the points of `target` one-to-one onto those of `source`. True only if provable."""
    real = [r for r in source if r.size != ONE]
    over = {r.var: r.size for r in target if r.size != ONE}
    images = [mapping[r.var] for r in real]
    if all(image.is_Symbol for image in images):
        return len(images) == len(over) and over == {image: r.size for image, r in zip(images, real, strict=True)}
    extents = {r.var: r.size for r in target}
    if not all(fits(image, r.size, extents) for image, r in zip(images, real, strict=True)):
        return False
    flat: Expr = ZERO
    for image, r in zip(images, real, strict=True):
        flat = flat * r.size + image
    flat = recombine(sympy.expand(flat))
    return _counts_every_value(flat, over)


def _counts_every_value(flat: Expr, over: Mapping[Symbol, Expr]) -> bool:
    """Is `flat` a sum of v * step with steps 1, n0, n0*n1, ... over all the variables (v_k < n_k)?"""
    digits: list[_Digit] = []
    constant = flat
    for var, size in over.items():
        step = stride_of(flat, var)
        if step is None:
            return False
        digits.append((var, size, step))
        constant = constant - step * var
    return sympy.expand(constant) == 0 and _in_order(digits) is not None
