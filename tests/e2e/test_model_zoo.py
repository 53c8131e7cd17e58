"""Whole models of every kind, compiled against eager with float64 as the judge: outputs, loss, gradients, statistics.

Inference for one batch size and one training step with a dynamic batch, of models that are not made of what others are;
`make test-all` has the rest and the other two ways as well (of models of many layers, training with a dynamic batch
alone); a few in bfloat16 under autocast. What stays a library call in them must be library work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.compare import DEVICES
from support.versions import OLD_TORCH
from support.zoo import ZOO, Entry
from support.zoo_check import check, exact_convolutions

pytest.importorskip("transformers")


TRAINED_ALIKE = (
    *("clip", "gpt2", "whisper", "mobilenet", "bert", "llama", "swin"),
    *("t5", "convnext", "diffusion", "lstm", "mixtral", "unet", "resnet"),
)
"""Their training is made of what that of bert and vit, of llama and vit, of t5 and the models with convolutions, of
resnet, of vit and t5, of mixtral, and of vit and convnext is made of. llama is trained in bfloat16, and resnet in
strict mode (tests/numerics/test_zoo.py); a network like it is trained with a dynamic batch beside layouts
(tests/layout/test_layout_values.py). What one of them alone has, has tests of its own: windows by `roll`
(tests/operators/test_joining.py), T5's written-out attention (tests/contractions/test_attention_written_out.py),
layouts of ConvNeXt and of a U-Net, which are trained there, group norms (tests/e2e/test_statistics.py), resampling
(tests/e2e/test_resampling.py), tensors of a size that data decides (tests/e2e/test_dynamic_shapes.py). CI compiles the
inference of mixtral, of an LSTM and of diffusion."""


def cases(thorough: bool) -> list[Any]:
    """(model, dynamic), heavy models with a dynamic batch only. thorough: the `dynamic` that is for `make test-all`."""

    def marks(entry: Entry, dynamic: bool) -> list[pytest.MarkDecorator]:
        alike = not thorough and str(entry) in TRAINED_ALIKE
        if entry.heavy:
            return [pytest.mark.slow, *[pytest.mark.thorough] * alike]
        return [] if dynamic != thorough and not alike else [pytest.mark.thorough]

    return [
        pytest.param(entry, dynamic, id=f"{entry}-{'dynamic' if dynamic else 'static'}", marks=marks(entry, dynamic))
        for entry in ZOO
        for dynamic in (False, True)
        if dynamic or not entry.heavy
    ]


ONE_BATCH_SIZE = "torch 2.11's dynamo fixes the batch size of this model's loss, before litz sees a graph"
LSTM_STATE = "torch 2.11's decomposition of an LSTM (aot_eager's, too) gives its state a dimension too many"
KNOWN_ON_CPU = {
    **{("lstm", dynamic, True): LSTM_STATE for dynamic in (False, True)},
    ("whisper", True, True): ONE_BATCH_SIZE,
    ("mixtral", True, True): ONE_BATCH_SIZE,
}
KNOWN = {
    "cpu": KNOWN_ON_CPU,
    "cuda": {**KNOWN_ON_CPU, **{("lstm", dynamic, False): LSTM_STATE for dynamic in (False, True)}},
}
"""For each device: (model, dynamic, training) that fails with torch 2.11, and why."""


def expect_failure(request: pytest.FixtureRequest, entry: Entry, device: str, dynamic: bool, training: bool) -> None:
    """Mark a known failure as one, so that it is reported as such and never as passed."""
    reason = KNOWN[device].get((str(entry), dynamic, training)) if OLD_TORCH else None
    if reason is not None:
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.fixture(autouse=True)
def no_tf32() -> Iterator[None]:
    with exact_convolutions():
        yield


ALIKE = ("gpt2", "whisper", "resnet", "vit", "clip", "convnext", "bert", "t5", "unet", "graph", "dlrm", "llama")
"""Their inference is made of what that of mixtral and diffusion is made of, or of what the forward of their own
training is, which CI compiles."""


def inference_cases() -> list[Any]:
    """Those of light models, the ones that are like another for `make test-all`."""
    found = [case for case in cases(thorough=True) if not case.values[0].heavy]
    return [
        pytest.param(*case.values, id=case.id, marks=(*case.marks, pytest.mark.thorough))
        if str(case.values[0]) in ALIKE
        else case
        for case in found
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("entry, dynamic", inference_cases())
def test_inference(entry: Entry, dynamic: bool, device: str, request: pytest.FixtureRequest) -> None:
    expect_failure(request, entry, device, dynamic, training=False)
    check(entry, device, training=False, dynamic=dynamic)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("entry, dynamic", cases(thorough=False))
def test_training(entry: Entry, dynamic: bool, device: str, request: pytest.FixtureRequest) -> None:
    expect_failure(request, entry, device, dynamic, training=True)
    check(entry, device, training=True, dynamic=dynamic)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.ci_cases("llama-cpu")
@pytest.mark.parametrize("entry", [entry for entry in ZOO if entry.autocast], ids=str)
def test_training_in_bfloat16(entry: Entry, device: str) -> None:
    check(entry, device, training=True, dynamic=False, autocast=True)
