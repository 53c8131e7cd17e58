"""Each field of a record, or of a class of litz's that plugins may import, has a meaning on the reference pages."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass

import litz_plugins
from litz_plugins import records
from litz_testing.reference.api import MODULES
from litz_testing.reference.fields import meanings


def classes() -> Iterator[type]:
    found = [getattr(litz_plugins, name) for name in litz_plugins.__all__]
    found = [each for each in found if getattr(each, "__module__", "").startswith(records.__name__)]
    for module in MODULES:
        home = importlib.import_module(module.name)
        found += [getattr(home, name) for name in module.names.split() or home.__all__]
    yield from dict.fromkeys(each for each in found if inspect.isclass(each) and dataclasses.is_dataclass(each))


def without_a_meaning() -> list[str]:
    found = []
    for cls in classes():
        base = cls.__mro__[1]
        inherited = {each.name for each in dataclasses.fields(base)} if dataclasses.is_dataclass(base) else set()
        own = {each.name for each in dataclasses.fields(cls) if each.name[0] != "_"} - inherited
        found += [f"{cls.__name__}.{name}" for name in sorted(own - meanings(cls)[1].keys())]
    return found


def test_fields_have_meanings() -> None:
    assert without_a_meaning() == []


@dataclass
class Example:
    """An example. one, two_a: a group. Errors: ValueError.

    The rest is text; `quoted`: this is no field.

    - three: of a list,
      over two lines; with a part. four: the last.
    two_*: by a pattern.
    """

    one: int
    two_a: int
    two_b: int
    three: int = 0
    four: int = 0
    five: int = 0  # by a comment
    six: int = 0
    """By a docstring."""
    seven: int = 0


def test_meanings_are_read_off_docstrings_and_comments() -> None:
    text, found = meanings(Example)
    assert text == "An example.\n\nThe rest is text; `quoted`: this is no field."
    assert found == {
        "one": "a group. Errors: ValueError",
        "two_a": "by a pattern",
        "two_b": "by a pattern",
        "three": "of a list, over two lines; with a part",
        "four": "the last",
        "five": "by a comment",
        "six": "By a docstring.",
    }
