"""What finds and keeps graphs elsewhere. In: a plugin's hooks. Out: a trial of each kind of entry.

What was kept comes back as it was, or not at all; a key under which nothing was kept has nothing; and several threads
may ask at once, as kernels are built.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from litz.cache.disk import digest
from litz.cache.stores import KINDS, pack
from litz.options import Options
from litz_plugins import Plugins, PluginWarning

from .records import Trial

WHAT = "litz_find_graph"
SIZES = (0, 1000, 1 << 20)
"""Bytes of a file, random ones."""


def store_trials(own: Plugins, settings: Options) -> tuple[list[Trial], Mapping[str, str]]:
    """Returns a trial of each kind of entry that the plugin keeps; and why no trial ran. own: with that plugin."""
    contents = {(kind, digest(content)): content for kind in sorted(KINDS) for content in map(_packed, SIZES)}

    def find(place: tuple[str, str]) -> bytes | None:
        kind, key = place
        return own.find_graph(settings, kind, key, bytes)

    def keep(item: tuple[tuple[str, str], bytes]) -> None:
        (kind, key), content = item
        own.keep_graph(settings, kind, key, content)

    with warnings.catch_warnings(record=True) as said, ThreadPoolExecutor(4) as threads:
        warnings.simplefilter("always", PluginWarning)
        nothing = list(threads.map(find, contents))
        list(threads.map(keep, contents.items()))
        own.keep_graph(settings, "cpp", digest("failed", os.urandom(8)), None)
        found = list(threads.map(find, contents))
    failures = [str(one.message) for one in said if issubclass(one.category, PluginWarning)]
    trials = [Trial(WHAT, "any", "called", failures[0])] if failures else []
    for (kind, _), before, after, content in zip(contents, nothing, found, contents.values(), strict=True):
        problem = "it has what was never kept" if before is not None else ""
        if not problem and after is not None and after != content:
            problem = f"of {len(content)} bytes that it kept, {len(after)} others came back"
        if after is not None or problem:
            trials.append(Trial(WHAT, kind, f"{len(content)} bytes", problem))
    return trials, {} if trials else {WHAT: "nothing that it was given came back"}


def _packed(size: int) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "file").write_bytes(os.urandom(size))
        (Path(folder) / "unique").write_bytes(os.urandom(8))
        return pack(Path(folder))


__all__ = ["store_trials"]
