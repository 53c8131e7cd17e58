"""What of a wrapper can be called as the user calls it.

`Named` is data that is kept with a compiled graph (`litz.codegen.wrapper.said.named_of` makes it): an equal graph, of
another layer or in another process, gets words of its own by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any

from .operations import ByPosition, Origin, origin_text
from .places import Place, Words
from .words import make_words

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
