"""Lines of the user's model. In: a place, such as "/home/me/model.py:41". Out: its text, and the function around it."""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache


def line_of(place: str) -> str:
    """Returns the text of a line; '' where the file is not there any more."""
    file, _, number = place.rpartition(":")
    return linecache.getline(file, int(number)).strip() if number.isdecimal() else ""


def function_of(place: str) -> str:
    """Returns the name of the innermost function around a line, with those of its classes, such as "Block.forward"; ''
    for none, or where the file is not there any more."""
    file, _, number = place.rpartition(":")
    if not number.isdecimal():
        return ""
    around = [found for found in _functions(file) if found[0] <= int(number) <= found[1]]
    return max(around)[2] if around else ""


@lru_cache(maxsize=32)
def _functions(file: str) -> tuple[tuple[int, int, str], ...]:
    """The first and last line and the name of each function of a file."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    found: list[tuple[int, int, str]] = []

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = f"{prefix}{child.name}"
                if not isinstance(child, ast.ClassDef):
                    found.append((child.lineno, child.end_lineno or child.lineno, name))
                walk(child, f"{name}.")
            else:
                walk(child, prefix)

    walk(tree, "")
    return tuple(found)
