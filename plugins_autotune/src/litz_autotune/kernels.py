"""Settings of generated kernels: in, the variant of a graph that runs; out, the same with the settings that measure
fastest: blocks of a tile, warps, rows held or walked.

    kernels -> equal ones once, the longest first -> (stored record | a local search, `hill`) -> settings

Each kernel runs alone on made-up tensors. The settings that the code generator works out stay where nothing gains more
than noise. Records are kept as those of contractions are, under the kernel's text and all that decides how fast it is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from litz.cache.disk import digest
from litz.codegen.kernel_plan import plan_kernel
from litz.driver.variants import MEASURED, SETTINGS, Tuning, Variant
from litz.execution import plan_execution
from litz.logs.units import count_text
from litz.pipeline import Compiler, generate
from litz.schedule.schedule import Schedule
from litz_plugins import CodegenContext, Decision, KernelSource, TunableCodegen
from litz_plugins.vetoes import key_of

from .budget import LEAST_SECONDS
from .contest import environment, makers
from .describing import describe
from .difference import Inseparable, alone
from .hill import Hill, Settings, name_of, settings_in, winner
from .measurement import Measurement, failed
from .pool import Failure
from .precompile import precompile, triton_build
from .problem import Problem
from .race import core_compiler
from .results import UNTUNED, LocalStore, Record
from .search import fits
from .switches import SEARCH, looks_up, measures_kernels
from .timing import Timer, can_measure, timer_for
from .trial import Trial, WithSettings
from .tune import Tuner

if TYPE_CHECKING:
    from .plugin import Autotune

ATTACHMENT = "kernels measured.txt"
LEAST_SHARE = 0.005
"""Kernels that are expected to take less of the time of all of a graph's kernels are left as they are."""


@dataclass
class Tunable:
    """A kernel as a schedule of its own, and its equals. source: with the settings that are worked out. us: what all of
    them are expected to take."""

    schedule: Schedule
    source: KernelSource
    problem: Problem
    names: list[str] = field(default_factory=list)
    us: float = 0.0

    @property
    def key(self) -> str:
        """Returns the digest of what is computed, on what, by which text, and of everything that decides how fast."""
        settings = json.dumps(dict(self.source.settings), sort_keys=True)
        return digest(self.problem.to_json(), self.source.text, settings, makers(), *environment())

    def with_settings(self, settings: Settings) -> Schedule:
        """Returns the schedule of the kernel with other settings."""
        (kernel,) = self.schedule.kernels
        return replace(self.schedule, steps=(replace(kernel, settings=settings),))


def tune_kernels(
    tuning: Tuning,
    variant: Variant,
    plugin: Autotune,
    tuner: Tuner,
    stopped: Callable[[], bool] = lambda: False,
) -> Variant | None:
    """Returns the variant with the settings that measure fastest; None if all kernels stay as they are. tuner: has the
    budget. stopped: is it to end at once?"""
    options, timer = tuning.options, plugin.timer
    measures = measures_kernels(options) and not options["veto"]
    if not (options["autotune.kernels"] and (measures_kernels(options) or looks_up(options))):
        return None
    if tuning.why_not:
        return None
    compiler = core_compiler(options, tuning.cache)  # type: ignore[arg-type]
    found, left = _tunable(tuning, variant, compiler)
    if not found:
        return None
    if measures and timer is None and not can_measure(tuning.device):
        measures = False
        tuning.unsettled(f"there is no {tuning.device.type} device here to measure kernels on")
    later = measures and options["autotune.background"] and not tuner.background
    work = _Work(tuning, tuner, compiler, timer, stopped)
    chosen: dict[str, Settings] = {}
    lines: list[str] = []
    rest = sum(kernel.us for kernel in found)
    for kernel in found:
        record = work.record(kernel, rest) if measures and not later else work.known(kernel)
        rest -= kernel.us
        if record is None:
            continue
        tuner.kernels.update(kernel.names)
        name, why = winner(record.measured)
        settings = work.checked(kernel, name)
        lines.append(_account(kernel, record, name, why))
        if settings:
            chosen |= dict.fromkeys(kernel.names, settings)
            _note(tuning, variant, kernel, record, name, why)
    if later and (tuning.job is not None or len(lines) < len(found)):
        tuning.later(_beside(tuning, variant, plugin))
    if not work.complete:
        tuning.unsettled("the budget was spent before all kernels were measured")
    if lines:
        tuning.attach(variant, ATTACHMENT, "\n\n".join([*lines, *left]))
    tuned = tuning.with_settings(variant, chosen)
    return None if tuned is variant else tuned


