"""Who may measure for how long. In: the seconds of one graph, and its contractions by what they are expected to take.
Out: for each, a deadline.

A graph's contractions are decided one after the other, in the order of the program, but those that take longest are to
be measured first. So each may take all that is left but the shares of longer ones that are still to come, in proportion
to their times; what these do not use is for the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from litz.cost import count_work
from litz.ir import Buffer, Program, Template, TensorRef
from litz_plugins import ChoiceContext

LEAST_SECONDS = 0.5
"""A share is no smaller, while that much is left: enough to see whether what promises most keeps it."""


@dataclass
class Budget:
    """The time for measuring one graph, compiling candidates too. seconds: in all. spent: so far."""

    seconds: float = float("inf")
    spent: float = 0.0

    @property
    def left(self) -> float:
        """Returns the seconds that are left, 0 or more."""
        return max(0.0, self.seconds - self.spent)

    def share(self, context: ChoiceContext) -> float:
        """Returns the seconds for the contraction to decide: its part of those left, `LEAST_SECONDS` at least."""
        own, longer = weights(context)
        part = own / (own + longer) if own + longer else 1.0
        return min(self.left, max(LEAST_SECONDS, part * self.left))

    @contextmanager
    def deadline(self, context: ChoiceContext) -> Iterator[float]:
        """Yields the time on `time.monotonic`'s clock until which to measure. What the `with` takes is spent."""
        begun = monotonic()
        try:
            yield begun + self.share(context)
        finally:
            self.spent += monotonic() - begun


def weights(context: ChoiceContext) -> tuple[float, float]:
    """Returns what this contraction and its equals are expected to take, in µs, and what those that take longer do that
    are still to be decided, each with its equals: these are measured once."""
    program: Program = context.program
    times: dict[object, float] = {}
    for operation in program.operations[program.positions[context.operation.name] :]:
        if isinstance(operation, Template):
            key = _signature(operation, program)
            times[key] = times.get(key, 0.0) + _expected(operation, context)
    own = times[_signature(context.operation, program)]
    return own, sum(us for us in times.values() if us > own)


def _expected(operation: Template, context: ChoiceContext) -> float:
    """µs by the cost models; where none knows the device, something in proportion to the work."""
    known = context.estimate(operation)
    if known is not None and known.us:
        return known.us
    work = count_work(operation, context.program, context.target)
    return 1e-6 * (work.total_flops + work.bytes_read + work.bytes_written)


def _signature(operation: Template, program: Program) -> tuple[object, ...]:
    """Returns a tuple that is equal for equal contractions: the op, and how all that it touches lies."""

    def lies(buffer: Buffer) -> tuple[object, ...]:
        return buffer.dtype, buffer.layout.size, buffer.layout.stride

    refs = [arg.layout for arg in operation.args if isinstance(arg, TensorRef)]
    return (
        operation.target_name,
        *((ref.size, ref.stride) for ref in refs),
        *(lies(program.buffers[name]) for name in (*operation.reads, *operation.writes)),
    )


__all__ = ["LEAST_SECONDS", "Budget", "weights"]
