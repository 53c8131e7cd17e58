"""What a plugin's pass or partitioner may not change in front of a Graph. In: what it was given, and what it returned.
Out: that, or ValueError with what AOTAutograd or the user would stumble over.

Inputs stay, in order; so do the type, device and sizes of results, and each new node of a joint graph has a fake result
that is what its op gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from litz.capture import torch_api
from litz.capture.joint.nouns import FXNoun, Halves, JointGraph, TracedGraph
from litz.capture.passes.check_pass import new_nodes
from litz.capture.promised import differs

Modules = tuple[torch.fx.GraphModule, torch.fx.GraphModule]


def check_joint(plugin: str, before: Any, after: Any) -> Any:
    """Returns `after`, the noun that a plugin's pass of a stage before "graph" made of `before`. Errors: ValueError."""
    if isinstance(after, Halves):
        check_modules(before, (after.forward, after.backward))
        for old, new in zip(before.parts, after.parts, strict=True):
            _raise(new_nodes(old, new))
        return after
    after.module.graph.lint()  # order and names of nodes
    _raise(_ends(before, after))
    if isinstance(after, TracedGraph):
        lost = _valueless(after) - _valueless(before)  # dynamo's own `_enter_autocast` has none
        _raise(f"the node {name} has no fake result in meta['example_value']" for name in sorted(lost))
    else:
        _raise(new_nodes(before, after))
    return after


def check_modules(joint: JointGraph | Halves, made: Any) -> Modules:
    """Returns the forward and the backward that a partitioner made of a joint graph, or a pass of other halves. Errors:
    TypeError, ValueError."""
    if not isinstance(made, tuple) or len(made) != 2 or not all(isinstance(m, torch.fx.GraphModule) for m in made):
        raise TypeError(
            f"returned {type(made).__name__}; a tuple of two GraphModules is expected: forward and backward"
        )
    halves = Halves(joint.name, *made, joint.forward_outputs)
    for module in made:
        module.graph.lint()
    _raise(_halves(joint, halves))
    return halves.forward, halves.backward


def _raise(complaints: Iterator[str]) -> None:
    found = list(complaints)
    if found:
        raise ValueError("it returned a graph in which " + "; ".join(found[:3]))


def _ends(before: FXNoun, after: FXNoun) -> Iterator[str]:
    old, new = ([node.name for node in graph.placeholders] for graph in (before, after))
    if old != new:
        yield f"the inputs are {', '.join(new)}, not {', '.join(old)}"
    yield from _results(before, before.outputs, after.outputs, "output")
    if isinstance(before, JointGraph) and isinstance(after, JointGraph):
        yield from _fields(before, after)


def _fields(before: JointGraph, after: JointGraph) -> Iterator[str]:
    for name in ("name", "forward_outputs", "inputs", "more"):
        if getattr(before, name) is not getattr(after, name) and getattr(before, name) != getattr(after, name):
            yield f"{name} is another"


def _results(graph: FXNoun, old: Sequence[Any], new: Sequence[Any], word: str) -> Iterator[str]:
    if len(old) != len(new):
        yield f"there are {len(new)} {word}s, not {len(old)}"
        return
    for at, (its, mine) in enumerate(zip(old, new, strict=True)):
        was, now = (item.meta.get(graph.VALUE) if isinstance(item, torch.fx.Node) else item for item in (its, mine))
        strides = isinstance(graph, JointGraph) and at < graph.forward_outputs
        if problem := differs(now, was, strides=strides):
            yield f"{word} {at} is {problem}"


def _valueless(graph: FXNoun) -> set[str]:
    calls = (node for node in graph.nodes if node.op in ("call_function", "call_method"))
    return {node.name for node in calls if graph.VALUE not in node.meta and node.users}


def _halves(joint: JointGraph | Halves, halves: Halves) -> Iterator[str]:
    forward, backward = halves.parts
    count = halves.forward_outputs
    whole = joint.parts[0] if isinstance(joint, Halves) else joint
    names = {node.name for node in whole.placeholders}
    for node in forward.placeholders:
        if node.name not in names and not node.name.startswith("fwd_rng_state"):  # a generator, which torch hands over
            yield f"the forward takes {node.name}, which is no input of the joint graph"
    yield from _results(whole, whole.outputs[:count], forward.outputs[:count], "result")
    gradients = joint.parts[1].outputs if isinstance(joint, Halves) else joint.outputs[count:]
    yield from _results(backward, gradients, backward.outputs, "gradient")
    saved = {item.name for item in forward.outputs[count:] if isinstance(item, torch.fx.Node)}
    taken = {node.name for node in backward.placeholders if not torch_api.is_tangent(node)}
    given = names if isinstance(joint, JointGraph) else {node.name for node in joint.parts[1].placeholders}
    states = {name for name in taken - saved if "rng_state" in name}  # of generators, which torch names anew
    for name in sorted(taken - saved - states - (given - {node.name for node in forward.placeholders})):
        yield f"the backward takes {name}, which the forward does not save"
    for name in sorted(saved - taken)[len(states) :]:
        yield f"the forward saves {name}, which the backward does not take"


__all__ = ["check_joint", "check_modules"]
