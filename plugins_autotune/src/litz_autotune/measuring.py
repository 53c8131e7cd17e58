"""Measuring a contest: in, its candidates; out, a `Record`.

    compile on threads -> screen each alone, as it is ready -> the best few and the library call in turns

Screening is short, and shorter for what loses: a candidate whose first runs are clearly slower than the best so far is
not run again, and where runs are long and none comes near the library call, the rest is left out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import torch

from litz.logs.units import time_text
from litz_plugins import Choice, ChoiceContext

from .contest import Contest, Heat
from .measurement import Measurement, failed
from .pool import Failure, Request, Runner
from .precompile import Precompilation, sources_of, triton_build
from .progress import Display
from .race import Race
from .results import Counters, Record
from .timing import Timer, timer_for

SCREEN_SECONDS = 0.01
FINAL_SECONDS = 0.2
FINALISTS = 3
"""Candidates of each heat that are measured again, longer and in turns with the library call."""
CLEARLY = 1.25
"""A screened time so many times the best is not noise."""
CLOSE = 1.1
"""The final is for candidates whose screened time is within this factor of the best and of the library's."""
HOPELESS, HOPELESS_AFTER, HOPELESS_SECONDS = 2.0, 4, 1.0
"""Where so many candidates took so many times the library's time, and screening them so long, the rest is left out."""

OVER_BUDGET = "not measured: its share of autotune.budget_s is spent"
SLOWER = "clearly slower than the best"
FAR_SLOWER = "not measured: those that promised more are far slower than the library"
NOT_BEST = "not among the best"


def resumed(record: Record | None) -> dict[str, Measurement]:
    """Returns a record's measurements, without those that have no time because the budget was spent."""
    found = {} if record is None else dict(record.measured)
    done = {name: each for name, each in found.items() if each.us < inf or each.reason != OVER_BUDGET}
    return {name: replace(each, reason="") if each.reason == OVER_BUDGET else each for name, each in done.items()}


