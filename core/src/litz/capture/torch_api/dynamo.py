"""Dynamo: what it calls a compile, and what it must not trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._guards import CompileContext


def disable_dynamo(function: Callable[..., Any], reason: str) -> Callable[..., Any]:
    """Returns `function`, which dynamo neither traces nor looks into. reason: for torch's messages."""
    return torch._dynamo.disable(function, reason=reason)


def compile_label() -> str:
    """Returns a name for the graph that dynamo is compiling: "graph3", or "graph3_1" for its first recompilation."""
    compile_id = CompileContext.current_compile_id()
    if compile_id is None:
        return "graph"
    frame, again = compile_id.frame_id, compile_id.frame_compile_id
    if frame is None:  # compiled autograd has its own numbering
        return f"graph_autograd{compile_id.compiled_autograd_id or 0}"
    return f"graph{frame}_{again}" if again else f"graph{frame}"


def as_captured(gm: Any, examples: Sequence[Any]) -> list[Any]:
    """Returns the examples as dynamo traced the graph with them: fake tensors, whose sizes are symbols where they may
    vary. Dynamo calls a backend with real tensors. An example is returned as it is where the graph does not say."""
    if not isinstance(gm, torch.fx.GraphModule):
        return list(examples)
    fakes = [node.meta.get("example_value", node.meta.get("val")) for node in gm.graph.find_nodes(op="placeholder")]
    if len(fakes) != len(examples):
        return list(examples)
    pairs = zip(fakes, examples, strict=True)
    return [
        fake
        if isinstance(fake, torch.Tensor) and isinstance(value, torch.Tensor) and fake.dim() == value.dim()
        else value
        for fake, value in pairs
    ]


def is_restart(error: BaseException) -> bool:
    """Returns whether dynamo raised `error` to start its analysis over: no failure, and to be passed on untouched."""
    from torch._dynamo.exc import RestartAnalysis, TensorifyScalarRestartAnalysis

    return isinstance(error, (RestartAnalysis, TensorifyScalarRestartAnalysis))
