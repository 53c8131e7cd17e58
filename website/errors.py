"""The page of errors: each exception that a user can see, what it means, and its fields."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from litz import errors
from litz_plugins import LitzError

from .reference import prose


def exceptions() -> Iterator[type[Exception]]:
    """The exceptions and warnings of `litz.errors`, by name."""
    for _, found in sorted(inspect.getmembers(errors, inspect.isclass)):
        if issubclass(found, Exception) and found.__module__.startswith("litz"):
            yield found


def page() -> str:
    """The page as Markdown."""
    lines = [
        "# Errors",
        "",
        "The exceptions of `litz.errors`. Each message says what happened, where it happened, and what to do.",
        "",
    ]
    for exception in exceptions():
        bases = [base.__name__ for base in exception.__mro__[1:-1] if base not in (Exception, BaseException, object)]
        kind = f"A kind of {', '.join(f'`{name}`' for name in bases)}." if exception is not LitzError and bases else ""
        lines += [f"## {exception.__name__}", "", prose(inspect.getdoc(exception) or ""), "", kind, ""]
    return "\n".join(lines)
