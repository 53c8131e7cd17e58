"""The error of this dist."""

from __future__ import annotations

from litz_plugins.errors import LitzError


class NumbersError(LitzError):
    """The numbers that the options ask for cannot be given: two options contradict each other, or the device has no
    such kernels."""


__all__ = ["NumbersError"]
