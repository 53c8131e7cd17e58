"""Few cases in which each two values of any two axes meet: a fault that two things make together is seen.

An axis is what cases differ in, such as a type, with the names of its values, the ordinary one first. `matrix` makes
the cases, the same ones in each run, each called by what is not ordinary in it. A rule is data too: axes, and for each
a value or several.

The tests need no package for this: allpairspy would be one more for the GPU machine, which has no registry, and names
no cases.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from itertools import combinations

Axes = Mapping[str, Sequence[str]]
Row = Mapping[str, str]
"""The value of each axis."""
Rule = Mapping[str, str | Collection[str]]
"""Holds for a row that has, of each axis that the rule names, one of its values."""
Item = tuple[str, str]
"""An axis and its value."""
Pair = frozenset[Item]
"""Two items."""
Bans = Mapping[Item, Sequence[Sequence[tuple[str, Collection[str]]]]]
"""Of an item, for each rule that has it: the other axes, and which values of these an item may not stand beside."""

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
    bans = bans_of(never)
    missing = dict.fromkeys(pairs_wanted(axes, never, spare))  # a set with an order
    partners: dict[Item, set[Item]] = {item: set() for item in items_of(axes)}
    for one, other in missing:
        partners[one].add(other)
        partners[other].add(one)
    rows: list[Row] = []

    def take(row: Row) -> None:
        rows.append(row)
        for pair in pairs_of(row):
            missing.pop(pair, None)
            one, other = pair
            partners[one].discard(other)
            partners[other].discard(one)

    def candidates(start: Row) -> Iterator[Row]:
        for order in rotated(list(axes)):
            row = completed(start, order, axes, bans, partners)
            if row is not None:
                yield row

    def brings(row: Row) -> int:
        items = set(row.items())
        return sum(len(partners[item] & items) for item in items)  # each pair twice

    for start in also:
        if not is_possible(start, axes, bans):
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


def items_of(axes: Axes) -> Iterator[Item]:
    return ((axis, value) for axis, values in axes.items() for value in values)


def bans_of(never: Sequence[Rule]) -> Bans:
    """Returns what the rules forbid, by the item that they forbid."""
    bans: dict[Item, list[Sequence[tuple[str, Collection[str]]]]] = {}
    for rule in never:
        for axis, values in rule.items():
            rest = tuple((other, frozenset(several(wanted))) for other, wanted in rule.items() if other != axis)
            for value in several(values):
                bans.setdefault((axis, value), []).append(rest)
    return bans


def is_banned(item: Item, row: Row, bans: Bans) -> bool:
    """Says whether an item breaks a rule beside what a row has of other axes."""
    for rest in bans.get(item, ()):
        for other, wanted in rest:
            if row.get(other) not in wanted:
                break
        else:
            return True
    return False


def is_possible(row: Row, axes: Axes, bans: Bans) -> bool:
    """Says whether a row, or what can be made of a part of one, breaks no rule."""
    if any(is_banned(item, row, bans) for item in row.items()):
        return False
    if completed(row, list(axes), axes, bans) is not None:  # mostly found at once
        return True
    bound = {axis for (axis, _), rules in bans.items() if any(might_hold(rest, row) for rest in rules)}
    left = [
        [{**row, axis: value} for value in allowed(axis, row, axes, bans)] for axis in axes if axis in bound - {*row}
    ]
    # The axis with the fewest values first: without it a search may see each row there could be.
    return any(is_possible(each, axes, bans) for each in min(left, key=len))


def might_hold(rest: Iterable[tuple[str, Collection[str]]], row: Row) -> bool:
    """Says whether what a rule has beside an item may come to hold for a row."""
    return all(other not in row or row[other] in wanted for other, wanted in rest)


def allowed(axis: str, row: Row, axes: Axes, bans: Bans) -> list[str]:
    """Returns the values of an axis with which a row breaks no rule."""
    return [value for value in axes[axis] if not is_banned((axis, value), row, bans)]


def completed(
    row: Row, order: Sequence[str], axes: Axes, bans: Bans, partners: Mapping[Item, Set[Item]] | None = None
) -> Row | None:
    """Returns a whole row of a part of one, or None at a dead end: each axis in turn gets the value with the most
    missing pairs, of equals the one with more to come, and of these the first. partners: of each item, the others that
    no row has beside it yet."""
    found = dict(row)
    items = set(found.items())
    for axis in order:
        if axis in found:
            continue
        best, most = None, (-1, -1)
        for value in axes[axis]:
            item = axis, value
            if is_banned(item, found, bans):
                continue
            if partners is None:
                best = value
                break
            brought = len(partners[item] & items), len(partners[item])
            if brought > most:
                best, most = value, brought
        if best is None:
            return None
        found[axis] = best
        items.add((axis, best))
    return {axis: found[axis] for axis in axes}


def pairs_of(row: Row) -> Iterator[Pair]:
    """The pairs that stand in a row."""
    return map(frozenset, combinations(row.items(), 2))


def pairs_wanted(axes: Axes, never: Sequence[Rule] = (), spare: Sequence[Rule] = ()) -> Iterator[Pair]:
    """The pairs that a matrix must have."""
    bans = bans_of(never)
    for one, other in combinations(axes, 2):
        for value in axes[one]:
            for second in axes[other]:
                row = {one: value, other: second}
                if is_possible(row, axes, bans) and not any(holds(rule, row) for rule in spare):
                    yield frozenset(row.items())


def rotated(order: Sequence[str]) -> Iterator[Sequence[str]]:
    return ([*order[number:], *order[:number]] for number in range(len(order)))


def name_of(row: Row, axes: Axes) -> str:
    """What is not ordinary in a row."""
    return "-".join(value for axis, value in row.items() if value != axes[axis][0]) or "plain"


__all__ = ["Axes", "Row", "Rule", "matrix", "pairs_of", "pairs_wanted"]
