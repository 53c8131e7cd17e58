"""A bisection from beginning to end: both sides measured, decisions left out by halves, the result measured again.

In: a script, and the side it is held against. Out: a `Finding`.
"""

from __future__ import annotations

import functools
import math
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from litz_tools.errors import BisectError

from .judge import RUNS, WRONG, Bar, check_calls, check_runs, clear_gain, spread, time_bar, value_of
from .run import Outcome, Runner, Script, Settings, Taken
from .search import Measured, OutOfRuns, Search
from .sides import Side, checked_out

PLUGINS = "plugins"
"""The maker under which whole plugins are left out, as if each were a decision."""

TOO_NOISY = "too noisy"
"""Why nothing is found where equal runs are further apart than what is looked for."""

FAILS = "`litz bisect --wrong` finds a decision that makes it fail; else mend the script"

BASE = Side("litz")
EAGER = Side("eager", "eager")


@dataclass(frozen=True)
class Bisection:
    """The question that a search answers. wrong: look for what makes results wrong instead of what makes calls slow.
    most: runs of the search. makers: who decides under the script's options, for a compile that fails and has nothing
    on record. plugins: names of those that may be left out."""

    script: Script
    against: Side
    wrong: bool = False
    settings: Settings = field(default_factory=Settings)
    most: int = 150
    makers: Callable[[Mapping[str, Any]], Sequence[str]] = lambda options: ()
    plugins: tuple[str, ...] = ()

    @property
    def most_runs(self) -> int:
        """Returns the most runs of the script: those of the search, and those before and after it."""
        return self.most + (4 if self.wrong else 4 * RUNS)


@dataclass(frozen=True)
class Finding:
    """The result of a search.

    base, reference: runs of the script as it is and as the other side. bar: what was asked of a gain; None with
    `wrong`. found: decisions at fault, with what is on record of them; empty if none is. why: where there are none, the
    reason. suspected: the decisions that the search ended at, where equal runs were too far apart to say that they are
    at fault. measured: (who decided, how many decisions, value without them) in the order of measuring. with_it,
    without_it: values measured again at the end, in turns. runs: how many were made. apart: the largest difference
    between equal runs, in seconds. differing: kernels whose text differs between the sides, where no decision does.
    """

    base: Outcome
    reference: Outcome
    bar: Bar | None
    found: tuple[Taken, ...] = ()
    suspected: tuple[Taken, ...] = ()
    why: str = ""
    measured: tuple[tuple[str, int, float], ...] = ()
    with_it: tuple[float, ...] = ()
    without_it: tuple[float, ...] = ()
    runs: int = 0
    apart: float = 0.0
    differing: tuple[str, ...] = ()

    @property
    def too_noisy(self) -> bool:
        """Returns whether equal runs are too far apart to say anything."""
        return self.why == TOO_NOISY

    @property
    def confirmed(self) -> bool:
        """Returns whether leaving out the decisions helped again in the measurements at the end: by a clear gain or,
        with `wrong`, with right results."""
        if self.bar is None:
            return all(value < WRONG for value in self.without_it)
        return clear_gain(self.with_it, self.without_it)


Show = Callable[[str, int, float | None], None]
"""Told before each run, and after it with the value: what runs or who decided what is left out, and how many decisions
are left out (0 for a side as it is)."""


def _silent(what: str, count: int, value: float | None) -> None:
    pass


