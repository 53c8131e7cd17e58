"""Were packages edited since? In: names of packages, with the digests that their sources had. Nothing is imported."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping

from litz.origins import sources


def digests_of(packages: Iterable[str]) -> dict[str, str]:
    """Returns the digests of top-level packages or modules that can be imported, by name. Errors: SourcesError."""
    return {name: digest for name in packages if (digest := _digest_of(name))}


def changed_sources(known: Mapping[str, str]) -> str:
    """Returns which of the packages is here and has other sources than `digests_of` said, as text; '' for none."""
    edited = [name for name, digest in known.items() if _digest_of(name) not in ("", digest)]
    return f"it was made with other sources of {', '.join(edited)} than those that are here" if edited else ""


def _digest_of(name: str) -> str:
    spec = importlib.util.find_spec(name)
    if spec is None:
        return ""
    folders = spec.submodule_search_locations
    return " ".join(map(sources.sources_digest, folders)) if folders else sources.sources_digest(str(spec.origin))
