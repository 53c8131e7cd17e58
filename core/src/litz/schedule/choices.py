"""Templates: for each contraction, the library call or one of the kernels that plugins offer for it.

The library call is always a candidate. A template's choice carries in its payload what takes the contraction's place:
an operation that writes the same buffers, or a `Replacement`, which may do the work of other operations as well; or a
`Recipe` for one, which is made only if it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from litz.ir import Buffer, Extern, Loop, Operation, Program, Template, pattern
from litz_plugins import COUNTERS, VETOED, Choice, ChoiceContext, Decision, Estimate, Gate
from litz_plugins.vetoes import key_of

from .dependences import dependences
from .fusion_size import exceeds
from .simplify import with_operations

MAKER = "choose"
"""The beginning of the keys of choices (`litz_plugins.vetoes`)."""


@dataclass(frozen=True)
class Replacement:
    """The operations that take a contraction's place, where one operation does not do.

    operations: in order. buffers: temporaries that these need and the program does not have yet. absorbs: names of
    operations that they do too, such as the pointwise users of the contraction's result; what nobody else reads of
    those need not be written.
    """

    operations: tuple[Operation, ...]
    buffers: tuple[Buffer, ...] = ()
    absorbs: tuple[str, ...] = ()

    @property
    def writes(self) -> frozenset[str]:
        """Returns the names of the program's buffers that the operations write, without their own temporaries."""
        own = {buffer.name for buffer in self.buffers}
        return frozenset(name for op in self.operations for name in op.writes if name not in own)


@dataclass(frozen=True)
class Recipe:
    """A Replacement that is yet to be made: of many candidates most are only compared.

    absorbs: what it will. key: text; for equal contractions equal keys make equal replacements. make: makes it, once.
    """

    absorbs: tuple[str, ...]
    key: str
    make: Callable[[], Replacement]

    @cached_property
    def made(self) -> Replacement:
        """Returns the Replacement, made when it is first needed."""
        return self.make()


def absorbed_by(choice: Choice) -> tuple[str, ...]:
    """Returns the names of the operations that a choice does besides the contraction."""
    return choice.payload.absorbs if isinstance(choice.payload, (Replacement, Recipe)) else ()


def fits(choice: Choice, template: Template, program: Program, most: int | None) -> bool:
    """Returns whether a choice, with what it absorbs, does `most` nodes of the graph at most. None for no limit."""
    if most is None or not absorbed_by(choice):
        return True
    return not exceeds(most, template, *(program.operations[program.positions[name]] for name in absorbed_by(choice)))


def by_estimate(choices: Sequence[Choice], context: ChoiceContext) -> Choice | None:
    """Returns the choice that saves the most time by its estimate, if its estimate at its worst is below the library
    call and what the choice absorbs, at their best. None otherwise, and if no choice has an estimate. Puts on record
    what was compared."""
    found: list[tuple[Estimate, float, Choice]] = []
    for choice in choices:
        if choice.kind != "extern" and choice.estimate is not None:
            found.append((choice.estimate, _replaced_us(choice, context), choice))
        elif choice.kind != "extern":
            context.verdict(choice.name, "no estimate of its time is known")
    if not found:
        return None
    estimate, library, choice = max(found, key=lambda item: item[1] - item[0].us)
    gains = estimate.high_us < library
    sign, chosen = ("<", choice.name) if gains else (">=", choices[0].name)
    own, rivals = f"{estimate.high_us:.4g} µs at worst ({estimate.why})", f"{library:.4g} µs of the library call"
    rivals += " and of the operations that the kernel absorbs, at best" * bool(absorbed_by(choice))
    context.record(chosen, f"{choice.name}: {own} {sign} {rivals}")
    if gains:
        context.verdict(choices[0].name, f"{library:.4g} µs at best, with the operations that the other absorbs")
    for other, replaced, rival in found:
        why = f"{other.high_us:.4g} µs at worst, the operations that it replaces {replaced:.4g} at best"
        context.verdict(rival.name, why if rival is choice or other.high_us >= replaced else f"{why}; it saves less")
    return choice if gains else None


def _replaced_us(choice: Choice, context: ChoiceContext) -> float:
    """Returns the best time of the library call and of what a choice absorbs, in µs; 0 for what nobody knows."""
    if choice.replaced is not None:
        return choice.replaced.low_us
    program: Program = context.program
    names = (context.operation.name, *absorbed_by(choice))
    known = [context.estimate(program.operations[program.positions[name]]) for name in names]
    return sum(0.0 if each is None else each.low_us for each in known)


def replacement_of(choice: Choice) -> Replacement:
    """Returns a choice's payload as a Replacement. Errors: TypeError for a payload that is neither a Replacement nor
    an operation."""
    if isinstance(choice.payload, Recipe):
        return choice.payload.made
    if isinstance(choice.payload, Replacement):
        return choice.payload
    if isinstance(choice.payload, (Loop, Extern)):
        return Replacement((choice.payload,))
    raise TypeError(f"the payload is {type(choice.payload).__name__}, not an operation")