def bisect(asked: Bisection, show: Show = _silent) -> Finding:
    """Runs a bisection, which takes minutes, and returns what it found. show: told of each measurement. Errors:
    BisectError where a side does not run, calls too little, or differs too much from run to run."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="litz-bisect-")))
        against = asked.against
        if against.commit:
            against = replace(against, path=stack.enter_context(checked_out(against.commit, folder)))
        runner = Runner(asked.script, asked.settings, folder)
        work = _Wrong if asked.wrong else _Slow
        return work(asked, runner, against, show).run()


class _Work:
    """The common part of both kinds: the search, between the first runs and the last."""

    def __init__(self, asked: Bisection, runner: Runner, against: Side, show: Show) -> None:
        self.asked, self.runner, self.against, self.show = asked, runner, against, show
        self.base_side = BASE
        self.whole: Mapping[str, frozenset[str]] = {}
        self.measured: list[tuple[str, int, float]] = []
        self.used, self.apart = 0, 0.0

    def run_side(self, side: Side, values: Literal["", "write", "read"] = "") -> Outcome:
        """A run with nothing left out."""
        self.show(side.name, 0, None)
        return self.shown(side.name, 0, self.runner.run(side, values=values))

    def shown(self, what: str, count: int, outcome: Outcome) -> Outcome:
        self.show(what, count, value_of(outcome, self.asked.wrong))
        return outcome

    def measure(self, veto: Sequence[str]) -> Outcome:
        """A run without some decisions; those of `PLUGINS` are plugins left out."""
        plugins = tuple(key.partition("/")[2] for key in veto if key.startswith(f"{PLUGINS}/"))
        keys = self.spelled(key for key in veto if not key.startswith(f"{PLUGINS}/"))
        side = self.base_side
        if plugins:
            side = replace(side, options={**side.options, "disable_plugins": plugins})
        maker = _maker_of(veto)
        self.show(maker, len(veto), None)
        return self.shown(maker, len(veto), self.runner.run(side, keys, "read" if self.asked.wrong else ""))

    def spelled(self, keys: Iterable[str]) -> list[str]:
        """The keys; where all of a maker's are among them its name, so that it takes no others in their place."""
        given = set(keys)
        makers = [maker for maker, own in self.whole.items() if own <= given]
        covered = {key for maker in makers for key in self.whole[maker]}
        return [*makers, *sorted(given - covered)]

    def value(self, veto: Sequence[str], least: float) -> float:
        """The value without some decisions: of results by one run, of times the median of two runs, or of three where
        the two disagree on whether the value is less than `least`. Errors: OutOfRuns."""
        values: list[float] = []
        while len(values) < (1 if self.asked.wrong else RUNS):
            if self.used >= self.asked.most:
                raise OutOfRuns
            self.used += 1
            values.append(value_of(self.measure(veto), self.asked.wrong))
            if math.isinf(values[-1]) or (len(values) == 2 and len({value < least for value in values}) == 1):
                break
        value = math.inf if math.inf in values else statistics.median(values)
        self.apart = max(self.apart, spread(values))
        self.measured.append((_maker_of(veto), len(veto), value))
        return value

    def search(self, base: float, least: float, outcome: Outcome, other: Outcome) -> tuple[Measured | None, bool]:
        """Returns the group at fault, None if none was found, and whether the search ended for want of runs."""
        hides = not self.asked.wrong
        makers = makers_of(outcome, other)
        if outcome.failure and not makers:
            makers = {maker: (maker,) for maker in self.asked.makers(outcome.options)}
        shared = makers_shared(outcome, other)
        self.whole = {maker: frozenset(keys) for maker, keys in makers.items() if maker not in shared}
        value = functools.partial(self.value, least=base * (1 - least))
        search = Search(base, least, value, self.asked.most, hides)
        found = search.run(makers)
        names = self.asked.plugins
        if found is None and names and not search.exhausted:
            search = Search(base, least, value, self.asked.most, hides)
            found = search.run({PLUGINS: tuple(f"{PLUGINS}/{name}" for name in names)})
        return found, search.exhausted

    def taken(self, found: Measured, outcome: Outcome) -> tuple[Taken, ...]:
        on_record = {each.key: each for each in outcome.taken}
        return tuple(on_record.get(key, Taken(key)) for key in found.group.keys)


class _Slow(_Work):
    """Searches for what makes calls slow."""

    def run(self) -> Finding:
        runs, others = [], []
        for _ in range(RUNS):  # in turns: what slows the machine down slows both sides
            runs.append(self.run_side(self.base_side))
            check_runs(runs[-1], "litz", FAILS)
            check_calls(runs[-1], "litz")
            others.append(self.run_side(self.against))
            check_runs(others[-1], self.against.name)
            check_calls(others[-1], self.against.name)
        first, reference, bar = runs[0], others[0], time_bar(runs, others)
        self.apart = bar.noise * bar.base
        finding = Finding(first, reference, bar, runs=self.runner.count, apart=self.apart)
        if not bar.differs:
            return replace(finding, why=TOO_NOISY if bar.too_noisy else "no difference")
        found, exhausted = self.search(bar.base, bar.least, first, reference)
        finding = replace(finding, measured=tuple(self.measured), runs=self.runner.count, apart=self.apart)
        if found is None:
            noisy = self.apart > bar.base - bar.other
            why = TOO_NOISY if noisy else "out of runs" if exhausted else "no decision"
            return replace(finding, why=why, differing=differing_kernels(first, reference))
        again, without = [], []
        for _ in range(RUNS):
            again.append(value_of(self.run_side(self.base_side), False))
            without.append(value_of(self.measure(found.group.keys), False))
        finding = replace(
            finding,
            with_it=tuple(again),
            without_it=tuple(without),
            runs=self.runner.count,
            apart=max(self.apart, spread(again), spread(without)),
        )
        taken = self.taken(found, first)
        if not finding.confirmed:
            return replace(finding, why=TOO_NOISY, suspected=taken)
        return replace(finding, found=taken)


