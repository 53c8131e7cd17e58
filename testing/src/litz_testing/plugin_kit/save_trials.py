"""What compiles where torch asks for bytes, on the small programs. In: the examples. Out: a trial of each.

Each graph is saved as torch does that, read back, and called: also with other values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from litz_plugins.errors import in_short
from litz_testing.conformance.call import clones, doubled
from litz_testing.conformance.runs import compare_runs, run_once
from litz_testing.torch_compile import torch_compiled

from .examples import FEW, Example
from .records import Trial
from .ways import Under

WHAT = "litz_select_saver"
WAY = "saved and read back"


def save_trials(examples: Sequence[Example], under: Under) -> list[Trial]:
    """Returns a trial of each example that is built and needs no gradients."""
    tried = [example for example in examples if example.name in FEW and not example.train]
    return [Trial(WHAT, example.name, WAY, _problem(example, under)) for example in tried]


def _problem(example: Example, under: Under) -> str:
    torch.compiler.reset()
    fast = torch_compiled(example.function, read_back(under.backend()), False, data=True)
    try:
        for seed in range(2):
            inputs = example.inputs(0, seed)
            expected = run_once(example.function, clones(inputs))
            run, twice = run_once(fast, clones(inputs)), lambda i=inputs: run_once(example.function, doubled(i))
            if found := compare_runs(run, expected, twice, True):
                return "; ".join(found)
    except Exception as error:
        return in_short(error)
    return ""


def read_back(backend: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a backend whose graphs run from the bytes that torch would save of the other backend's."""

    def compiled(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        from torch._dynamo.aot_compile_types import SerializableCallable

        with torch._functorch.config.patch(bundled_autograd_cache=True):
            found = backend(gm, inputs)
        if not isinstance(found, SerializableCallable):
            raise TypeError(f"what runs the graph is no SerializableCallable, but a {type(found).__name__}")
        saved = type(found).serialize_compile_artifacts(found)
        return type(found).deserialize_compile_artifacts(saved)

    return compiled


__all__ = ["save_trials"]
