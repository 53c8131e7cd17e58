"""What keeps compiled graphs out of the graph cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Uncacheable:
    """What `litz_cache_fingerprint` answers where compiled graphs must not be kept for other processes, and why."""

    reason: str
