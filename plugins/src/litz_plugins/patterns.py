"""Patterns of calls in an FX graph, for passes of the stages `traced`, `joint` and `graph`.

In: a `CallPattern`, and a node. Out: a `CallMatch` with the nodes and values that the pattern names, or None. A pattern
is a call of patterns, captures and plain values:

    inner = CallPattern(aten.mm.default, Capture("a"), Capture("b"), name="inner", alone=True)
    chain = CallPattern(aten.mm.default, inner, Capture("c"))
    found = chain.match(node)  # found["a"], found["inner"]; found.node is `node`
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_Bound = tuple[Mapping[str, Any], tuple[tuple[Any, bool], ...]]
"""What is named so far, and the calls so far, each with whether nobody else may read it."""


@dataclass(frozen=True)
class Capture:
    """Any one argument: a node, a number, a list. name: under which the match has it; '' keeps nothing. A name that is
    in a pattern twice is one and the same argument. when: a condition on the argument."""

    name: str = ""
    when: Callable[[Any], bool] | None = None


class CallPattern:
    """A call.

    targets: the function, or a tuple of functions of which one is called; of a method, its name. args: a pattern, a
    Capture or a value for each argument, in the order of the operator's schema; `...` as the last stands for any
    further arguments. kwargs: the same by name. Where the target has a schema, an argument counts alike however it is
    passed, and what the pattern does not name has its default. name: under which the match has the node. alone: nobody
    reads the call's result but calls of the match. swaps: the first two arguments match in either order. when: a
    condition on the node.
    """

    def __init__(
        self,
        targets: Any,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        name: str = "",
        alone: bool = False,
        swaps: bool = False,
        when: Callable[[Any], bool] | None = None,
    ) -> None:
        self.targets = targets if isinstance(targets, tuple) else (targets,)
        self.open = bool(args) and args[-1] is ...
        self.args = args[:-1] if self.open else args
        self.kwargs = dict(kwargs or {})
        self.name, self.alone, self.swaps, self.when = name, alone, swaps, when
        if swaps and len(self.args) < 2:
            raise ValueError("swaps=True is for a call of two arguments or more")

    def __repr__(self) -> str:
        texts = [*map(repr, self.args), *(f"{key}={value!r}" for key, value in self.kwargs.items())]
        return f"{' or '.join(map(str, self.targets))}({', '.join([*texts, *['...'] * self.open])})"

    def match(self, node: Any) -> CallMatch | None:
        """Returns what the pattern finds at a node; None if the node is something else. node: of an FX graph."""
        for named, calls in self._bound(node, ({}, ())):
            inside = {each for each, _ in calls}
            if all(user in inside for each, alone in calls if alone for user in each.users):
                return CallMatch(node, tuple(each for each, _ in calls), named)
        return None

    def _bound(self, node: Any, bound: _Bound) -> Iterator[_Bound]:
        """Each way in which a node is what the pattern says."""
        if getattr(node, "op", "") not in ("call_function", "call_method") or node.target not in self.targets:
            return
        if self.when is not None and not self.when(node):
            return
        pairs = self._pairs(node)
        if pairs is None:
            return
        named, calls = bound
        if named.get(self.name, node) is not node:
            return
        start = ({**named, **({self.name: node} if self.name else {})}, (*calls, (node, self.alone)))
        yield from _all(pairs, start)
        if self.swaps:
            (first, left), (second, right), *rest = pairs
            yield from _all([(first, right), (second, left), *rest], start)

    def _pairs(self, node: Any) -> list[tuple[Any, Any]] | None:
        """Each part of the pattern with the call's argument; None where the call has others."""
        given: dict[Any, Any] = {**dict(enumerate(node.args)), **node.kwargs}
        defaults: dict[Any, Any] = {}
        places: dict[str, Any] = {key: key for key in self.kwargs}
        for place, each in enumerate(getattr(getattr(node.target, "_schema", None), "arguments", ())):
            if each.name in given:
                given[place] = given.pop(each.name)
            if each.has_default_value():
                defaults[place] = each.default_value
            if each.name in places:
                places[each.name] = place
        wanted: dict[Any, Any] = {
            **dict(enumerate(self.args)),
            **{places[key]: value for key, value in self.kwargs.items()},
        }
        known = {**defaults, **given}
        if not wanted.keys() <= known.keys():
            return None
        if not self.open and any(
            key not in defaults or value != defaults[key] for key, value in given.items() if key not in wanted
        ):
            return None
        return [(part, known[key]) for key, part in wanted.items()]


@dataclass(frozen=True)
class CallMatch:
    """A place where a pattern was found. node: the outermost call. nodes: the calls that the pattern has patterns for,
    `node` first. named: nodes and arguments by the names of the pattern; `match[name]` is one of them."""

    node: Any
    nodes: tuple[Any, ...]
    named: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.named[name]


def _all(pairs: Sequence[tuple[Any, Any]], bound: _Bound) -> Iterator[_Bound]:
    if not pairs:
        yield bound
        return
    for more in _one(*pairs[0], bound):
        yield from _all(pairs[1:], more)


def _one(part: Any, value: Any, bound: _Bound) -> Iterator[_Bound]:
    if isinstance(part, CallPattern):
        yield from part._bound(value, bound)
    elif isinstance(part, Capture):
        named, calls = bound
        same = part.name not in named or _is_same(named[part.name], value)
        if same and (part.when is None or part.when(value)):
            yield ({**named, part.name: value} if part.name else named), calls
    elif isinstance(part, (list, tuple)):
        if isinstance(value, (list, tuple)) and len(part) == len(value):
            yield from _all(list(zip(part, value, strict=True)), bound)
    elif _is_same(part, value):
        yield bound


def _is_same(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, bool) == isinstance(b, bool) and bool(a == b))


__all__ = ["CallMatch", "CallPattern", "Capture"]