def substituted(program: Program, template: Template, replacement: Replacement) -> Program:
    """Returns the program with a contraction, and what the replacement absorbs, replaced.

    Errors: ValueError if the replacement does not write what others need, or if no place in the program's order is
    right for it: it stands where the last of what it replaces stood, and before whatever depends on it.
    """
    gone = {template.name, *replacement.absorbs}
    if not gone <= program.positions.keys():
        raise ValueError(f"{', '.join(gone)}: not all are operations of the program")
    numbers = sorted(program.positions[name] for name in gone)
    _check_writes(program, template, replacement, gone)
    start, end = numbers[0], numbers[-1] + 1
    later = check_order(program, numbers)
    span = [(number, op) for number, op in enumerate(program.operations[start:end], start) if number not in numbers]
    operations = (
        *program.operations[:start],
        *(op for number, op in span if number not in later),
        *replacement.operations,
        *(op for number, op in span if number in later),
        *program.operations[end:],
    )
    buffers = {**program.buffers, **{buffer.name: buffer for buffer in replacement.buffers}}
    return with_operations(replace(program, buffers=buffers), operations)


def needed_outside(program: Program, inside: Collection[str]) -> frozenset[str]:
    """Returns the buffers that the operations named `inside` write and that another operation reads or writes, or the
    program returns."""

    def is_needed(name: str) -> bool:
        if name in program.output_buffers or program.buffers[name].kind != "temporary":
            return True
        return any(op.name not in inside for op in (*program.readers[name], *program.writers[name]))

    written = {name for own in inside for name in program.operations[program.positions[own]].writes}
    return frozenset(filter(is_needed, written))


def user_of(template: Template, value: pattern.Value, program: Program) -> pattern.Match | str:
    """Returns the Loop that a kernel of a contraction can do as well (`Replacement.absorbs`), or why there is none: the
    Loop alone reads the contraction's result, and stores `value`, which loads the result at the element stored."""
    result = str(template.outputs[0])
    if not pattern.fits("temporary unshared unreturned read_once", result, program):
        return f"{result} has no reader, or more than one"
    wanted = pattern.Pattern(loop="pointwise plain direct", value=value)
    found = pattern.match(wanted, program.readers[result][0], program)
    if isinstance(found, str):
        return found
    same = program.buffers[result].layout.size == program.buffers[found.store.buffer].layout.size
    if not same or any(node.index != found.store.index for node in found.loop.loads if node.buffer == result):
        return f"{found.loop.name} reads other elements of {result} than it stores"
    try:
        check_order(program, sorted(program.positions[name] for name in (template.name, found.loop.name)))
    except ValueError as error:
        return str(error)
    return found


def _check_writes(program: Program, template: Template, replacement: Replacement, gone: set[str]) -> None:
    allowed = {name for own in gone for name in program.operations[program.positions[own]].writes}
    needed = needed_outside(program, gone) or set(template.writes)
    if not needed <= replacement.writes <= allowed:
        wanted, given = ", ".join(sorted(needed)), ", ".join(sorted(replacement.writes))
        raise ValueError(f"in place of {template.name} the payload must be an operation that writes {wanted}; {given}")
    for call in replacement.operations:
        named = {item for item in getattr(getattr(call, "source", None), "arguments", ()) if isinstance(item, str)}
        unknown = named - {COUNTERS, *call.reads, *call.writes}
        if unknown:
            raise ValueError(f"the kernel {call.name} takes {', '.join(sorted(unknown))}, which its call does not name")


def check_order(program: Program, numbers: Sequence[int]) -> frozenset[int]:
    """Returns the positions, between the first and the last of `numbers` (ascending), of what depends on one of them
    and has to come after what takes the place of all these operations. Errors: ValueError if one of them depends on
    such an operation: then nothing could."""
    if len(numbers) == 1:
        return frozenset()
    start = numbers[0]
    span = program.operations[start : numbers[-1] + 1]
    before = dependences(span, program.buffers, program.roots)
    own = {number - start for number in numbers}
    later: set[int] = set()
    for place, operation in enumerate(span):
        if place in own and before[place] & later:
            raise ValueError(
                f"{operation.name} needs a result that depends on {span[0].name}, and one operation would replace both"
            )
        if place not in own and before[place] & (own | later):
            later.add(place)
    return frozenset(place + start for place in later)


def decide(
    template: Template, choices: Sequence[Choice], selected: tuple[str, Choice] | None, gate: Gate
) -> tuple[Choice, str, str]:
    """Returns what runs a contraction, who decided, and why. choices: the library's call, then what templates offer.
    selected: the plugin that chose and its choice; None for the library's call. gate: contractions that have to stay
    with the library, and ways that are given."""
    library = choices[0]
    plugin, chosen = ("core", library) if selected is None else selected
    reason = "the library call" if chosen is library else f"chosen by {plugin}"
    way, why = _way(template, choices, chosen, plugin, gate)
    if not why:
        return chosen, plugin, reason
    return next(choice for choice in choices if choice.name == way), "core", why


def decision_of(template: Template, choices: Sequence[Choice], made: tuple[Choice, str, str], gate: Gate) -> Decision:
    """Returns what `decide` made, as the record has it."""
    chosen, plugin, reason = made
    considered = tuple((c.name, None if c.estimate is None else c.estimate.us) for c in choices)
    key = key_of(gate.graph, MAKER, template.name)
    return Decision("schedule", template.name, chosen.name, reason, considered, plugin, key)


def _way(template: Template, choices: Sequence[Choice], chosen: Choice, plugin: str, gate: Gate) -> tuple[str, str]:
    """Returns the name that the gate makes of a choice, and why, '' for the choice itself."""
    names = [choice.name for choice in choices]
    if plugin == "core" and len(set(names)) == len(names):
        ways = [(choice.name, None if choice.estimate is None else choice.estimate.us) for choice in choices]
        return gate.choose(MAKER, template.name, ways, chosen.name, names[0])
    # Measured already, or by whoever knows better: yes or no.
    if chosen is choices[0] or gate.take(MAKER, template.name):
        return chosen.name, ""
    return names[0], VETOED
