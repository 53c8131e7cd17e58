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
from torch import Tensor, nn

from support.interpreted import print_share
from support.interpreted_graphs import backend
from support.zoo import ZOO, Entry, Inputs
from support.zoo_check import double

LEFT_OUT: Mapping[str, str] = {"mixtral": "torch's grouped product takes no float64 on a CPU"}
"""Models that are not checked, each with the reason."""

NEXT_TO_NOTHING = 0.05
"""Of the largest gradient: a smaller one is judged as if it were so large."""


@dataclass(frozen=True)
class Case:
    """A model of the zoo."""

    entry: Entry

    def check(self) -> str:
        """ "" or which of the loss and the gradients is further from float64's than twice what eager's are."""
        torch._dynamo.reset()
        torch.manual_seed(0)
        model, inputs = self.entry.make().train(), self.entry.inputs(2)
        eager, judge = copy.deepcopy(model), copy.deepcopy(model).double()
        self.entry.prepare_judge(judge)
        with (
            torch._dynamo.config.patch(**self.entry.patches),
            mock.patch("litz.capture.torch_api.narrow.LEAST_BYTES", 0),
        ):
            ours = _step(model, torch.compile(model, backend=backend, dynamic=False), inputs)
        theirs, exact = _step(eager, eager, inputs), _step(judge, judge, double(inputs))
        least = NEXT_TO_NOTHING * max(float(value.abs().max()) for value in exact.values())
        for name, wanted in exact.items():
            scale = max(float(wanted.abs().max()), least)
            off, allowed = (float((found[name].double() - wanted).abs().max()) / scale for found in (ours, theirs))
            if not off <= 2 * allowed + 4e-6:
                return f"{name} is {off:.1e} off, eager's {allowed:.1e}"
        return ""


def _step(model: nn.Module, function: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
    """The loss, and each parameter's gradient by name."""
    loss = dict(function(**inputs))["loss"]
    loss.backward()
    return {"loss": loss.detach(), **{n: p.grad for n, p in model.named_parameters() if p.grad is not None}}


CASES: Mapping[str, Case] = {str(entry): Case(entry) for entry in ZOO if str(entry) not in LEFT_OUT}


if __name__ == "__main__":
    print_share(CASES)
