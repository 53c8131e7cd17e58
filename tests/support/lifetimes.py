"""What the memory of a schedule comes to, for tests that compare orders. In: a program and its steps. Out: bytes."""

from __future__ import annotations

from collections.abc import Sequence

from litz.ir import Program
from litz.schedule.lifetimes import Lifetimes
from litz.schedule.schedule import Step


def peak_bytes(program: Program, steps: Sequence[Step]) -> int:
    """The most bytes that temporaries and outputs take at a time in this order."""
    return Lifetimes(program, steps).peak({})
