"""What a plugin's lowering made, held against the node's fake result, and against the rules of the IR.

In: the node, its result as IR, and the operations that the lowering added. Out: nothing, or a ValueError in words that
an author of plugins knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.capture.promised import same_size
from litz.ir import Operation, Program
from litz.ir.verify import LOCAL, IllegalProgram, verify
from litz_plugins.blame import Blamed

from .context import LoweringContext
from .view import Computed, Tensor, View


def check_lowered(ctx: LoweringContext, result: Any, before: Sequence[Operation]) -> None:
    """ValueError unless `result` is what the node that is being lowered promises, and what was added to the program is
    legal. before: the operations that there were."""
    if len(ctx.operations) < len(before) or any(mine is not its for mine, its in zip(ctx.operations, before)):
        raise ValueError("it changed operations of the program that were there before")
    problem = _differs(ctx, result, ctx.node.meta.get("val"))
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


def _differs(ctx: LoweringContext, found: Any, expected: Any) -> str:
    if isinstance(expected, (tuple, list)):
        if not isinstance(found, (tuple, list)) or len(found) != len(expected):
            return f"{_described(found)}, where {len(expected)} results are expected"
        texts = (f"result {n}: {text}" for n, pair in enumerate(zip(found, expected)) if (text := _differs(ctx, *pair)))
        return next(texts, "")
    if not isinstance(expected, torch.Tensor):
        return ""
    sizes = ", ".join(str(torch_api.sympy_of(size)) for size in expected.shape)
    wanted = f"{str(expected.dtype).removeprefix('torch.')} [{sizes}] on {expected.device}"
    if not isinstance(found, (View, Computed)):
        return f"{_described(found)}, where a tensor, {wanted}, is expected"
    same = (found.dtype, found.device, found.ndim) == (expected.dtype, expected.device, expected.dim())
    env = ctx.graph.shape_env
    if not same or not all(same_size(env, mine, its) for mine, its in zip(found.size, expected.shape, strict=True)):
        return f"{_described(found)}, where {wanted} is expected"
    return ""


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        sizes = ", ".join(map(str, value.size))
        return f"{str(value.dtype).removeprefix('torch.')} [{sizes}] on {value.device}"
    if isinstance(value, (tuple, list)):
        return f"{len(value)} results"
    return "None" if value is None else type(value).__name__
