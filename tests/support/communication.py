"""Schedules with communication, made by hand or at random: no tracing, no kernels, times as given.

    s = Made()
    s.input("x", 64)
    s.call("y", "x", us=10)
    s.collective("g", "all_gather_into_tensor", "y", us=30)
    s.wait("full", "g")
    s.schedule("full")

A step has the name of the buffer that it makes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed._functional_collectives  # defines the ops

from litz.ir import Buffer, Collective, Extern, Layout, Program, TensorRef, Wait
from litz.schedule.schedule import Schedule
from litz_plugins import Decision, Estimate, PassContext

CPU = torch.device("cpu")
WORLD = 4
_ops = torch.ops._c10d_functional
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "all_reduce": ("sum", "0"),
    "all_gather_into_tensor": (WORLD, "0"),
    "reduce_scatter_tensor": ("sum", WORLD, "0"),
}
LATENCY, PER_ELEMENT = 20.0, 0.01
"""µs of a collective: what small ones save by being merged, and what size costs."""


def exactly(us: float, spread: float = 0.0) -> Estimate:
    return Estimate(us, us * (1 - spread), us * (1 + spread), "given")


@dataclass(frozen=True)
class Timed(Schedule):
    """A Schedule, and what each of its steps takes, by name."""

    estimates: Mapping[str, Estimate] = field(default_factory=dict)


def moved(run: Callable[[Any, PassContext], Any], schedule: Timed, given: PassContext) -> Timed:
    """What a pass makes of a schedule: its steps take what is given, and those that the pass makes what `cost` says."""
    own = {id(step) for step in schedule.steps}

    def estimate(step: Any, *_: Any) -> Estimate | None:
        return schedule.estimates.get(step.name) if id(step) in own else cost(step, schedule.program.buffers)

    done = run(schedule, replace(given, estimate=estimate))
    if done is schedule:
        return schedule
    times = {step.name: estimate(step) for step in done.steps}
    return replace(done, estimates={name: time for name, time in times.items() if time is not None})


class Made:
    """A schedule in the making."""

    def __init__(self) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.inputs: list[str] = []
        self.steps: list[Extern] = []
        self.estimates: dict[str, Estimate] = {}

    def _buffer(self, name: str, size: int, dtype: torch.dtype, kind: Any = "temporary") -> None:
        self.buffers[name] = Buffer(name, dtype, CPU, Layout.contiguous((size,)), kind)

    def ref(self, name: str) -> TensorRef:
        return TensorRef(name, self.buffers[name].layout)

    def size(self, name: str) -> int:
        return int(self.buffers[name].layout.numel)

    def input(self, name: str, size: int, dtype: torch.dtype = torch.float32) -> None:
        self._buffer(name, size, dtype, "input")
        self.inputs.append(name)

    def call(self, name: str, *sources: str, us: float, size: int | None = None, spread: float = 0.0) -> None:
        first = self.buffers[sources[0]]
        self._buffer(name, size or self.size(sources[0]), first.dtype)
        refs = tuple(map(self.ref, sources))
        self.steps.append(Extern(name, CPU, torch.ops.aten.cos.default, refs, {}, (name,)))
        self.estimates[name] = exactly(us, spread)

    def collective(self, name: str, op: str, source: str, us: float | None = None, *arguments: Any) -> None:
        factor = {"all_gather_into_tensor": WORLD, "reduce_scatter_tensor": 1 / WORLD}.get(op, 1)
        self._buffer(name, int(self.size(source) * factor), self.buffers[source].dtype)
        args = (self.ref(source), *(arguments or ARGUMENTS[op]))
        target = getattr(_ops, op).default
        fields = {"group": args[-1], "ranks": tuple(range(WORLD)), "effect": True}
        step = Collective(name, CPU, target, args, {}, (name,), **fields)
        self.steps.append(step)
        self.estimates[name] = cost(step, self.buffers) if us is None else exactly(us)

    def wait(self, name: str, of: str) -> None:
        self._buffer(name, self.size(of), self.buffers[of].dtype)
        target = _ops.wait_tensor.default
        self.steps.append(Wait(name, CPU, target, (self.ref(of),), {}, (name,), aliases={name: of}))
        self.estimates[name] = exactly(0.0)

    def communicate(self, name: str, op: str, source: str, us: float | None = None) -> None:
        """A collective `name_started`, and its wait, `name`."""
        self.collective(f"{name}_started", op, source, us)
        self.wait(name, f"{name}_started")

    def schedule(self, *outputs: str) -> Timed:
        program = Program("made", tuple(self.inputs), self.buffers, tuple(self.steps), tuple(map(self.ref, outputs)))
        steps = tuple(self.steps)
        return Timed(program, steps, estimates=dict(self.estimates))


def cost(step: Any, buffers: Any) -> Estimate:
    """A collective's: latency, and a little per element sent."""
    sent = sum(int(buffers[name].layout.numel) for name in step.reads)
    return exactly(LATENCY + PER_ELEMENT * sent)


def context(decisions: list[Decision] | None = None, **options: Any) -> PassContext:
    """For the pass `overlap`: options of the plugin. (`moved` has the estimates.)"""
    given = {"collectives.memory_limit": "10%", **{f"collectives.{name}": value for name, value in options.items()}}
    return PassContext(
        given,
        "schedule",
        "overlap",
        "collectives",
        note=(lambda decision: None) if decisions is None else decisions.append,
    )


def random_schedule(seed: int) -> Timed:
    """Calls and communication, each after something earlier; most results are used, some returned."""
    rng = random.Random(seed)
    made = Made()
    values: list[str] = []
    for number in range(rng.randint(1, 4)):
        made.input(f"x{number}", 1 << rng.randint(6, 12))
        values.append(f"x{number}")
    waiting: list[tuple[str, str]] = []
    for number in range(rng.randint(2, 40)):
        name, kind = f"v{number}", rng.random()
        recent = values[-rng.choice([2, 5, 100]) :]
        source = rng.choice(recent)
        if waiting and kind < 0.3:
            made.wait(name, waiting.pop(rng.randrange(len(waiting)))[1])
        elif kind < 0.55:
            made.collective(name, rng.choice(list(ARGUMENTS)), source)
            waiting.append((name, name))
            continue
        else:
            others = rng.sample(recent, min(len(recent), rng.randint(0, 2)))
            made.call(name, source, *others, us=rng.choice([1.0, 5.0, 40.0, 100.0]), spread=rng.choice([0.0, 0.3]))
        values.append(name)
    for number, (_, of) in enumerate(waiting):
        made.wait(f"w{number}", of)
        values.append(f"w{number}")
    computed = [name for name in values if name not in made.inputs] or values
    return made.schedule(*rng.sample(computed, min(len(computed), rng.randint(1, 3))), computed[-1])
