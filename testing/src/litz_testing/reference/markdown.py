"""Docstrings and tables as Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

MADE = "<!-- Made by `python -m litz_testing.reference docs/plugins` from the code: change that. -->"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a Markdown table; none without rows."""
    found = [[_cell(cell) for cell in row] for row in rows]
    if not found:
        return []
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in found), ""]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Returns inline code; '' for ''."""
    return f"`{text}`" if text else ""


def markdown(text: str) -> str:
    """Returns a docstring's text as Markdown: inline code has one backtick."""
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def doc_of(thing: Any) -> str:
    """Returns the docstring as Markdown; '' if there is none."""
    return markdown(inspect.getdoc(thing) or "").strip()


@dataclass(frozen=True)
class _Bare:
    """An annotation or a default that is printed as this text, without quotes."""

    text: str

    def __repr__(self) -> str:
        return self.text


def signature_text(function: Any) -> str:
    """Returns a function's parameters and result, without a method's own object: "(x: int = 1) -> str"."""
    signature = inspect.signature(function)
    parameters = [
        each.replace(annotation=_annotation(each.annotation), default=_default(each.default))
        for each in signature.parameters.values()
        if each.name not in ("self", "cls")
    ]
    returned = _annotation(signature.return_annotation)
    return str(signature.replace(parameters=parameters, return_annotation=returned))


def _annotation(given: Any) -> Any:
    return given if given is inspect.Signature.empty else _Bare(str(given))


def _default(given: Any) -> Any:
    """A default; of a function or a class its name, '...' for a function without one."""
    if given is inspect.Parameter.empty or not callable(given):
        return given
    return _Bare("..." if given.__name__ == "<lambda>" else given.__name__)


def page(title: str, *parts: str) -> str:
    """Returns a page with its title, and the note that says what made the page."""
    return "\n".join([f"# {title}", "", MADE, "", *parts]).rstrip() + "\n"
