"""One run of a function, and what two runs differ in. In: a function and its tensors. Out: a `Run`, and sentences.

Compared are results, gradients and what became of the inputs: values, dtypes, shapes, strides, and who shares memory
with whom.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from .compare import aliases, differences


@dataclass
class Run:
    """The results of one run of a function. gradients: of each input that wants one."""

    outputs: list[Any]
    aliases: list[str]
    inputs: Sequence[torch.Tensor]
    gradients: list[Any]


def _as_returned(returned: Any) -> Any:
    return returned


def run_once(
    function: Callable[..., Any],
    tensors: Sequence[torch.Tensor],
    process: Callable[[Any], Any] = _as_returned,
    train: bool = False,
    seed: int = 0,
) -> Run:
    """Calls a function. process: picks what gradients are of from what is returned. train: with gradients, for random
    ones of the results. seed: of torch's random numbers."""
    torch.manual_seed(seed)
    with torch.set_grad_enabled(train):
        returned = function(*tensors)
    outputs = tree_leaves(returned)
    shared = aliases(tensors, outputs)
    gradients = _gradients(process(returned), tensors) if train else []
    return Run(outputs, shared, tensors, gradients)


def _gradients(returned: Any, tensors: Sequence[torch.Tensor]) -> list[Any]:
    """The gradient of every input that wants one, for random gradients of the outputs."""
    outputs = [leaf for leaf in tree_leaves(returned) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    inputs = [tensor for tensor in tensors if tensor.requires_grad]
    if not outputs or not inputs:
        return []
    generator = torch.Generator().manual_seed(7)
    given = [
        torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.device, out.dtype) for out in outputs
    ]
    return list(torch.autograd.grad(outputs, inputs, given, allow_unused=True))


def compare_runs(
    actual: Run, expected: Run, exact: Callable[[], Run | None], values: bool, bits: bool = False
) -> list[str]:
    """Returns what differs between the runs, a sentence for each; empty if nothing. exact: the run in float64, None if
    there is none. values: False for random results. bits: values are to be the same bit for bit."""

    def part(name: str) -> Callable[[], Any]:
        def get() -> Any:
            judged = exact()
            return None if judged is None else getattr(judged, name)

        return get

    found = differences(actual.outputs, expected.outputs, part("outputs"), values=values, bits=bits)
    if not found and actual.aliases != expected.aliases:
        found.append(f"outputs share memory with {actual.aliases}, eager's with {expected.aliases}")
    changed = differences(actual.inputs, expected.inputs, part("inputs"), values=values, bits=bits)
    found += [f"after the call, {text.replace('result', 'input', 1)}" for text in changed]
    judge = part("gradients")
    gradients = differences(actual.gradients, expected.gradients, judge, values=values, strides=False, bits=bits)
    return found + [text.replace("result", "gradient", 1) for text in gradients]
