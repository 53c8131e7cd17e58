"""Tables that are made when somebody first looks into them: those of a compile that may turn out to be none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any


class Later(Mapping[Any, Any]):
    """The mapping that `make` returns, made when it is first read. The mapping is always true, so that a test for its
    presence makes nothing."""

    def __init__(self, make: Callable[[], Mapping[Any, Any]]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> Mapping[Any, Any]:
        return self._make()

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, key: Any) -> Any:
        return self._made[key]

    def items(self) -> Any:
        """Returns the mapping's own, as each look at one of a thousand ops takes long."""
        return self._made.items()

    def keys(self) -> Any:
        """As `items`."""
        return self._made.keys()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)
