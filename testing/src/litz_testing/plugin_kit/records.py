"""What the kit has found: data that prints."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from litz_plugins import LitzError


@dataclass(frozen=True)
class Trial:
    """One thing of a plugin's on one example. what: "lowering of my.op.default". way: "interpreted", "interpreted,
    dynamic", "built", "kept". problem: what is wrong, '' for a result as good as eager's."""

    what: str
    example: str
    way: str
    problem: str = ""

    def __str__(self) -> str:
        return f"{self.what}, {self.example} ({self.way}): {self.problem or 'as eager'}"


_KINDS = ("pass", "template")
"""What has to be tried, by the first words of its names."""


@dataclass(frozen=True)
class Conformance:
    """The trials of a plugin. untried: what the plugin registers and no trial used, with the reason. may_be_untried:
    the names of passes and templates that may be among those, "*" for all."""

    plugin: str
    trials: tuple[Trial, ...]
    untried: Mapping[str, str] = field(default_factory=dict)
    may_be_untried: Collection[str] = ()

    @property
    def problems(self) -> tuple[Trial, ...]:
        """Returns the trials with something wrong."""
        return tuple(trial for trial in self.trials if trial.problem)

    @property
    def missing(self) -> Mapping[str, str]:
        """Returns the passes and templates that nothing tried and that should have been, with the reason."""
        allowed = {f"{kind} {name}" for kind in _KINDS for name in self.may_be_untried}
        found = {what: why for what, why in self.untried.items() if what.partition(" ")[0] in _KINDS}
        return {} if "*" in self.may_be_untried else {what: found[what] for what in found if what not in allowed}

    @property
    def tried(self) -> frozenset[str]:
        """Returns the names of what was tried."""
        return frozenset(trial.what for trial in self.trials)

    def __str__(self) -> str:
        """A line for each thing: how many trials in which ways; then what was not tried."""
        lines = [f"plugin {self.plugin!r}: {len(self.trials)} trials, {len(self.problems)} with something wrong"]
        for what in dict.fromkeys(trial.what for trial in self.trials):
            own = [trial for trial in self.trials if trial.what == what]
            ways = ", ".join(dict.fromkeys(trial.way for trial in own))
            lines.append(f"  {what}: {len(own)} ({ways})")
        lines += [f"  not tried: {what}: {why}" for what, why in self.untried.items()]
        return "\n".join(lines)


class ConformanceError(LitzError):
    """A plugin does other than eager, or fails, or a pass or a template of it was not tried. ``conformance`` has all
    that was tried."""

    MOST = 20

    def __init__(self, conformance: Conformance) -> None:
        self.conformance = conformance
        problems = conformance.problems
        lines = [f"- {trial}" for trial in problems[: self.MOST]]
        lines += [f"- and {len(problems) - self.MOST} more"] if len(problems) > self.MOST else []
        lines += [f"- {what} was not tried: {why}" for what, why in conformance.missing.items()]
        what = f"plugin {conformance.plugin!r} does not conform, {len(problems)} of {len(conformance.trials)} trials:\n"
        names = tuple(what.partition(" ")[2] for what in conformance.missing)
        todo = f"give examples that they are for, check_conformance(..., examples=[...]), or may_be_untried={names}"
        super().__init__(what + "\n".join(lines), todo=todo if names else "")


__all__ = ["Conformance", "ConformanceError", "Trial"]
