"""Reports that are made where somebody reads them. In: how a report is made. Out: what stands for the report.

A graph that is found in the cache has a report of hundreds of steps and decisions, which mostly nobody reads: hooks of
plugins get it, and look at its name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, cast

from .report import CompileReport


class _Unread:
    __dataclass_fields__ = CompileReport.__dataclass_fields__  # `dataclasses.replace` and `asdict` take it for a report

    def __init__(self, known: dict[str, Any], make: Callable[[], CompileReport]) -> None:
        self.__dict__.update(known)
        self._make = make

    @cached_property
    def _whole(self) -> CompileReport:
        return self._make()

    @property  # type: ignore[misc]
    def __class__(self) -> type[CompileReport]:  # type: ignore[override]
        return CompileReport

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of no field; a copy that is being made has nothing to ask
            raise AttributeError(name)
        return getattr(self._whole, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles are those of the report."""
        return self._whole.__reduce_ex__(protocol)


def unread(make: Callable[[], CompileReport], **known: Any) -> CompileReport:
    """Returns what stands for the report that `make` makes, once, when a field is read that is not `known`."""
    return cast(CompileReport, _Unread(known, make))
