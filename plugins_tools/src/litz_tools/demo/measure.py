"""Measuring a workload: eager and litz in turn, and both against a float64 run."""

from __future__ import annotations

import copy
import statistics
import time
from collections import Counter
from typing import Any

import torch
from rich.console import Console

from litz import report as reports

from .models import Outputs, Workload, step


def run(work: Workload, device: torch.device, console: Console) -> tuple[str, bool]:
    """Measure one workload and print its figures, readable in 80 columns; its title, and whether litz is right.

    Times are medians. Errors are the norm of the difference to float64 over the norm of the float64 result: the largest
    of logits, loss and gradients. Right is within twice eager's own error; NaN is wrong.
    """
    console.print(f"\n[bold]{work.title}[/]")
    initial = copy.deepcopy(work.model.state_dict())
    with console.status("float64 reference ..."):
        exact = _reference(work, device)
    with console.status("eager ..."):
        eager_outputs = step(work, work.model, work.inputs)
    work.model.load_state_dict(initial)
    with console.status("litz compiles ..."), reports.collect() as collected:
        start = time.perf_counter()
        compiled: Any = torch.compile(work.model, backend="litz")
        litz_outputs = step(work, compiled, work.inputs)
        _wait(device)
        compile_seconds = time.perf_counter() - start
    with console.status("measuring ..."):
        eager_ms, litz_ms = _measure(work, compiled, device)
    externs = Counter(name for report in collected for name in report.externs.elements())
    litz_error, eager_error = _error(litz_outputs, exact), _error(eager_outputs, exact)
    right = litz_error <= 2 * eager_error
    loops = sum(report.loops_before for report in collected)
    kernels = sum(report.kernels_after for report in collected)
    calls = ", ".join(f"{count} {name}" for name, count in externs.most_common(3))
    console.print(f"  eager     {eager_ms:9.2f} ms")
    console.print(f"  litz      {litz_ms:9.2f} ms   [bold]{eager_ms / litz_ms:.2f}x[/]")
    console.print(f"  compile   {compile_seconds:9.1f} s")
    console.print(f"  kernels   {loops} loops fused into {kernels} kernels")
    console.print(f"            and {externs.total()} library calls ({calls})")
    verdict = "[green]right[/]" if right else "[red]wrong[/]"
    console.print(f"  error     litz {litz_error:.2e}, eager {eager_error:.2e} against float64: {verdict}")
    for report in collected:
        console.print(f"  source    {report.wrapper_path}", soft_wrap=True)
    return work.title, right


def _reference(work: Workload, device: torch.device) -> Outputs:
    model = copy.deepcopy(work.model).double()
    inputs = {k: v.double() if v.is_floating_point() else v for k, v in work.inputs.items()}
    if device.type == "cuda":  # float64 on the device, a part of the batch at a time would change batch norm
        torch.cuda.empty_cache()
    return step(work, model, inputs)


def _error(outputs: Outputs, exact: Outputs) -> float:
    """The largest over the groups of |outputs - exact| / |exact|, in norms over all tensors of a group.

    A group counts as a whole: a gradient that is all but zero by itself is rounding errors and says nothing.
    """
    errors = []
    for group, references in exact.items():
        differences = [(t.double() - r).norm() for t, r in zip(outputs[group], references, strict=True)]
        errors.append(torch.stack(differences).norm() / torch.stack([r.norm() for r in references]).norm())
    return float(torch.stack(errors).max())  # NaN where one is


def _measure(work: Workload, compiled: torch.nn.Module, device: torch.device) -> tuple[float, float]:
    """Median milliseconds of a step, eager and litz in turn so that a drifting machine is fair to both."""
    times: dict[str, list[float]] = {"eager": [], "litz": []}
    models = {"eager": work.model, "litz": compiled}
    deadline = time.perf_counter() + 20
    while len(times["litz"]) < 3 or (len(times["litz"]) < 30 and time.perf_counter() < deadline):
        for name, model in models.items():
            _wait(device)
            start = time.perf_counter()
            step(work, model, work.inputs)
            _wait(device)
            times[name].append((time.perf_counter() - start) * 1e3)
    return statistics.median(times["eager"][1:]), statistics.median(times["litz"][1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
