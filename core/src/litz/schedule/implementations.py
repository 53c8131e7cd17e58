"""What runs each contraction, and why nothing else does. In: a contraction, its choices, and what was said of them.
Out: `ContractionRecord`s, which reports show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from litz.ir import Operation, Program, Template, TensorRef
from litz.ir.dtypes import short
from litz_plugins import Choice, Decision, Estimate

from .choices import absorbed_by


@dataclass(frozen=True)
class Implementation:
    """One way to run a contraction. us: its expected time, with all other work of the kernel; None where no estimate is
    known. verdict: why it runs, or why it does not; '' if no reason was given."""

    name: str
    us: float | None
    verdict: str


@dataclass(frozen=True)
class ContractionRecord:
    """A contraction and all ways to run it, the one that runs first.

    subject: the operation's name. op: the library's. what: sizes and type. origins: the graph's nodes behind it.
    producers, users: the nodes that its kernel does before and after the contraction. beside: other contractions that
    the same launch does. at: the sizes that it was decided for, "" where there is one code for all. plugin: who
    decided.
    """

    subject: str
    op: str
    what: str
    origins: tuple[str, ...]
    implementations: tuple[Implementation, ...]
    producers: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    at: str = ""
    plugin: str = "core"

    @property
    def chosen(self) -> Implementation:
        """Returns the implementation that runs."""
        return self.implementations[0]

    @property
    def rejected(self) -> tuple[Implementation, ...]:
        """Returns the implementations that do not run, in the order of the record."""
        return self.implementations[1:]


@dataclass
class Hearing:
    """Collects the decisions, and the verdicts by implementation, of one contraction. Offers and the choice fill it."""

    subject: str
    verdicts: dict[str, str] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)

    def verdict(self, name: str, why: str) -> None:
        """Notes why one implementation of the contraction is not offered, not chosen, or chosen."""
        self.verdicts[name] = why

    def listen(self, note: Callable[[Decision], None]) -> Callable[[Decision], None]:
        """Returns `note` wrapped so that each decision is collected as well."""

        def heard(decision: Decision) -> None:
            note(decision)
            if decision.subject == self.subject:
                self.decisions.append(decision)

        return heard

    @contextmanager
    def from_template(self, name: str) -> Iterator[list[Choice]]:
        """Yields a list for the offers of a template. If the list stays empty, the decisions recorded meanwhile are the
        reason for the verdict on the template."""
        offers, before = list[Choice](), len(self.decisions)
        yield offers
        if not offers and len(self.decisions) > before:
            self.verdict(name, "; ".join(decision.reason for decision in self.decisions[before:]))


def make_records(
    template: Template,
    program: Program,
    choices: Sequence[Choice],
    chosen: Choice,
    plugin: str,
    heard: Hearing,
    library: Estimate | None,
) -> tuple[ContractionRecord, ...]:
    """Returns the record of a contraction, and of those that its kernel does as well. program: as it was before the
    replacement. library: the estimate for the library's call."""
    found = [Implementation(chosen.name, _us(chosen, library), heard.verdicts.get(chosen.name, ""))]
    for choice in choices:
        if choice is not chosen:
            verdict = heard.verdicts.get(choice.name, f"not chosen by {plugin}")
            found.append(Implementation(choice.name, _us(choice, library), verdict))
    names = {choice.name for choice in choices}
    found += [Implementation(name, None, why) for name, why in heard.verdicts.items() if name not in names]
    absorbed = [program.operations[program.positions[name]] for name in absorbed_by(chosen)]
    place = program.positions[template.name]
    mates = [op for op in absorbed if isinstance(op, Template)]
    loops = [op for op in absorbed if not isinstance(op, Template)]
    producers = _nodes([op for op in loops if program.positions[op.name] < place])
    users = _nodes([op for op in loops if program.positions[op.name] > place])
    about = (template.target_name, _what(template, program), template.origins)
    beside = tuple(mate.name for mate in mates)
    own = ContractionRecord(template.name, *about, tuple(found), producers, users, beside, plugin=plugin)
    with_it = Implementation(chosen.name, None, f"in the launch of {template.name}")
    others = (
        ContractionRecord(op.name, op.target_name, _what(op, program), op.origins, (with_it,), plugin=plugin)
        for op in mates
    )
    return (own, *others)


def _us(choice: Choice, library: Estimate | None) -> float | None:
    estimate = library if choice.kind == "extern" else choice.estimate
    return None if estimate is None else estimate.us


def _nodes(operations: Sequence[Operation]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(node for op in operations for node in op.origins or (op.name,)))


def _what(template: Template, program: Program) -> str:
    """Returns the operands' sizes and the dtype, such as "[512, 768] x [768, 3072] bf16"."""
    refs = [arg for arg in template.args if isinstance(arg, TensorRef)]
    if not refs:
        return ""
    sizes = " x ".join("[" + ", ".join(map(str, ref.layout.size)) + "]" for ref in refs)
    return f"{sizes} {short(program.buffers[refs[-1].buffer].dtype)}"


__all__ = ["ContractionRecord", "Hearing", "Implementation", "make_records"]
