"""The zoo's models in training, in small sizes, for a GPU that is not there.

Kernels run in Triton's interpreter, library calls on the CPU.

`python -m support.interpreted_zoo SHARD OF [MODEL ...]` checks the models.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from unittest import mock

import torch

from support.interpreted import print_share
from support.interpreted_graphs import backend
from support.zoo import ZOO, Entry
from support.zoo_check import as_exact, double, peers, run

LEFT_OUT: Mapping[str, str] = {"mixtral": "torch's grouped product takes no float64 on a CPU"}
"""Models that are not checked, each with the reason."""


@dataclass(frozen=True)
class Case:
    """A model of the zoo."""

    entry: Entry

    def check(self) -> str:
        """Returns "". Errors: AssertionError for a result that is further from float64's than eager's."""
        torch._dynamo.reset()
        torch.manual_seed(0)
        model, inputs = self.entry.make().train(), self.entry.inputs(2)
        ours, judge = copy.deepcopy(model), copy.deepcopy(model).double()
        self.entry.prepare_judge(judge)
        narrowed = mock.patch("litz_passes.joint.saved_positions.LEAST_BYTES", 0)
        with torch._dynamo.config.patch(**self.entry.patches), narrowed:
            compiled = torch.compile(ours, backend=backend, dynamic=False)
            actual = run(ours, compiled, inputs, training=True, autocast=False)
        others = peers(model, inputs, autocast=False, count=3)
        expected = run(model, model, inputs, training=True, autocast=False)
        exact = run(judge, judge, double(inputs), training=True, autocast=False)
        as_exact(actual, expected, exact, others)
        return ""


CASES: Mapping[str, Case] = {str(entry): Case(entry) for entry in ZOO if str(entry) not in LEFT_OUT}


if __name__ == "__main__":
    print_share(CASES)