@dataclass
class Measuring:
    """One contest while it is measured. deadline: on `time.monotonic`'s clock. library_allowed: may the library win?
    measured: what is known from the beginning (`resumed`), and what is found."""

    contest: Contest
    runner: Runner
    context: ChoiceContext
    counters: Counters
    deadline: float
    timer: Timer | None = None
    library_allowed: bool = True
    measured: dict[str, Measurement] = field(default_factory=dict)
    complete: bool = True

    def record(self, offers: Sequence[Choice]) -> tuple[Record, bool]:
        """Measures the offers. Returns the record, and whether everything planned was measured within the budget."""
        context, begun = self.context, time.monotonic()
        self.runner.start()
        sources = {choice.name: sources_of(choice) for choice in offers}
        build = triton_build(context.target, context.program, context.cache, context.options)
        threads = context.options.get("threads")
        compilation = Precompilation(sources, build, threads)
        with Display(str(self.contest.problem), len(offers)) as display:
            try:
                for heat in self.contest.heats:
                    self._screen(heat, compilation, display)
            finally:
                compilation.close()
            self.counters.precompiled += 1
            start = time.monotonic()
            for heat in self.contest.heats:
                self._final(heat)
            self.counters.final_seconds += time.monotonic() - start
        self.counters.tuning_seconds += time.monotonic() - begun
        return Record(self.contest.problem, self.measured), self.complete

    # Each alone, so that one which crashes costs no other anything.

    def _screen(self, heat: Heat, compilation: Precompilation, display: Display) -> None:
        waiting = [entrant.name for entrant in heat.offers if entrant.name not in self.measured]
        if time.monotonic() > self.deadline:
            return self._over_budget(waiting)
        start = time.monotonic()
        if heat.baseline.name not in self.measured:
            self._screened(heat, [heat.baseline.name])
        self.counters.screen_seconds += time.monotonic() - start
        spent = 0.0
        for batch in compilation.ready(waiting, max(1, len(getattr(self.runner, "workers", ())))):
            self.measured |= {name: failed(problem) for name, problem in batch.items() if problem}
            names = [name for name, problem in batch.items() if not problem]
            if time.monotonic() > self.deadline:
                self._over_budget(names)
            elif spent > HOPELESS_SECONDS and self._hopeless(heat):
                self.measured |= dict.fromkeys(names, failed(FAR_SLOWER))
            elif names:
                start = time.monotonic()
                self._screened(heat, names)
                spent += time.monotonic() - start
            display.done(len(batch), self._best())
        self.counters.screen_seconds += spent

    def _screened(self, heat: Heat, names: Sequence[str]) -> None:
        limit = CLEARLY * self._target(heat)
        races = [self._race(heat, [name], SCREEN_SECONDS, limit) for name in names]
        for name, result in zip(names, self._run(races)):
            found = failed(result.reason) if isinstance(result, Failure) else result[0]
            self.measured[name] = replace(found, reason=SLOWER) if limit < found.us < inf else found

    def _target(self, heat: Heat) -> float:
        """The best time so far of what does a heat's work, in µs."""
        names = [entrant.name for entrant in heat.offers]
        names += [heat.baseline.name] if self.library_allowed else []
        return min((self.measured[n].us for n in names if n in self.measured and self.measured[n].valid), default=inf)

    def _hopeless(self, heat: Heat) -> bool:
        times = [self.measured[e.name].us for e in heat.offers if e.name in self.measured]
        times = [us for us in times if us < inf]
        library = self.measured.get(heat.baseline.name)
        if not self.library_allowed or library is None or len(times) < HOPELESS_AFTER:
            return False
        return min(times) > HOPELESS * library.us

    def _over_budget(self, names: Sequence[str]) -> None:
        self.measured |= dict.fromkeys(names, failed(OVER_BUDGET))
        self.complete = self.complete and not names

    def _best(self) -> str:
        valid = [(found.us, name) for name, found in self.measured.items() if found.valid]
        return f"best {time_text(min(valid)[0])}: {min(valid)[1]}" if valid else ""

    # The best of a heat and the library call, in turns.

    def _final(self, heat: Heat) -> None:
        names = [entrant.name for entrant in heat.offers if self.measured[entrant.name].valid]
        names.sort(key=lambda name: self.measured[name].us)
        close = CLOSE * min((self.measured[name].us for name in names), default=inf)
        chosen = [name for name in names[:FINALISTS] if self.measured[name].us <= close]
        self._mark([name for name in names if name not in chosen], NOT_BEST)
        library = self.measured.get(heat.baseline.name)
        if self.library_allowed and library is not None and chosen:
            if self.measured[chosen[0]].us > CLOSE * library.us:
                return  # it lost already
        if not chosen or (len(chosen) == 1 and not self.library_allowed):
            return
        if time.monotonic() > self.deadline:
            self._mark(chosen, OVER_BUDGET)
            self.complete = False
            return
        entrants = [heat.baseline.name, *chosen]
        (result,) = self._run([self._race(heat, entrants, FINAL_SECONDS)])
        if isinstance(result, Failure):
            result = [failed(result.reason)] * len(entrants)
        self.measured.update(zip(entrants, result))

    def _mark(self, names: Sequence[str], reason: str) -> None:
        self.measured |= {name: replace(self.measured[name], reason=reason) for name in names}

    # Races.

    def _run(self, races: Sequence[Request]) -> list[Any]:
        self.counters.races += len(races)
        return self.runner.run(races, self.context.options["autotune.timeout"])

    def _race(self, heat: Heat, names: Sequence[str], seconds: float, limit_us: float = inf) -> Race:
        by_name = {entrant.name: entrant for entrant in (heat.baseline, *heat.offers)}
        context, device = self.context, self.context.target.type
        alone = context.options["autotune.in_subprocess"] and context.options["autotune.multi_device"]
        return Race(
            f"{self.contest.key} {heat.name}",
            tuple(by_name[name] for name in names),
            heat.baseline.program,
            self.timer or timer_for(torch.device(device)),
            context.options,  # type: ignore[arg-type]
            str(context.cache.root),
            seconds,
            0 if alone and device == "cuda" else None,
            limit_us,
        )


def considered(measured: Mapping[str, Measurement]) -> list[tuple[str, float | None]]:
    """Returns candidates with their times in µs, for the record of a decision; None for what has no time."""
    return [(name, found.us if found.us < inf else None) for name, found in measured.items()]
