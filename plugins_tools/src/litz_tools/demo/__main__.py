"""The demo's entry: run both models, print the figures, exit non-zero if litz is wrong."""

from __future__ import annotations

import sys

import torch
from rich.console import Console

from .measure import run
from .models import gpt2_inference, resnet50_training


def main() -> int:
    """Runs both models and returns the exit status: 0 if litz is right on both, 1 if it is not."""
    console = Console(highlight=False)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    console.print(f"[bold]litz demo[/] on {name}, torch {torch.__version__}")
    results = [run(make(device), device, console) for make in (gpt2_inference, resnet50_training)]
    wrong = [title for title, right in results if not right]
    for title in wrong:
        console.print(f"[red]wrong[/]: {title}: litz's error against float64 is more than twice eager's own")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
