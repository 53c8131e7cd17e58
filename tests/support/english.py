"""Sentences that a reader has to read twice, by rules. In: pages, modules. Out: the text, and where it is.

- A docstring of a function or class, private ones too, opens with a noun or a verb ("Returns ...", "The shape ..."),
  and with no bare "What", "Which", "Is" or "Whether".
- A sentence of prose opens with the thing that it is about, and not with a pronoun in its place ("It is", "This has").

`python tests/support/english.py` prints what is found; with paths, in these files alone.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
OPENING = re.compile(
    r"(?:What|Which|Whether|Who|Whose|How|Where|Why)\b|(?:Is|Are|Was|Were|Does|Do|Did|Has|Have|Had|Can|Could|May|Might"
    r"|Must|Shall|Should|Will|Would)\b[^.!]*\?"
)
VERBS = (
    r"is|are|was|were|has|have|had|can|cannot|may|might|must|shall|should|will|would|does|do|did|means|needs|takes|says"
    r"|makes|holds|gives|keeps|comes|goes|runs|works|happens|costs|saves|adds|changes|reads|writes|returns|leaves|lets"
    r"|allows|counts|depends|includes|applies|asks|finds|gets|hangs|helps|shows|stands|stays|starts|tells|tries|uses"
)
PRONOUN = re.compile(rf"(?:It|They|(?:That|This|These|Those) (?:{VERBS}))\b(?! is (?:likely|possible) that)")
SENTENCE = re.compile(r"(?:^|(?<=[.!?] ))")
CODE = re.compile(r"^```.*?^```[^\n]*$|^(?: {4}|\t)[^\n]*$|^\|[^\n]*$|<!--.*?-->", re.S | re.M)


@dataclass(frozen=True)
class Fault:
    """path: from the repository's root. line: from 1. text: how the sentence begins."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def page_faults(path: Path, root: Path = ROOT) -> Iterator[Fault]:
    """Yields the sentences of a Markdown page that open with a pronoun. Code and tables are left out."""
    name, text = str(path.relative_to(root)), path.read_text(encoding="utf-8")
    plain = CODE.sub(lambda found: re.sub(r"[^\n]", "", found[0]), text)
    for paragraph in re.finditer(r"(?:^[^\n]+\n?)+", plain, re.M):
        line = 1 + plain.count("\n", 0, paragraph.start())
        for number, item in _items(paragraph[0]):
            yield from (Fault(name, line + number, found) for found in _pronouns(item))


def _items(paragraph: str) -> Iterator[tuple[int, str]]:
    """The items of a list, or the whole paragraph, each with the number of its first line."""
    lines = paragraph.splitlines()
    starts = [n for n, line in enumerate(lines) if n == 0 or re.match(r"\s*(?:[-*]|\d+\.) |#", line)]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        text = " ".join(line.strip() for line in lines[start:end])
        yield start, re.sub(r"^(?:[-*]|\d+\.|#+) ", "", text)


def _pronouns(text: str) -> Iterator[str]:
    for start in SENTENCE.finditer(text):
        if PRONOUN.match(text, start.end()):
            yield text[start.end() : start.end() + 60]


def module_faults(path: Path, root: Path = ROOT) -> Iterator[Fault]:
    """Yields the docstrings of a module, its functions and its classes that open or go on badly, from the top down."""
    name, tree = str(path.relative_to(root)), ast.parse(path.read_text(encoding="utf-8"))
    for node in sorted(_documented(tree), key=lambda node: node.body[0].lineno):
        text = ast.get_docstring(node) or ""
        opened = " ".join(text.split())
        if not isinstance(node, ast.Module) and OPENING.match(opened):
            yield Fault(name, node.body[0].lineno, opened[:60])
        for paragraph in text.split("\n\n"):
            plain = " ".join(paragraph.split())
            yield from (Fault(name, getattr(node, "lineno", 1), found) for found in _pronouns(plain))


def _documented(tree: ast.Module) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yields the nodes that may have a docstring, nested functions and classes too."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            yield node


def pages() -> list[Path]:
    """Returns README, CONTRIBUTING and the pages of docs that no program makes."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in found if "<!-- Made by `" not in path.read_text(encoding="utf-8")]


def modules() -> list[Path]:
    """Returns the modules of litz's dists."""
    return sorted(path for path in ROOT.glob("*/src/**/*.py") if "/projects/" not in str(path))


def faults(paths: list[Path] | None = None) -> list[Fault]:
    """Returns what is found in files, in all by default."""
    found: list[Fault] = []
    for path in paths if paths is not None else [*pages(), *modules()]:
        found += page_faults(path) if path.suffix == ".md" else module_faults(path)
    return found


if __name__ == "__main__":
    print("\n".join(map(str, faults([Path(each).resolve() for each in sys.argv[1:]] or None))))