def _beside(tuning: Tuning, variant: Variant, plugin: Autotune) -> Callable[[Callable[[], bool]], Variant | None]:
    """Returns the work to do once the graph was called: what was to be done by now, then kernels."""
    before = tuning.job

    def job(stopped: Callable[[], bool]) -> Variant | None:
        found = None if before is None else before(stopped)
        tuner = plugin.make_tuner(background=True)
        tuner.start(tuning.options["autotune.budget_s"])
        return tune_kernels(tuning, found or tuning.make(variant.ways), plugin, tuner, stopped) or found

    return job


def _tunable(tuning: Tuning, variant: Variant, compiler: Compiler) -> tuple[list[Tunable], list[str]]:
    """The kernels that may be tuned, equal ones once and the longest first; and what was left out, with why."""
    expected = tuning.expected_us(variant)
    least = LEAST_SHARE * sum(expected.values())
    found: dict[str, Tunable] = {}
    left: list[str] = []
    for kernel in variant.schedule.kernels:
        device = kernel.device
        spec = compiler.specs.get(device.type)
        if spec is None or not isinstance(spec.codegen, TunableCodegen) or kernel.settings:
            continue
        if kernel.beside:
            left.append(f"{kernel.name} is left as it is: it shares a launch with others")
            continue
        try:
            schedule = alone(variant.schedule, kernel)
            (source,) = _sources(schedule, compiler)
        except Inseparable as why:
            left.append(f"{kernel.name} is left as it is: {why}")
            continue
        if not fits(size := sum(schedule.program.hint(b.nbytes) for b in schedule.program.buffers.values()), device):
            left.append(f"{kernel.name} is left as it is: {size >> 20} MiB are too much to measure here")
            continue
        own = Tunable(schedule, source, describe(schedule.program, compiler.target_of(device)))
        same = found.setdefault(own.key, own)
        same.names.append(kernel.name)
        same.us += expected[kernel.name]
    short = [each for each in found.values() if each.us < least]
    left += [f"{', '.join(each.names)}: too short to be worth it" for each in short]
    return sorted((each for each in found.values() if each.us >= least), key=lambda each: -each.us), left


def _sources(schedule: Schedule, compiler: Compiler) -> list[KernelSource]:
    plan = plan_execution(schedule, options=compiler.options, target_of=compiler.target_of)
    return list(generate(plan, compiler).values())


