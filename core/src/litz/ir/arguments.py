"""Nested arguments of an Extern: tuples, lists and dicts of TensorRefs, sizes and constants, walked in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


def leaves(value: Any) -> Iterator[Any]:
    """Yields, in order, the parts of a nested value that are no tuple, list or dict."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def fold(value: Any, leaf: Callable[[Any], Any], join: Callable[[Any, list[Any]], Any]) -> Any:
    """Returns `join(container, parts)` of each tuple, list or dict, over `leaf(value)` of each leaf; the parts of a
    dict are its values."""
    if isinstance(value, Mapping):
        return join(value, [fold(item, leaf, join) for item in value.values()])
    if isinstance(value, (list, tuple)):
        return join(value, [fold(item, leaf, join) for item in value])
    return leaf(value)


def rebuild(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Returns the nested value with `leaf(value)` in the place of each leaf."""
    return fold(value, leaf, _like)


def _like(given: Any, parts: list[Any]) -> Any:
    return dict(zip(given, parts, strict=True)) if isinstance(given, Mapping) else type(given)(parts)
