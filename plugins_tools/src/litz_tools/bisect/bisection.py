"""A bisection from beginning to end: both sides measured, decisions left out by halves, the result measured again.

In: a script, and the side it is held against. Out: a `Finding`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from litz_tools.errors import BisectError

from .judge import WRONG, Bar, check_calls, check_noise, check_runs, time_bar, value_of
from .run import Outcome, Runner, Script, Settings, Taken
from .search import Measured, Search
from .sides import Side, checked_out

PLUGINS = "plugins"
"""The maker under which whole plugins are left out, as if each were a decision."""

BASE = Side("litz")
EAGER = Side("eager", "eager")


@dataclass(frozen=True)
class Bisection:
    """What is asked. wrong: look for what makes results wrong instead of what makes calls slow. most: runs of the
    search. makers: who decides under the script's options, for a compile that fails and has nothing on record. plugins:
    names of those that may be left out."""

    script: Script
    against: Side
    wrong: bool = False
    settings: Settings = field(default_factory=Settings)
    most: int = 60
    makers: Callable[[Mapping[str, Any]], Sequence[str]] = lambda options: ()
    plugins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """What came of it.

    base, reference: runs of the script as it is and as the other side. bar: what was asked of a gain; None with
    `wrong`. found: decisions at fault, with what is on record of them; empty if none is. why: where there are none, the
    reason. measured: (who decided, how many decisions, value without them) in the order of measuring. with_it,
    without_it: values measured again at the end, in turns. runs: how many were made. differing: kernels whose text
    differs between the sides, where no decision does.
    """

    base: Outcome
    reference: Outcome
    bar: Bar | None
    found: tuple[Taken, ...] = ()
    why: str = ""
    measured: tuple[tuple[str, int, float], ...] = ()
    with_it: tuple[float, ...] = ()
    without_it: tuple[float, ...] = ()
    runs: int = 0
    differing: tuple[str, ...] = ()

    @property
    def confirmed(self) -> bool:
        """Whether leaving out the decisions helped again in the measurements at the end: by more than half of the least
        gain that counts, or, with `wrong`, with right results."""
        if self.bar is None:
            return all(value < WRONG for value in self.without_it)
        return bool(self.without_it) and min(self.with_it) * (1 - self.bar.least / 2) > min(self.without_it)


Show = Callable[[str, int, float], None]
"""Told of each measurement: who decided what was left out, how many decisions, the value."""


def _silent(maker: str, count: int, value: float) -> None:
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
    """What both kinds have in common: the search, between the first runs and the last."""

    def __init__(self, asked: Bisection, runner: Runner, against: Side, show: Show) -> None:
        self.asked, self.runner, self.against, self.show = asked, runner, against, show
        self.base_side = BASE
        self.whole: Mapping[str, frozenset[str]] = {}
        self.measured: list[tuple[str, int, float]] = []

    def measure(self, veto: Sequence[str]) -> Outcome:
        """A run without some decisions; those of `PLUGINS` are plugins left out."""
        plugins = tuple(key.partition("/")[2] for key in veto if key.startswith(f"{PLUGINS}/"))
        keys = self.spelled(key for key in veto if not key.startswith(f"{PLUGINS}/"))
        side = self.base_side
        if plugins:
            side = replace(side, options={**side.options, "disable_plugins": plugins})
        return self.runner.run(side, keys, "read" if self.asked.wrong else "")

    def spelled(self, keys: Iterable[str]) -> list[str]:
        """The keys; where all of a maker's are among them its name, so that it takes no others in their place."""
        given = set(keys)
        makers = [maker for maker, own in self.whole.items() if own <= given]
        covered = {key for maker in makers for key in self.whole[maker]}
        return [*makers, *sorted(given - covered)]

    def value(self, veto: Sequence[str]) -> float:
        value = value_of(self.measure(veto), self.asked.wrong)
        maker = _maker_of(veto)
        self.measured.append((maker, len(veto), value))
        self.show(maker, len(veto), value)
        return value

    def search(self, base: float, least: float, outcome: Outcome, other: Outcome) -> tuple[Measured | None, bool]:
        """Returns the group at fault, None if none was found, and whether the search ended for want of runs."""
        hides = not self.asked.wrong
        makers = makers_of(outcome, other)
        if outcome.failure and not makers:
            makers = {maker: (maker,) for maker in self.asked.makers(outcome.options)}
        shared = makers_shared(outcome, other)
        self.whole = {maker: frozenset(keys) for maker, keys in makers.items() if maker not in shared}
        search = Search(base, least, self.value, self.asked.most, hides)
        found = search.run(makers)
        names = self.asked.plugins
        if found is None and names and not search.exhausted:
            search = Search(base, least, self.value, self.asked.most - len(search.measured), hides)
            found = search.run({PLUGINS: tuple(f"{PLUGINS}/{name}" for name in names)})
        return found, search.exhausted

    def taken(self, found: Measured, outcome: Outcome) -> tuple[Taken, ...]:
        on_record = {each.key: each for each in outcome.taken}
        return tuple(on_record.get(key, Taken(key)) for key in found.group.keys)


class _Slow(_Work):
    """Searches for what makes calls slow."""

    def run(self) -> Finding:
        first = self.runner.run(self.base_side)
        check_runs(first, "litz", "`litz bisect --wrong` finds a decision that makes it fail; else mend the script")
        check_calls(first, "litz")
        bar = time_bar([first, self.runner.run(self.base_side)])
        self.show("", 0, bar.base)
        reference = self.runner.run(self.against)
        check_runs(reference, self.against.name)
        check_calls(reference, self.against.name)
        check_noise(bar, reference)
        finding = Finding(first, reference, bar, runs=self.runner.count)
        if reference.seconds >= bar.base * (1 - bar.least):
            return replace(finding, why="no difference")
        found, exhausted = self.search(bar.base, bar.least, first, reference)
        finding = replace(finding, measured=tuple(self.measured), runs=self.runner.count)
        if found is None:
            why = "out of runs" if exhausted else "no decision"
            return replace(finding, why=why, differing=differing_kernels(first, reference))
        again, without = [], []
        for _ in range(2):
            again.append(value_of(self.runner.run(self.base_side), False))
            without.append(value_of(self.measure(found.group.keys), False))
        taken = self.taken(found, first)
        return replace(finding, found=taken, with_it=tuple(again), without_it=tuple(without), runs=self.runner.count)


class _Wrong(_Work):
    """Searches for what makes results wrong, or the script fail."""

    def run(self) -> Finding:
        # Random numbers as eager draws them: else every dropout would be a difference.
        self.base_side = replace(BASE, options={"fallback_random": True})
        eager = self.runner.run(EAGER, values="write")
        check_runs(eager, "eager")
        first = self.runner.run(self.base_side, values="read")
        if not first.failure and not first.times:
            check_calls(first, "litz")
        reference = eager
        if self.against.backend != "eager":
            options = {"fallback_random": True} if self.against.backend == "litz" else {}
            side = replace(self.against, options={**options, **self.against.options})
            reference = self.runner.run(side, values="read")
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
