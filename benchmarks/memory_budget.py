"""What a memory budget costs and gives: seconds of the processor to compile a training step without and with a budget,
and the planned peaks of eager, of litz, and of the smallest budget that is met.

    python -m benchmarks.memory_budget
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.small_models import SMALL
from litz import report as reports


def compiled(model: nn.Module, x: Tensor, budget: str | None) -> tuple[float, Mapping[str, Any]]:
    """Returns (seconds of the processor for the compile and the first step, what the report says of memory)."""
    torch._dynamo.reset()
    options: dict[str, Any] = {"graph_cache": False, "memory.budget": budget}
    begun = time.process_time()
    with reports.collect() as found:
        torch.compile(model, backend="litz", options=options)(x).square().sum().backward()
    return time.process_time() - begun, json.loads(found[0].attachments["memory.json"])


def main() -> None:
    """Prints a row for each model."""
    warm = nn.Linear(8, 8)
    compiled(warm, torch.randn(4, 8), None)
    print("| model | without (s) | with (s) | candidates | eager (MiB) | litz (MiB) | least (MiB) |")
    print("|---|---|---|---|---|---|---|")
    for name, small in SMALL.items():
        model, x = small.make(), small.input()
        without, facts = compiled(model, x, None)
        taken, found = compiled(model, x, "100GiB")
        rows = found["candidates"]
        peaks = [facts["eager_bytes"], rows[0]["bytes"], min(row["bytes"] for row in rows)]
        cells = [name, f"{without:.1f}", f"{taken:.1f}", str(len(rows)), *(f"{peak / 2**20:.1f}" for peak in peaks)]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
