"""Which plugin API this is, and which one a plugin asks for. In: the requirements of a plugin's dist. Out: what it asks
for and does not get.

A plugin says what it needs where every Python dist does, ``dependencies = ["litz-plugins>=1.4"]``. pip holds to that
when it installs. litz looks again before it imports a plugin, since another dist may have been installed over it, or a
checkout may come first on the path: then the message names the version that is missing, and not a hook that is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable

VERSION = "0.1.0"
"""Of the dist litz-plugins, and of all of litz's."""
API_VERSION = VERSION.rpartition(".")[0]
"""The version of the plugin API: patch versions of the dist add nothing to it."""
API_DIST = "litz-plugins"


def minor(version: str) -> tuple[int, int]:
    """Returns (major, minor) of a version, to compare and to count by. Raises ValueError for what is no version."""
    major, _, rest = version.partition(".")
    return int(major), int(rest.partition(".")[0] or 0)


def unmet(requirements: Iterable[str], version: str) -> str:
    """Returns what a plugin's dist asks of litz-plugins and ``version`` is not, such as ">=1.4"; '' if all is well.
    requirements: as metadata has them ("litz-plugins>=1.4; python_version > '3'"). A requirement that cannot be read
    asks for nothing: pip has the last word on those."""
    asking = [text for text in requirements if API_DIST in text.replace("_", "-").lower()]
    asking = [text for text in asking if text != f"{API_DIST}=={version}"]  # litz's own dists: nothing to be parsed
    if not asking:
        return ""
    from packaging.requirements import InvalidRequirement, Requirement  # 0.03 s
    from packaging.utils import canonicalize_name

    for text in asking:
        try:
            asked = Requirement(text)
        except InvalidRequirement:
            continue
        if canonicalize_name(asked.name) != API_DIST or (asked.marker and not asked.marker.evaluate({"extra": ""})):
            continue
        if not asked.specifier.contains(version, prereleases=True):
            return str(asked.specifier)
    return ""


__all__ = ["API_DIST", "API_VERSION", "VERSION", "minor", "unmet"]
