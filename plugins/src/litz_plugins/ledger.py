"""What plugins' calls took. In: each call as it ends (`Called`). Out: an `Entry` for each plugin and hook, pass or kind
of function.

A call may lie within another: a pass asks for estimates, which a second plugin gives. The seconds of a call are its
own, without those of the calls within it, so that all entries together are the time that plugins took.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from litz_plugins.blame import Called

_TOGETHER = {"lowering of ": "lowerings", "decomposition of ": "decompositions"}
"""What there are hundreds of, by how it begins: one entry for all of a plugin's."""


@dataclass(frozen=True)
class Entry:
    """plugin: who. what: "litz_estimate_runtime", "pass 'fuse' (program stage)", "lowerings". calls, seconds: how many,
    and their own wall time. failed: how many of them ended in a failure."""

    plugin: str
    what: str
    calls: int = 0
    seconds: float = 0.0
    failed: int = 0


class Ledger:
    """The calls since the last `take`. Of a built-in plugin its passes alone are told, unless all calls are traced."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], list[float]] = {}
        self._ended = threading.local()

    def called(self, called: Called) -> None:
        """Adds a call that has ended."""
        self.in_turn(called.what, [(called.plugin, called.begun, called.seconds)], called.failed)

    def in_turn(self, what: str, turns: Sequence[tuple[str, float, float]], failed: bool = False) -> None:
        """Calls for one purpose have ended, one after the other: (plugin, begun, seconds) of each, and whether the last
        one failed. Told of together, as most of them take less time than to be told of."""
        try:
            ended: list[tuple[float, float]] = self._ended.calls
        except AttributeError:  # the first in this thread
            ended = self._ended.calls = []
        entries, whole = self._entries, 0.0
        for plugin, begun, seconds in reversed(turns):  # the last to begin first: what began within it lies on top
            own = seconds
            while ended and ended[-1][0] >= begun:  # it began within this one
                own -= ended.pop()[1]
            whole += seconds
            entry = entries.get((plugin, what))
            if entry is None:
                for first, _, _ in turns:  # entries are in the order of the calls
                    entries.setdefault((first, what), [0, 0.0, 0])
                entry = entries[plugin, what]
            entry[0] += 1
            entry[1] += own
            if failed:
                entry[2] += 1
                failed = False  # the others were asked because those before them had ended well
        ended.append((turns[0][1], whole))
        if len(ended) > _DEEPEST:
            del ended[: _DEEPEST // 2]

    def take(self) -> tuple[Entry, ...]:
        """Returns the entries so far, and forgets them."""
        entries, self._entries = self._entries, {}
        found: dict[tuple[str, str], Entry] = {}
        for (plugin, what), (calls, seconds, failed) in entries.items():
            name = next((name for start, name in _TOGETHER.items() if what.startswith(start)), what)
            known = found.get((plugin, name), Entry(plugin, name))
            found[plugin, name] = replace(
                known,
                calls=known.calls + int(calls),
                seconds=known.seconds + max(seconds, 0.0),
                failed=known.failed + int(failed),
            )
        return tuple(found.values())


_DEEPEST = 4096
"""Calls that are remembered in case one that contains them ends."""

__all__ = ["Entry", "Ledger"]
