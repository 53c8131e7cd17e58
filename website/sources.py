"""The page of a file, or of a folder, of the repository that some other page links to."""

from __future__ import annotations

import ast
from pathlib import Path

LANGUAGES = {".py": "python", ".cpp": "cpp", ".toml": "toml", ".json": "json", ".yml": "yaml"}


def page(path: Path, name: str) -> str:
    """Markdown with the file's text, or with the folder's files and what each says of itself.

    path: of the file. name: its path from the repository's root.
    """
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    if path.is_dir():
        files = sorted(file for file in path.rglob("*.py") if file.is_file())
        rows = [f"| `{file.relative_to(path)}` | {_says(file)} |" for file in files]
        return "\n".join([f"# {name}", "", "| file | |", "|---|---|", *rows, ""])
    fence = "~~~~"
    # The search finds the rows of data on the pages that are made from them.
    unsearched = "---\nsearch:\n  exclude: true\n---\n" if path.suffix == ".jsonl" else ""
    language, text = LANGUAGES.get(path.suffix, "text"), path.read_text(encoding="utf-8")
    return f"{unsearched}# {name}\n\n{fence}{language}\n{text}{fence}\n"


def _says(file: Path) -> str:
    return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition("\n")[0].replace("|", "\\|")
