"""The graph that a higher-order op carries for one element (flex_attention's score_mod), as nodes.

In: an FX graph and its arguments, among them values of size () that are functions of the loop variables. Out: a
node for each output. The graph is lowered as a region is; then what its loops store is put in the place of each load,
and the arguments in the place of what the region is given. An op that is more than that, a library call or a reduction,
is refused, and the op that carries the graph stays a library call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch

from litz.capture import torch_api
from litz.capture.graph import make_graph
from litz.errors import LoweringError
from litz.ir import Node, Program, TensorRef, build
from litz.ir.complexity import nodes_excess
from litz.ir.index import ZERO, Expr, Ranges, is_placeholder, placeholder, substitute
from litz.ir.intervals import Contents, Intervals
from litz.ir.node import is_number, rewrite, walk, with_args
from litz.lower import LoweringContext, Tensor, lower
from litz.schedule.inline import Body, TooComplex, expression_node

from ..attention.masks import holds


def scalar_graph(
    ctx: LoweringContext, module: torch.fx.GraphModule, arguments: Sequence[Any], extents: Ranges | None = None
) -> tuple[Node | None, ...]:
    """The nodes of the graph's outputs, each a function of the loop variables that the arguments are functions of; None
    for an output that is None.

    arguments: a value per placeholder: `Computed`s of size (), whole tensors that the graph reads elements of, numbers
    and sizes. extents: of those loop variables; a position that they prove to be inside a tensor is not checked.
    NotImplementedError, with the reason, where an op does not stay scalar: it would make a buffer.
    """
    region, known = _region(ctx, module, arguments), dict(extents or {})
    given = {name: value for name, value in zip(region.inputs, arguments, strict=True) if isinstance(name, str)}
    given |= {name: ctx.constant(tensor) for name, tensor in region.constants.items()}
    ops = {node.name: str(node.target) for node in module.graph.nodes}
    found = [None if output is None else _value(output, region, ops) for output in region.outputs]
    nodes = _of_arguments(tuple(node for node in found if node is not None), given)
    excess = nodes_excess(walk(*nodes))
    if excess is not None:
        raise NotImplementedError(f"a body of {excess}")
    simplified = iter(_simplified(nodes, known, ctx.contents))
    return tuple(None if node is None else next(simplified) for node in found)


def _region(ctx: LoweringContext, module: torch.fx.GraphModule, arguments: Sequence[Any]) -> Program:
    """The graph as a Program of its own, of the arguments' types: torch traces positions as int32. On another device
    than the processor: there a tensor without dimensions would be a number, and no element of a tensor."""
    for node in module.graph.nodes:
        if node.op == "call_function" and (torch_api.is_random(node.target) or torch_api.written_arguments(node)):
            raise NotImplementedError(f"{node.target}, which has an effect")
    graph = make_graph("body", torch_api.copied(module), "inference")
    for node, argument in zip(graph.placeholders, arguments, strict=True):
        if isinstance(argument, Tensor):
            node.meta["val"] = node.meta["val"].to(dtype=argument.dtype, device="meta")
    try:
        return lower(graph, ctx.lowerings or None, ctx.options, ctx.needs, target_of=ctx.target_of)
    except LoweringError as error:
        raise NotImplementedError(str(error)) from error


def _value(output: Any, region: Program, ops: Mapping[str, str]) -> Node:
    """An output of size () as a function of the region's inputs and constants. ops: of the graph's nodes, by name."""
    if not isinstance(output, TensorRef) or output.layout.size or output.layout.offset != 0:
        raise NotImplementedError("an output that is no tensor of size ()")
    if any(size != 1 for size in region.buffers[output.buffer].layout.size):
        raise NotImplementedError("an output that is an element of a tensor")
    index = (ZERO,) * len(region.buffers[output.buffer].layout.size)

    def change(node: Node, args: tuple[Node, ...]) -> Node:
        node = with_args(node, args)
        if node.op != "load" or not region.writers.get(node.buffer):
            return node
        maker = region.maker(node.buffer)
        body = None if maker is None else Body.of(maker)
        if body is None:
            made_by = (ops.get(name, name) for name in region.writers[node.buffer][0].origins)
            raise NotImplementedError(f"{' + '.join(made_by)}, which makes a buffer")
        (made,) = rewrite((body.at(node, {}),), change)
        return made

    try:
        (found,) = rewrite((build.load(output.buffer, index, region.buffers[output.buffer].dtype),), change)
    except TooComplex as error:
        raise NotImplementedError(str(error)) from error
    return found


def _of_arguments(roots: tuple[Node, ...], given: Mapping[str, Tensor]) -> tuple[Node, ...]:
    """The nodes with what they are given in the place of its loads."""

    def change(node: Node, args: tuple[Node, ...]) -> Node:
        node = with_args(node, args)
        if node.op != "load":
            return node
        computed = [any(map(is_placeholder, expr.free_symbols)) for expr in node.index]
        position = (expression_node(e, node.indirect) if c else e for e, c in zip(node.index, computed, strict=True))
        return given[node.buffer].load(tuple(position), node.mask)

    return rewrite(roots, change)


def _simplified(roots: tuple[Node, ...], extents: Ranges, contents: Contents) -> tuple[Node, ...]:
    """The nodes without what the extents of the loop variables, known only now, make needless: checks that cannot fail,
    counting from the end for what is not negative, and computed positions that are index expressions."""
    intervals = Intervals(extents, contents)

    def change(node: Node, args: tuple[Node, ...]) -> Node:
        if node.op == "bounded" and intervals.inside(placeholder(0), args[:1], None, node.attrs[0]):
            return args[0]
        if node.op == "where" and args[0].op == "lt" and is_number(args[0].args[1], 0):
            if holds(build.call("ge", *args[0].args), intervals):
                return args[2]
        if node.op in _OF_POSITIONS and node.dtype == torch.int64 and all(arg.op in ("index", "const") for arg in args):
            return build.index(_OF_POSITIONS[node.op](*(sympy.sympify(arg.attrs[0]) for arg in args)))
        return _direct(with_args(node, args), extents) if node.op == "load" else with_args(node, args)

    return rewrite(roots, change)


_OF_POSITIONS: Mapping[str, Callable[..., Expr]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a: -a,
}
"""Sums and products of positions are index expressions too, which kernels compute in 32 bits where that is enough."""


def _direct(load: Node, extents: Ranges) -> Node:
    """A load with those of its computed positions that are index expressions written as such."""
    known = {placeholder(n): node.attrs[0] for n, node in enumerate(load.indirect) if node.op in ("index", "const")}
    if not known:
        return load
    rest = [node for n, node in enumerate(load.indirect) if placeholder(n) not in known]
    kept = [n for n in range(len(load.indirect)) if placeholder(n) not in known]
    mapping = {name: sympy.sympify(value) for name, value in known.items()}
    moved = {placeholder(old): placeholder(new) for new, old in enumerate(kept)}
    # One after the other: a placeholder that is moved down may have the name of one that goes away.
    position = tuple(substitute(expr, mapping, extents) for expr in load.index)
    position = tuple(substitute(expr, moved, extents) for expr in position)
    return build.load(load.buffer, position, load.dtype, tuple(rest), load.mask)
