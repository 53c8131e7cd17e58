"""Measures the calls of the table on this machine: `python -m litz_my_cost_model.measure > FILE`."""

from __future__ import annotations

import json
import platform
import time

import torch

CALLS = {
    "aten.sort.default": torch.sort,
    "aten.topk.default": lambda x: torch.topk(x, 10),
}
SMALL, LARGE = 1 << 6, 1 << 16


def seconds(call, elements, runs):
    """Returns the median time of a call on `elements` random float32, in seconds."""
    x, times = torch.randn(elements), []
    for _ in range(runs):
        start = time.perf_counter()
        call(x)
        times.append(time.perf_counter() - start)
    return sorted(times)[runs // 2]


def measure(runs=50):
    """Returns the table: for each call a line through its times at two sizes."""
    rows = {}
    for name, call in CALLS.items():
        small, large = seconds(call, SMALL, runs), seconds(call, LARGE, runs)
        slope = max(large - small, 0.0) / (LARGE - SMALL)
        fixed = max(small - slope * SMALL, 0.0)
        rows[name] = {"fixed_us": round(fixed * 1e6, 2), "ns_per_element": round(slope * 1e9, 3)}
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    return {"machine": machine, "calls": rows}


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
