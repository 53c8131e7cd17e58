"""A program that dynamo captures, run by torch's own backends: what torch does with it where no code of litz's runs.

What litz gets wrong may be torch's doing only if it happens here too. What a program refuses is told apart by where the
captured graph ends: at an assertion, which every backend must keep, or in an op that refuses its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from litz.capture.torch_api.scalars import numbers_kept_where_torch_has_no_tensor_op
from litz_testing.torch_compile import torch_compiled

from .program import FuzzProgram

ENDS = 70
"""The exit status of a process in which a program that torch alone runs ended the use of the device."""


def through_aot(program: FuzzProgram, graphs: list[str]) -> Callable[..., Any]:
    """Returns the program through AOTAutograd (`aot_eager`), where torch 2.13 ends in an error of its own for `%` of a
    float that is read off a tensor, as in litz without that error. graphs: gets the text of each graph of dynamo's."""
    aot_eager = torch._dynamo.lookup_backend("aot_eager")

    def backend(module: torch.fx.GraphModule, examples: Sequence[Any]) -> Any:
        graphs.append(str(module.graph))
        with numbers_kept_where_torch_has_no_tensor_op():
            return aot_eager(module, list(examples))

    return torch_compiled(program.function(), backend, program.dynamic)


def ends_at_an_assertion(program: FuzzProgram, inputs: Sequence[torch.Tensor]) -> bool:
    """Returns whether the graph that dynamo captured, run node by node, stops at an assertion for these inputs."""
    stopped: list[torch.fx.Node] = []

    class Run(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            try:
                return super().run_node(n)
            except Exception:
                stopped.append(n)
                raise

    try:
        torch_compiled(program.function(), lambda module, examples: Run(module).run, program.dynamic)(*inputs)
    except Exception:
        return bool(stopped) and _asserts(stopped[0])
    return False


def _asserts(node: torch.fx.Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return "assert" in name or "_check" in name
