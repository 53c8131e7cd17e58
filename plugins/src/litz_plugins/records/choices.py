"""Ways to run a contraction, and templates that offer them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from litz_plugins.nouns import Operation, OptionsView, Program
from litz_plugins.records.decisions import Decision, Estimate, no_attachment, no_note
from litz_plugins.records.targets import Target


def _not_known(operation: Operation) -> None:
    return None


def _no_verdict(name: str, why: str) -> None:
    pass


def _no_doubt(reason: str) -> None:
    pass


@dataclass(frozen=True)
class Choice:
    """One way to run a contraction.

    name: the way, for people and for reports; one contraction's choices have different names. kind: "extern" for the
    library call, "template" for a kernel template with its parameters filled in.
    payload: the litz.ir operation that takes the contraction's place and writes the same buffers (a `KernelCall` brings
    its kernel along), or a `litz.schedule.choices.Replacement`, which may do the work of the contraction's users too,
    or a `Recipe` for one.
    estimate: of the payload, None when unknown. replaced: of what it takes the place of, where the offer knows that
    better than the cost models do; None asks them.
    """

    name: str
    kind: Literal["extern", "template"]
    payload: object = None
    estimate: Estimate | None = None
    replaced: Estimate | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("extern", "template"):
            raise ValueError(f"choice {self.name!r}: kind is 'extern' or 'template'; got {self.kind!r}")


@dataclass(frozen=True)
class ChoiceContext:
    """The place where a choice is made, and what to ask there.

    operation: the contraction, a litz.ir.Template. target: the device's `Target`. options: of the compile.
    program: the litz.ir.Program that the operation is part of, as it is by then. cache: the on-disk cache
    (litz.cache.disk.Cache). note: takes a Decision (use `record`). attach: takes a file name and a text for the
    graph's report, in place of what had that name; a ".txt" is shown by `litz explain` too, an ".svg" as a picture.
    estimate: what all cost models say of an operation of the program, None where none knows. verdict: takes the name
    of a way to run the contraction and why it is not offered, not chosen, or chosen: reports show both. unsettled:
    takes the reason why another process may choose otherwise (a measurement that is still to be made): the graph is not
    kept in the graph cache then.
    """

    operation: Operation
    target: Target
    options: OptionsView
    program: Program = None
    cache: Any = None
    note: Callable[[Decision], None] = no_note
    attach: Callable[[str, str], None] = no_attachment
    estimate: Callable[[Operation], Estimate | None] = _not_known
    verdict: Callable[[str, str], None] = _no_verdict
    unsettled: Callable[[str], None] = _no_doubt

    def record(
        self,
        chosen: str,
        reason: str,
        considered: Sequence[tuple[str, float | None]] = (),
        plugin: str = "core",
        gained_us: float | None = None,
    ) -> None:
        """Puts on record why the operation is done as it is; considered: (name, us) pairs. gained_us: as of
        `Decision`."""
        about = (self.operation.name, chosen, reason, tuple(considered))
        self.note(Decision("schedule", *about, plugin, gained_us=gained_us))


@dataclass(frozen=True)
class TemplateSpec:
    """A kernel template. name: unique among all plugins' templates. plugin: filled in by core. kinds: the contractions
    that it implements ("mm", "bmm", "addmm", "convolution", "attention", ...).

    make_choices: called as ``make_choices(operation, context)`` once per contraction of one of the kinds; returns the
    candidates (a Choice of kind "template" each), none when the shapes do not suit it. own_kinds: those of `kinds` that
    no lowering of litz's makes: a plugin's lowering does.
    """

    name: str
    kinds: tuple[str, ...]
    make_choices: Callable[[Operation, ChoiceContext], Sequence[Choice]]
    plugin: str = ""
    own_kinds: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.kinds, str):
            raise TypeError(f"template {self.name!r}: kinds is a tuple of names; write kinds=({self.kinds!r},)")
        object.__setattr__(self, "kinds", tuple(self.kinds))
