"""Why a graph was not found: in, its key and the keys that a cache has; out, the nearest of them, and what differs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from litz.graph_cache.key import Difference, Key
from litz.graph_cache.lookup import KIND
from litz.runtime.graph_entry import ENTRY, KEY


@dataclass(frozen=True)
class Miss:
    """A key that was not found. nearest: the known key that shares most with it, None where no key is known.
    differences: the parts in which the two differ."""

    key: Key
    nearest: Key | None
    differences: tuple[Difference, ...] = ()


def explain_miss(key: Key, known: Iterable[Key]) -> Miss:
    """Returns the miss of `key`, with the nearest of the known keys and the parts that differ."""
    best: tuple[float, Key] | None = None
    for other in known:
        far = distance(key, other)
        if best is None or far < best[0]:
            best = far, other
    return Miss(key, None) if best is None else Miss(key, best[1], key.differences(best[1]))


def distance(key: Key, other: Key) -> float:
    """Returns how much two keys differ: by parts, each by the share of its lines that the other has not; a graph counts
    for as much as all else, so that another graph is not taken for the same with other options."""
    parts = key.differences(other)
    return sum((len(key.parts) if part.name == "graph" else 1) * _unlike(part) for part in parts)


def _unlike(part: Difference) -> float:
    mine, theirs = (set() if side is None else set(side.text.splitlines()) for side in (part.mine, part.theirs))
    return 0.5 + 0.5 * (1 - len(mine & theirs) / max(len(mine | theirs), 1))


def kept(roots: Iterable[Path]) -> frozenset[str]:
    """Returns the digests of the keys that caches have."""
    return frozenset(path.parent.name for root in roots for path in root.glob(f"{KIND}/*/{ENTRY}"))


def read_keys(roots: Iterable[Path], digests: Iterable[str]) -> Iterator[Key]:
    """Yields the keys with these digests, as far as they can be read."""
    roots = tuple(roots)
    for name in sorted(digests):
        for root in roots:
            with contextlib.suppress(OSError, ValueError):
                yield Key.from_json((root / KIND / name / KEY).read_bytes())
                break


def shown(difference: Difference, width: int = 200) -> tuple[str, str]:
    """Returns (before, now) of a part that differs, each a line of at most `width` characters: the first line that
    differs, or "absent"."""
    before, now = difference.lines
    pair = (difference.theirs is None and "absent", difference.mine is None and "absent")
    return _short(pair[0] or before, width), _short(pair[1] or now, width)


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


__all__ = ["Miss", "distance", "explain_miss", "kept", "read_keys", "shown"]
