"""The models that `benchmarks.side_by_side` measures: in, nothing; out, `ZOO`, a record for each, by name.

One file per family, each with a table: a new model is a new row. Weights are random and nothing is downloaded. Sizes
are typical of a GPU; `small` ones are for trying it out on a CPU.
"""

from __future__ import annotations

from . import decoders, diffusion, encoders, experts, graphs, physics, recommendation, recurrent, speech, vision
from .model import Model, missing

_FAMILIES = (
    encoders, decoders, experts, vision, diffusion, speech, recommendation, graphs, recurrent, physics,
)  # fmt: skip
ZOO: dict[str, Model] = {model.name: model for family in _FAMILIES for model in family.MODELS}

__all__ = ["ZOO", "Model", "missing"]
