"""Kernels that another rank of the job has built. In: a kernel's kind and key. Out: its binary, over the store of the
process group, so that ranks without a common disk need not build the same.

The first rank that asks for a kernel builds it and leaves it in the store; the others wait for it. What travels is
what litz packs and checks (`litz_plugins.hookspecs.litz_find_graph`). A kernel is code that will run, as is whatever
else the ranks of a job tell each other: the store is trusted as torch trusts it.

A rank that waits too long builds for itself, warns once, and asks no more.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

KINDS = frozenset({"cpp", "triton"})
"""What is shared. Graphs are not: ranks may have to agree on something while they compile one, and must not wait."""
MOST_BYTES = 4 << 20
"""The most bytes that are sent: a TCPStore takes 8 MiB in a value."""
SECONDS = 60.0
"""How long to wait for another rank's kernel."""
POLL_S = 0.01
"""Between two looks. A store's own wait would keep this process's other threads from it."""
PREFIX = "litz/built/1"
NOTHING = b"{}"
"""In place of a kernel whose build failed: not an entry, so each rank builds a kernel of its own."""

StoreOf = Callable[[], tuple[Any, int] | None]
"""Gives (the store of the process group, this rank), None without one; asked each time, as groups come and go."""


class SharedBuilds:
    """The builds of all ranks of the job, exchanged through the job's store."""

    def __init__(self, store_of: StoreOf, seconds: float = SECONDS) -> None:
        self._store_of, self._seconds = store_of, seconds
        self._broken: Any = None
        """The store that failed: another group has another one."""

    def fetch(self, kind: str, key: str) -> bytes | None:
        """Returns what another rank built; None where this rank must build, and then `offer`."""
        return self._try(lambda store, rank: self._wait(store, rank, kind, key)) if kind in KINDS else None

    def offer(self, kind: str, key: str, content: bytes | None) -> None:
        """Leaves what this rank has built to the others. content: None if the build failed."""
        if kind in KINDS:
            sent = NOTHING if content is None or len(content) > MOST_BYTES else content
            self._try(lambda store, _: store.set(f"{PREFIX}/{kind}/{key}/files", sent))

    def _wait(self, store: Any, rank: int, kind: str, key: str) -> bytes | None:
        place = f"{PREFIX}/{kind}/{key}"
        holder = store.compare_set(f"{place}/rank", "", str(rank)).decode()
        files = f"{place}/files"
        if holder == str(rank) and not store.check([files]):
            return None
        until = time.monotonic() + self._seconds
        while not store.check([files]):
            if time.monotonic() > until:
                self._broken = store
                late = f"rank {holder} did not deliver one in {self._seconds:g} s"
                warnings.warn(f"rank {rank} builds its kernels by itself: {late}", stacklevel=2)
                return None
            time.sleep(POLL_S)
        return bytes(store.get(files))

    def _try(self, action: Callable[[Any, int], Any]) -> Any:
        """Returns what `action(store, rank)` gives; None without a store, and from when it fails on."""
        found = self._store_of()
        if found is None or found[0] is self._broken:
            return None
        try:
            return action(*found)
        # torch raises DistStoreError, a RuntimeError, where the store is gone; ValueError: what it holds is no text.
        except (RuntimeError, OSError, ValueError):
            self._broken = found[0]
            return None


__all__ = ["KINDS", "MOST_BYTES", "NOTHING", "PREFIX", "SharedBuilds", "StoreOf"]
