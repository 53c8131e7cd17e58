"""What mkdocs calls while it builds the site: pages made from the code, links that leave docs/, pages without an entry.

mkdocs reads this file by its path (website/mkdocs.yml names it); the functions have the names that mkdocs looks for.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # mkdocs runs this file with its own folder on the path only

from litz import __version__  # noqa: E402
from website import command_line, errors, links, notebook, reference, sources  # noqa: E402

LOG = logging.getLogger("mkdocs.plugins.litz")  # --strict counts its warnings
MADE = {
    "reference/litz.md": reference.litz_page,
    "reference/litz_plugins.md": reference.litz_plugins_page,
    "reference/command_line.md": command_line.page,
    "reference/errors.md": errors.page,
}
"""Pages that functions write."""


def on_config(config: Any) -> Any:
    """Puts the version behind the site's name, and adds an entry for each page of docs/ that mkdocs.yml does not
    name."""
    config.site_name = f"{config.site_name} {__version__}"
    named = {page for entry in config.nav for page in _pages(entry)}
    for path in sorted(Path(config.docs_dir).rglob("*.md")):
        name = path.relative_to(config.docs_dir).as_posix()
        if name not in named:
            section = "Extend" if name.startswith("plugins") else "Reference"
            entries = next(entry[section] for entry in config.nav if isinstance(entry, dict) and section in entry)
            entries.insert(0, name) if name in ("plugins.md", "plugins/index.md") else entries.append(name)
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds pages made from the code, the notebook, CONTRIBUTING.md, CHANGELOG.md, and linked sources."""
    texts = {name: make() for name, make in MADE.items()}
    texts.update({page: (ROOT / name).read_text(encoding="utf-8") for name, page in links.OUTSIDE.items()})
    for file in list(files):
        if file.src_uri.endswith(".ipynb") and file.abs_src_path:
            files.remove(file)
            texts[file.src_uri] = notebook.as_markdown(Path(file.abs_src_path))
    pages = {file.src_uri: file.content_string for file in files.documentation_pages()} | texts
    texts |= _sources(pages)
    for name, text in texts.items():
        files.append(_page(name, text, config))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turns links to files outside docs/ into links to pages of the site."""
    return links.inside(page.file.src_uri, markdown)


def _sources(pages: Mapping[str, str]) -> dict[str, str]:
    """The pages of the files that pages link to, and of those that these link to."""
    texts: dict[str, str] = {}
    asking = dict(pages)
    while asking:
        linked = {path: name for name, text in asking.items() for path in links.sources_in(name, text)}
        asking = {}
        for path, name in sorted(linked.items()):
            if links.source_page(path) in texts:
                continue
            if not (ROOT / path).exists():
                LOG.warning("%s links to %s, which does not exist", name, path)
                continue
            texts[links.source_page(path)] = sources.page(ROOT / path, path)
            if path.endswith(".md"):
                asking[links.source_page(path)] = texts[links.source_page(path)]
    return texts


def _page(name: str, text: str, config: Any) -> File:
    hidden = name.startswith(links.SOURCES)
    file = File.generated(
        config, name.removesuffix(".ipynb") + ".md" if name.endswith(".ipynb") else name, content=text
    )
    if hidden:
        file.inclusion = type(file.inclusion).NOT_IN_NAV
    return file


def _pages(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    if isinstance(entry, dict):
        return [page for below in entry.values() for page in _pages(below)]
    return [page for below in entry for page in _pages(below)]
