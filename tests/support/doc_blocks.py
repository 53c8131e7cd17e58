"""The blocks of code in a Markdown page: fenced ones, and indented ones. In: a page. Out: a `Block` for each."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
MARK = re.compile(r"\s*<!-- (?P<kind>test|from|not run|stage): (?P<what>.+?) -->\s*$")
"""The comment on the line before a block: the test that runs it, the file that it is an excerpt of,
why nothing runs it, or the stage that prints it."""
CODE = (ast.Call, ast.Lambda, ast.Assign, ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
"""What only Python has: a word or a number alone parses as Python too."""
_FENCE = re.compile(r"(?P<indent> *)```(?P<language>\w*)\s*$")
_ITEM = re.compile(r"(\d+\.|[-*]) ")


@dataclass(frozen=True)
class Block:
    """page: from the repository's root. line: of the block's first line, from 1. language: '' for an indented block.
    mark: kind and text of the comment before the block, or two empty strings."""

    page: str
    line: int
    language: str
    text: str
    mark: tuple[str, str] = ("", "")

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_python(self) -> bool:
        """Whether the block is Python: it says so, or it is indented, parses, and calls or assigns."""
        if self.language:
            return self.language == "python"
        try:
            tree = ast.parse(self.text)
        except SyntaxError:
            return False
        return any(isinstance(node, CODE) for node in ast.walk(tree))


def pages() -> list[Path]:
    """README.md, CONTRIBUTING.md and every page of docs/ that no program makes."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in found if "<!-- Made by `" not in path.read_text(encoding="utf-8")]


def blocks(path: Path) -> Iterator[Block]:
    """The blocks of a page, in order."""
    name = path.relative_to(ROOT).as_posix()
    lines = path.read_text(encoding="utf-8").splitlines()
    mark, in_list, at = ("", ""), False, 0
    while at < len(lines):
        line, start = lines[at], at
        fence, comment = _FENCE.match(line), MARK.match(line)
        if comment:
            mark = (comment["kind"], comment["what"])
            at += 1
        elif fence:
            at = next(n for n in range(at + 1, len(lines)) if lines[n].strip() == "```")
            yield Block(name, start + 2, fence["language"] or "text", _joined(lines[start + 1 : at]), mark)
            at, mark = at + 1, ("", "")
        elif line.startswith("    ") and not in_list and not lines[at - 1].strip():
            while at < len(lines) and (lines[at].startswith("    ") or not lines[at].strip()):
                at += 1
            yield Block(name, start + 1, "", _joined(lines[start:at]), mark)
            mark = ("", "")
        else:
            if line.strip():
                in_list = bool(_ITEM.match(line)) or (in_list and line.startswith(" "))
                mark = ("", "")
            at += 1


def _joined(lines: list[str]) -> str:
    return textwrap.dedent("\n".join(lines)).strip("\n") + "\n"
