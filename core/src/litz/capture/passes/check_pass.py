"""What a plugin's graph pass may not change: in, the Graph that it was given and the one that it returned; ValueError
for what the user, or a later stage, would notice without being told.

A pass may compute the outputs by other ops. Inputs, what is written to them, and type, device, sizes and (where the
user sees them) strides and shared memory of the outputs stay; and each new node's fake result is what its op gives.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx.node import map_aggregate, map_arg

from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.capture.promised import differs

Rule = Callable[[Graph, Graph], Iterator[str]]
_SAME = (
    *("name", "kind", "static_inputs", "dying_inputs", "owned_inputs", "made_inputs", "mutated_inputs"),
    *("visible_outputs", "rebuilt_outputs", "shape_env"),
)
"""Fields that say what the graph is for: no pass decides that."""
_PYTHON = frozenset({"_operator", "builtins", "litz", "math", "torch"})
"""Whose functions may be called by nodes: those of sizes, and what capture puts in."""


def check_pass(plugin: str, before: Graph, after: Graph) -> Graph:
    """Returns `after`, the Graph that a plugin's pass made of `before`. Errors: ValueError with up to three faults of
    the Graph."""
    after.module.graph.lint()  # order and names of nodes
    complaints = [complaint for rule in RULES for complaint in rule(before, after)]
    if complaints:
        raise ValueError("it returned a graph in which " + "; ".join(complaints[:3]))
    return after


def _fields(before: Graph, after: Graph) -> Iterator[str]:
    for name in _SAME:
        old, new = getattr(before, name), getattr(after, name)
        if old is not new and old != new:
            yield f"{name} is {new}, not {old}"


def _inputs(before: Graph, after: Graph) -> Iterator[str]:
    old, new = before.placeholders, after.placeholders
    if [node.name for node in old] != [node.name for node in new]:
        yield f"the inputs are {', '.join(n.name for n in new)}, not {', '.join(n.name for n in old)}"
        return
    for mine, its in zip(new, old, strict=True):
        if mine.meta.get("val") is not its.meta.get("val"):
            yield f"the input {mine.name} has other metadata"


def _writes(before: Graph, after: Graph) -> Iterator[str]:
    old, new = (
        {target.name for node in graph.nodes for target in torch_api.written_arguments(node)}
        for graph in (before, after)
    )
    inputs = {node.name for node in before.placeholders}
    for name in sorted((old ^ new) & inputs):
        yield f"the input {name} is {'written' if name in new else 'no longer written'}"
    for name in sorted(new - old - inputs):
        yield f"{name} is written in place"


def _outputs(before: Graph, after: Graph) -> Iterator[str]:
    old, new = before.outputs, after.outputs
    if len(old) != len(new):
        yield f"there are {len(new)} outputs, not {len(old)}"
        return
    for at, (mine, its) in enumerate(zip(new, old, strict=True)):
        if not isinstance(its, torch.fx.Node) or not isinstance(mine, torch.fx.Node):
            if isinstance(its, torch.fx.Node) != isinstance(mine, torch.fx.Node) or mine != its:
                yield f"output {at} is {mine}, not {its}"
            continue
        problem = differs(mine.meta.get("val"), its.meta.get("val"), strides=at in before.visible_outputs)
        if problem:
            yield f"output {at} is {problem}"


def _memory(before: Graph, after: Graph) -> Iterator[str]:
    """The outputs that the user sees share memory with the same inputs and the same other outputs as before."""
    if len(before.outputs) != len(after.outputs):
        return
    old, new = _shared(before), _shared(after)
    for at in sorted(old.keys() & new.keys()):
        if old[at] != new[at]:
            yield f"output {at} shares memory with {new[at] or 'nothing'}, not with {old[at] or 'nothing'}"


def _shared(graph: Graph) -> Mapping[int, str]:
    """For each visible output, in words what it shares memory with: an input, or an output before it."""
    owners = torch_api.memory_owners(graph.nodes)
    found: dict[int, str] = {}
    first: dict[torch.fx.Node, int] = {}
    for at in sorted(graph.visible_outputs):
        item = graph.outputs[at]
        if isinstance(item, torch.fx.Node) and isinstance(item.meta.get("val"), torch.Tensor):
            owner = owners[item]
            other = first.setdefault(owner, at)
            found[at] = owner.name if owner.op == "placeholder" else f"output {other}" if other != at else ""
    return found


def new_nodes(before: Any, after: Any) -> Iterator[str]:
    """Says of which new nodes the fake result is not what the op gives. before, after: nouns with FX nodes."""
    known = {node.name: node for node in before.nodes}
    targets = {node.target for node in before.nodes}
    for node in after.nodes:
        old = known.get(node.name)
        if node.op != "call_function" or _is_known(node, old):
            continue
        if "val" not in node.meta:
            if old is None or old.target is not node.target or "val" in old.meta:
                yield f"the node {node.name} has no fake result in meta['val']"
        elif isinstance(node.target, OpOverload):
            wrong = list(_recomputed(node, node.target))
            kept = old is not None and old.target is node.target and old.meta.get("val") is node.meta["val"]
            if wrong and old is not None and kept and any(_recomputed(old, node.target)):
                continue  # it was so before
            yield from wrong
        elif node.target is operator.getitem:
            source, at = node.args[0].meta.get("val"), node.args[1]  # type: ignore[union-attr]
            inside = isinstance(source, (tuple, list)) and isinstance(at, int) and -len(source) <= at < len(source)
            problem = differs(node.meta["val"], source[at], strides=False) if inside else "not there"  # type: ignore[index]
            if problem:
                yield f"{node.name} is {problem}"
        elif node.target not in targets and not torch_api.is_higher_order(node.target):
            home = str(getattr(node.target, "__module__", "")).partition(".")[0]
            if home not in _PYTHON:
                yield f"{node.name} calls a Python function; make it an op (torch.library.custom_op)"


def _is_known(node: torch.fx.Node, old: torch.fx.Node | None) -> bool:
    """Returns whether a node was in the graph before, with arguments of the same fake values."""
    if old is None or old.target is not node.target or old.meta.get("val") is not node.meta.get("val"):
        return False
    return bool(_values(node) == _values(old))


def _values(node: torch.fx.Node) -> Any:
    def value(item: Any) -> Any:
        return ("value", id(item.meta.get("val"))) if isinstance(item, torch.fx.Node) else item

    return map_aggregate((node.args, dict(node.kwargs)), value)  # type: ignore[arg-type]


def _recomputed(node: torch.fx.Node, op: OpOverload) -> Iterator[str]:
    if any("val" not in given.meta for given in node.all_input_nodes):
        return  # said of that node
    open_ = torch_api.depends_on_data(op) and torch_api.hangs_on_data(node.meta["val"])  # an index by numbers is not
    if open_ and not node.meta.get("unbacked_bindings"):
        yield f"{node.name} finds out by data what it returns, and meta['unbacked_bindings'] names no symbol for that"
        return
    args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda given: given.meta["val"])  # type: ignore[arg-type]
    try:
        expected = torch_api.fake_result(op, args, kwargs, like=node.meta["val"])
    except Exception as error:
        yield f"{node.name} cannot be: {op} says {type(error).__name__}: {error}"
        return
    if expected is not NotImplemented and (problem := differs(expected, node.meta["val"], strides=False)):
        yield f"{node.name} gives {problem} by the node's meta['val']"


RULES: tuple[Rule, ...] = (_fields, _inputs, _writes, _outputs, _memory, new_nodes)
assert set(_SAME) <= {field.name for field in dataclasses.fields(Graph)}
