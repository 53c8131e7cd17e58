"""What a class's docstring says of each field. In: a dataclass. Out: meanings by field, and the rest of the text.

A docstring says "one: what it is. two, three: what these are." A pattern such as `memory_*` stands for all fields that
it matches. A field may also have a docstring of its own, on the line after it, or a comment on its line.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Mapping
from fnmatch import fnmatchcase

from .markdown import doc_of, markdown


def meanings(cls: type) -> tuple[str, Mapping[str, str]]:
    """Returns the docstring without what it says of fields, and the meaning of each field that it has a word on."""
    names = [each.name for each in dataclasses.fields(cls) if each.name[0] != "_"]
    kept: list[str] = []
    found: dict[str, str] = {}
    word = "|".join([*map(re.escape, sorted(names, key=len, reverse=True)), r"\w+_\*", r"\*_\w+"])
    head = re.compile(rf"(?:^|(?<=[.;] ))(?:- )?`?((?:{word})(?:`?,? (?:and )?`?(?:{word}))*)`?: ")
    for paragraph in doc_of(cls).split("\n\n") if names else [doc_of(cls)]:
        parts = head.split(" ".join(re.sub(r"^ *- ", "", line).strip() for line in paragraph.splitlines()))
        if len(parts) == 1:
            kept.append(paragraph)
            continue
        kept += [parts[0].strip()] if parts[0].strip() else []
        for group, meaning in zip(parts[1::2], parts[2::2], strict=True):
            for pattern in re.findall(r"[\w*]+", group):
                found |= {name: meaning.rstrip(" ;.") for name in names if fnmatchcase(name, pattern)}
    return "\n\n".join(kept), found | _own(cls)


def _own(cls: type) -> dict[str, str]:
    """The comments on the lines of fields, and the docstrings after fields."""
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):
        return {}
    (body,) = ast.parse(source).body
    assert isinstance(body, ast.ClassDef)
    found = dict(re.findall(r"^    (\w+): [^#\n]*  # (?!type: )([^\n]+)$", source, re.M))
    for before, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name) and isinstance(after, ast.Expr):
            if isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
                found[before.target.id] = markdown(" ".join(after.value.value.split()))
    return found


__all__ = ["meanings"]
