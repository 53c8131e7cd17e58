"""Questions to plugins about the time of loops, remembered by structure.

In: what asks the plugins. Out: the same, which asks once for all loops that differ in names only: thousands of loops
are compared in a compile, and a model repeats its layers.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from litz.ir import Loop, Program
from litz.ir.structure import structure_of
from litz_plugins import Ask, Estimate, Target


class Asked:
    """An `Ask` that remembers the answers about loops."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._answers: dict[Any, tuple[str, Estimate] | None] = {}

    def __call__(self, operation: Any, target: Target, program: Program) -> tuple[str, Estimate] | None:
        """Returns (plugin, estimate) for an operation, None where all plugins decline. Loops of one structure are asked
        about once, other operations each time."""
        if not isinstance(operation, Loop):
            return self._ask(operation, target, program)
        if not self._answers:
            found = self._ask(operation, target, program)
            # As long as all decline, asking takes less time than looking up.
            if found is not None:
                self._answers[_key(operation, target, program)] = found
            return found
        key = _key(operation, target, program)
        if key not in self._answers:
            self._answers[key] = self._ask(operation, target, program)
        return self._answers[key]


def _key(loop: Loop, target: Target, program: Program) -> Hashable:
    return target, structure_of([loop], program)
