"""Figures of devices that a test sets, whatever the data files and the targets say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, is_dataclass, replace
from typing import Any
from unittest import mock

from pytest import MonkeyPatch

from litz.target import Room, data


@contextmanager
def figures_set(**values: Any) -> Iterator[None]:
    """Inside, rooms go by these figures: `many_rows__tiles` stands for "many_rows.tiles"."""
    with mock.patch.object(data, "_figures", _changed(values)):
        yield


def set_figures(monkeypatch: MonkeyPatch, **values: Any) -> None:
    """The same for a test."""
    monkeypatch.setattr(data, "_figures", _changed(values))


def _changed(values: dict[str, Any]) -> Callable[..., Room]:
    found = data._figures
    given = {name: _plain(value) for name, value in values.items()}

    def changed(own: Any, kind: str, file: str, room: type[Room]) -> Room:
        mine = {name.partition("__")[2]: value for name, value in given.items() if name.startswith(f"{room.table}__")}
        return replace(found(own, kind, file, room), **mine)

    return changed


def _plain(value: Any) -> Any:
    """Records, such as tiles, as what a figure has in their place."""
    if is_dataclass(value) and not isinstance(value, type):
        return astuple(value)
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple)) else value
