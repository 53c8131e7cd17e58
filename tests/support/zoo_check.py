"""A model compiled against eager, with float64 as the judge: outputs, loss, gradients, statistics."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_map

from litz import report as reports
from support.compare import ROUNDING, close
from support.zoo import CPUS_LIBRARY_WORK, LIBRARY_WORK, Entry, Inputs

ROUNDING_OF_A_FLOAT = 6e-8
NEXT_TO_NOTHING = 0.05
"""Of the largest gradient or buffer: a smaller one (the gradient of a bias before a normalization, the mean of what
comes out of one) is rounding of larger numbers."""


@dataclass
class Results:
    """What one run gives: outputs; when training also the buffers afterwards and the gradients."""

    outputs: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)


def run(model: torch.nn.Module, function: torch.nn.Module, inputs: Inputs, training: bool, autocast: bool) -> Results:
    with ExitStack() as stack:
        if autocast:
            stack.enter_context(torch.autocast(next(model.parameters()).device.type, dtype=torch.bfloat16))
        if not training:
            stack.enter_context(torch.no_grad())
        output = dict(function(**inputs))
    results = Results({name: value.detach() for name, value in output.items() if isinstance(value, torch.Tensor)})
    if training:
        output["loss"].backward()
        results.buffers = {name: value.clone() for name, value in model.named_buffers()}
        results.gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
    return results


def peers(model: torch.nn.Module, inputs: Inputs, autocast: bool, count: int) -> list[Results]:
    """So many training steps in eager with parameters that differ by a rounding.

    A rounding decides on which side of zero what enters a relu is, and normalizing a few numbers magnifies it.
    """
    found = []
    generator = torch.Generator(next(model.parameters()).device).manual_seed(0)
    for _ in range(count):
        other = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in other.parameters():
                noise = torch.randn(parameter.shape, generator=generator, device=parameter.device)
                parameter.mul_(1 + noise * ROUNDING_OF_A_FLOAT)
        found.append(run(other, other, inputs, True, autocast))
    return found


def double(inputs: Inputs) -> Inputs:
    return tree_map(lambda v: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v, inputs)


def mark_what_differs(first: Inputs, second: Inputs) -> None:
    """The dimensions in which two batches differ are dynamic."""
    for name, value in first.items():
        if isinstance(value, torch.Tensor):
            for dim, (here, there) in enumerate(zip(value.shape, second[name].shape, strict=True)):
                if here != there:
                    torch._dynamo.mark_dynamic(value, dim)


def exact_convolutions() -> AbstractContextManager[None]:
    """No TF32 in cuDNN: its errors are eager's as well as litz's, and drown what is compared here."""
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)


def as_exact(
    actual: Results, expected: Results, exact: Results, others: list[Results], rounding: float | None = None
) -> None:
    """Outputs, buffers and gradients are as near to the exact ones as eager's. others: eager's own, of parameters that
    differ by a rounding. rounding: see `support.compare.close`."""
    for part in ("outputs", "buffers", "gradients"):
        eager, judged, alike = getattr(expected, part), getattr(exact, part), [getattr(o, part) for o in others]
        floats = [v for v in judged.values() if v.is_floating_point()]
        least = NEXT_TO_NOTHING * max((float(v.abs().max()) for v in floats), default=0.0)
        least = 0.0 if part == "outputs" else least
        close(getattr(actual, part), eager, judged, rounding=rounding, least_scale=least, peers=alike)


def check(
    entry: Entry,
    device: str,
    training: bool,
    dynamic: bool,
    autocast: bool = False,
    spread: int = 3,
    backend: Any = "litz",
    externs: Sequence[str] = (),
) -> None:
    """spread: how many of eager's own steps say how far roundings lead. externs: more calls that may be left."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = entry.make().to(device).train(training)
    batches = [entry.inputs(size) for size in ((3, 5) if dynamic else (2,))]
    batches = [tree_map(lambda v: v.to(device) if isinstance(v, torch.Tensor) else v, inputs) for inputs in batches]
    ours, judge = copy.deepcopy(model), copy.deepcopy(model).double()
    entry.prepare_judge(judge)
    if dynamic:
        mark_what_differs(*batches)
    with torch._dynamo.config.patch(**entry.patches), reports.collect() as collected:
        compiled = torch.compile(ours, backend=backend, dynamic=None if dynamic else False)
        for number, inputs in enumerate(batches):
            compiles = len(collected)
            others = peers(model, inputs, autocast, spread) if training else []
            actual = run(ours, compiled, inputs, training, autocast)
            assert number == 0 or len(collected) == compiles, "compiled anew for another batch size"
            expected = run(model, model, inputs, training, autocast)
            exact = run(judge, judge, double(inputs), training, False)
            as_exact(actual, expected, exact, others, ROUNDING[torch.bfloat16] if autocast else None)
    assert collected
    calls = {name for report in collected for name in report.externs}
    fine = (*LIBRARY_WORK, *entry.externs, *externs, *(CPUS_LIBRARY_WORK if device == "cpu" else ()))
    others = {name for name in calls if not name.startswith(fine)}
    assert not others, f"in library calls, not in kernels: {others}"
