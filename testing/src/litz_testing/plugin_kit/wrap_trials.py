"""What runs in place of entries, on the small programs. In: the examples. Out: a trial of each.

Whoever wraps an entry may do otherwise in the first call than later (recordings do), and may hand out memory of its
own. So each program is called several times, for other values and other sizes. Every other result is held, and
judged at the end; the rest are dropped before the next call.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch

from litz_plugins.errors import in_short
from litz_testing.conformance.call import clones, doubled
from litz_testing.conformance.runs import Run, compare_runs, run_once
from litz_testing.torch_compile import torch_compiled

from .examples import FEW, Example
from .records import Trial
from .ways import Under

WHAT = "litz_wrap_entry"
WAY = "called again"
CALLS = 4
"""Calls of each size: a recorder runs the first, records the second and replays the others."""


def wrap_trials(examples: Sequence[Example], under: Under) -> list[Trial]:
    """Returns a trial of each example that is built."""
    return [Trial(WHAT, example.name, WAY, _problem(example, under)) for example in examples if example.name in FEW]


def _problem(example: Example, under: Under) -> str:
    torch.compiler.reset()
    fast = torch_compiled(example.function, under.backend(), False, data=True)
    given = [example.inputs(more, seed) for more, seed in product((0, 3), range(CALLS))]
    held: list[tuple[str, Run, Sequence[torch.Tensor]]] = []
    for number, inputs in enumerate(given):
        try:
            run = run_once(fast, clones(inputs), train=example.train)
        except Exception as error:
            return f"call {number + 1}: {in_short(error)}"
        if number % 2:
            problem = _judged(f"call {number + 1}", run, inputs, example)
            del run
            if problem:
                return problem
        else:
            held.append((f"call {number + 1}, whose results were held", run, inputs))
    return next((problem for what in held if (problem := _judged(*what, example))), "")


def _judged(what: str, run: Run, inputs: Sequence[torch.Tensor], example: Example) -> str:
    found = compare_runs(run, _eager(example, clones(inputs)), lambda: _eager(example, doubled(inputs)), True)
    return f"{what}: {'; '.join(found)}" if found else ""


def _eager(example: Example, inputs: Sequence[torch.Tensor]) -> Run:
    return run_once(example.function, inputs, train=example.train)


__all__ = ["wrap_trials"]
