"""The models that `benchmarks.side_by_side` measures: in, nothing; out, `ZOO`, a record for each, by name. `find` has
other models of timm and transformers, and N equal layers, as well.

One file per family, each with a table: a new model is a new row. Weights are random and nothing is downloaded. Sizes
are typical of a GPU; `small` ones are for trying it out on a CPU.
"""

from __future__ import annotations

import argparse

from . import decoders, diffusion, encoders, experts, graphs, physics, recommendation, recurrent, speech, vision
from .by_name import by_name
from .layers import equal_layers
from .model import Model, missing

_FAMILIES = (
    encoders, decoders, experts, vision, diffusion, speech, recommendation, graphs, recurrent, physics,
)  # fmt: skip
ZOO: dict[str, Model] = {model.name: model for family in _FAMILIES for model in family.MODELS}


def find(name: str) -> Model:
    """Returns the row of that name, N equal layers (`layers:N`), or a model of a library (`by_name`). Errors:
    ValueError if there is none."""
    return ZOO.get(name) or equal_layers(name) or by_name(name)


def known(name: str) -> str:
    """Returns the name of a model that there is, for argparse. Errors: argparse.ArgumentTypeError if there is none."""
    try:
        return find(name).name
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


__all__ = ["ZOO", "Model", "find", "known", "missing"]
