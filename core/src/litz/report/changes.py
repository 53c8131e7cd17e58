"""What each pass changed. In: the nouns before and after a pass. Out: a `Change`, the lines that came and went.

Nouns print, an operation or node a line or a few, so two texts tell what a pass did. Making them takes as long as a
pass: only who writes a report asks for it.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from litz_plugins import Pass

MOST = 400
"""Lines of each kind that a change keeps: a reader looks at a few."""


@dataclass(frozen=True)
class Change:
    """What a pass did to a noun.

    name, stage, plugin: the pass's. seconds: wall time. before, after: lines of the noun's text. removed, added: the
    lines that went and came, in order, the first `MOST` of each; `more_removed` and `more_added` count the others.
    Without any the lines were put into another order.
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


@dataclass
class Changes:
    """What the passes of a compile changed, if somebody wants to know: `found` in the order of the passes. spent:
    the seconds that finding out took, which are no stage's of the compile."""

    wanted: bool = False
    found: tuple[Change, ...] = ()
    spent: float = 0.0
    _last: tuple[object, list[str]] = field(default=(None, []), repr=False)

    def watch(self, pass_: Pass, before: object, after: object, seconds: float) -> None:
        """Notes what a pass changed, if anybody wants that. A pass that returned what it was given changed nothing."""
        if not self.wanted or after is before:
            return
        begun = time.perf_counter()
        self._note(pass_, before, after, seconds)
        self.spent += time.perf_counter() - begun

    def take_spent(self) -> float:
        """Returns the seconds spent since the last call of this method."""
        spent, self.spent = self.spent, 0.0
        return spent

    def _note(self, pass_: Pass, before: object, after: object, seconds: float) -> None:
        old = self._last[1] if self._last[0] is before else str(before).splitlines()
        new = str(after).splitlines()
        self._last = (after, new)
        if new == old:
            return
        removed, added = _without(old, new), _without(new, old)
        self.found += (
            Change(
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
            ),
        )

    def branch(self) -> Changes:
        """Returns a copy of these changes, to go on with separately."""
        return Changes(self.wanted, self.found, self.spent, self._last)


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
