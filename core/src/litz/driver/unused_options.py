"""What was asked for and has nothing to do. In: the options, what a graph runs on, the plugins. Out: a note for each.

An option that does nothing looks like an option that does not help. The notes are decisions on record, which
`litz explain` and the report show.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

import torch

from litz_plugins import Decision, OptionsView, Plugins

NO_TUNER = (
    "max_autotune measures nothing here: no plugin that measures is loaded. `pip install ./plugins_autotune` in a "
    "checkout of litz adds one"
)
"""For mode="max-autotune" without litz-autotune."""


@cache
def warn_once(text: str) -> None:
    """Gives a warning once in a process, however many graphs it is true of."""
    warnings.warn(text, stacklevel=2)


def idle_notes(graph: str, options: OptionsView, devices: Collection[str], plugins: Plugins) -> list[Decision]:
    """Returns a decision for each option that has nothing to do for the graph of this name. devices: the types of
    devices that the graph uses. Warns where a plugin is missing, as only its user can mend that."""
    found = []
    if options["cuda_graphs"] and "cuda" not in devices:
        where = " and ".join(sorted(devices)) or "no device"
        reason = f"the option cuda_graphs has nothing to do here: the graph runs on {where}"
        found.append(Decision("execution", graph, "no CUDA graphs", reason))
    asked = any(options[name] for name in ("max_autotune", "max_autotune_gemm", "max_autotune_pointwise"))
    if asked and not plugins.has("litz_tune"):
        warn_once(NO_TUNER)
        found.append(Decision("schedule", graph, "nothing measured", NO_TUNER))
    return found


def recording_notes(graph: str, facts: Mapping[str, Any] | None, devices: Collection[torch.device]) -> list[Decision]:
    """Returns a decision for a graph that runs on a GPU and cannot be recorded. facts: as `replay_facts` gives them;
    None where no recording was asked for. devices: of the graph's memory."""
    if facts is None or not facts["obstacle"] or all(device.type != "cuda" for device in devices):
        return []
    return [Decision("execution", graph, "no CUDA graph", facts["obstacle"])]
