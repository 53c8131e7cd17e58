"""Time on a device. In: functions that start work. Out: how long each took, in µs, run by run.

A `Timer` is data, so that it can be sent to another process; `timer_for` gives the one for a device. Functions are run
in turns, so that what slows the machine down slows them all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

import torch

MOST_ROUNDS = 60
LEAST_ROUNDS = 6
LEAST_SPIN_US, MOST_SPIN_US = 50.0, 20000.0
"""How long the device is kept busy before a run at first, and at most."""
CYCLES_PER_US = 2000
"""The cycles per µs that a GPU's clock makes at least (1980 MHz on an H100)."""
LONG_SECONDS = 0.02
"""Runs that take longer are hardly disturbed by the host: one is enough to see that a function is too slow."""
FLUSH_BYTES = 256 << 20
"""Written before each run, so that no operand is in the cache: five times an H100's L2."""


class Timer(Protocol):
    """Measures how long functions take. Implementations are frozen dataclasses of plain values."""

    def time(
        self, functions: Mapping[str, Callable[[], Any]], device: torch.device, seconds: float, limit_us: float = inf
    ) -> Mapping[str, list[float]]:
        """Returns the µs of each run of each function, in about `seconds` for all of them together. Functions have been
        run before. Where all are clearly slower than `limit_us`, they are not run again."""


class Stream(Protocol):
    """A device's queue, as `in_turns` sees it. Marks are points in it."""

    def clear(self, spin_us: float) -> None:
        """Enqueues what clears the caches and then keeps the device busy for `spin_us` µs at least."""

    def mark(self) -> Any:
        """Enqueues a mark, and returns it."""

    def reached(self, mark: Any) -> bool:
        """Returns whether the device has come to a mark by now."""

    def between(self, first: Any, last: Any) -> float:
        """Returns the µs from one mark to another, once all is done."""


def in_turns(
    functions: Mapping[str, Callable[[], Any]], stream: Stream, rounds: int, spins: dict[str, float]
) -> dict[str, list[float]]:
    """Times each function once a round, the functions in turns; returns the µs of each run by function."""
    marks: dict[str, list[tuple[Any, Any]]] = {name: [] for name in functions}
    for number in range(rounds):
        for name in list(functions)[:: -1 if number % 2 else 1]:
            while True:
                stream.clear(spins[name])
                start = stream.mark()
                functions[name]()
                end = stream.mark()
                if not stream.reached(start) or spins[name] >= MOST_SPIN_US:
                    break
                spins[name] *= 2
            marks[name].append((start, end))
    return {name: [stream.between(start, end) for start, end in found] for name, found in marks.items()}


def there_and_back(samples: Sequence[float]) -> list[float]:
    """Returns the mean of a round forwards and the next backwards. Of a pair of events every second one says 0.6 µs
    more (H100, one kernel of 12 or 21 µs against itself): with two functions in the same order, always the same
    function's."""
    return [(first + second) / 2 for first, second in zip(samples[::2], samples[1::2], strict=True)]


class _CudaStream:
    def __init__(self, device: torch.device) -> None:
        self._flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device=device)

    def clear(self, spin_us: float) -> None:
        self._flush.zero_()
        torch.cuda._sleep(int(spin_us * CYCLES_PER_US))

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def reached(self, mark: torch.cuda.Event) -> bool:
        return mark.query()

    def between(self, first: torch.cuda.Event, last: torch.cuda.Event) -> float:
        last.synchronize()
        return first.elapsed_time(last) * 1e3


