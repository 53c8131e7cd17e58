"""Patterns: what a pass looks for in a Program, as data. In: a pattern, and a buffer, an operation or a node. Out: what
was found, or the reason why nothing was.

A `Value` says what a node computes. A `Pattern` says what a buffer is, what the Loop that alone makes the buffer is,
and what that Loop's only store stores. Both print as text: `temporary read_once <- pointwise plain add(load left,
load)`. What a pattern can ask is a word, and a word is a row of `BUFFERS`, `LOOPS` or `NODES`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .dtypes import HALF
from .index import ONE
from .node import Node, uncast
from .operation import Loop, Operation, Store
from .program import Program

BUFFERS: Mapping[str, Callable[[str, Program], bool]] = {
    "temporary": lambda name, program: program.buffers[name].kind == "temporary",
    "unshared": lambda name, program: name not in program.roots,
    "unreturned": lambda name, program: name not in program.output_buffers,
    "read_once": lambda name, program: len(program.readers.get(name, ())) == 1,
}
"""The words for a buffer. unshared: no view of the buffer, or of which the buffer is one, is in the program."""

LOOPS: Mapping[str, Callable[[Loop], bool]] = {
    "pointwise": lambda loop: not loop.is_reduction,
    "plain": lambda loop: loop.stores[0].is_plain,
    "direct": lambda loop: not any(node.args for node in loop.loads),
    "in_order": lambda loop: loop.stores[0].index == tuple(r.var for r in loop.ranges),
}
"""The words for a Loop with one store. plain: the store is (`Store.is_plain`). direct: all loads are plain. in_order:
the Loop stores at its own variables."""

NODES: Mapping[str, Callable[[Node], bool]] = {
    "plain": lambda node: node.op == "load" and not node.args,
    "real": lambda node: node.dtype.is_floating_point,
    "half": lambda node: node.dtype in HALF,
    "uncast": lambda node: True,
}
"""The words for a node. plain: a load without mask, at a position that no data decides. uncast: the node is what lies
behind conversions between floating-point types."""

COMMUTING = frozenset({"add", "mul", "eq"})
"""Ops of two arguments that a Value's arguments match in either order."""


@dataclass(frozen=True)
class Value:
    """A node's pattern. op: '' for any. args: what the arguments are; () for any. name: under which the node is found.
    words: of `NODES`. attr: the first attribute: a number, a buffer's name, a kind of reduction; None for any."""

    op: str = ""
    args: tuple[Value, ...] = ()
    name: str = ""
    words: str = ""
    attr: Any = None

    def __str__(self) -> str:
        text = " ".join(filter(None, (self.words, self.op or "any", self.name)))
        inside = ", ".join(map(str, (*(() if self.attr is None else (self.attr,)), *self.args)))
        return f"{text}({inside})" if inside else text


@dataclass(frozen=True)
class Pattern:
    """A buffer that a Loop alone makes, by its only store. buffer, loop: words of `BUFFERS` and `LOOPS`. value: what
    the Loop stores."""

    buffer: str = ""
    loop: str = ""
    value: Value = field(default_factory=Value)

    def __str__(self) -> str:
        return " ".join(filter(None, (self.buffer, "<-", self.loop, str(self.value))))


STORED = Pattern(loop="pointwise plain")
"""A Loop that stores a value at each of its points."""
COPY = replace(STORED, value=Value(words="plain", name="source"))


@dataclass(frozen=True)
class Match:
    """The place where a Pattern was found: the Loop, its store, and the nodes by the names of the pattern's Values."""

    loop: Loop  # that was found
    store: Store  # the loop's only one
    nodes: Mapping[str, Node]  # by the names of the pattern's Values

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]


def match(
    pattern: Pattern, subject: str | Operation, program: Program, readers: Collection[str] | None = None
) -> Match | str:
    """Returns what a pattern finds, or why it finds nothing. subject: a buffer's name, or an operation. Of an operation
    the pattern's buffer is the one that it stores to, which others may write too. readers: names of the only operations
    that may read the buffer; None for any."""
    loop = program.maker(subject) if isinstance(subject, str) else subject
    if not isinstance(loop, Loop) or len(loop.stores) != 1:
        return f"{subject if isinstance(subject, str) else subject.name}: not of one loop with one store"
    why = _unlike(pattern.buffer, loop.stores[0].buffer, program, readers)
    return f"{loop.stores[0].buffer}: not {', not '.join(why)}" if why else match_loop(pattern, loop)


def match_loop(pattern: Pattern, loop: Loop) -> Match | str:
    """Returns what a pattern finds in a Loop, or why it finds nothing, whatever the Loop's buffer is."""
    if len(loop.stores) != 1 or (why := [word for word in pattern.loop.split() if not LOOPS[word](loop)]):
        return f"{loop.name}: not {', not '.join(why) if len(loop.stores) == 1 else 'of one store'}"
    nodes = bind(pattern.value, loop.stores[0].value)
    return f"{loop.name}: stores no {pattern.value}" if nodes is None else Match(loop, loop.stores[0], nodes)


def find(
    pattern: Pattern, subject: str | Operation, program: Program, readers: Collection[str] | None = None
) -> Match | None:
    """Returns what a pattern finds, or None (see `match`)."""
    found = match(pattern, subject, program, readers)
    return None if isinstance(found, str) else found


def fits(words: str, name: str, program: Program, readers: Collection[str] | None = None) -> bool:
    """Returns whether a buffer is what these words of `BUFFERS` say, and read by `readers` alone (see `match`)."""
    return not _unlike(words, name, program, readers)


def _unlike(words: str, name: str, program: Program, readers: Collection[str] | None) -> list[str]:
    """Returns the words that do not hold of a buffer."""
    others = (
        [] if readers is None else [each.name for each in program.readers.get(name, ()) if each.name not in readers]
    )
    return [word for word in words.split() if not BUFFERS[word](name, program)] + ["read here alone"] * bool(others)


def bind(value: Value, node: Node) -> Mapping[str, Node] | None:
    """Returns the nodes that a Value names, by their names; None where the node is something else."""
    words = value.words.split()
    node = uncast(node) if "uncast" in words else node
    if value.op not in ("", node.op) or not all(NODES[word](node) for word in words):
        return None
    if value.attr is not None and node.attrs[:1] != (value.attr,):
        return None
    own = {value.name: node} if value.name else {}
    if not value.args:
        return own
    for args in (node.args, node.args[::-1])[: 1 + (node.op in COMMUTING)]:
        found = [bind(*pair) for pair in zip(value.args, args)]
        if len(args) == len(found) == len(value.args) and None not in found:
            named = [*own.items(), *(item for one in found for item in (one or {}).items())]
            if all(dict(named)[name] is each for name, each in named):  # a name that occurs twice is one node
                return dict(named)
    return None


def copy_source(operation: Operation, target: str, program: Program) -> str | None:
    """Returns the buffer that a loop copies all of `target` from, element for element; None for other operations."""
    found = find(COPY, operation, program)
    if found is None or found.store.buffer != target or found["source"].index != found.store.index:
        return None
    value, store, sizes = found["source"], found.store, program.buffers[target].layout.size
    if program.buffers[value.buffer].layout.size != sizes:
        return None
    walked = [index for index, size in zip(store.index, sizes, strict=True) if size != ONE]
    extents = [size for size in sizes if size != ONE]
    if len(set(walked)) != len(walked) or [found.loop.extents.get(index) for index in walked] != extents:
        return None
    return value.buffer
