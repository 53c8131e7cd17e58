"""Passes, and what they are handed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from litz_plugins.nouns import Noun, Operation, OptionsView, Program
from litz_plugins.records.decisions import Ask, Decision, Estimate, no_attachment, no_note
from litz_plugins.records.targets import Target, TargetOf, unknown_target
from litz_plugins.vetoes import Gate, key_of

Stage = Literal["traced", "joint", "partitioned", "graph", "program", "schedule"]


STAGES: tuple[Stage, ...] = ("traced", "joint", "partitioned", "graph", "program", "schedule")


def _no_estimate(operation: Operation, target: Target, program: Program) -> Estimate | None:
    return None


@dataclass(frozen=True)
class PassContext:
    """The second argument of a pass, beside its noun.

    options: the compile's options. stage, pass_name, plugin: of the pass that runs, for the record. estimate: called as
    ``estimate(operation, target, program)``, asks ``litz_estimate_runtime``; None when nobody knows. note: takes a
    Decision (use `record`). target_of: called with a torch.device, gives its `Target`. ask: as `estimate`, of the
    plugins other than core, with the name of the one that answers; remembered by the structure of a loop. None where
    no plugin has an opinion on any operation. attach: takes a file name and a text for the graph's
    report. gate: the decisions that this compile must not take (use `allows`).
    """

    options: OptionsView
    stage: str = "program"
    pass_name: str = ""
    plugin: str = "core"
    estimate: Callable[[Operation, Target, Program], Estimate | None] = _no_estimate
    note: Callable[[Decision], None] = no_note
    attach: Callable[[str, str], None] = no_attachment
    target_of: TargetOf = unknown_target
    ask: Ask | None = None
    gate: Gate = field(default_factory=Gate)

    def allows(self, about: str) -> bool:
        """Returns whether the pass may do what it is about to do. False where the option `veto` names it: do the other
        thing then.

        about: what the decision is about, the same in every run: the name of the node or operation that it is taken
        for. A pass that asks can be undone decision by decision, and `litz bisect` finds the one that does harm.
        """
        return self.gate.take(self.pass_name, about)

    def weigh(self, about: str, pays: bool, without_us: float | None, with_us: float | None) -> tuple[bool, str]:
        """Returns whether a decision whose estimates are known is taken, and why; the reason is '' for the estimates.

        pays: do the estimates favour the decision? without_us, with_us: the expected time (µs) of everything that the
        decision concerns, if it is not taken and if it is. Ask also where the decision does not pay:
        `mode="max-autotune"` measures close ones, and the option `prefer` may name a way.
        """
        return self.gate.weigh(self.pass_name, about, pays, without_us, with_us)

    @property
    def tries(self) -> bool:
        """Returns whether the options `prefer` or `max_autotune` ask for ways that the estimates do not choose. If not,
        their times need not be worked out."""
        return bool(getattr(self.options, "max_autotune", False) or self.gate.preferences.ways)

    def choose(self, about: str, ways: Sequence[tuple[str, float | None]], best: str, without: str) -> tuple[str, str]:
        """Returns the way of a decision that has several, and why. ways: each with its expected time in µs. without:
        the way that is taken if nothing is decided, one of `ways`."""
        return self.gate.choose(self.pass_name, about, ways, best, without)

    def record(
        self,
        subject: str,
        chosen: str,
        reason: str,
        considered: Sequence[tuple[str, float | None]] = (),
        plugin: str = "",
        about: str = "",
    ) -> None:
        """Puts a decision on record: ``chosen`` for ``subject`` because of ``reason``; considered: (name, µs) pairs.
        plugin: who decided, where that is not the pass's own. about: what `allows` was asked about, where it was."""
        key = key_of(self.gate.graph, self.pass_name, about) if about else ""
        self.note(Decision(self.stage, subject, chosen, reason, tuple(considered), plugin or self.plugin, key))


@dataclass(frozen=True)
class Pass:
    """A pure function from noun to noun, with a place in the order.

    name: unique among all plugins' passes. stage: which noun ``run`` takes and returns: "traced" a TracedGraph, "joint"
    a JointGraph, "partitioned" Halves, "graph" a Graph, "program" a Program, "schedule" a Schedule. run: called as
    ``run(noun, context)``; must return a noun of the same kind (the same object if nothing changed) and change nothing
    in place. after, before: names of passes of the same stage, of any plugin; a name that nobody registers is an error,
    unless it ends in "?": that pass need not be there, as its plugin may be absent. plugin: filled in by the manager.
    """

    name: str
    stage: Stage
    run: Callable[[Noun, PassContext], Noun]
    after: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    plugin: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a pass needs a name")
        if self.stage not in STAGES:
            raise ValueError(f"pass {self.name!r}: stage is one of {', '.join(STAGES)}; got {self.stage!r}")
        if not callable(self.run):
            raise TypeError(f"pass {self.name!r}: run must be callable; got {type(self.run).__name__}")
        for side in ("after", "before"):
            names = getattr(self, side)
            if isinstance(names, str):  # after="fuse" would otherwise mean f, u, s and e
                raise TypeError(f"pass {self.name!r}: {side} is a tuple of names; write {side}=({names!r},)")
            object.__setattr__(self, side, tuple(names))