@dataclass(frozen=True)
class CudaTimer:
    """Measures by events on the device's stream, with cold caches; the host's time is hidden."""

    def time(
        self, functions: Mapping[str, Callable[[], Any]], device: torch.device, seconds: float, limit_us: float = inf
    ) -> Mapping[str, list[float]]:
        """Returns µs of each run by function. seconds: to spend on all. limit_us: measuring ends early once every
        function is slower."""
        with torch.cuda.device(device):
            return self.measure(functions, _CudaStream(device), seconds, limit_us)

    def measure(
        self, functions: Mapping[str, Callable[[], Any]], stream: Stream, seconds: float, limit_us: float = inf
    ) -> dict[str, list[float]]:
        """Times functions on a stream, as `time` does on a device."""
        spins = dict.fromkeys(functions, LEAST_SPIN_US)
        first = in_turns(functions, stream, 1, spins)
        total = sum(us[0] for us in first.values()) / 1e6 + sum(spins.values()) / 1e6 + 1e-4 * len(functions)
        # A hiccup of the host can hide in one short run, hardly in three.
        if min(us[0] for us in first.values()) > limit_us:
            if total > LONG_SECONDS:
                return first
            first = in_turns(functions, stream, 3, spins)
            if min(map(min, first.values())) > limit_us:
                return first
        pairs = max(LEAST_ROUNDS, min(MOST_ROUNDS, int(seconds / total))) // 2
        found = in_turns(functions, stream, 2 * pairs, spins)
        return {name: there_and_back(samples) for name, samples in found.items()}


@dataclass(frozen=True)
class CpuTimer:
    """Measures by the host's clock, as work is done when the call returns."""

    def time(
        self, functions: Mapping[str, Callable[[], Any]], device: torch.device, seconds: float, limit_us: float = inf
    ) -> Mapping[str, list[float]]:
        """Returns µs of each run by function. seconds: to spend on all. limit_us: measuring ends early once every
        function is slower."""
        found: dict[str, list[float]] = {name: [] for name in functions}
        stop = time.perf_counter() + seconds
        for number in range(MOST_ROUNDS):
            if number >= LEAST_ROUNDS and time.perf_counter() > stop:
                break
            for name, function in functions.items():
                start = time.perf_counter()
                function()
                found[name].append((time.perf_counter() - start) * 1e6)
            long = sum(map(sum, found.values())) > 1e6 * LONG_SECONDS
            if min(map(min, found.values())) > limit_us and (number == 2 or long):
                break
        return found


ROUND_US = 300.0
"""A round of a function that takes less calls it more than once, so that what the clock takes is little."""
MANY_ROUNDS = 400


@dataclass(frozen=True)
class TurnsTimer:
    """The host's clock for long comparisons of a few functions on a busy machine: many rounds, of which the fastest are
    those that nothing disturbed."""

    def time(
        self, functions: Mapping[str, Callable[[], Any]], device: torch.device, seconds: float, limit_us: float = inf
    ) -> Mapping[str, list[float]]:
        """Returns µs per call of each round by function. seconds: to spend on all. limit_us: ignored."""
        calls = {name: 1 for name in functions}
        for name, function in functions.items():
            calls[name] = max(1, int(ROUND_US / max(_clocked(function, 1), 1e-3)))
        found: dict[str, list[float]] = {name: [] for name in functions}
        stop = time.perf_counter() + seconds
        for number in range(MANY_ROUNDS):
            if number >= 2 * LEAST_ROUNDS and time.perf_counter() > stop:
                break
            for name in list(functions)[:: -1 if number % 2 else 1]:
                found[name].append(_clocked(functions[name], calls[name]))
        return found


def _clocked(function: Callable[[], Any], calls: int) -> float:
    """µs of a call."""
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - start) * 1e6 / calls


def timer_for(device: torch.device) -> Timer:
    """Returns the timer of a device type. Raises KeyError if there is none."""
    timers: Mapping[str, Timer] = {"cuda": CudaTimer(), "cpu": CpuTimer()}
    return timers[device.type]


def can_measure(device: torch.device) -> bool:
    """Returns whether litz can measure on a device of that type here: a CPU, or CUDA where torch has it."""
    return device.type == "cpu" or (device.type == "cuda" and torch.cuda.is_available())
