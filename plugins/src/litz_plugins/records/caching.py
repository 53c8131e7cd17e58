"""What keeps compiled graphs out of the graph cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Uncacheable:
    """A plugin's answer to `litz_cache_fingerprint` that compiled graphs must not be kept for others. reason: why not,
    for people."""

    reason: str
