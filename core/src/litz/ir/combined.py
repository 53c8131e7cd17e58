"""Scans by a function of two states that the user wrote (`torch.associative_scan`), as rows of reductions.

The kind of such a `scan` node is a text that says the function: `combine 1 f32 f32; mul s0 o0; mul s1 o0; add n1 o1;
n0 n2` has two parts of float32, is the scan's part 1, and makes of the states s and o (later) the parts n0 and n2, n
being the nodes of the text. So equal functions are one kind, and a kind prints and is read back as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache, partial
from operator import getitem

import torch

from .dtypes import STORAGE, short
from .node import Node, intern, rewrite, walk, with_args
from .reductions import REDUCTIONS, SCANS, Reduction, Result, State, evaluate
from .scalars import call, cast, const

_WORD = "combine"


def leaf(side: str, number: int, dtype: torch.dtype) -> Node:
    """Returns the node that stands for a part of a state. side: "s" of the earlier one, "o" of the later one."""
    return intern("given", dtype, (), (f"{side}{number}",))


def combined_kinds(merge: State, dtypes: Sequence[torch.dtype]) -> tuple[str, ...]:
    """Returns the kinds of the scans by a function, one for each part. merge: what the function makes of `leaf`s, of
    ops, casts and constants. dtypes: of the parts."""
    names: dict[Node, str] = {}
    lines = list[str]()
    for node in walk(*merge):
        if node.op == "given":
            names[node] = node.attrs[0]
        elif node.op == "const":
            names[node] = f"{node.attrs[0]}:{short(node.dtype)}"
        else:
            op = f"cast:{short(node.dtype)}" if node.op == "cast" else node.op
            names[node] = f"n{len(lines)}"
            lines.append(" ".join([op, *map(names.__getitem__, node.args)]))
    text = "; ".join([" ".join(map(short, dtypes)), *lines, " ".join(map(names.__getitem__, merge))])
    return tuple(f"{_WORD} {number} {text}" for number in range(len(dtypes)))


def scan_row(kind: str) -> Reduction | None:
    """Returns the row of a kind of scan; None if no scan is of that kind."""
    if not kind.startswith(f"{_WORD} "):
        return REDUCTIONS[kind] if kind in SCANS else None
    return _row(kind.split(" ", 2)[2])


def together(one: Node, other: Node) -> bool:
    """Returns whether two scans are parts of one."""
    return one.args == other.args and scan_row(one.attrs[0]) is scan_row(other.attrs[0])


@cache
def _row(text: str) -> Reduction:
    named = {short(dtype): dtype for dtype in STORAGE}
    head, *lines, last = text.split("; ")
    dtypes = [named[word] for word in head.split()]
    known = {f"{side}{number}": leaf(side, number, dtype) for side in "so" for number, dtype in enumerate(dtypes)}

    def node_of(word: str) -> Node:
        value, colon, dtype = word.partition(":")
        if not colon:
            return known[word]
        number = value == "True" if named[dtype] == torch.bool else int(value) if value.lstrip("-").isdigit() else None
        return const(float(value) if number is None else number, named[dtype])

    for number, line in enumerate(lines):
        op, *args = line.split()
        name, _, dtype = op.partition(":")
        given = tuple(map(node_of, args))
        known[f"n{number}"] = cast(given[0], named[dtype]) if name == "cast" else call(name, *given)
    made = tuple(map(node_of, last.split()))

    def merge(a: State, b: State) -> State:
        both = dict(zip([leaf(side, n, each) for side in "so" for n, each in enumerate(dtypes)], (*a, *b)))
        return rewrite(made, lambda node, args: both.get(node) or with_args(node, args))

    def scanned(part: int, *values: torch.Tensor) -> torch.Tensor:
        ours = [known[f"s{number}"] for number in range(len(dtypes))]
        state, found = [value[..., 0] for value in values], list[torch.Tensor]()
        for number in range(values[0].shape[-1]):
            if number:
                later = {known[f"o{n}"]: value[..., number] for n, value in enumerate(values)}
                state = evaluate(made, {**dict(zip(ours, state, strict=True)), **later})
            found.append(state[part])
        return torch.stack(found, -1) if found else values[part]

    def result(part: int) -> Result:
        def none(*values: torch.Tensor) -> torch.Tensor:
            raise NotImplementedError("a function of the user's has no state of no values, so nothing reduces by it")

        return Result(lambda state: getitem(state, part), none, partial(scanned, part))

    return Reduction(
        f"{_WORD}_{hashlib.sha256(text.encode()).hexdigest()[:10]}",
        {f"{_WORD} {part} {text}": result(part) for part in range(len(dtypes))},
        identity=lambda dtype: tuple(const(0, each) for each in dtypes),
        merge=merge,
        lift=lambda values, position: values,
        arity=len(dtypes),
        parts=tuple(f"part{number}" for number in range(len(dtypes))),
        takes_states=True,
        begins_with_first=True,
    )
