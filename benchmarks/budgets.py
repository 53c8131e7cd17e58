"""Eight memory budgets of each of six small models on a CPU: is each kept, and is a larger one no slower?

    python -m benchmarks.budgets [MODEL ...] [--rounds N] [--json FILE]

In: models of `benchmarks.small_models`. Budgets go in equal steps from the least planned peak that litz finds to the
planned peak without a budget. A compile with each budget says the plan that the budget gets; a plan that several get is
measured once. Out: a Markdown table and rows: MiB of the budget, planned and measured (parameters, batch, and the most
that torch's CPU allocator gives out at a time; litz without its memory pool), the plan's estimated time, and
milliseconds of the processor for a step, the least of several.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from benchmarks.peak_on_cpu import MIB, peak_mib
from benchmarks.record import add_option, recorder
from benchmarks.small_models import MORE, SMALL, Small
from litz import report as reports

MODELS = (*SMALL, "3 gated blocks", "convolutions down and up")
BUDGETS = 8
SLACK = 1.05
"""Of the time with a smaller budget, the most that a larger one may take: more is slower and not noise."""


def fastest(rows: Sequence[Mapping[str, Any]], nbytes: int) -> Mapping[str, Any]:
    """Returns the candidate of a report that a budget gets: `litz_passes.memory.choose.fastest`, of data."""
    return min((row for row in rows if row["bytes"] <= nbytes), key=lambda row: (row["us"], row["bytes"]))


def run(small: Small, nbytes: int, rounds: int) -> tuple[Mapping[str, Any], float, float]:
    """Returns (what the report says of memory, the measured peak in MiB, milliseconds of the processor for a step)."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, x = small.make(), small.input()
    options = {"memory_pool": False, "graph_cache": False, "memory.budget": nbytes}
    compiled = torch.compile(model, backend="litz", options=options)

    def step() -> None:
        compiled(x).square().sum().backward()

    with reports.collect() as found:
        step()
    spent = []
    for _ in range(rounds):
        model.zero_grad(set_to_none=True)
        begun = time.process_time()
        step()
        spent.append(time.process_time() - begun)
    return json.loads(found[0].attachments["memory.json"]), peak_mib(model, x, step), 1000 * min(spent)


def measure(name: str, rounds: int, record: Callable[..., None]) -> None:
    """Prints the rows of a model, and what does not hold."""
    small = {**SMALL, **MORE}[name]
    facts, *_ = run(small, 1 << 40, 1)
    rows = facts["candidates"]
    least, most = min(row["bytes"] for row in rows), rows[0]["bytes"]
    budgets = [least + (most - least) * n // (BUDGETS - 1) for n in range(BUDGETS)]
    known: dict[str, tuple[float, float]] = {}
    found = []
    for number, budget in enumerate(budgets, 1):
        row = fastest(rows, budget)
        if row["name"] not in known:
            said, *measured = run(small, budget, rounds)
            assert [each["name"] for each in said["candidates"] if each["taken"]] == [row["name"]]
            known[row["name"]] = (measured[0], measured[1])
        peak, ms = known[row["name"]]
        found.append((budget, row, peak, ms))
        case, figures = f"{name}, budget {number} of {BUDGETS}", {"budget_mib": budget / MIB}
        figures |= {"planned_mib": row["bytes"] / MIB, "peak_mib": peak, "processor_ms": ms}
        over = "" if peak <= budget / MIB else "; measured above the budget"
        record(task="budgets", case=case, dtype="float32", peers={"litz": figures}, note=f"{row['name']}{over}")
        cells = (case, *(f"{each / MIB:.1f}" for each in (budget, row["bytes"])), f"{peak:.1f}", f"{row['us']:.0f}")
        print(f"| {' | '.join((*cells, f'{ms:.1f}', row['name'] + over))} |", flush=True)
    planned = all(row["bytes"] <= budget for budget, row, *_ in found)
    kept = sum(peak <= budget / MIB for budget, _, peak, _ in found)
    estimates = all(b[1]["us"] <= a[1]["us"] for a, b in pairwise(found))
    times = sum(b[3] <= SLACK * a[3] for a, b in pairwise(found))
    print(
        f"{name}: plans {'' if planned else 'NOT '}kept, estimates {'' if estimates else 'NOT '}monotone, measured "
        f"{kept} of {BUDGETS} kept, {times} of {BUDGETS - 1} steps no slower",
        flush=True,
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.budgets", description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=7, help="of which the least counts")
    add_option(parser)
    given = parser.parse_args()
    record = recorder(given.json, "budgets", "cpu")
    run(Small(lambda: nn.Linear(8, 8), (4, 8)), 1 << 30, 1)  # what torch allocates once
    print(
        "| case | budget | planned | measured | estimate (us) | processor (ms) | plan |\n|---|---|---|---|---|---|---|"
    )
    for name in given.models:
        measure(name, given.rounds, record)


if __name__ == "__main__":
    main()
