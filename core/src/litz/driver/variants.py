"""Variants: the ways to run a graph, for a plugin that measures decisions instead of believing their estimates.

In: the variant that the estimates favour. Out: the `Variant` that runs. Core knows how a variant is made; which are
tried, where two differ, how they are measured and what is kept is a plugin's (`litz_tune`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from litz.cache.disk import digest
from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.driver import stages
from litz.driver.compiler import Compiler
from litz.driver.unused_options import idle_notes, is_recorded
from litz.execution.make import devices_of
from litz.graph_cache.fingerprints import target_text
from litz.ir import Collective, Program, Wait
from litz.report.log import Log
from litz.schedule.estimate import CostModel
from litz.schedule.schedule import Kernel, Schedule
from litz_plugins import Decision, OptionsView, Preferences, Target, Weighed
from litz_plugins.strict import of_type

MEASURED = "measured: faster than what the estimates chose"
"""The reason on record for a decision that was measured."""
SETTINGS = "kernel_settings"
"""The maker of the decisions about kernels' settings, as keys have it."""
_ASKS = frozenset({"max_autotune", "max_autotune_gemm", "max_autotune_pointwise"})
"""Options that say whether something is measured: what was found goes for who only looks it up, too."""


@dataclass(frozen=True)
class Lowered:
    """A graph whose layouts are chosen, its program, and the log as it was by then."""

    graph: Graph
    program: Program
    log: Log


@dataclass(frozen=True)
class Variant:
    """One of the ways to run a graph: its schedule, and the log of its decisions. ways: of decisions, by their keys
    without the graph; all other decisions follow the estimates."""

    lowered: Lowered
    schedule: Schedule
    log: Log
    ways: Mapping[str, str] = field(default_factory=dict)

    @property
    def weighed(self) -> Mapping[str, Weighed]:
        """Returns the decisions that were weighed, by their keys without the graph."""
        return {key.partition(":")[2]: found for key, found in self.log.gate.weighed.items()}


Stopped = Callable[[], bool]
Search = Callable[[Stopped], Variant | None]


def choose_variant(graph: Graph, first: Variant, compiler: Compiler) -> tuple[Variant, Search | None]:
    """Returns the variant that runs: the one that a plugin chooses, else `first`, which the estimates favour. And a
    search for a better one in the background, or None. graph: as captured."""
    tuning, begun = Tuning(graph, first, compiler), time.perf_counter()
    found = compiler.plugins.tune(tuning, of_type(Variant))
    if found is not None:
        found.log.seconds["tune"] = time.perf_counter() - begun
    variant = found or first
    variant.log.unsettled += tuning.left_unsettled
    targets = [compiler.target_of(device) for device in tuning.devices]
    variant.log.decisions += idle_notes(graph.name, compiler.options, targets, compiler.plugins)
    return variant, tuning.job


