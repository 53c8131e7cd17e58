"""A captured graph that runs as it was captured: what is left where litz cannot compile one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from litz.capture.graph import Graph


def run_eagerly(graph: Graph) -> Callable[[list[Any]], Sequence[Any]]:
    """Returns a function of the graph's inputs that runs its operators one by one. The function empties the list of
    inputs, as a compiled graph does, so that their memory can be used again."""

    def run(args: list[Any]) -> Sequence[Any]:
        values = list(args)
        args.clear()
        outputs: Sequence[Any] = torch.fx.Interpreter(graph.module).run(*values, enable_io_processing=False)
        return outputs

    return run
