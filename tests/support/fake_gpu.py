"""Tuning for a GPU where there is none: graphs of the CPU made out to be CUDA's, and times made up.

Kernels are really compiled, for sm_90; only the races are not run.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from litz.capture.aot import compile_with_aot
from litz.capture.graph import Graph
from litz.codegen.wrapper import generate_wrapper
from litz.driver.builtin import builtin_plugins
from litz.driver.variants import Variant, choose_variant
from litz.ir.interpret import interpret
from litz.pipeline import Compiler, generate, make_compiler, plan_schedule
from litz.schedule import Schedule
from litz.schedule.schedule_program import unscheduled
from litz.target import target_of
from litz_autotune import Autotune
from litz_autotune.measurement import Measurement, failed
from litz_autotune.pool import dumps
from litz_autotune.race import Race
from litz_contractions.subprogram import on_device
from litz_plugins.manager import make_plugins
from support.fake_timer import FakeTimer
from support.own_plugins import CONTRACTIONS, OPERATORS
from support.retarget import cuda_schedules, first_variant, to_cuda

Times = Callable[[str], float | str]


class FakeRunner:
    """Gives each entrant the time that `times(name)` says, or the reason for which it fails. racing: in which race."""

    def __init__(self, times: Times) -> None:
        self.times = times
        self.raced: list[tuple[str, ...]] = []
        self.racing: Race

    def start(self) -> None:
        return None

    def close(self) -> None:
        return None

    def run(self, requests: Sequence[Race], timeout: float = 0.0) -> list[tuple[Measurement, ...]]:
        found = []
        for request in requests:
            race = self.racing = pickle.loads(dumps(request))  # it may be sent to another process
            self.raced.append(tuple(entrant.name for entrant in race.entrants))
            values = [self.times(entrant.name) for entrant in race.entrants]
            found.append(tuple(failed(v) if isinstance(v, str) else Measurement(v, 0.0, 9) for v in values))
        return found


class FakeGpu:
    """A compiler with the autotuner, for an H100 that is not there."""

    def __init__(self, folder: Path, times: Times, **options: Any) -> None:
        self.autotune = Autotune(FakeTimer())
        self.runner = FakeRunner(times)
        self.autotune.tuner.runner = lambda *_: self.runner  # type: ignore[assignment,return-value]
        self.plugins = make_plugins(
            builtin_plugins(), extra=[CONTRACTIONS, OPERATORS, ("autotune", self.autotune)], entry_points=()
        )
        given = {"max_autotune": True, "cache_dir": folder, "autotune.search": "fast", "threads": 2, "debug": True}
        given["autotune.kernels"] = False  # who looks at them says so
        self.compiler: Compiler = make_compiler(None, {**given, **options}, self.plugins)
        self.device = target_of("cuda")

    def schedule(self, fn: Callable[..., Any], *tensors: torch.Tensor, dynamic: bool | None = False) -> Schedule:
        """The schedule of `fn(*tensors)` as it would be on a GPU."""
        torch._dynamo.reset()
        (schedule,) = cuda_schedules(
            lambda backend: torch.compile(fn, backend=backend, dynamic=dynamic)(*tensors), self.compiler
        )
        return schedule

    def compile(
        self, fn: Callable[..., Any], dynamic: bool | None = None, fullgraph: bool = False
    ) -> Callable[..., Any]:
        """`fn` tuned and scheduled for the GPU; a call runs that schedule on the CPU, in the IR's interpreter."""
        torch._dynamo.reset()
        self.schedules: list[Schedule] = []
        self.chosen: list[Variant] = []

        def run(graph: Graph) -> Callable[[list[Any]], Sequence[Any]]:
            self.compiler.plugins.compile_started(graph, self.compiler.options)
            moved = to_cuda(graph)
            chosen, _ = choose_variant(moved, first_variant(moved, self.compiler), self.compiler)
            self.chosen.append(chosen)
            self.schedules.append(schedule := chosen.schedule)
            program = on_device(unscheduled(schedule), torch.device("cpu"))
            return lambda args: interpret(program, args)

        def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            decompositions = self.compiler.plugins.decompositions()
            return compile_with_aot(gm, inputs, compile_graph=run, decompositions=decompositions)

        return torch.compile(fn, backend=backend, dynamic=dynamic, fullgraph=fullgraph)

    @property
    def code(self) -> str:
        """The wrappers' text: what is called and launched."""
        return "".join(self.wrapper(schedule) for schedule in self.schedules)

    def wrapper(self, schedule: Schedule) -> str:
        """The text of a schedule's wrapper."""
        plan = plan_schedule(schedule, self.compiler)
        return generate_wrapper(plan, generate(plan, self.compiler)).text

    @property
    def sizes(self) -> list[int]:
        """How many nodes of the graph each step does."""
        return [len(step.origins) for schedule in self.schedules for step in schedule.steps]

    @property
    def steps(self) -> list[str]:
        """What the compiled graphs consist of, by kind and name."""
        return [
            f"{type(step).__name__} {getattr(step, 'target_name', step.name)}"
            for schedule in self.schedules
            for step in schedule.steps
        ]