class Tuning:
    """A graph that is being compiled, for who tunes it. `first` is what its estimates make of it."""

    def __init__(self, graph: Graph, first: Variant, compiler: Compiler) -> None:
        self.graph, self.first, self._compiler = graph, first, compiler
        self._early = frozenset(key.partition(":")[2] for key in self.first.lowered.log.gate.weighed)
        self.job: Search | None = None
        self.left_unsettled: list[str] = []

    # ------------------------------------------------------------------------------------------- what the plugin asks

    @property
    def options(self) -> OptionsView:
        """Returns the options of the compile."""
        return self._compiler.options

    @property
    def is_recorded(self) -> bool:
        """Returns whether one CUDA graph is to launch all kernels of a graph."""
        return is_recorded(self.options, self._compiler.plugins)

    @property
    def cache(self) -> object:
        """Returns the disk cache of the compile (`litz.cache.disk.Cache`)."""
        return self._compiler.cache

    @property
    def device(self) -> torch.device:
        """Returns the first device that is not the CPU, or the CPU if there is no other."""
        return next((device for device in self.devices if device.type != "cpu"), torch.device("cpu"))

    @cached_property
    def devices(self) -> list[torch.device]:
        """Returns the devices that the graph runs on, in the order of their names."""
        return sorted(devices_of(self.first.schedule), key=str)

    @property
    def target(self) -> Target:
        """Returns the target of the graph's device."""
        return self._compiler.target_of(self.device)

    @property
    def why_not(self) -> str:
        """Returns why nothing may be measured; '' if measuring is allowed."""
        schedule = self.first.schedule
        calls = schedule.externs
        if any(isinstance(call, (Collective, Wait)) or torch_api.is_collective(call.target) for call in calls):
            return "it communicates, and every rank must decide alike"
        if schedule.cases is not None:
            return "it has code for several sizes"
        return "" if schedule.steps else "it has no steps"

    @cached_property
    def key(self) -> str:
        """Returns a digest of the graph as lowered, its targets, and the options that decide what is made of it."""
        program = replace(self.first.lowered.program, name="graph")
        targets = [target_text(self._compiler.target_of(device)) for device in self.devices]  # repr: sets in any order
        options = self._compiler.options
        changed = [(row, value) for row, value in options.changed() if row.name not in _ASKS]
        ways = [f"{row.name}={value}" for row, value in changed if row.affects_code or row.name == "prefer"]
        ways += [f"{name}={options[name]}" for name in options.plugin_changed if not name.startswith("autotune.")]
        hints = sorted(f"{symbol}={value}" for symbol, value in program.hints.items())
        return digest(str(program), *targets, *ways, *hints, *self._compiler.plugins.names())

    def is_early(self, key: str) -> bool:
        """Returns whether a decision is taken before the graph is lowered and may change what the backward saves."""
        return key in self._early

    def make(self, ways: Mapping[str, str]) -> Variant:
        """Returns the graph with some decisions taken otherwise, by their keys without the graph. Raises what compiling
        does."""
        own = self._compiler.preferences
        given = {key.partition(":")[2] if ":" in key else key for key in own.ways}
        ways = {key: way for key, way in ways.items() if key not in given}  # the user's word stands
        compiler = replace(self._compiler, preferences=Preferences({**ways, **own.ways}, MEASURED))
        lowered = self.first.lowered
        if any(map(self.is_early, ways)):
            log = Log()
            graph = stages.prepare_graph(self.graph, compiler, log)
            lowered = Lowered(graph, stages.lower_graph(graph, compiler, log), log)
        log = lowered.log.branch()
        log.gate.preferences = compiler.preferences
        schedule = stages.schedule_program(lowered.graph, lowered.program, compiler, log)
        return Variant(lowered, schedule, log, dict(ways))

    def with_settings(self, variant: Variant, settings: Mapping[str, Mapping[str, int]]) -> Variant:
        """Returns a variant some of whose kernels have settings of their own (`litz_plugins.TunableCodegen`), by the
        kernels' names. Each is a decision that `veto` may leave out, with the key `kernel_settings/KERNEL`."""
        gate, schedule = variant.log.gate, variant.schedule
        wanted = {name: own for name, own in settings.items() if gate.take(SETTINGS, name)}
        steps = (
            replace(step, settings=wanted[step.name]) if isinstance(step, Kernel) and step.name in wanted else step
            for step in schedule.steps
        )
        return replace(variant, schedule=replace(schedule, steps=tuple(steps))) if wanted else variant

    def expected_us(self, variant: Variant) -> dict[str, float]:
        """Returns what each kernel of a variant is expected to take, by the estimates that fusion goes by."""
        schedule = variant.schedule
        costs = CostModel(schedule.program, self._compiler.target_of, self._compiler.ask)
        return {kernel.name: sum(costs.cost(loop).us for loop in kernel.loops) for kernel in schedule.kernels}

    @cached_property
    def total_us(self) -> float:
        """Returns what the kernels of `first` are expected to take; and its library calls, where somebody knows."""
        schedule = self.first.schedule
        total = sum(self.expected_us(self.first).values())
        for step in schedule.externs:
            target, options = self._compiler.target_of(step.device), self._compiler.options
            found = self._compiler.plugins.estimate_runtime(step, target, schedule.program, options)
            total += 0.0 if found is None else found.us
        return total

    def later(self, job: Search) -> None:
        """Lets the graph run as it is, and runs `job` once it has been called: in a thread, which a process that ends
        asks to stop. The variant that it finds is put in between two calls. Decisions that are early must stay as they
        are.
        """
        self.job = job
        self.unsettled("something faster is looked for in the background")

    def unsettled(self, reason: str) -> None:
        """Notes why another process may choose otherwise: the graph cache does not keep this compile's code."""
        self.left_unsettled.append(reason)

    def note(self, variant: Variant, decision: Decision) -> None:
        """Puts a decision on a variant's record, which becomes the graph's if that variant runs."""
        variant.log.note(decision)

    def attach(self, variant: Variant, name: str, text: str) -> None:
        """Adds a text to a variant's report, under a file's name. A text of the same name is replaced."""
        variant.log.attachments[name] = text


__all__ = ["MEASURED", "SETTINGS", "Lowered", "Tuning", "Variant"]
