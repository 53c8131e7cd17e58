"""Computation and communication on their streams. In: a schedule's steps with their times. Out: a `Timeline`.

The model: the host is ahead of the device. Kernels and calls run in order on the compute stream of their device. A
collective begins when the compute stream has come to it and the one of its group before it is over; a wait holds up the
compute stream until its collective is over. A group's collectives are exposed while one of them holds that stream up.
What kernels and communication at a time cost each other is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .step import Step

COMPUTE, COMMUNICATION = "compute", "communication"


@dataclass(frozen=True)
class Span:
    """A step on its stream, from `start` on for `us` microseconds; a wait's span is the time that it holds up."""

    step: Step
    stream: str
    start: float
    us: float

    @property
    def end(self) -> float:
        """Returns the time at which the step ends, in µs."""
        return self.start + self.us


@dataclass(frozen=True)
class Realised:
    """The times of a collective in profiled runs: its own, and for how long of it no kernel ran beside it, in µs, the
    median of `runs` runs."""

    us: float
    exposed_us: float
    runs: int = 1


@dataclass(frozen=True)
class Timeline:
    """spans: every step, in the order of the schedule. exposed: µs of each collective, by name, that the compute stream
    was held up for; a collective that nobody waits for here is never exposed. us: until all streams are done."""

    spans: tuple[Span, ...]
    exposed: Mapping[str, float]
    us: float

    @property
    def exposed_us(self) -> float:
        """Returns how long communication held up the compute stream, in µs."""
        return sum(self.exposed.values())

    @property
    def communication_us(self) -> float:
        """Returns the time of all collectives, in µs."""
        return sum(span.us for span in self.spans if span.stream == COMMUNICATION)

    def on(self, stream: str) -> Iterator[Span]:
        """Returns the spans of one stream that take time."""
        return (span for span in self.spans if span.stream == stream and span.us > 0)


def simulate(steps: Sequence[Step]) -> Timeline:
    """Returns the timeline of steps with their estimated times; a step without an estimate takes no time."""
    now, free, exposed = 0.0, dict[str, float](), dict[str, float]()
    spans, running = list[Span](), dict[str, Span]()
    for step in steps:
        if step.kind == "collective":
            span = Span(step, COMMUNICATION, max(now, free.get(step.group, 0.0)), step.us)
            free[step.group] = span.end
            running[step.name], exposed[step.name] = span, 0.0
        elif step.kind == "wait":
            awaited = [running[name] for name in step.waits_for if name in running]
            span = Span(step, COMPUTE, now, max([0.0, *(other.end - now for other in awaited)]))
            # The one that is waited for may have been held up by those before it, which then are what is exposed.
            for name, other in running.items():
                if any(other.step.group == one.step.group for one in awaited):
                    exposed[name] += max(0.0, min(span.end, other.end) - max(span.start, other.start))
            now = span.end
        else:
            span = Span(step, COMPUTE, now, step.us)
            now = span.end
        spans.append(span)
    return Timeline(tuple(spans), exposed, max([now, *free.values()]))
