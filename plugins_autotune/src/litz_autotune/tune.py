"""Tuning: in, the candidates for a contraction; out, the one that runs, and the reason on record.

    offers -> contest -> (stored record | measuring) -> decision

What is measured runs in another process unless the options say otherwise. Where nothing can be measured the library
stays. Under `autotune.search_cache` alone nothing is measured, and what was measured before counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from litz.ir import KernelCall
from litz.schedule.choices import by_estimate
from litz_contractions.api import cut
from litz_plugins import Choice, ChoiceContext, Estimate, OptionsView

from .account import Contested, render_picture, render_text
from .budget import Budget
from .contest import Contest, make_contest
from .decide import Verdict, decide
from .describing import describe
from .errors import NoValidChoicesError
from .measurement import Measurement
from .measuring import OVER_BUDGET, Measuring, considered, resumed
from .pool import Runner
from .precompile import sources_of
from .problem import Problem
from .remote import RemoteStore
from .results import LIBRARY, Counters, LocalStore, Record
from .switches import LIBRARY_BACKEND, TEMPLATE_BACKEND, is_measured
from .timing import Timer, can_measure

LATER = "it is measured in the background, once the graph was called"
UNKNOWN = "not measured before, and max_autotune is off"

Rejections = Callable[[ChoiceContext], Sequence[tuple[str, str]]]


class Tuner:
    """Takes the decisions. runner: gives what measures under some options, on a device of
    a type and index. timer: instead of the device's, for tests.
    rejections: what templates left out of their offers, and why, for the error where nothing can run. background: it
    works beside the calls of a graph, so that it may measure what `autotune.background` leaves for then."""

    def __init__(
        self,
        runner: Callable[[OptionsView, str, int | None], Runner],
        counters: Counters,
        timer: Timer | None = None,
        rejections: Rejections = lambda context: (),
        background: bool = False,
    ) -> None:
        self.runner, self.counters, self.timer, self.rejections = runner, counters, timer, rejections
        self.background = background
        self.budget = Budget()
        self.decided: set[str] = set()
        """The contractions that were measured, by name."""
        self.kernels: set[str] = set()
        """The generated kernels whose settings were measured or looked up, by name."""
        self._remotes: dict[str, RemoteStore] = {}
        self._seen: dict[str, Record] = {}  # of this compile: equal problems are measured once, whatever is kept
        self._contested: dict[str, Contested] = {}  # of this compile
        self.estimates: dict[str, Estimate] = {}
        """Measured times by the text of the kernel that they are of."""

    def start(self, budget: float) -> None:
        """Begins a compile, which may spend `budget` seconds on measurements."""
        self.budget = Budget(budget)
        self.decided.clear()
        self.kernels.clear()
        self._seen.clear()
        self._contested.clear()

    def select(self, choices: Sequence[Choice], context: ChoiceContext) -> Choice | None:
        """Returns the choice for a contraction, None for no opinion. Raises NoValidChoicesError."""
        backends = context.options["autotune.backends"]
        library, *offers = choices
        library_allowed = LIBRARY_BACKEND in backends
        offers = offers if TEMPLATE_BACKEND in backends else []
        if not offers:
            if library_allowed:
                return None
            raise self._nothing(context, [])
        if self.timer is None and not can_measure(torch.device(context.target.type)):
            return self._unmeasured(library if library_allowed else None, offers, context)
        contest = make_contest(context, offers)
        self.decided.add(context.operation.name)
        later = context.options["autotune.background"] and not self.background
        if is_measured(context.options, context.operation.kind) and not later:
            record = self._record(contest, offers, context)
            if library_allowed and _is_unmeasured(record, offers):
                return self._estimated(choices, context)
        else:
            store = LocalStore(context.cache, self.counters)
            known = self.known(contest.key, contest.problem, store, context.options)
            if known is None and later and library_allowed and is_measured(context.options, context.operation.kind):
                return self._estimated(choices, context, LATER)
            if known is None:
                return self._unknown(library if library_allowed else None, offers, context)
            record = known
        if any(found.reason == OVER_BUDGET for found in record.measured.values()):
            context.unsettled(f"autotuning has not measured all candidates for {context.operation.name} yet")
        verdict = decide(contest.rivals, record.measured, library_allowed)
        if verdict.name is None and not library_allowed:
            raise self._nothing(context, [(name, found.reason) for name, found in record.measured.items()])
        chosen = next((choice for choice in offers if choice.name == verdict.name), library)
        self._note(chosen, verdict, record.measured, context)
        self._verdicts(choices, chosen, verdict, record.measured, context)
        self._account(contest, chosen is library, chosen.name, verdict, record, context)
        return chosen

    def _nothing(self, context: ChoiceContext, tried: Sequence[tuple[str, str]]) -> NoValidChoicesError:
        program, operation = context.program, context.operation
        problem = describe(cut(program, [operation], operation.writes), context.target)
        left_out = [(operation.target_name, "autotune.backends does not have 'library'")]
        return NoValidChoicesError(str(problem), [*left_out, *tried, *self.rejections(context)])

    def _unmeasured(self, library: Choice | None, offers: Sequence[Choice], context: ChoiceContext) -> Choice:
        estimated = [(c.name, None if c.estimate is None else c.estimate.us) for c in offers]
        reason = f"there is no {context.target.type} device here to measure on"
        chosen = library or min(offers, key=lambda c: float("inf") if c.estimate is None else c.estimate.us)
        for choice in offers:
            context.verdict(choice.name, reason)
        context.record(chosen.name, reason, estimated, plugin="autotune")
        return chosen

    def _estimated(self, choices: Sequence[Choice], context: ChoiceContext, why: str = OVER_BUDGET) -> Choice:
        """Returns what the estimates choose, for a contraction that nothing was measured of."""
        chosen = by_estimate(choices, context) or choices[0]
        estimated = [(c.name, None if c.estimate is None else c.estimate.us) for c in choices]
        context.record(chosen.name, f"by its estimate: {why}", estimated, plugin="autotune")
        context.unsettled(f"autotuning has measured nothing for {context.operation.name} yet")
        return chosen

    def _unknown(self, library: Choice | None, offers: Sequence[Choice], context: ChoiceContext) -> Choice:
        if library is None:
            raise self._nothing(context, [(choice.name, UNKNOWN) for choice in offers])
        context.record(library.name, f"the library call: {UNKNOWN}", (), plugin="autotune")
        for choice in offers:
            context.verdict(choice.name, UNKNOWN)
        return library

    def _note(
        self, chosen: Choice, verdict: Verdict, measured: Mapping[str, Measurement], context: ChoiceContext
    ) -> None:
        failures = [f"{name} {found.reason}" for name, found in measured.items() if found.us == float("inf")]
        reason = verdict.reason + (f"; {'; '.join(failures)}" if failures else "")
        times, library = considered(measured), context.operation.target_name
        us = {name: time for name, time in times if time is not None}
        gained = us[library] - us[chosen.name] if library in us and chosen.name in us else None
        context.record(chosen.name, reason, times, plugin="autotune", gained_us=gained)
        kernels = sources_of(chosen) if isinstance(chosen.payload, KernelCall) or chosen.kind == "template" else []
        found = measured.get(chosen.name)
        if len(kernels) == 1 and found is not None:
            low = max(0.0, found.us - 3 * found.noise_us)
            why = f"measured, {found.runs} runs"
            self.estimates[kernels[0].text] = Estimate(found.us, low, found.us + 3 * found.noise_us, why)

    def _verdicts(
        self,
        choices: Sequence[Choice],
        chosen: Choice,
        verdict: Verdict,
        measured: Mapping[str, Measurement],
        context: ChoiceContext,
    ) -> None:
        """Say of each choice what was measured."""
        for choice in choices:
            own = choice.name if choice.kind != "extern" else LIBRARY
            named = [name for name in measured if name == own or (own == LIBRARY and name.startswith(own))]
            found = [measured[name] for name in named]
            times = [f"measured {each.us:.2f} µs" for each in found if each.valid]
            failures = [each.reason for each in found if each.reason]
            why = "; ".join(times or failures) or "not measured: others were ranked before it"
            context.verdict(choice.name, f"{why}; {verdict.reason}" if choice is chosen else why)

    def _account(
        self, contest: Contest, library: bool, name: str, verdict: Verdict, record: Record, context: ChoiceContext
    ) -> None:
        before = self._contested.get(contest.key)
        count = 1 if before is None else before.count + 1
        chosen = LIBRARY if library else name
        self._contested[contest.key] = Contested(str(contest.problem), chosen, verdict.reason, record.measured, count)
        contested = list(self._contested.values())
        context.attach("autotune.txt", render_text(contested))
        context.attach("autotune.svg", render_picture(contested))

    # Measuring.

    def _record(self, contest: Contest, offers: Sequence[Choice], context: ChoiceContext) -> Record:
        store, kept = LocalStore(context.cache, self.counters), context.options["autotune.local_cache"]

        def measure() -> tuple[Record, bool]:
            before, count = store.partial(contest.key) if kept else (None, 0)
            with self.budget.deadline(context) as deadline:
                measuring = self._measuring(contest, context, deadline, before)
                record, complete = measuring.record(offers)
            if kept and not complete and len(resumed(record)) > len(resumed(before)):
                store.put_partial(contest.key, record, count)
            return record, complete

        return self.recorded(contest.key, contest.problem, store, context.options, measure)

    def recorded(
        self,
        key: str,
        problem: Problem,
        store: LocalStore,
        options: OptionsView,
        measure: Callable[[], tuple[Record, bool]],
    ) -> Record:
        """Returns the record of a problem: of this compile, from the caches that the options allow, or of `measure()`,
        which also says whether it is complete and so worth keeping."""
        if key in self._seen:
            return self._seen[key]
        remote = self._remote(options)

        def shared() -> tuple[Record, bool]:
            found = None if remote is None else remote.find(key, problem)
            if found is not None:
                return found, True
            record, complete = measure()
            return (remote.put(key, record) if remote is not None and complete else record), complete

        record = store.make(key, shared) if options["autotune.local_cache"] else shared()[0]
        self._seen[key] = record
        return record

    def known(self, key: str, problem: Problem, store: LocalStore, options: OptionsView) -> Record | None:
        """Returns what was measured before, here or by who shares the remote cache; None if nothing was."""
        if key in self._seen:
            return self._seen[key]
        record = None
        if options["autotune.local_cache"]:
            record = store.find(key)
            self.counters.local_hits += record is not None
            self.counters.local_misses += record is None
        remote = self._remote(options)
        if record is None and remote is not None:
            record = remote.find(key, problem)
        if record is not None:
            self._seen[key] = record
        return record

    def _remote(self, options: OptionsView) -> RemoteStore | None:
        url = options["autotune.remote_cache"]
        if not url:
            return None
        if url not in self._remotes:
            self._remotes[url] = RemoteStore(url, self.counters)
        return self._remotes[url]

    def _measuring(self, contest: Contest, context: ChoiceContext, deadline: float, before: Record | None) -> Measuring:
        self.counters.tuned += 1
        runner = self.runner(context.options, context.target.type, context.target.index)
        library_allowed = LIBRARY_BACKEND in context.options["autotune.backends"]
        known = resumed(before)
        return Measuring(contest, runner, context, self.counters, deadline, self.timer, library_allowed, known)


def _is_unmeasured(record: Record, offers: Sequence[Choice]) -> bool:
    """Returns whether there was no time for any of the candidates."""
    return all(offer.name in record.measured and record.measured[offer.name].reason == OVER_BUDGET for offer in offers)
