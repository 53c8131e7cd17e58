"""The error of this folder."""

from __future__ import annotations

from litz_plugins.errors import LitzError


class MemoryBudgetError(LitzError):
    """The option `memory.budget` asks for less than any candidate needs."""


__all__ = ["MemoryBudgetError"]
