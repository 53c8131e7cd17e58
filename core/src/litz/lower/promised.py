"""What a plugin's lowering made, held against the node's fake result, and against the rules of the IR.

In: the node, its result as IR, and the operations that the lowering added. Out: nothing, or a ValueError in words that
an author of plugins knows.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.capture.promised import same_size
from litz.ir import Extern, Operation, Program
from litz.ir.operation import written_arguments
from litz.ir.verify import LOCAL, IllegalProgram, verify
from litz.origins.plugin_call import Owner, PluginCall, is_foreign
from litz_plugins.blame import Blamed

from .context import LoweringContext
from .view import Computed, Tensor, View


def lowered(
    ctx: LoweringContext,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    check: Callable[[LoweringContext, Any, Sequence[Operation]], None] | None = None,
) -> Any:
    """Returns what a lowering makes of the context's node; that of a plugin's is held against what the node promises.
    check: in place of `check_lowered`. Errors: what the lowering raises; of a plugin's lowering, one that names it."""
    if not isinstance(function, Blamed):
        return function(ctx, *args, **kwargs)
    before = tuple(ctx.operations)
    with function.call(node=ctx.node.name) as call:
        call.result = function.function(ctx, *args, **kwargs)
        (check or check_lowered)(ctx, call.result, before)
        _mark_calls(ctx, function, len(before))
    return call.result


def _mark_calls(ctx: LoweringContext, function: Blamed, first: int) -> None:
    """Have what a plugin's lowering calls, from operation number `first` on, name that plugin."""
    for at, operation in enumerate(ctx.operations[first:], first):
        if isinstance(operation, Extern) and is_foreign(operation.target):
            source = function.judge.source_of(function.plugin)
            owner = Owner(function.plugin, source.dist, source.version)
            target = PluginCall(owner, operation.target, written_arguments(operation))
            ctx.operations[at] = replace(operation, target=target)


def check_lowered(ctx: LoweringContext, result: Any, before: Sequence[Operation]) -> None:
    """ValueError unless `result` is what the node that is being lowered promises, and what was added to the program is
    legal. before: the operations that there were."""
    if len(ctx.operations) < len(before) or any(mine is not its for mine, its in zip(ctx.operations, before)):
        raise ValueError("it changed operations of the program that were there before")
    problem = _differs(ctx, result, ctx.node.meta.get("val"), [ctx.node])
    if problem:
        raise ValueError(f"it returned {problem}")
    base = torch_api.aliased_argument(ctx.node)
    if base is not None and isinstance(result, Computed):
        raise ValueError(f"it returned values of their own, where {ctx.node.target} returns a view of {base.name}")
    added = tuple(ctx.operations[len(before) :])
    if added:
        verify(Program(ctx.graph.name, (), ctx.buffers, added, ()), LOCAL)


def owners(graph: Graph, lowerings: Mapping[Any, Any]) -> dict[str, Blamed]:
    """Returns the plugins' lowerings of the calls in a graph, by the node's name."""
    found = ((node.name, lowerings.get(node.target)) for node in graph.nodes if node.op == "call_function")
    return {name: rule for name, rule in found if isinstance(rule, Blamed)}


def blame(error: IllegalProgram, program: Program, owners: Mapping[str, Blamed]) -> None:
    """Blame a program that is not legal on the plugin whose lowering made an operation that the error is about; returns
    if there is no such plugin. owners: as `owners` gives them."""
    origins = {operation.name: operation.origins for operation in program.operations}
    for complaint in error.complaints:
        for node in origins.get(re.split("[ :]", complaint)[0], ()):
            if node in owners:
                with owners[node].call(node=node):
                    raise ValueError(f"it made an operation that is not legal: {complaint}") from error


def _differs(ctx: LoweringContext, found: Any, expected: Any, nodes: Sequence[torch.fx.Node]) -> str:
    """Returns what is wrong with a result or a part of one. nodes: those of the graph that have the part as value."""
    if isinstance(expected, (tuple, list)):
        if not isinstance(found, (tuple, list)) or len(found) != len(expected):
            return f"{_described(found)}, where {len(expected)} results are expected"
        texts = (
            f"result {n}: {text}"
            for n, pair in enumerate(zip(found, expected))
            if (text := _differs(ctx, *pair, _takers(nodes, n)))
        )
        return next(texts, "")
    if not isinstance(expected, torch.Tensor):
        return ""
    if found is None and ctx.node not in nodes and not any(node.users for node in nodes):
        return ""  # a result that nobody reads need not be made
    sizes = ", ".join(str(torch_api.sympy_of(size)) for size in expected.shape)
    wanted = f"{str(expected.dtype).removeprefix('torch.')} [{sizes}] on {expected.device}"
    if not isinstance(found, (View, Computed)):
        return f"{_described(found)}, where a tensor, {wanted}, is expected"
    same = (found.dtype, found.device, found.ndim) == (expected.dtype, expected.device, expected.dim())
    env = ctx.graph.shape_env
    if not same or not all(same_size(env, mine, its) for mine, its in zip(found.size, expected.shape, strict=True)):
        return f"{_described(found)}, where {wanted} is expected"
    return ""


def _takers(nodes: Sequence[torch.fx.Node], number: int) -> list[torch.fx.Node]:
    """Returns the nodes that take one result of the nodes; the nodes themselves where they are read in other ways."""
    users = [user for node in nodes for user in node.users]
    picks = [user for user in users if user.target is operator.getitem]
    return [user for user in picks if user.args[1] == number] if len(picks) == len(users) else list(nodes)


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        sizes = ", ".join(map(str, value.size))
        return f"{str(value.dtype).removeprefix('torch.')} [{sizes}] on {value.device}"
    if isinstance(value, (tuple, list)):
        return f"{len(value)} results"
    return "None" if value is None else type(value).__name__
