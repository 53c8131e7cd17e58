"""Whole models in strict mode: outputs, loss, gradients and statistics are eager's bit for bit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from litz_testing.tensors import lies_otherwise
from numerics.values import same_bits
from support.zoo import ZOO, Entry
from support.zoo_check import Results, run

pytest.importorskip("transformers")

STRICT = {"numerics.mode": "strict"}
BROKEN_UP_BY_TORCH = ("lstm",)
"""Trained, these are torch's graph in place of eager's call: an LSTM that dynamo is told to trace is traced as the
products that it is made of. They are compared with that graph, run by torch."""
FEW = ("bert", "resnet")
"""Trained in CI: a transformer and a network of convolutions and batch norms."""


def differing(entry: Entry, training: bool, autocast: bool = False) -> list[str]:
    """Returns the names of the results in which strict mode differs from eager."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = entry.make().train(training)
    inputs = entry.inputs(3)
    with torch._dynamo.config.patch(entry.patches):
        compiled = copy.deepcopy(model)
        by_torch = torch.compile(model, backend="aot_eager") if str(entry) in BROKEN_UP_BY_TORCH else model
        wanted = run(model, by_torch, copy.deepcopy(inputs), training, autocast)
        torch._dynamo.reset()
        found = run(compiled, torch.compile(compiled, backend="litz", options=STRICT), inputs, training, autocast)
    return _differing(found, wanted)


def _differing(found: Results, wanted: Results) -> list[str]:
    names = []
    for part in ("outputs", "gradients", "buffers"):
        got, want = getattr(found, part), getattr(wanted, part)
        assert got.keys() == want.keys()
        names += [f"{part} {name}" for name in want if not _same(got[name], want[name])]
    return names


def _same(got: Any, want: Any) -> bool:
    return same_bits(got, want) and not lies_otherwise(got, want)


def _params(training: bool) -> list[Any]:
    few = [entry for entry in ZOO if str(entry) in FEW]
    others = [entry for entry in ZOO if str(entry) not in FEW]
    return [
        *(pytest.param(entry, id=str(entry), marks=[] if training else pytest.mark.thorough) for entry in few),
        *(pytest.param(entry, id=str(entry), marks=pytest.mark.nightly) for entry in others),
    ]


@pytest.mark.parametrize("entry", _params(True))
def test_training(entry: Entry) -> None:
    assert not differing(entry, True)


@pytest.mark.parametrize("entry", _params(False))
def test_inference(entry: Entry) -> None:
    assert not differing(entry, False)


@pytest.mark.nightly
@pytest.mark.parametrize("entry", [entry for entry in ZOO if entry.autocast], ids=str)
def test_training_in_bfloat16(entry: Entry) -> None:
    assert not differing(entry, True, autocast=True)
