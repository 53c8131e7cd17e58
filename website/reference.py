"""The pages of names that programs import: from `litz`, and from `litz_plugins`. In: the modules. Out: Markdown."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import litz_plugins

RECORDS = Path(__file__).parents[1] / "docs" / "plugins" / "records.md"
LITZ: Sequence[tuple[str, str, str]] = (
    ("litz", "Load what was compiled elsewhere.", "load_cache_artifacts"),
    ("litz_aot", "Compile ahead of time, and load what was compiled.", "compile load"),
    ("litz.backend", 'What `torch.compile(backend="litz")` calls.', "litz"),
    ("litz.report", "What a compile made of each graph.", "collect CompileReport"),
    ("litz.options", "The options of a compile, as one frozen record.", "Options"),
)
"""Module, what a user imports it for, and the names."""


def litz_page() -> str:
    """The page of what users of litz import."""
    lines = ["# litz", "", "What a program imports from `litz`. [Errors](errors.md) have a page of their own.", ""]
    for module, use, names in LITZ:
        found = importlib.import_module(module)
        lines += [f"## {module}", "", use, ""]
        for name in names.split():
            lines += _entry(f"{module}.{name}", getattr(found, name))
    return "\n".join(lines)


def litz_plugins_page() -> str:
    """The page of what plugins import from `litz_plugins`."""
    lines = ["# litz_plugins", "", prose((litz_plugins.__doc__ or "").replace("::\n", ":\n")), ""]
    elsewhere = "nowhere"
    if RECORDS.exists():  # a page of the records alone
        lines += ["[Records](../plugins/records.md) has what hooks return and are handed; here is everything else.", ""]
        elsewhere = litz_plugins.records.__name__
    for name in sorted(litz_plugins.__all__, key=str.lower):
        thing = getattr(litz_plugins, name)
        if inspect.isclass(thing) and (issubclass(thing, Exception) or thing.__module__.startswith(elsewhere)):
            continue
        if not name.startswith("_"):
            lines += _entry(f"litz_plugins.{name}", thing)
    return "\n".join(lines)


def public_names() -> Iterator[tuple[str, Any]]:
    """Each function and class that the pages have, with its name."""
    for module, _, names in LITZ:
        for name in names.split():
            yield f"{module}.{name}", getattr(importlib.import_module(module), name)
    for name in litz_plugins.__all__:
        thing = getattr(litz_plugins, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            yield f"litz_plugins.{name}", thing


def prose(docstring: str) -> str:
    """A docstring as Markdown: reStructuredText's double backquotes become single ones."""
    return docstring.replace("``", "`")


def _entry(name: str, thing: Any) -> Iterator[str]:
    yield from (f"### {name}", "")
    if inspect.isclass(thing):
        yield from _class(thing)
    elif inspect.isfunction(thing):
        yield from (_code(f"{name.rpartition('.')[2]}{_signature(thing)}"), "", prose(inspect.getdoc(thing) or ""), "")
    else:
        yield from (_code(f"{name.rpartition('.')[2]} = {thing!r}"), "")


def _class(cls: type) -> Iterator[str]:
    documented = inspect.getdoc(cls) if cls.__doc__ and not cls.__doc__.startswith(f"{cls.__name__}(") else ""
    yield from (prose(documented or ""), "")
    if dataclasses.is_dataclass(cls):
        fields = [field for field in dataclasses.fields(cls) if not field.name.startswith("_")]
        if fields:
            yield from ("| field | type |", "|---|---|")
            yield from (f"| `{field.name}` | `{_cell(field.type)}` |" for field in fields)
            yield ""
    for name, member in sorted(vars(cls).items()):
        function = getattr(member, "fget", None) or getattr(member, "__func__", None) or member
        if not name.startswith("_") and inspect.isfunction(function) and inspect.getdoc(function):
            signature = "" if isinstance(member, property) else _signature(function)
            yield from (f"**`{name}{signature}`**", "", prose(inspect.getdoc(function) or ""), "")


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _signature(function: Any) -> str:
    try:
        text = str(inspect.signature(function))
    except (TypeError, ValueError):
        return "(...)"
    return text.replace("'", "") if len(text) < 100 else _lines(text.replace("'", ""))


def _lines(signature: str) -> str:
    """A long signature with a line for each parameter."""
    depth, out = 0, ""
    for letter in signature:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "(" and depth == 1:
            out += "(\n    "
        elif letter == ")" and depth == 0:
            out += ",\n)"
        elif letter == "," and depth == 1:
            out += ",\n   "
        else:
            out += letter
    return out


def _cell(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind)).replace("|", "\\|")
