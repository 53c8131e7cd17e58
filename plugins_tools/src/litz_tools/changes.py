"""What each pass changed. In: the nouns before and after a pass. Out: a `Change`, the lines that came and went.

Nouns print, an operation or node a line or a few, so two texts tell what a pass did. Making them takes as long as a
pass: only who writes a report asks for it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from litz_plugins import Pass

MOST = 400
"""Lines of each kind that a change keeps: a reader looks at a few."""


@dataclass(frozen=True)
class Change:
    """The change that a pass made to a noun.

    name, stage, plugin: the pass's. seconds: wall time. before, after: lines of the noun's text. removed, added: the
    lines that went and came, in order, the first `MOST` of each; `more_removed` and `more_added` count the others.
    Where both are empty, the pass put the lines into another order.
    """

    name: str
    stage: str
    plugin: str
    seconds: float
    before: int
    after: int
    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    more_removed: int = 0
    more_added: int = 0


class Texts:
    """Makes changes of the nouns before and after passes. A noun that one pass returned and the next was handed becomes
    text once."""

    def __init__(self) -> None:
        self._last: tuple[object, list[str]] = (None, [])

    def change(self, pass_: Pass, before: object, after: object, seconds: float) -> Change | None:
        """Returns what a pass changed; None for nothing."""
        old = self._last[1] if self._last[0] is before else str(before).splitlines()
        new = str(after).splitlines()
        self._last = (after, new)
        if new == old:
            return None
        removed, added = _without(old, new), _without(new, old)
        return Change(
            pass_.name,
            pass_.stage,
            pass_.plugin,
            seconds,
            len(old),
            len(new),
            tuple(removed[:MOST]),
            tuple(added[:MOST]),
            max(0, len(removed) - MOST),
            max(0, len(added) - MOST),
        )


def _without(lines: list[str], others: list[str]) -> list[str]:
    """The lines that are not among the others, each as often as it is missing there."""
    left = Counter(others)
    found = []
    for line in lines:
        if left[line] > 0:
            left[line] -= 1
        else:
            found.append(line)
    return found
