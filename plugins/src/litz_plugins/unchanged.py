"""Nouns that plugins are handed stay as they are: in, a noun before a call; out, what the call changed in it.

A frozen dataclass can still be changed by who means to (`object.__setattr__`, a dict among its fields), and an FX graph
is not frozen at all. A snapshot holds references, no copies of tensors or nodes, so that comparing costs about a
microsecond for each operation or node. What was changed is put back, so that a compile can go on without the plugin.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol


class Snapshot(Protocol):
    """Remembers what a noun was."""

    def change(self) -> str:
        """Returns what of the noun is not as it was, in words; '' if nothing changed."""

    def restore(self) -> None:
        """Puts back what was changed."""


def take(noun: Any, *, deep: bool) -> Snapshot:
    """Returns a snapshot of a noun. deep: of the records in its fields, too (operations, buffers, steps), and of what
    is in mappings; else of the fields alone, and how many entries a mapping has.

    A noun of a class with a method ``snapshot()`` says itself what it was.
    """
    own = getattr(type(noun), "snapshot", None)
    if own is not None:
        found: Snapshot = own(noun)
        return found
    return RecordSnapshot(noun) if deep else FieldsSnapshot(noun)


class FieldsSnapshot:
    """Of a record (a dataclass): its fields by identity, and how many entries the dicts among them have. Taken and
    compared for each question about an operation, in about half a microsecond."""

    __slots__ = ("_contents", "_get", "_known", "_mappings", "_record", "_sizes")

    def __init__(self, record: Any) -> None:
        kind = type(record)
        self._record, self._get = record, _GETTERS.get(kind) or _getter(kind)
        self._known = known = self._get(record)
        # Most operations have no dict: one look in C, and no lists.
        self._mappings: Sequence[dict[Any, Any]] = (
            [v for v in known if type(v) is dict] if dict in map(type, known) else ()
        )
        self._sizes, self._contents = list(map(len, self._mappings)), list(map(dict, self._mappings))

    def change(self) -> str:
        """Returns what was changed since the snapshot, in words; '' for nothing."""
        try:
            if self._get(self._record) == self._known and list(map(len, self._mappings)) == self._sizes:
                return ""
        except Exception:  # a field was deleted, or is something that does not compare
            pass
        if text := _first_change([self._record], [self._known]):
            return text
        for mapping, size in zip(self._mappings, self._sizes, strict=True):
            if len(mapping) != size:
                return _mapping_of(self._record, mapping)
        return ""

    def restore(self) -> None:
        """Puts back what was changed since the snapshot."""
        for mapping, content in zip(self._mappings, self._contents, strict=True):
            mapping.clear()
            mapping.update(content)
        _put_back(self._record, self._known)


class RecordSnapshot:
    """Remembers a record: the identity of its fields and of its records' fields, and the content of dicts."""

    __slots__ = ("_contents", "_groups", "_mappings", "_orders", "_owners")

    def __init__(self, record: Any) -> None:
        records = [record, *_records(record)]
        kinds: dict[type[Any], list[Any]] = {}
        for one in records:
            kinds.setdefault(type(one), []).append(one)
        # Of each class all records together: what compares hundreds of them is C.
        getters = ((_getter(kind), same) for kind, same in kinds.items())
        self._groups = [(get, same, list(map(get, same))) for get, same in getters]
        held = [
            (one, value)
            for _, same, known in self._groups
            for one, values in zip(same, known, strict=True)
            for value in values
            if type(value) is dict
        ]
        self._owners, self._mappings = [owner for owner, _ in held], [mapping for _, mapping in held]
        self._contents, self._orders = list(map(dict, self._mappings)), list(map(tuple, self._mappings))

    def change(self) -> str:
        """Returns what was changed since the snapshot, in words; '' for nothing."""
        for get, records, known in self._groups:
            try:
                same = list(map(get, records)) == known
            except Exception:  # a field was deleted, or is something that does not compare
                same = False
            if not same and (text := _first_change(records, known)):
                return text
        try:
            if self._mappings == self._contents and list(map(tuple, self._mappings)) == self._orders:
                return ""
        except Exception:  # something that does not compare, and is another than it was
            pass
        for owner, mapping, content in zip(self._owners, self._mappings, self._contents, strict=True):
            same = len(mapping) == len(content) and all(map(operator.is_, mapping, content))
            if not (same and all(map(operator.is_, mapping.values(), content.values()))):
                return _mapping_of(owner, mapping)
        return ""

    def restore(self) -> None:
        """Puts back what was changed since the snapshot."""
        for mapping, content in zip(self._mappings, self._contents, strict=True):
            mapping.clear()
            mapping.update(content)
        for _, records, known in self._groups:
            for record, values in zip(records, known, strict=True):
                _put_back(record, values)


def _mapping_of(owner: Any, mapping: dict[Any, Any]) -> str:
    """Returns "buffers of Program main"."""
    name = next(name for name in _fields(type(owner)) if getattr(owner, name) is mapping)
    return f"{name} of {_name(owner)}"


def _put_back(record: Any, values: tuple[Any, ...]) -> None:
    """Gives the fields of a record these values."""
    names = _fields(type(record))
    for name, value in zip(names, values, strict=True):
        object.__setattr__(record, name, value)
    own = getattr(record, "__dict__", {})
    for name in [name for name in own if name not in names]:  # derived while it was changed
        del own[name]


def _records(record: Any) -> list[Any]:
    """The records in the fields of a record, and in the tuples and mappings there."""
    found: list[Any] = []
    for value in _getter(type(record))(record):
        items = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else (value,)
        found += [item for item in items if _fields(type(item))]
    return found


def _first_change(records: Sequence[Any], known: Sequence[tuple[Any, ...]]) -> str:
    """The first field that is another object than it was, '' for none."""
    for record, values in zip(records, known, strict=True):
        for name, value in zip(_fields(type(record)), values, strict=True):
            if getattr(record, name, _MISSING) is not value:
                return f"{name} of {_name(record)}"
    return ""


_MISSING: Any = object()
_NAMES: dict[type[Any], tuple[str, ...]] = {}
_GETTERS: dict[type[Any], Callable[[Any], tuple[Any, ...]]] = {}
"""What takes the values of all fields of a dataclass at once."""


def _fields(kind: type[Any]) -> tuple[str, ...]:
    """Names of the fields of a dataclass, () for other classes."""
    found = _NAMES.get(kind)
    if found is None:
        names = tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()
        found = _NAMES[kind] = names
        getter = operator.attrgetter(*names) if names else lambda record: ()
        _GETTERS[kind] = getter if len(names) != 1 else lambda record: (getter(record),)
    return found


def _getter(kind: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
    found = _GETTERS.get(kind)
    if found is None:
        _fields(kind)
        found = _GETTERS[kind]
    return found


def _name(record: Any) -> str:
    """Returns "Loop sum_1", or the class alone for what has no name."""
    name = getattr(record, "name", "")
    return f"{type(record).__name__} {name}".strip() if isinstance(name, str) else type(record).__name__
