"""Few cases in which each two values of any two axes meet: a fault that two things make together is seen.

An axis is what cases differ in, such as a type, with the names of its values, the ordinary one first. `matrix` makes
the cases, the same ones in each run, each called by what is not ordinary in it. A rule is data too: axes, and for each
a value or several.

The tests need no package for this: allpairspy would be one more for the GPU machine, which has no registry, and names
no cases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations

Axes = Mapping[str, Sequence[str]]
Row = Mapping[str, str]
"""The value of each axis."""
Rule = Mapping[str, str | Collection[str]]
"""Holds for a row that has, of each axis that the rule names, one of its values."""
Pair = frozenset[tuple[str, str]]
"""Two (axis, value)."""

TRIED = 6
"""Pairs that a row could begin with, of which the one is taken that brings most."""


def matrix(
    axes: Axes, never: Sequence[Rule] = (), spare: Sequence[Rule] = (), also: Iterable[Row] = ()
) -> dict[str, Row]:
    """Returns rows by name, in which each possible pair of values stands, but for those that a rule of `spare` names.

    never: what no row may have. also: rows that must be there, of which axes that are left out are filled in. Raises
    ValueError for two values of one name, for a rule or a row of `also` that names no value, and for an impossible row.
    """
    check(axes, (*never, *spare, *also))
    missing = dict.fromkeys(pairs_wanted(axes, never, spare))  # a set with an order
    rows: list[Row] = []

    def take(row: Row) -> None:
        rows.append(row)
        for pair in pairs_of(row):
            missing.pop(pair, None)

    def candidates(start: Row) -> Iterator[Row]:
        to_come = Counter(item for pair in missing for item in pair)
        for order in rotated(list(axes)):
            row = completed(start, order, axes, never, missing, to_come)
            if row is not None:
                yield row

    def brings(row: Row) -> int:
        return sum(pair in missing for pair in pairs_of(row))

    for start in also:
        if not is_possible(start, axes, never):
            raise ValueError(f"no row has {dict(start)}")
        take(max(candidates(start), key=brings))
    while missing:
        waiting = list(missing)
        begins = waiting[:: -(-len(waiting) // TRIED)]
        take(max((row for pair in begins for row in candidates(dict(sorted(pair)))), key=brings))
    return {name_of(row, axes): row for row in rows}


def check(axes: Axes, rules: Iterable[Rule]) -> None:
    """Raises ValueError as `matrix` says."""
    values = [value for each in axes.values() for value in each]
    if twice := sorted({value for value in values if values.count(value) > 1}):
        raise ValueError(f"two values are called {', '.join(twice)}")
    for rule in rules:
        for axis, wanted in rule.items():
            if strange := set(several(wanted)) - set(axes.get(axis, ())):
                raise ValueError(f"{axis} has no value {', '.join(sorted(strange))}")


def several(value: str | Collection[str]) -> Collection[str]:
    return (value,) if isinstance(value, str) else value


def holds(rule: Rule, row: Row) -> bool:
    """Whether all of a rule holds for a row, of which axes may be missing."""
    return all(row.get(axis) in several(wanted) for axis, wanted in rule.items())


def is_possible(row: Row, axes: Axes, never: Sequence[Rule]) -> bool:
    """Whether a row, or what can be made of a part of one, breaks no rule."""
    near = [rule for rule in never if might_hold(rule, row)]
    if any(rule.keys() <= row.keys() for rule in near):
        return False
    if completed(row, list(axes), axes, near) is not None:  # mostly found at once
        return True
    bound = {axis for rule in near for axis in rule if axis not in row}
    left = [[{**row, axis: value} for value in allowed(axis, row, axes, near)] for axis in axes if axis in bound]
    # The axis with the fewest values first: without it a search may see each row there could be.
    return any(is_possible(each, axes, near) for each in min(left, key=len))


def allowed(axis: str, row: Row, axes: Axes, never: Sequence[Rule]) -> list[str]:
    """The values of an axis with which a row breaks no rule."""
    near = [rule for rule in never if axis in rule and all(o == axis or row.get(o) in several(rule[o]) for o in rule)]
    return [value for value in axes[axis] if not any(value in several(rule[axis]) for rule in near)]


def completed(
    row: Row,
    order: Sequence[str],
    axes: Axes,
    never: Sequence[Rule],
    missing: Collection[Pair] = (),
    to_come: Mapping[tuple[str, str], int] | None = None,
) -> Row | None:
    """A whole row of a part of one, or None at a dead end: each axis in turn gets the value with the most missing
    pairs, of equals the one with more to come, and of these the first. to_come: missing pairs with each value."""
    found = dict(row)
    for axis in order:
        if axis in found:
            continue
        values = allowed(axis, found, axes, never)
        if not values:
            return None
        best = values[0]
        if to_come is not None:
            own = {value: sum(frozenset(((axis, value), o)) in missing for o in found.items()) for value in values}
            best = max(values, key=lambda value: (own[value], to_come[axis, value]))
        found[axis] = best
    return {axis: found[axis] for axis in axes}


def might_hold(rule: Rule, row: Row) -> bool:
    return all(axis not in row or row[axis] in several(wanted) for axis, wanted in rule.items())


def pairs_of(row: Row) -> Iterator[Pair]:
    """The pairs that stand in a row."""
    return map(frozenset, combinations(row.items(), 2))


def pairs_wanted(axes: Axes, never: Sequence[Rule] = (), spare: Sequence[Rule] = ()) -> Iterator[Pair]:
    """The pairs that a matrix must have."""
    for one, other in combinations(axes, 2):
        for value in axes[one]:
            for second in axes[other]:
                row = {one: value, other: second}
                if is_possible(row, axes, never) and not any(holds(rule, row) for rule in spare):
                    yield frozenset(row.items())


def rotated(order: Sequence[str]) -> Iterator[Sequence[str]]:
    return ([*order[number:], *order[:number]] for number in range(len(order)))


def name_of(row: Row, axes: Axes) -> str:
    """What is not ordinary in a row."""
    return "-".join(value for axis, value in row.items() if value != axes[axis][0]) or "plain"


__all__ = ["Axes", "Row", "Rule", "matrix", "pairs_of", "pairs_wanted"]
