"""litz's part of `torch.compiler.save_cache_artifacts()`: the entries of the disk cache that this process has used.

In: entries, as they are found or built. Out: artifacts of torch's, each the files of an entry as text with their
SHA-256 sums, which `torch.compiler.load_cache_artifacts` writes to the disk cache of another machine. Files are read
when torch saves them, so that a compile pays nothing. Nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

from .stores import KINDS, pack, unpack, write

TYPE = "litz"


def record(kind: str, key: str, folder: Path) -> None:
    """Notes that a cache entry was found or built."""
    # Where torch is not loaded (`litz doctor`, `litz cache`) nobody will ask torch for artifacts.
    if kind in KINDS and "torch" in sys.modules and register():
        from torch.compiler._cache import CacheArtifactManager

        with contextlib.suppress(AttributeError, TypeError):  # torch's part is private, and may change
            # torch keeps each record as long as the process lives: a text is smaller than a path.
            CacheArtifactManager.record_artifact(TYPE, f"{kind}/{key}", str(folder))


@cache
def register() -> bool:
    """Registers litz's artifacts with torch. Returns False where this version of torch has no artifacts.

    `import torch` calls this at its end (the entry point of the group torch.backends), so that
    `torch.compiler.load_cache_artifacts` knows them in a process that has not compiled yet. An error here would be one
    of `import torch`.
    """
    try:
        from torch.compiler._cache import CacheArtifact, CacheArtifactFactory, CacheArtifactManager
    except ImportError:
        return False
    if not hasattr(CacheArtifactManager, "record_artifact") or not hasattr(CacheArtifactFactory, "register"):
        return False

    class LitzArtifact(CacheArtifact):
        """An entry: its folder (str) where it was recorded, its files (bytes) where it was loaded."""

        def __init__(self, key: str, content: Any) -> None:
            object.__setattr__(self, "key", key)
            object.__setattr__(self, "given", content)

        @property
        def content(self) -> bytes:  # type: ignore[override]
            given: Any = self.given  # type: ignore[attr-defined]
            return pack(Path(given)) if isinstance(given, str) else given

        def __eq__(self, other: object) -> bool:
            return isinstance(other, LitzArtifact) and self.key == other.key

        def __hash__(self) -> int:
            return hash(self.key)

        def __repr__(self) -> str:
            return f"LitzArtifact({self.key})"

        @staticmethod
        def encode(content: Any) -> Any:
            return content

        def populate_cache(self) -> None:
            keep(self.key, self.content)

        @staticmethod
        def type() -> str:
            return TYPE

    with contextlib.suppress(AssertionError):  # another copy of litz has registered its own
        CacheArtifactFactory.register(LitzArtifact)
    return True


def keep(name: str, content: bytes, root: Path | None = None) -> bool:
    """Puts an entry into the disk cache, of the environment if no folder is named; False for what is damaged or no
    entry."""
    from litz.options import make_options
    from litz.origins.trust import make_trust

    from .disk import Cache

    kind, _, key = name.partition("/")
    files = unpack(content)
    if files is None or kind not in KINDS or len(key) != 40 or not all(c in "0123456789abcdef" for c in key):
        return False

    options, needs = make_options(), tuple(files)
    Cache(root or options.cache_dir, trust=make_trust(options.trust)).build(kind, key, partial(write, files), needs)
    return True
