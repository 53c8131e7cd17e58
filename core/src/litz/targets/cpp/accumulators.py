"""Reductions of a stage as C++: the variables that a reduction holds, and the text that changes them.

In: the reduce nodes of one stage. Out: `Accumulator`s, which give text by their form (`forms.py`). One may serve
several nodes (the mean and the squared deviations of one value). Its state is a few variables, or arrays of them with
an element per lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from litz.codegen.dialect import family
from litz.ir.node import Node
from litz.ir.reductions import REDUCTIONS

from .dialect import VALUES
from .forms import FORMS, Form, State, derived


@dataclass(frozen=True)
class Accumulator:
    """`nodes` are the reductions that it computes, all of the same arguments. `states` are the form's, with names.
    part: what lanes hold of a few values; None if that is the same."""

    nodes: tuple[Node, ...]
    form: Form
    states: tuple[State, ...]
    part: Accumulator | None = None

    @property
    def type(self) -> str:
        """Returns the C++ type of the values that are reduced."""
        return VALUES[self.nodes[0].args[0].dtype]

    def widened(self) -> Accumulator:
        """Returns the accumulator with sums in double, for a walk element by element: that has no partial sums to keep
        errors small, and double costs it nothing."""
        if not self.form.widens:
            return self
        states = (replace(state, type="double") if state.type == "float" else state for state in self.states)
        return replace(self, states=tuple(states))

    def of_parts(self) -> Accumulator:
        """Returns the accumulator that partial results are merged into: sums in double, as a row of ten million values
        has thousands of parts, and one more rounding for each."""
        return self if self.form.sequential else self.widened()

    def lines(self, templates: Sequence[str], refs: Sequence[str], **texts: str) -> list[str]:
        """Returns templates of the form, filled in with the accumulator's variables. texts: other names in the
        templates, and their texts."""
        names = {f"n{number}": state.name for number, state in enumerate(self.states)}
        return [template.format(*refs, **names, **texts) for template in templates]

    def clauses(self, refs: Sequence[str]) -> list[str]:
        """Returns the clauses `OPERATOR : VARIABLE` for `omp simd reduction(...)`; none for states that OpenMP cannot
        merge."""
        return [f"{state.clause} : {ref}" for state, ref in zip(self.states, refs, strict=True) if state.clause]

    def update(self, refs: Sequence[str], values: Sequence[str], position: str) -> list[str]:
        """Returns the lines that add one element. position: the element's row-major position in the reduction
        ranges."""
        wide = self.form.sequential and self.form.widens and self.states[0].type != self.type
        given = {f"v{n}": f"({self.states[n].type}){value}" if wide else value for n, value in enumerate(values)}
        return self.lines(self.form.update, refs, at=position, **given)

    def merge(self, refs: Sequence[str], parts: Sequence[str]) -> list[str]:
        """Returns the lines that take a partial state into the whole. refs: variables of the whole. parts: texts of the
        partial state, in the same order."""
        return self.lines(self.form.merge, refs, **_numbered(parts))

    def joint(self, refs: Sequence[str], parts: Sequence[str]) -> list[str]:
        """Returns the lines that stand before the merging of lanes; names as of `merge`."""
        return self.lines(self.form.joint, refs, **_numbered(parts))

    def result(self, node: Node, refs: Sequence[str]) -> str:
        """Returns the text of the value of one of the accumulator's nodes."""
        text = self.form.results.get(node.attrs[0], "{0}").format(*refs)
        wide = self.states[0].type != self.form.states[0].type
        return f"({VALUES[node.dtype]}){text}" if wide else text


def _numbered(parts: Sequence[str]) -> dict[str, str]:
    return {f"p{number}": part for number, part in enumerate(parts)}


def states_of(accumulators: Sequence[Accumulator]) -> list[State]:
    """Returns the states of all accumulators, in order."""
    return [state for accumulator in accumulators for state in accumulator.states]


def make_accumulators(reduces: Sequence[Node], name: Callable[[str], str]) -> list[Accumulator]:
    """Returns the accumulators of a stage, one for all results of a state. name: makes an unused name of a stem."""
    groups: dict[tuple[str, tuple[Node, ...]], list[Node]] = {}
    for node in reduces:
        groups.setdefault((family(node.attrs[0], node.args[0].dtype), node.args), []).append(node)
    found = []
    for (row, args), nodes in groups.items():
        dtype = args[0].dtype
        form = FORMS[row](row, dtype) if row in FORMS else derived(REDUCTIONS[nodes[0].attrs[0]], dtype)
        found.append(_named(tuple(nodes), form, name))
    return found


def _named(nodes: tuple[Node, ...], form: Form, name: Callable[[str], str]) -> Accumulator:
    part = None if form.part is None else _named(nodes, form.part, name)
    return Accumulator(nodes, form, tuple(replace(state, name=name(state.name)) for state in form.states), part)


def of_lanes(accumulators: Sequence[Accumulator]) -> list[Accumulator]:
    """Returns what lanes hold of a few values, for each accumulator."""
    return [accumulator.part or accumulator for accumulator in accumulators]
