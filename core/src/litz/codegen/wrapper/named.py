"""What of a wrapper can be called as the user calls it.

In: a plan, and which nodes of the captured graph its steps were made of. Out: `Named`, data that is kept with a
compiled graph; an equal graph, of another layer or in another process, gets words of its own by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any

from litz.execution import ExecutionPlan
from litz.origins.operations import ByPosition, Origin, origin_text

from .module import WrapperSource
from .places import Place, Words
from .words import buffer_text, computed, make_words

NOBODYS = ByPosition()
"""The names of a graph of which nothing is known."""


@dataclass(frozen=True)
class Named:
    """places: where the steps are in the wrapper's text. steps: the positions of the nodes that each was made of, in
    the graph as captured; those of which the words do not come out the same by it are not there. computes: what a
    profile says that each step does. inputs: position among the placeholders, name in the text, type and sizes.
    outputs: positions of those that are tensors. first: what is known of the graph that was compiled."""

    places: tuple[Place, ...] = ()
    steps: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    computes: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[tuple[int, str, str], ...] = ()
    outputs: tuple[int, ...] = ()
    first: ByPosition = NOBODYS

    def known_to(self, program: str) -> ByPosition:
        """Returns what is known of the graph that was compiled, if the untraced graph is of the program with the digest
        `program` too. Returns NOBODYS otherwise, and if the digest is empty."""
        return self.first if program and program == self.first.program else NOBODYS

    def origins(self, known: ByPosition) -> dict[str, tuple[Origin, ...]]:
        """Returns, by step, the modules and lines that the step comes from in a graph that is equal to the compiled
        one."""
        return {step: found for step, positions in self.steps.items() if (found := known.of(positions))}

    def words(self, known: ByPosition) -> Words:
        """Returns the words for a graph that is equal to the compiled one and has these names."""
        texts = {step: text for step, found in self.origins(known).items() if (text := origin_text(found))}
        names = {name: known.inputs[at] for at, name, _ in self.inputs if at < len(known.inputs)}
        known_as = {name: given for name, given in names.items() if given}
        outputs = {at: name for at, name in known.outputs.items() if at in self.outputs}
        return make_words(texts, self.computes, [(name, text) for _, name, text in self.inputs], known_as, outputs)

    def to_data(self) -> dict[str, Any]:
        """Returns the data that `from_data` reads."""
        first, table = self.first, {origin: None for origin in self.first.nodes}
        numbers = {origin: number for number, origin in enumerate(table)}
        return {
            "places": [astuple(place) for place in self.places],
            "steps": self.steps,
            "computes": self.computes,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "origins": [astuple(origin) for origin in table],
            "nodes": [numbers[origin] for origin in first.nodes],
            "known_inputs": first.inputs,
            "known_outputs": list(first.outputs.items()),
            "program": first.program,
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Named:
        """Returns what `to_data` made data of; an empty record for no data. Errors: LookupError, TypeError or
        ValueError for data of another form."""
        if not data:
            return cls()
        table = [Origin(*origin) for origin in data["origins"]]
        nodes = tuple(table[number] for number in data["nodes"])
        first = ByPosition(nodes, tuple(data["known_inputs"]), dict(data["known_outputs"]), data["program"])
        return cls(
            tuple(Place(*place) for place in data["places"]),
            {step: tuple(positions) for step, positions in data["steps"].items()},
            data["computes"],
            tuple((at, name, text) for at, name, text in data["inputs"]),
            tuple(data["outputs"]),
            first,
        )


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
