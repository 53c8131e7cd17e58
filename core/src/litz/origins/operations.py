"""Where operations and inputs come from in the user's program. Data beside a Program: nothing decides by it.

In: what tracing noted of each node of the graph. Out: an `Origin` for each, and texts for people: "layers.3.mlp.fc1
(model.py:41)". Loops and calls name the nodes that they were made of (`origins`); a `Provenance` says what those are.
Kernels' sources, cache keys, fusion and order never depend on it, so that the equal kernels of twelve layers stay one.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

MODULES, PLACES = 3, 2
"""Modules, and places in source files, that a text names before it says how many more there are."""


@dataclass(frozen=True)
class Origin:
    """The place where a node of the graph comes from.

    module: path of the innermost module that it was traced in, as `named_modules` has it: "layers.3.mlp.fc1"; ''
    outside of any. file, line: of the user's code, innermost; '' and 0 where that is not known. op: the op that was
    called there, before it was taken apart: "aten.addmm". backward: does the node belong to the gradient of that op?
    """

    module: str = ""
    file: str = ""
    line: int = 0
    op: str = ""
    backward: bool = False

    @property
    def place(self) -> str:
        """Returns the file and line, such as "model.py:41"; '' where the line is not known."""
        return f"{os.path.basename(self.file)}:{self.line}" if self.file else ""

    def __bool__(self) -> bool:
        return bool(self.module or self.file)

    def __str__(self) -> str:
        return origin_text([self])


@dataclass(frozen=True)
class Frame:
    """The code that dynamo traced a graph from, and why it traced that code.

    compile_id: dynamo's name of the compile: "1/2" is the third of the second function. function, place: the compiled
    function, and where in it the graph ends ("model.py:41"). broke: the reason of the graph break that ends the graph;
    '' where the function returns. recompiled: the guard that failed, so that the code was traced again; '' the first
    time.
    """

    compile_id: str = ""
    function: str = ""
    place: str = ""
    broke: str = ""
    recompiled: str = ""


@dataclass(frozen=True)
class Provenance:
    """nodes: the Origin of each node of the graph, by name. inputs, outputs: what the user calls them, by the name of
    an input and the position of an output; those that nobody knows a name of are not there. program: a digest of all
    names and lines of what dynamo captured; '' where nobody asked for it."""

    nodes: Mapping[str, Origin] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[int, str] = field(default_factory=dict)
    program: str = ""

    def of(self, nodes: Iterable[str]) -> tuple[Origin, ...]:
        """Returns the distinct origins of some nodes, in order; nodes of unknown origin are left out."""
        found = (self.nodes.get(name) for name in nodes)
        return tuple(dict.fromkeys(origin for origin in found if origin))

    def text(self, nodes: Iterable[str]) -> str:
        """Returns the module and place of nodes, such as "layers.3.mlp.fc1 (model.py:41)"; '' where nothing is known of
        the nodes."""
        return origin_text(self.of(nodes))


@dataclass(frozen=True)
class ByPosition:
    """A Provenance by positions in a graph as it was captured: equal graphs agree on those, if not on names.

    nodes: the Origin of each node. inputs: what the user calls each placeholder, or ''. outputs, program: as Provenance
    has them.
    """

    nodes: tuple[Origin, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: Mapping[int, str] = field(default_factory=dict)
    program: str = ""

    def of(self, positions: Iterable[int]) -> tuple[Origin, ...]:
        """Returns the distinct origins of the nodes at `positions`, in order; unknown origins are left out."""
        found = (self.nodes[at] for at in positions if at < len(self.nodes))
        return tuple(dict.fromkeys(origin for origin in found if origin))


def origin_text(origins: Sequence[Origin]) -> str:
    """Returns a line for what several nodes come from: modules, then places; "gradient of" these where most nodes
    belong to one, as a backward has parts of its forward, and a forward values for its backward."""
    modules = list(dict.fromkeys(origin.module for origin in origins if origin.module))
    places = places_text(origins)
    text = modules_text(modules)
    if places:
        text += f" ({places})" if text else places
    return f"gradient of {text}" if text and 2 * sum(origin.backward for origin in origins) > len(origins) else text


def modules_text(modules: Sequence[str]) -> str:
    """Returns modules' paths, their common part once, such as "layers.3: ln_1, attn.qkv and 2 more". A module that does
    work beside the work of its parts is called "itself". A bare number gets the word "module", such as "module 0"."""
    first = {path.partition(".")[0] for path in modules}
    noun = f"module{'s' * (len(first) > 1)} " if min(first, default="").isdecimal() else ""
    if len(modules) < 2:
        return noun + "".join(modules)
    paths = [path.split(".") for path in modules]
    columns = zip(*paths)  # as long as the shortest path
    shared = sum(1 for _ in itertools.takewhile(lambda names: len(set(names)) == 1, columns))
    own = [".".join(path[shared:]) or "itself" for path in paths]
    return noun + (".".join(paths[0][:shared]) + ": " if shared else "") + _few(own, MODULES)


def places_text(origins: Iterable[Origin]) -> str:
    """Returns the lines of each file together, such as "model.py:41, 43"."""
    lines: dict[str, list[int]] = {}
    for origin in origins:
        if origin.file:
            of_file = lines.setdefault(origin.file, [])
            if origin.line not in of_file:
                of_file.append(origin.line)
    files = [f"{os.path.basename(file)}:{_lines(found)}" for file, found in lines.items()]
    return _few(files, PLACES)


def _lines(found: Sequence[int]) -> str:
    """Returns line numbers as text: "41", "41, 43" or, for many, "41-57"."""
    numbers = sorted(found)
    return ", ".join(map(str, numbers)) if len(numbers) <= MODULES else f"{numbers[0]}-{numbers[-1]}"


def _few(names: Sequence[str], most: int) -> str:
    shown = names if len(names) <= most + 1 else names[:most]
    left = len(names) - len(shown)
    return ", ".join(shown) + (f" and {left} more" if left else "")
