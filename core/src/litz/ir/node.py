"""Node: a scalar expression as frozen, interned data.

A body is a directed acyclic graph of nodes `(op, dtype, args, attrs)`. Nodes are interned: two nodes with the same
parts are the same object, so equality is identity, a common subexpression is shared by being built, and a memo
keyed by a node is sound. The intern table holds its nodes weakly; like sympy's own cache it changes no result.

Ops with a meaning beyond the op table (`ir/ops.py`):

| op | attrs | args | value |
|---|---|---|---|
| `const` | (value,) | | a Python scalar as `dtype` |
| `index` | (expr,) | | an index expression as int64 |
| `load` | (buffer, index, masked) | indirect..., mask if masked | one element; 0 where the mask is False |
| `bounded` | (size, what) | (position,), mask if masked | the position; an error unless 0 <= position < size |
| `reduce` | (kind,) | values | over all reduction ranges of the loop (`ir/reductions.py`) |
| `reduce` | (kind, ranges) | values | over ranges of its own, whose variables only its values know |
| `scan` | (kind,) | (value,) | inclusive scan along the loop's only reduction range |

`index` in a load has one expression per dimension of the buffer, over loop variables, sizes, and the placeholders
arg0, arg1, ... that stand for the values of the load's indirect arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch

if TYPE_CHECKING:
    from .operation import Range


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True, repr=False)
class Node:
    """One scalar value. `litz.ir.build` makes nodes: it applies the type rule and interns. Never call the class."""

    op: str  # a row of the tables of ops
    dtype: torch.dtype  # of the value
    args: tuple[Node, ...]  # what the op takes
    attrs: tuple[Any, ...]  # what else the op needs, by its row

    def __reduce__(self) -> tuple[Callable[..., Node], tuple[Any, ...]]:
        return intern, (self.op, self.dtype, self.args, self.attrs)

    def __deepcopy__(self, memo: object) -> Node:
        return self

    def __repr__(self) -> str:
        inside = [str(attr) for attr in self.attrs] + [f"<{arg.op}>" for arg in self.args]
        return f"{self.op}({', '.join(inside)})"

    @property
    def buffer(self) -> str:
        """Returns the name of the buffer that a load reads."""
        assert self.op == "load"
        return str(self.attrs[0])

    @property
    def index(self) -> tuple[Any, ...]:
        """Returns the index of a load, an expression per dimension of its buffer."""
        assert self.op == "load"
        return tuple(self.attrs[1])

    @property
    def over(self) -> tuple[Range, ...]:
        """Returns the ranges that a reduction owns; () if it takes those of its loop, and for other nodes."""
        return self.attrs[1] if self.op == "reduce" and len(self.attrs) > 1 else ()

    @property
    def mask(self) -> Node | None:
        """Returns the condition under which a load reads; None if it always reads."""
        return self.args[-1] if self.op == "load" and self.attrs[2] else None

    @property
    def indirect(self) -> tuple[Node, ...]:
        """Returns the nodes that the placeholders of a load's index stand for."""
        if self.op != "load":
            return ()
        return self.args[:-1] if self.attrs[2] else self.args


_table: WeakValueDictionary[tuple[Any, ...], Node] = WeakValueDictionary()
_adding = Lock()
"""Held while a node is added: two threads must not both make a node of the same parts."""


def attr_key(attr: Any) -> Any:
    """Returns an attribute as a part of a key."""
    # 0.0 == -0.0, True == 1 and nan != nan: none of which may decide whether two constants are one.
    return (type(attr), repr(attr)) if isinstance(attr, (float, bool, complex)) else attr


def intern(op: str, dtype: torch.dtype, args: tuple[Node, ...], attrs: tuple[Any, ...]) -> Node:
    """Returns the one node that has these parts."""
    key = (op, dtype, tuple(map(id, args)), tuple(map(attr_key, attrs)))
    found = _table.get(key)
    if found is None:
        with _adding:
            found = _table.get(key)
            if found is None:
                found = _table[key] = Node(op, dtype, args, attrs)
    return found


def walk(*roots: Node, into: Callable[[Node], bool] | None = None) -> Iterator[Node]:
    """Yields every node that the roots need, each once, arguments before users. Deep graphs do not recurse. into: false
    for nodes to leave out, with what only they need."""
    done: set[Node] = set()
    stack = list(reversed(roots))
    while stack:
        node = stack[-1]
        if node in done or (into is not None and not into(node)):
            stack.pop()
            continue
        waiting = [arg for arg in node.args if arg not in done and (into is None or into(arg))]
        if waiting:
            waiting.reverse()
            stack.extend(waiting)
            continue
        stack.pop()
        done.add(node)
        yield node


def uncast(node: Node) -> Node:
    """Returns the node without conversions from one floating-point type to another."""
    while node.op == "cast" and node.dtype.is_floating_point and node.args[0].dtype.is_floating_point:
        node = node.args[0]
    return node


def is_number(node: Node, number: float) -> bool:
    """Returns whether the node, without conversions between floating-point types, is this constant."""
    node = uncast(node)
    return node.op == "const" and bool(node.attrs[0] == number)


def rewrite(roots: tuple[Node, ...], change: Callable[[Node, tuple[Node, ...]], Node]) -> tuple[Node, ...]:
    """Returns the roots with every node replaced by `change(node, new_args)`, from the leaves up."""
    done: dict[Node, Node] = {}
    for node in walk(*roots):
        if node not in done:
            done[node] = change(node, tuple(done[arg] for arg in node.args))
    return tuple(done[root] for root in roots)


def replaced(roots: tuple[Node, ...], old: Node, new: Node) -> tuple[Node, ...]:
    """Returns the roots with one node replaced by another."""
    return rewrite(roots, lambda node, args: new if node is old else with_args(node, args))


def with_args(node: Node, args: tuple[Node, ...]) -> Node:
    """Returns the same operation on other arguments."""
    if all(new is old for new, old in zip(args, node.args, strict=True)):
        return node
    return intern(node.op, node.dtype, args, node.attrs)
