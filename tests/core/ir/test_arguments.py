"""Nested arguments are walked in one way, and communication is matched in one way."""

from __future__ import annotations

from core.schedule.test_dependences import communication
from litz.ir.arguments import fold, leaves, rebuild
from litz.ir.communication import flights
from litz.ir.operation import storage_roots


def test_nested_arguments() -> None:
    value = (1, [2, (3,), {"a": 4, "b": [None]}])
    assert list(leaves(value)) == [1, 2, 3, 4, None]
    assert rebuild(value, lambda leaf: -1 if leaf is None else leaf + 1) == (2, [3, (4,), {"a": 5, "b": [-1]}])
    assert fold(value, lambda leaf: 1, lambda given, parts: sum(parts)) == 5
    assert list(leaves(7)) == [7] and not list(leaves(()))


def test_which_wait_ends_which_collective() -> None:
    operations = communication().operations
    roots = storage_roots(operations)
    (position,) = (n for n, operation in enumerate(operations) if operation.name == "op3")
    found = flights(operations, roots)
    assert {n: [one.name for one in ended] for n, ended in found.ended.items()} == {position: ["op1"]}
    assert not found.endless
    assert [one.name for one in flights(operations[:position], roots).endless] == ["op1"]
