"""What plugins' calls took. In: each call as it ends (`Called`). Out: an `Entry` for each plugin and hook, pass or kind
of function.

A call may lie within another: a pass asks for estimates, which a second plugin gives. The seconds of a call are its
own, without those of the calls within it, so that all entries together are the time that plugins took.
"""

from __future__ import annotations

import threading
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
        """A call has ended."""
        plugin, what, begun, seconds, _, failed = called
        try:
            ended: list[tuple[float, float]] = self._ended.calls
        except AttributeError:  # the first in this thread
            ended = self._ended.calls = []
        own = seconds
        while ended and ended[-1][0] >= begun:  # it began within this one
            own -= ended.pop()[1]
        ended.append((begun, seconds))
        if len(ended) > _DEEPEST:
            del ended[: _DEEPEST // 2]
        entry = self._entries.get((plugin, what))
        if entry is None:
            entry = self._entries[plugin, what] = [0, 0.0, 0]
        entry[0] += 1
        entry[1] += own
        entry[2] += failed

    def take(self) -> tuple[Entry, ...]:
        """The entries so far, which begin anew."""
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
