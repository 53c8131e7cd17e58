"""What a plugin put into a program, marked as that plugin's: its functions and its kernels.

In: operations, or the payload of a choice, and whose they are. Out: the same with each function of Python's as a
`PluginCall`, and each kernel's source with the plugin's name.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from litz.ir import Extern, KernelCall, Operation, Program
from litz.ir.operation import written_arguments
from litz.origins.plugin_call import Owner, PluginCall, is_foreign
from litz_plugins import Choice, KernelSource

from .choices import Recipe, Replacement


def owned(operation: Operation, owner: Owner) -> Operation:
    """Returns the operation, marked as the work of a plugin."""
    if isinstance(operation, KernelCall):
        if isinstance(operation.source, KernelSource) and not operation.source.plugin:
            return replace(operation, source=replace(operation.source, plugin=owner.plugin))
    elif isinstance(operation, Extern) and is_foreign(operation.target):
        return replace(operation, target=PluginCall(owner, operation.target, written_arguments(operation)))
    return operation


def owned_program(before: Program, after: Program, owner: Owner) -> Program:
    """Returns the program with the operations marked that a plugin's pass added. A call or a kernel that was there,
    with other arguments, stays whose it is."""
    known = set(map(_made, before.operations))
    operations = tuple(op if _made(op) in known else owned(op, owner) for op in after.operations)
    same = all(mine is its for mine, its in zip(operations, after.operations, strict=True))
    return after if same else replace(after, operations=operations)


def _made(operation: Operation) -> int:
    """Returns the id of what somebody made of an operation: a kernel's text, a call's function; else the operation."""
    source = getattr(operation, "source", None)
    return id(getattr(source, "text", source) if source is not None else getattr(operation, "target", operation))


def owned_choice(choice: Choice, owner: Owner) -> Choice:
    """Returns a choice of a plugin's template with what it puts into the program marked as the plugin's. What a Recipe
    makes is marked when it is made."""
    payload = choice.payload
    if isinstance(payload, Recipe):
        return replace(choice, payload=replace(payload, make=_Making(payload, owner)))
    found = owned_payload(payload, owner)
    return choice if found is payload else replace(choice, payload=found)


def owned_payload(payload: Any, owner: Owner) -> Any:
    """Returns an operation or a Replacement, marked as the work of a plugin."""
    if isinstance(payload, Replacement):
        return replace(payload, operations=tuple(owned(operation, owner) for operation in payload.operations))
    return owned(payload, owner) if isinstance(payload, Extern) else payload


class _Making:
    """The function of a Recipe, which marks what it makes as a plugin's."""

    def __init__(self, recipe: Recipe, owner: Owner) -> None:
        self._make, self._owner = recipe.make, owner

    def __call__(self) -> Replacement:
        made: Replacement = owned_payload(self._make(), self._owner)
        return made


__all__ = ["owned", "owned_choice", "owned_payload", "owned_program"]
