"""Tuning: in, the candidates for a contraction; out, the one that runs, and the reason on record.

    offers -> contest -> (stored record | precompile -> screen each alone -> final of the best, in turns) -> decision

What is measured runs in another process unless the options say otherwise. Where nothing can be measured the library
stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from litz.ir import KernelCall
from litz_plugins import Choice, ChoiceContext, Estimate, OptionsView

from .contest import Contest, Heat, make_contest
from .decide import Verdict, decide
from .errors import NoValidChoicesError
from .pool import Failure, Request, Runner
from .precompile import precompile, sources_of, triton_build
from .problem import describe
from .progress import Display
from .race import Race
from .remote import RemoteStore
from .results import Counters, LocalStore, Record
from .subprogram import cut
from .timing import Measurement, Timer, can_measure, failed, timer_for

LIBRARY_BACKEND = "library"
TEMPLATE_BACKEND = "triton"
SCREEN_SECONDS = 0.02
FINAL_SECONDS = 0.2
FINALISTS = 3
"""Candidates of each heat that are measured again, longer and in turns with the library call."""

Rejections = Callable[[ChoiceContext], Sequence[tuple[str, str]]]


class Tuner:
    """Takes the decisions. runner: gives what measures under some options, on a device of
    a type and index. timer: instead of the device's, for tests.
    rejections: what templates left out of their offers, and why, for the error where nothing can run."""

    def __init__(
        self,
        runner: Callable[[OptionsView, str, int | None], Runner],
        counters: Counters,
        timer: Timer | None = None,
        rejections: Rejections = lambda context: (),
    ) -> None:
        self.runner, self.counters, self.timer, self.rejections = runner, counters, timer, rejections
        self.deadline = float("inf")
        self._remotes: dict[str, RemoteStore] = {}
        self._seen: dict[str, Record] = {}  # of this compile: equal problems are measured once, whatever is kept
        self.estimates: dict[str, Estimate] = {}
        """Measured times by the text of the kernel that they are of."""

    def start(self, budget: float) -> None:
        """A compile begins, which may spend `budget` seconds on measurements."""
        self.deadline = time.monotonic() + budget
        self._seen.clear()

    def select(self, choices: Sequence[Choice], context: ChoiceContext) -> Choice | None:
        """The choice for a contraction, None for no opinion. Errors: NoValidChoicesError."""
        backends = context.options["autotune.backends"]
        library, *offers = choices
        library_allowed = LIBRARY_BACKEND in backends
        offers = offers if TEMPLATE_BACKEND in backends else []
        if not offers:
            if library_allowed:
                return None
            raise self._nothing(context, [])
        if self.timer is None and not can_measure(torch.device(context.device.type)):
            return self._unmeasured(library if library_allowed else None, offers, context)
        contest = make_contest(context, offers)
        record = self._record(contest, offers, context)
        verdict = decide(contest.rivals, record.measured, library_allowed)
        if verdict.name is None and not library_allowed:
            raise self._nothing(context, [(name, found.reason) for name, found in record.measured.items()])
        chosen = next((choice for choice in offers if choice.name == verdict.name), library)
        self._note(chosen, verdict, record.measured, context)
        return chosen

    def _nothing(self, context: ChoiceContext, tried: Sequence[tuple[str, str]]) -> NoValidChoicesError:
        program, operation = context.program, context.operation
        problem = describe(cut(program, [operation], operation.writes), context.device)
        left_out = [(operation.target_name, "autotune.backends does not have 'library'")]
        return NoValidChoicesError(str(problem), [*left_out, *tried, *self.rejections(context)])

    def _unmeasured(self, library: Choice | None, offers: Sequence[Choice], context: ChoiceContext) -> Choice:
        considered = [(c.name, None if c.estimate is None else c.estimate.us) for c in offers]
        reason = f"there is no {context.device.type} device here to measure on"
        chosen = library or min(offers, key=lambda c: float("inf") if c.estimate is None else c.estimate.us)
        context.record(chosen.name, reason, considered, plugin="autotune")
        return chosen

    def _note(
        self, chosen: Choice, verdict: Verdict, measured: Mapping[str, Measurement], context: ChoiceContext
    ) -> None:
        times = [(name, found.us if found.us < float("inf") else None) for name, found in measured.items()]
        failures = [f"{name} {found.reason}" for name, found in measured.items() if found.us == float("inf")]
        reason = verdict.reason + (f"; {'; '.join(failures)}" if failures else "")
        context.record(chosen.name, reason, times, plugin="autotune")
        kernels = sources_of(chosen) if isinstance(chosen.payload, KernelCall) or chosen.kind == "template" else []
        found = measured.get(chosen.name)
        if len(kernels) == 1 and found is not None:
            low = max(0.0, found.us - 3 * found.noise_us)
            why = f"measured, {found.runs} runs"
            self.estimates[kernels[0].text] = Estimate(found.us, low, found.us + 3 * found.noise_us, why)

    # Measuring.

    def _record(self, contest: Contest, offers: Sequence[Choice], context: ChoiceContext) -> Record:
        if contest.key in self._seen:
            return self._seen[contest.key]
        store = LocalStore(context.cache, self.counters)

        remote = self._remote(context)

        def measure() -> tuple[Record, bool]:
            found = None if remote is None else remote.find(contest.key, contest.problem)
            if found is not None:
                return found, True
            record, complete = self._measure(contest, offers, context)
            return (remote.put(contest.key, record) if remote is not None and complete else record), complete

        kept = context.options["autotune.local_cache"]
        record = store.make(contest.key, measure) if kept else measure()[0]
        self._seen[contest.key] = record
        return record

    def _remote(self, context: ChoiceContext) -> RemoteStore | None:
        url = context.options["autotune.remote_cache"]
        if not url:
            return None
        if url not in self._remotes:
            self._remotes[url] = RemoteStore(url, self.counters)
        return self._remotes[url]

    def _measure(self, contest: Contest, offers: Sequence[Choice], context: ChoiceContext) -> tuple[Record, bool]:
        """The record, and whether everything was measured within the budget."""
        self.counters.tuned += 1
        runner = self.runner(context.options, context.device.type, context.device.index)
        runner.start()
        by_name = {choice.name: choice for choice in offers}
        measured: dict[str, Measurement] = {}
        with Display(str(contest.problem), len(offers)) as display:
            build = triton_build(context.device, context.program, context.cache)
            sources = {name: sources_of(choice) for name, choice in by_name.items()}
            for name, problem in precompile(sources, build, context.options.get("threads")).items():
                if problem:
                    measured[name] = failed(problem)
                    display.done()
            self.counters.precompiled += 1
            for heat in contest.heats:
                self._screen(contest, heat, runner, context, measured, display)
            complete = all(found.reason != OVER_BUDGET for found in measured.values())
            for heat in contest.heats:
                complete = self._final(contest, heat, runner, context, measured) and complete
        return Record(contest.problem, measured), complete

    def _screen(
        self,
        contest: Contest,
        heat: Heat,
        runner: Runner,
        context: ChoiceContext,
        measured: dict[str, Measurement],
        display: Display,
    ) -> None:
        """Each candidate alone, so that one which crashes costs no other anything."""
        waiting = [entrant for entrant in heat.offers if entrant.name not in measured]
        width = max(1, len(getattr(runner, "workers", ())))
        for batch in _batches(waiting, width):
            if time.monotonic() > self.deadline:
                measured.update({entrant.name: failed(OVER_BUDGET) for entrant in batch})
                continue
            races = [self._race(contest, heat, [entrant.name], context, SCREEN_SECONDS) for entrant in batch]
            for entrant, result in zip(batch, self._run(runner, races, context)):
                measured[entrant.name] = failed(result.reason) if isinstance(result, Failure) else result[0]
            display.done(len(batch), _best(measured))

    def _final(
        self,
        contest: Contest,
        heat: Heat,
        runner: Runner,
        context: ChoiceContext,
        measured: dict[str, Measurement],
    ) -> bool:
        """The best of a heat and the library call in turns. False if the budget was spent before."""
        names = [entrant.name for entrant in heat.offers if measured[entrant.name].valid]
        names.sort(key=lambda name: measured[name].us)
        for name in names[FINALISTS:]:
            measured[name] = replace(measured[name], reason="not among the best")
        if not names and heat.offers:
            return True
        if time.monotonic() > self.deadline:
            measured.update({name: replace(measured[name], reason=OVER_BUDGET) for name in names[:FINALISTS]})
            return False
        entrants = [heat.baseline.name, *names[:FINALISTS]]
        (result,) = self._run(runner, [self._race(contest, heat, entrants, context, FINAL_SECONDS)], context)
        if isinstance(result, Failure):
            result = [failed(result.reason)] * len(entrants)
        measured.update(zip(entrants, result))
        return True

    def _run(self, runner: Runner, races: Sequence[Request], context: ChoiceContext) -> list[Any]:
        self.counters.races += len(races)
        return runner.run(races, context.options["autotune.timeout"])

    def _race(self, contest: Contest, heat: Heat, names: Sequence[str], context: ChoiceContext, seconds: float) -> Race:
        by_name = {entrant.name: entrant for entrant in (heat.baseline, *heat.offers)}
        alone = context.options["autotune.in_subprocess"] and context.options["autotune.multi_device"]
        return Race(
            f"{contest.key} {heat.name}",
            tuple(by_name[name] for name in names),
            heat.baseline.program,
            self.timer or timer_for(torch.device(context.device.type)),
            context.options,  # type: ignore[arg-type]
            str(context.cache.root),
            seconds,
            0 if alone and context.device.type == "cuda" else None,
        )


OVER_BUDGET = "not measured: autotune.budget is spent"


def _batches(items: Sequence[Any], width: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), width):
        yield items[start : start + width]


def _best(measured: Mapping[str, Measurement]) -> str:
    valid = [(found.us, name) for name, found in measured.items() if found.valid]
    return f"best {min(valid)[0]:.4g} us: {min(valid)[1]}" if valid else ""