class _Wrong(_Work):
    """Searches for what makes results wrong, or the script fail."""

    def run(self) -> Finding:
        # Random numbers as eager draws them: else every dropout would be a difference.
        self.base_side = replace(BASE, options={"fallback_random": True})
        eager = self.run_side(EAGER, "write")
        check_runs(eager, "eager")
        first = self.run_side(self.base_side, "read")
        if not first.failure and not first.times:
            check_calls(first, "litz")
        reference = eager
        if self.against.backend != "eager":
            options = {"fallback_random": True} if self.against.backend == "litz" else {}
            side = replace(self.against, options={**options, **self.against.options})
            reference = self.run_side(side, "read")
            if value_of(reference, True) == WRONG and value_of(first, True) == WRONG:
                what = reference.failure or f"{reference.ratio:.3g} times what rounding may make"
                raise BisectError(
                    f"the script is wrong with {self.against.name} as well: {what}",
                    todo="bisect it against eager, or raise --tolerance if that is only rounding",
                )
        finding = Finding(first, reference, None, runs=self.runner.count)
        if value_of(first, True) < WRONG:
            return replace(finding, why="no difference")
        found, exhausted = self.search(WRONG, 0.5, first, reference)
        finding = replace(finding, measured=tuple(self.measured), runs=self.runner.count)
        if found is None:
            why = "out of runs" if exhausted else "no decision"
            return replace(finding, why=why, differing=differing_kernels(first, reference))
        last = self.measure(found.group.keys)
        return replace(
            finding,
            found=self.taken(found, first),
            with_it=(first.ratio,),
            without_it=(last.ratio,),
            runs=self.runner.count,
        )


def makers_of(outcome: Outcome, other: Outcome) -> dict[str, tuple[str, ...]]:
    """The decisions to look among, by who took them: those that the other side did not take, where it is litz too. The
    first are those that save least by estimate: where estimates err, it is there."""
    there = {each.key for each in other.taken}
    finer = {(each.graph, each.maker) for each in outcome.taken if each.about}
    found: dict[str, list[Taken]] = {}
    for each in outcome.taken:
        # A pass that asks for each of its decisions is left out decision by decision.
        if each.key not in there and (each.about or (each.graph, each.maker) not in finer):
            found.setdefault(each.maker, []).append(each)
    unknown = float("inf")
    return {
        maker: tuple(each.key for each in sorted(taken, key=lambda each: unknown if each.gain is None else each.gain))
        for maker, taken in found.items()
    }


def makers_shared(outcome: Outcome, other: Outcome) -> frozenset[str]:
    """Returns the names of the makers of decisions that both sides took."""
    there = {each.key for each in other.taken}
    return frozenset(each.maker for each in outcome.taken if each.key in there)


def differing_kernels(outcome: Outcome, other: Outcome) -> tuple[str, ...]:
    """Returns the kernels, as "name (nodes)", that have the same loops on both sides but another text."""
    known = {(key.partition(":")[0], fused): digest for key, (_, fused, digest) in other.kernels.items()}
    return tuple(
        f"{key} ({nodes})"
        for key, (nodes, fused, digest) in outcome.kernels.items()
        if known.get((key.partition(":")[0], fused), digest) != digest
    )


def _maker_of(keys: Sequence[str]) -> str:
    makers = dict.fromkeys(Taken(key).maker for key in keys)
    return next(iter(makers)) if len(makers) == 1 else f"{len(makers)} together"


__all__ = ["Bisection", "Finding", "bisect", "differing_kernels", "makers_of"]
