"""Model: one row of the zoo, and what makes rows of transformers' classes and of modules from images to classes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """A model and what it is called with.

    make(small): the module in float32, on the CPU. inputs(batch, small): arguments by name; targets(batch, small): more
    of them, with which the module's result has a "loss" (None: it is not trained). batch: of inference; training: of
    training. half: computes in bfloat16, else in float32; autocast: trained with parameters in float32. needs: the
    libraries. patches: settings of torch._dynamo.config. judge(model): makes the copy in float64 fit to be run.
    """

    name: str
    family: str
    make: Callable[[bool], nn.Module]
    inputs: Callable[[int, bool], Inputs]
    targets: Callable[[int, bool], Inputs] | None
    batch: int
    training: int = 0
    half: bool = True
    autocast: bool = False
    needs: tuple[str, ...] = ()
    patches: Mapping[str, Any] = field(default_factory=dict)
    judge: Callable[[nn.Module], object] | None = None


def missing(model: Model) -> tuple[str, ...]:
    """The libraries that a model needs and this machine has not."""
    return tuple(name for name in model.needs if importlib.util.find_spec(name) is None)


def pretrained(
    kind: str, config: str, full: Mapping[str, Any], small: Mapping[str, Any]
) -> Callable[[bool], nn.Module]:
    """make= for transformers' class `kind`. small: settings that take the place of those of `full`. Dropout is off:
    random numbers are not eager's."""

    def make(tiny: bool) -> nn.Module:
        import transformers

        made = getattr(transformers, config)(**{**full, **(small if tiny else {})})
        for name, value in made.to_dict().items():
            if "drop" in name and isinstance(value, float | list | tuple):
                setattr(made, name, 0.0 if isinstance(value, float) else [0.0] * len(value))
        if hasattr(made, "use_cache"):
            made.use_cache = False
        model: nn.Module = getattr(transformers, kind)(made)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        return model

    return make


def text(vocabulary: int, length: int, small: tuple[int, int] = (97, 24)) -> Callable[[int, bool], Inputs]:
    """inputs= of a language model. small: (vocabulary, length)."""

    def inputs(batch: int, tiny: bool) -> Inputs:
        words, size = small if tiny else (vocabulary, length)
        return {"input_ids": torch.randint(3, words, (batch, size))}

    return inputs


def next_token(
    vocabulary: int, length: int, small: tuple[int, int] = (97, 24), name: str = "labels"
) -> Callable[[int, bool], Inputs]:
    """targets= of a language model."""
    made = text(vocabulary, length, small)
    return lambda batch, tiny: {name: made(batch, tiny)["input_ids"]}


def classes(count: int) -> Callable[[int, bool], Inputs]:
    """targets= of a classifier."""
    return lambda batch, tiny: {"labels": torch.randint(0, count, (batch,))}


def pixels(side: int = 224, small: int = 64, name: str = "pixel_values") -> Callable[[int, bool], Inputs]:
    """inputs= of a vision model."""
    return lambda batch, tiny: {name: torch.randn(batch, 3, *(2 * [small if tiny else side]))}


class Classifier(nn.Module):
    """A module from images to logits, with a loss where there are labels."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.body(pixel_values)
        return with_loss({"logits": logits}, lambda: F.cross_entropy(logits, labels), labels)


def with_loss(outputs: dict[str, Tensor], loss: Callable[[], Tensor], target: Tensor | None) -> dict[str, Tensor]:
    """The outputs, and the loss where there is a target."""
    return outputs if target is None else {"loss": loss(), **outputs}
