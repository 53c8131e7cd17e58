"""What is said of a wrapper's steps: in, a plan, and which nodes of the captured graph its steps were made of; out, the
`Words` for this graph, and `Named`, by which an equal graph gets words of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from litz.execution import ExecutionPlan
from litz.ir import Buffer, Check
from litz.ir.dtypes import short
from litz.origins.named import NOBODYS, Named
from litz.origins.operations import ByPosition, Origin, origin_text
from litz.origins.places import Words, WrapperSource
from litz.origins.words import make_words

NAMED = 60
"""Characters of a range's name that say what is computed."""


def words_of(plan: ExecutionPlan) -> Words:
    """Returns the words of a plan, from the provenance of its program."""
    steps = [(name, program.provenance.text(step.origins)) for name, step, program in plan.all_steps]
    origins = {name: text for name, text in steps if text}
    program = plan.program
    known_as = program.provenance.inputs
    texts = [(name, buffer_text(program.buffers[name])) for name in program.input_buffers]
    outputs = {at: name for at, name in program.provenance.outputs.items() if program.outputs[at] is not None}
    return make_words(origins, computed(plan), texts, known_as, outputs)


def computed(plan: ExecutionPlan) -> dict[str, str]:
    """Returns, by the step's name, what a profile says that the step computes. Checks have no such text."""
    return {name: _does(step.origins) for name, step, _ in plan.all_steps if not isinstance(step, Check)}


def named_of(
    plan: ExecutionPlan, wrapper: WrapperSource, positions: Mapping[str, int], known: ByPosition = NOBODYS
) -> Named:
    """Returns what gives an equal graph, of another layer or in another process, words of its own.

    positions: in the graph as captured, of the nodes that the plan's program was lowered from. known: of the graph that
    was compiled. A step has positions if what is known of those is what is known of its nodes: a wrong name would be
    worse than none.
    """
    steps = {}
    for variant in plan.variants:
        for step in variant.steps:
            found = tuple(dict.fromkeys(positions[name] for name in step.origins if name in positions))
            of_nodes = variant.program.provenance.of(step.origins)
            if found and _said(known.of(found)) == _said(of_nodes):
                steps[step.name] = found
    program = plan.program
    inputs = tuple(
        (at, item, buffer_text(program.buffers[item]))
        for at, item in enumerate(program.inputs)
        if isinstance(item, str)
    )
    outputs = tuple(at for at, item in enumerate(program.outputs) if item is not None)
    return Named(wrapper.places, steps, computed(plan), inputs, outputs, known)


def _said(origins: tuple[Origin, ...]) -> tuple[Any, ...]:
    """All that a report or a comment says of them."""
    return origin_text(origins), {origin.module for origin in origins}, {(o.file, o.line) for o in origins}


def _does(nodes: Sequence[str]) -> str:
    does = " + ".join(dict.fromkeys(nodes))
    return does if len(does) <= NAMED else f"{does[: NAMED - 3]}..."


def buffer_text(buffer: Buffer) -> str:
    """Returns a buffer's dtype and sizes as text, such as "bf16[8, 768]"."""
    return f"{short(buffer.dtype)}[{', '.join(map(str, buffer.layout.size))}]"