@dataclass
class _Work:
    """The work of finding or measuring a kernel's record."""

    tuning: Tuning
    tuner: Tuner
    compiler: Compiler
    timer: Timer | None
    stopped: Callable[[], bool]
    complete: bool = True

    def known(self, kernel: Tunable) -> Record | None:
        return self.tuner.known(kernel.key, kernel.problem, self._store, self.tuning.options)

    def record(self, kernel: Tunable, rest: float) -> Record:
        """rest: µs that this kernel and those still to come are expected to take."""

        def measure() -> tuple[Record, bool]:
            begun, left = time.monotonic(), self.tuner.budget.left
            share = kernel.us / rest if rest > 0 else 1.0
            deadline = begun + min(left, max(LEAST_SECONDS, share * left))
            hill = Hill(self._near(kernel), self._measure(kernel), self._most, deadline, stopped=self.stopped)
            self.tuner.counters.kernels += 1
            try:
                hill.climb()
            finally:
                self.tuner.budget.spent += time.monotonic() - begun
            self.complete = self.complete and hill.complete
            return Record(kernel.problem, hill.measured), hill.complete

        return self.tuner.recorded(kernel.key, kernel.problem, self._store, self.tuning.options, measure)

    def checked(self, kernel: Tunable, name: str) -> Settings:
        """The settings of a name in a record, none where the code generator cannot write them: who shares a cache may
        send anything."""
        try:
            settings = settings_in(name)
            if settings:
                _sources(kernel.with_settings(settings), self.compiler)
        except Exception:
            return {}
        return settings

    @property
    def _store(self) -> LocalStore:
        cache: Any = self.tuning.cache
        return LocalStore(cache, self.tuner.counters)

    @property
    def _most(self) -> int:
        return SEARCH[str(self.tuning.options["autotune.search"])]

    def _near(self, kernel: Tunable) -> Callable[[str], Sequence[str]]:
        """Settings one step away that give a text which was not there before."""
        codegen: Any = self.compiler.specs[kernel.schedule.kernels[0].device.type].codegen
        texts = {kernel.source.text}

        def near(name: str) -> list[str]:
            schedule = kernel.with_settings(settings_in(name))
            (own,), program = schedule.kernels, schedule.program
            context = CodegenContext(
                self.compiler.options, self.compiler.target_of(own.device), program, self.compiler.cache
            )
            fresh = []
            for settings in codegen.near(plan_kernel(own, program), context):
                (source,) = _sources(kernel.with_settings(settings), self.compiler)
                if source.text not in texts:
                    texts.add(source.text)
                    fresh.append(name_of(settings))
            return fresh

        return near

    def _measure(self, kernel: Tunable) -> Callable[..., list[tuple[Measurement, Measurement]]]:
        tuning, options = self.tuning, self.tuning.options
        cache: Any = tuning.cache
        runner = self.tuner.runner(options, tuning.device.type, tuning.device.index)
        runner.start()
        build = triton_build(tuning.target, kernel.schedule.program, cache, options)
        alone_there = options["autotune.in_subprocess"] and options["autotune.multi_device"]

        def entrant(name: str) -> WithSettings:
            return WithSettings(name, kernel.with_settings(settings_in(name)))

        def measure(pairs: Sequence[tuple[str, str]], seconds: float) -> list[tuple[Measurement, Measurement]]:
            names = dict.fromkeys(name for pair in pairs for name in pair)
            sources = {name: _sources(entrant(name).schedule, self.compiler) for name in names}
            problems = precompile(sources, build, options.get("threads"))
            ready = [pair for pair in pairs if not any(map(problems.get, pair))]
            trials = [
                Trial(
                    kernel.key,
                    (entrant(first), entrant(second)),
                    self.timer or timer_for(tuning.device),
                    options,  # type: ignore[arg-type]
                    str(cache.root),
                    seconds,
                    0 if alone_there else None,
                )
                for first, second in ready
            ]
            self.tuner.counters.races += len(trials)
            results = dict(zip(ready, runner.run(trials, options["autotune.timeout"]), strict=True))
            return [_pair(results.get(pair), problems[pair[0]] or problems[pair[1]]) for pair in pairs]

        return measure


def _pair(result: Any, problem: str) -> tuple[Measurement, Measurement]:
    """Returns the measurements of a trial, or two failed ones that say why it gave nothing."""
    if result is None or isinstance(result, Failure):
        none = failed(problem if result is None else result.reason)
        return none, none
    first, second = result
    return first, second


# The record.


def _note(tuning: Tuning, variant: Variant, kernel: Tunable, record: Record, name: str, why: str) -> None:
    own, untuned = record.measured[name], record.measured[UNTUNED]
    times = ((UNTUNED, untuned.us), (name, own.us))
    for each in kernel.names:
        key = key_of(variant.log.gate.graph, SETTINGS, each)
        gained = untuned.us - own.us
        decision = Decision("schedule", each, name, f"{MEASURED}: {why}", times, "autotune", key, gained_us=gained)
        tuning.note(variant, decision)


def _account(kernel: Tunable, record: Record, name: str, why: str) -> str:
    """All that was measured of a kernel, as text."""
    alike = f" and {count_text(len(kernel.names) - 1, 'equal one')}" if len(kernel.names) > 1 else ""
    lines = [f"{kernel.names[0]}{alike}: {name}: {why}"]
    for each, found in sorted(record.measured.items(), key=lambda item: item[1].us):
        reason = f" ({found.reason})" if found.reason else ""
        lines.append(f"  {'*' if each == name else ' '} {found.us:8.4g} us {found.noise_us:8.2g}  {each}{reason}")
    return "\n".join(lines)


__all__ = ["ATTACHMENT", "tune_kernels"]
