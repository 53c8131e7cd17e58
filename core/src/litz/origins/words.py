"""Words in a wrapper: in, its source and what is known of its steps (`Words`); out, the same code with comments, or
with ranges.

`annotated` has a comment before each step that comes from elsewhere than the one before it, and the user's names of
inputs and outputs. `ranged` has each step in a range of its own, for calls under a profiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from .places import INPUTS, OUTPUTS, Place, Words, WrapperSource

RANGE = "_range"
"""The global of a wrapper with ranges that makes one."""


def make_words(
    origins: Mapping[str, str],
    computed: Mapping[str, str],
    inputs: Iterable[tuple[str, str]],
    known_as: Mapping[str, str],
    outputs: Mapping[int, str],
) -> Words:
    """Returns the Words of a wrapper. origins: what each step comes from. computed: what each step does. inputs: the
    name, and the type and sizes as text, of each. known_as: what the user calls inputs. outputs: what the user calls
    those that are tensors, by position."""
    given = {step: f"{step} {origins.get(step, '')}".rstrip() for step in computed}
    ranges = {step: f"{given[step]}: {does}" if does else given[step] for step, does in computed.items()}
    named = ((name, known_as.get(name, ""), text) for name, text in inputs)
    comments = tuple(f"# {name}: {known}, {text}" for name, known, text in named if known and known != name)
    return Words(origins, ranges, comments, tuple(f"# output {at}: {name}" for at, name in outputs.items()), known_as)


def annotated(wrapper: WrapperSource, words: Words) -> WrapperSource:
    """Returns the wrapper with comments, and with the given words. Its places are those of the new text."""
    ends = {INPUTS: words.inputs, OUTPUTS: words.outputs}
    said = ""

    def edit(place: Place, lines: Sequence[str]) -> Edited:
        nonlocal said
        if place.step in ends:
            said, comments = "", ends[place.step]
        else:
            text = words.origins.get(place.step, "")
            comments = (f"# {text}",) if text and text != said else ()
            said = text or said
        return [_indent(lines[0]) + comment for comment in comments], lines

    return replace(_edited(wrapper, edit), words=words)


def ranged(wrapper: WrapperSource) -> WrapperSource:
    """Returns a wrapper that has its words with each named step in a range; steps without a name are in no range. Its
    places are those of the new text."""

    def edit(place: Place, lines: Sequence[str]) -> Edited:
        name = wrapper.words.ranges.get(place.step)
        if name is None:
            return (), lines
        return [f"{_indent(lines[0])}with {RANGE}({name!r}):"], ["    " + line for line in lines]

    return _edited(wrapper, edit)


Edited = tuple[Sequence[str], Sequence[str]]
"""Lines that come before a place, and those of the place."""


def _edited(wrapper: WrapperSource, edit: Callable[[Place, Sequence[str]], Edited]) -> WrapperSource:
    """The wrapper with the lines of each place that has any as `edit` gives them back: as many as there were."""
    lines, out = wrapper.text.split("\n"), list[str]()
    places: list[Place] = []
    done = 0
    for place in wrapper.places:
        if place.first <= place.last:
            before, own = edit(place, lines[place.first - 1 : place.last])
            out += [*lines[done : place.first - 1], *before]
            places.append(place.moved(len(out) - (place.first - 1)))
            out += own
            done = place.last
    return replace(wrapper, text="\n".join(out + lines[done:]), places=tuple(places))


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
