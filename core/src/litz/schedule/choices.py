"""Templates: for each contraction, the library call or one of the kernels that plugins offer for it.

The library call is always a candidate. A template's choice carries in its payload the operation that takes the
contraction's place; it writes the same buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from litz.ir import Extern, Loop, Program, Template
from litz_plugins import Choice, Decision

Offer = Callable[[Template], Sequence[Choice]]
Select = Callable[[Template, Sequence[Choice]], tuple[str, Choice] | None]


def choose_templates(
    program: Program, offer: Offer, select: Select, note: Callable[[Decision], None] = lambda decision: None
) -> Program:
    """The program with every contraction decided. `offer` gives the templates' choices for one, `select` the plugin
    that decides and what it takes; where nobody offers anything the library stays and nothing is asked."""
    operations = []
    for operation in program.operations:
        if isinstance(operation, Template):
            operations.append(_decide(operation, offer(operation), select, note))
        else:
            operations.append(operation)
    return replace(program, operations=tuple(operations))


def _decide(
    template: Template, offers: Sequence[Choice], select: Select, note: Callable[[Decision], None]
) -> Loop | Extern:
    if not offers:
        return template
    library = Choice(template.target_name, "extern", template)
    choices = (library, *offers)
    selected = select(template, choices)
    plugin, chosen = ("core", library) if selected is None else selected
    considered = tuple((c.name, None if c.estimate is None else c.estimate.us) for c in choices)
    reason = "the library call" if chosen is library else f"chosen by {plugin}"
    note(Decision("schedule", template.name, chosen.name, reason, considered, plugin))
    operation = chosen.payload
    if not isinstance(operation, (Loop, Extern)) or set(operation.writes) != set(template.writes):
        raise TypeError(
            f"choice {chosen.name!r} for {template.name}: the payload must be an operation that writes "
            f"{', '.join(template.writes)}; got {type(operation).__name__}"
        )
    return operation
