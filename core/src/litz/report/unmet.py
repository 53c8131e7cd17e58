"""Keys of the options `veto` and `prefer` that met nothing in a graph: in, its Gate; out, a Decision for each."""

from __future__ import annotations

from collections.abc import Iterator

from litz_plugins import Decision, Preferences, Vetoes
from litz_plugins.errors import nearest
from litz_plugins.vetoes import NO, Gate, parts_of

MET_NOTHING = "met nothing"


def unmet(gate: Gate, preferences: Preferences) -> Iterator[Decision]:
    """Yields a decision for each key that names a subject, and this graph or no graph, and that decided nothing. A key
    without a graph may be meant for another graph of the program. preferences: of the option alone."""
    known = [*gate.taken, *gate.left_out, *gate.weighed]
    for key in sorted(gate.vetoes.keys):
        if _is_about(gate.graph, key) and not any(_covers(key, full) for full in gate.left_out):
            yield _decision(f"veto {key}", _nothing(key, known))
    for key, way in sorted(preferences.ways.items()):
        if not _is_about(gate.graph, key) or way == NO:  # what is preferred not to be done may never be weighed
            continue
        found = [weighed for full, weighed in gate.weighed.items() if _covers(key, full)]
        if not found and any(_covers(key, full) for full in gate.taken):
            yield _decision(
                f"prefer {key}={way}", f"a plugin decided {key}, and the ways to decide it were not weighed"
            )
        elif not found:
            yield _decision(f"prefer {key}={way}", _nothing(key, list(gate.weighed)))
        elif all(way not in dict(weighed.ways) for weighed in found):
            ways = ", ".join(name for name, _ in found[0].ways)
            yield _decision(f"prefer {key}={way}", f"{key} has no way {way!r}; there are: {ways}")


def _is_about(graph: str, key: str) -> bool:
    where, _, subject = parts_of(key)
    return bool(subject) and where in ("", graph)


def _covers(key: str, full: str) -> bool:
    """Returns whether a key, with or without a graph, names the decision of a full key."""
    return Vetoes(frozenset({key})).forbid(*parts_of(full))


def _nothing(key: str, known: list[str]) -> str:
    near = nearest(key, [name if ":" in key else name.partition(":")[2] for name in known])
    return "nothing in this graph is decided under this key" + (f"; the nearest key: {near}" if near else "")


def _decision(subject: str, why: str) -> Decision:
    return Decision("schedule", subject, MET_NOTHING, why)
