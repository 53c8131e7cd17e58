"""The demo's entry: run both models, print the figures, exit non-zero if litz is wrong."""

from __future__ import annotations

import sys

import torch
from rich.console import Console

from .measure import Result, run
from .models import gpt2_inference, resnet50_training


def main() -> int:
    """0 if litz is right on both models, 1 if it is not."""
    console = Console(highlight=False)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    console.print(f"[bold]litz demo[/] on {name}, torch {torch.__version__}")
    results = []
    for make in (gpt2_inference, resnet50_training):
        results.append(run(make, device, console))
        show(results[-1], console)
    wrong = [result.title for result in results if not result.right]
    for title in wrong:
        console.print(f"[red]wrong[/]: {title}: litz's error against float64 is more than twice eager's own")
    return 1 if wrong else 0


def show(result: Result, console: Console) -> None:
    """One model's figures, readable in 80 columns."""
    speedup = result.eager_ms / result.litz_ms
    console.print(f"  eager     {result.eager_ms:9.2f} ms")
    console.print(f"  litz      {result.litz_ms:9.2f} ms   [bold]{speedup:.2f}x[/]")
    console.print(f"  compile   {result.compile_seconds:9.1f} s")
    console.print(f"  kernels   {result.loops_before} loops fused into {result.kernels} kernels")
    console.print(f"            and {result.externs} library calls ({result.extern_names})")
    verdict = "[green]right[/]" if result.right else "[red]wrong[/]"
    error = f"litz {result.litz_error:.2e}, eager {result.eager_error:.2e} against float64"
    console.print(f"  error     {error}: {verdict}")
    for path in result.sources:
        console.print(f"  source    {path}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
