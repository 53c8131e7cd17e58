"""Links of pages that lead out of docs/: to CONTRIBUTING.md, to sources, to examples. The site has a page for each.

In: a page's name below docs/ and its text. Out: the text with links that stay in the site.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from itertools import pairwise

OUTSIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Files of the repository that are pages of the site, and the page of each."""
SOURCES = "source/"
"""The folder of the site for files that pages link to."""
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
CODE = re.compile(r"^ *(```|~~~~).*?^ *\1$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
"""Blocks and spans of code, in which brackets are no links."""


def sources_in(name: str, text: str) -> Iterator[str]:
    """The paths, from the repository's root, of files and folders outside docs/ that the page links to."""
    for target in LINK.finditer(CODE.sub("", text)):
        path = _path(name, target[1])
        if not path.startswith("docs/") and path not in OUTSIDE:
            yield path


def source_page(path: str) -> str:
    """The site's page for a file or a folder of the repository."""
    return f"{SOURCES}{path}.md"


def inside(name: str, text: str) -> str:
    """The page's text, its links to files outside docs/ made links to the pages of the site that show these files."""

    def mend(link: re.Match[str]) -> str:
        path, anchor = _path(name, link[1]), link[2] or ""
        if path.startswith("docs/"):
            page = path.removeprefix("docs/").replace(".ipynb", ".md")
        else:
            page = OUTSIDE.get(path) or source_page(path)
        return f"]({posixpath.relpath(page, posixpath.dirname(name) or '.')}{anchor})"

    ends = [0, *(end for code in CODE.finditer(text) for end in code.span()), len(text)]
    parts = [text[start:end] for start, end in pairwise(ends)]  # text and code in turns
    return "".join(part if number % 2 else LINK.sub(mend, part) for number, part in enumerate(parts))


def _path(name: str, target: str) -> str:
    """Where a link of a page leads, from the repository's root."""
    if name.startswith(SOURCES):
        home = name.removeprefix(SOURCES).removesuffix(".md")
    else:
        home = next((file for file, page in OUTSIDE.items() if page == name), f"docs/{name}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(home), target))
