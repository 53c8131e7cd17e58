"""Nested arguments of an Extern: tuples, lists and dicts of TensorRefs, sizes and constants, walked in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


def leaves(value: Any) -> Iterator[Any]:
    """What is no tuple, list or dict in a nested value, in order."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def fold(value: Any, leaf: Callable[[Any], Any], join: Callable[[Any, list[Any]], Any]) -> Any:
    """`leaf` of each leaf, and `join(container, parts)` of each tuple, list or dict; the parts of a dict are those of
    its values."""
    if isinstance(value, Mapping):
        return join(value, [fold(item, leaf, join) for item in value.values()])
    if isinstance(value, (list, tuple)):
        return join(value, [fold(item, leaf, join) for item in value])
    return leaf(value)


def rebuild(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """The nested value with `leaf` of each leaf in the leaf's place."""
    return fold(value, leaf, _like)


def _like(given: Any, parts: list[Any]) -> Any:
    return dict(zip(given, parts, strict=True)) if isinstance(given, Mapping) else type(given)(parts)
