"""Values of options that are functions. In: the function that the user gave. Out: a text that leads to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Function(str):
    """A function that the user gave as an option's value. As a str it is the function's path, "package.module:name":
    whatever prints, formats or writes it as JSON has that. `given` is the function itself.

    Two are equal if their functions are the same object; none is equal to a plain text. A pickled one is a plain text,
    since the function may not be one that another process could have.
    """

    __slots__ = ("given",)
    given: Callable[..., Any]

    def __new__(cls, function: Callable[..., Any]) -> Function:
        """Makes one of a function, or of any object that can be called."""
        if isinstance(function, Function):
            return function
        of = function if hasattr(function, "__qualname__") else type(function)
        made = super().__new__(cls, f"{of.__module__}:{of.__qualname__}")
        made.given = function
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Function) and self.given is other.given

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __copy__(self) -> Function:
        return self

    def __deepcopy__(self, memo: Any) -> Function:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return str, (str(self),)


def with_functions(value: Any, many: bool) -> Any:
    """Returns what a user gave for an option with each function in it as a `Function`. many: the option takes several,
    so that one alone is a tuple of one."""
    if callable(value):
        return (Function(value),) if many else Function(value)
    if many and isinstance(value, (list, tuple)):
        return tuple(Function(each) if callable(each) else each for each in value)
    return value


__all__ = ["Function", "with_functions"]
