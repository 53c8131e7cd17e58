"""Reductions as C++: what a reduction holds while it runs, how a value enters it, how two of them join.

In: the reduce nodes of one stage. Out: `Accumulator`s, which give text. One may serve several nodes (the mean and the
squared deviations of one value). Its state is a few variables, or arrays of them with an element per lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from litz.ir.node import Node

from .text import literal, value_type

EXTREMES = {"max": "greatest", "min": "least"}
"""The reductions of lanes for floats: the prelude declares those that begin at infinity with every compiler."""


def extreme(kind: str, dtype: torch.dtype) -> str:
    """The value that any other replaces: the least one for max, the greatest one for min."""
    least = kind in ("max", "argmax")
    if dtype.is_floating_point:
        return literal(float("-inf") if least else float("inf"), dtype)
    if dtype == torch.bool:
        return "false" if least else "true"
    info = torch.iinfo(dtype)
    return literal(info.min if least else info.max, dtype)


@dataclass(frozen=True)
class State:
    """A variable of an accumulator. `shared`: the same for every lane, so never an array."""

    name: str
    type: str
    start: str
    clause: str = ""
    shared: bool = False


@dataclass(frozen=True)
class Accumulator:
    """`nodes` are the reductions that it computes, all of the same arguments. `kind` is the family of reductions."""

    kind: str
    nodes: tuple[Node, ...]
    states: tuple[State, ...]

    @property
    def dtype(self) -> torch.dtype:
        return self.nodes[0].args[0].dtype

    @property
    def type(self) -> str:
        return value_type(self.dtype)

    @property
    def block(self) -> bool:
        """In a row, does it take its values a block at a time rather than one by one?"""
        return self.kind in ("welford", "argmax", "argmin")

    @property
    def sequential(self) -> bool:
        """In a row, do its steps depend on each other in a way that lanes cannot share?"""
        return self.kind == "combine"

    def widened(self) -> Accumulator:
        """The same with sums in double: for a walk element by element, which has no partial sums to keep errors small
        and where double costs nothing."""
        if self.kind not in ("sum", "prod", "combine"):
            return self
        states = (replace(state, type="double") if state.type == "float" else state for state in self.states)
        return replace(self, states=tuple(states))

    def clauses(self, refs: Sequence[str]) -> list[str]:
        """For `omp simd reduction(...)`."""
        return [f"{state.clause} : {ref}" for state, ref in zip(self.states, refs, strict=True) if state.clause]

    def each_step(self, refs: Sequence[str]) -> list[str]:
        """What to do once per element, before the lanes."""
        if self.kind == "welford":
            weight = refs[2]
            return [f"{weight} += 1;", f"const {self.type} {weight}_share = 1 / {weight};"]
        return []

    def update(self, refs: Sequence[str], values: Sequence[str], position: str) -> list[str]:
        """One element. `position` is the row-major position in the reduction ranges."""
        value = values[0]
        if self.kind in ("sum", "prod"):
            sign = "+" if self.kind == "sum" else "*"
            if self.dtype.is_floating_point:
                return [f"{refs[0]} {sign}= {value};"]
            return [f"{refs[0]} = ({self.type})({refs[0]} {sign} {value});"]
        if self.kind in ("any", "all"):
            condition = value if self.dtype == torch.bool else f"({value} != 0)"
            return [f"{refs[0]} {'|' if self.kind == 'any' else '&'}= (int){condition};"]
        if self.kind in ("max", "min"):
            sign = ">" if self.kind == "max" else "<"
            lines = [f"{refs[0]} = {value} {sign} {refs[0]} ? {value} : {refs[0]};"]
            return lines + ([f"{refs[1]} |= {value} != {value};"] if len(refs) > 1 else [])
        if self.kind in ("argmax", "argmin"):
            better = f"{self.states[0].name}_better"
            return [
                f"const bool {better} = beats_{self.kind[3:]}<{self.states[0].type}>({value}, {refs[0]});",
                f"{refs[0]} = {better} ? {value} : {refs[0]};",
                f"{refs[1]} = {better} ? (i64)({position}) : {refs[1]};",
            ]
        if self.kind == "welford":
            mean, m2, weight = refs
            delta = f"{self.states[0].name}_delta"
            return [
                f"const {self.type} {delta} = {value} - {mean};",
                f"{mean} += {delta} * {weight}_share;",
                f"{m2} += {delta} * ({value} - {mean});",
            ]
        type_ = self.states[0].type
        given = values if type_ == self.type else [f"({type_}){value}" for value in values]
        return [f"welford_merge({', '.join(refs)}, {', '.join(given)});"]

    def merge(self, refs: Sequence[str], parts: Sequence[str]) -> list[str]:
        """Take a partial result into the whole."""
        if self.kind in ("sum", "prod"):
            return [f"{refs[0]} {'+' if self.kind == 'sum' else '*'}= {parts[0]};"]
        if self.kind in ("any", "all"):
            return [f"{refs[0]} {'|' if self.kind == 'any' else '&'}= {parts[0]};"]
        if self.kind in ("max", "min"):
            sign = ">" if self.kind == "max" else "<"
            lines = [f"{refs[0]} = {parts[0]} {sign} {refs[0]} ? {parts[0]} : {refs[0]};"]
            return lines + ([f"{refs[1]} |= {parts[1]};"] if len(refs) > 1 else [])
        if self.kind in ("argmax", "argmin"):
            take = f"beats_{self.kind[3:]}({parts[0]}, {refs[0]})"
            return [f"if ({take}) {{ {refs[0]} = {parts[0]}; {refs[1]} = {parts[1]}; }}"]
        return [f"welford_merge({', '.join(refs)}, {', '.join(parts)});"]

    def finish(self, refs: Sequence[str]) -> list[str]:
        """Once every element is in."""
        if self.kind in ("max", "min") and len(refs) > 1:
            return [f"{refs[0]} = {refs[1]} ? {literal(float('nan'), self.dtype)} : {refs[0]};"]
        return []

    def take_block(self, refs: Sequence[str], buffer: str, count: str, start: str) -> str:
        """Take in `count` values of `buffer`, the first of which is at position `start`."""
        if self.kind == "welford":
            return f"welford_block({buffer}, (int)({count}), {', '.join(refs)});"
        return f"{self.kind}_block({buffer}, (int)({count}), (i64)({start}), {', '.join(refs)});"

    def result(self, node: Node, refs: Sequence[str]) -> str:
        """The value of one of the nodes."""
        kind = node.attrs[0]
        if kind in ("argmax", "argmin"):
            return refs[1]
        if kind.endswith("_m2"):
            return refs[1]
        return f"({refs[0]} != 0)" if self.kind in ("any", "all") else refs[0]


def _family(node: Node) -> str:
    kind = str(node.attrs[0])
    if kind.startswith("welford_combine"):
        return "combine"
    if kind.startswith("welford"):
        return "welford"
    if node.args[0].dtype == torch.bool:
        return {"sum": "any", "max": "any", "prod": "all", "min": "all"}.get(kind, kind)
    return kind


def _states(kind: str, dtype: torch.dtype, name: Callable[[str], str]) -> tuple[State, ...]:
    type_ = value_type(dtype)
    if kind in ("sum", "prod"):
        return (State(name("sum" if kind == "sum" else "prod"), type_, "0" if kind == "sum" else "1",
                      "+" if kind == "sum" else "*"),)  # fmt: skip
    if kind in ("any", "all"):
        return (State(name(kind), "int", "0" if kind == "any" else "1", "|" if kind == "any" else "&"),)
    if kind in ("max", "min"):
        clause = EXTREMES[kind] if dtype.is_floating_point else kind
        value = State(name(kind), type_, extreme(kind, dtype), clause)
        # A flag for NaN keeps the comparison itself a single instruction; it is as wide as the value's lanes.
        flag = State(name("nan"), "i64" if dtype == torch.float64 else "int", "0", "|")
        return (value, flag) if dtype.is_floating_point else (value,)
    if kind in ("argmax", "argmin"):
        return State(name("best"), type_, extreme(kind, dtype)), State(name("at"), "i64", "0")
    return (
        State(name("mean"), type_, "0"),
        State(name("m2"), type_, "0"),
        State(name("weight"), type_, "0", shared=kind == "welford"),
    )


def make_accumulators(reduces: Sequence[Node], name: Callable[[str], str]) -> list[Accumulator]:
    """The accumulators of a stage; `name(stem)` makes names."""
    groups: dict[tuple[str, tuple[Node, ...]], list[Node]] = {}
    for node in reduces:
        groups.setdefault((_family(node), node.args), []).append(node)
    return [
        Accumulator(kind, tuple(nodes), _states(kind, args[0].dtype, name)) for (kind, args), nodes in groups.items()
    ]
