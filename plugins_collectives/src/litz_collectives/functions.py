"""Functions that options name. In: an option's text, or the `Function` that the user gave. Out: the function, and what
the cache's key has of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any, cast

from litz_plugins import Function, LitzError, Uncacheable

PLAIN = (bool, int, float, complex, str, bytes, type(None))
"""Types of values whose text says all of them."""


class OptionFunctionError(LitzError):
    """An option names no function."""


def check_path(text: str) -> None:
    """Checks that a text can lead to a function, "package.module:function". Errors: ValueError."""
    module, _, function = text.partition(":")
    if not isinstance(text, Function) and not all(part.isidentifier() for part in (*module.split("."), function)):
        raise ValueError(f"{text!r} names no function of a module")


def function_of(option: str, text: str) -> Callable[..., Any]:
    """Returns the function that an option's value names. Errors: OptionFunctionError, which has the option's name."""
    if isinstance(text, Function):
        return text.given
    module, _, name = text.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as cause:
        raise OptionFunctionError(
            f"the option {option} has {text!r}, which cannot be imported: {cause}",
            todo='name an importable function as "package.module:function", or give the function itself',
        ) from cause
    if not callable(found):
        raise OptionFunctionError(f"the option {option} has {text!r}, which is no function")
    return cast("Callable[..., Any]", found)


def identity_of(option: str, text: str) -> str | Uncacheable:
    """Returns what the key of a compiled graph has of a function: its `uuid()` if it has one, else the source of its
    module's file and, of a function that the user gave, where in it the function stands and what it was made with.
    Uncacheable where nobody knows these. Errors: OptionFunctionError."""
    function = function_of(option, text)
    uuid = getattr(function, "uuid", None)
    if callable(uuid):
        said = uuid()
        return Uncacheable(f"the uuid() of {text} is None ({option})") if said is None else f"{text} {said!r}"
    name = text.partition(":")[0] if not isinstance(text, Function) else getattr(function, "__module__", None)
    file = getattr(sys.modules.get(str(name)), "__file__", None)
    if file is None or not Path(file).is_file():
        return Uncacheable(f"nobody knows the source of {text}; give it a method uuid() ({option})")
    source = f"{text} {sha256(Path(file).read_bytes()).hexdigest()}"
    if not isinstance(text, Function):
        return source
    if not isinstance(function, FunctionType):
        return Uncacheable(f"{text} is no plain function, and has no method uuid() ({option})")
    held = dict(_held(function))
    for variable, value in held.items():
        if not _is_plain(value):
            why = f"{text} holds {variable!r}, a {type(value).__name__}, which its source does not tell"
            return Uncacheable(f"{why}; give it a method uuid() ({option})")
    return f"{source} {list(function.__code__.co_positions())} {held}"


def _held(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The values that a function got when it was made: those that it closes over, and its defaults."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name, cell.cell_contents
    yield "defaults", function.__defaults__ or ()
    yield "keyword defaults", tuple((function.__kwdefaults__ or {}).items())


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if type(value) in (tuple, frozenset) else type(value) in PLAIN
