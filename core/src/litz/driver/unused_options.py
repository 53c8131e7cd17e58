"""What was asked for and has nothing to do. In: the options, what a graph runs on, the plugins. Out: a note for each.

An option that does nothing looks like an option that does not help. The notes are decisions on record, which
`litz explain` and the report show.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from functools import cache

from litz_plugins import Decision, EntryFacts, OptionsView, Plugins, Target
from litz_plugins.missing import how_to_install

NO_TUNER = (
    "max_autotune measures nothing here: no plugin that measures is loaded. `pip install ./plugins_autotune` in a "
    "checkout of litz adds one"
)
"""For mode="max-autotune" without litz-autotune."""


@cache
def warn_once(text: str) -> None:
    """Gives a warning once in a process, however many graphs it is true of."""
    warnings.warn(text, stacklevel=2)


def idle_notes(graph: str, options: OptionsView, targets: Collection[Target], plugins: Plugins) -> list[Decision]:
    """Returns a decision for each option that has nothing to do for the graph of this name. targets: of the devices
    that the graph uses. Warns where a plugin is missing, as only its user can mend that."""
    found = []
    if options["cuda_graphs"] and not _record(targets):
        where = " and ".join(sorted({target.type for target in targets})) or "no device"
        reason = f"the option cuda_graphs has nothing to do here: the graph runs on {where}"
        found.append(Decision("execution", graph, "no CUDA graphs", reason))
    asked = any(options[name] for name in ("max_autotune", "max_autotune_gemm", "max_autotune_pointwise"))
    if asked and not plugins.has("litz_tune"):
        warn_once(NO_TUNER)
        found.append(Decision("schedule", graph, "nothing measured", NO_TUNER))
    if options["benchmark_kernels"] and "tools" not in plugins.names():
        reason = f"benchmark_kernels writes nothing here: {plugins.missing().get('tools') or how_to_install('tools')}"
        warn_once(reason)
        found.append(Decision("report", graph, "no files of kernels", reason))
    return found


def recording_notes(graph: str, options: OptionsView, facts: EntryFacts, targets: Collection[Target]) -> list[Decision]:
    """Returns a decision for a graph that is to be recorded and cannot be, though a device of it can record."""
    if not options["cuda_graphs"] or not facts.obstacle or not _record(targets):
        return []
    return [Decision("execution", graph, "no CUDA graph", facts.obstacle)]


def is_recorded(options: OptionsView, plugins: Plugins) -> bool:
    """Returns whether graphs are to be recorded, by a plugin that is there."""
    return bool(options["cuda_graphs"]) and "cudagraphs" in plugins.names()


def recorder_notes(graph: str, options: OptionsView, facts: EntryFacts, plugins: Plugins) -> list[Decision]:
    """Returns a decision for a graph that could be recorded, where the plugin that records is missing, and warns.
    Graphs from the graph cache get the decision as well: a report that is kept there must not say what is installed."""
    if not options["cuda_graphs"] or is_recorded(options, plugins) or facts.obstacle or not facts.devices:
        return []
    missing = plugins.missing().get("cudagraphs") or how_to_install("cudagraphs")
    reason = f"cuda_graphs records nothing here: {missing}"
    warn_once(reason)
    return [Decision("execution", graph, "no CUDA graph", reason)]


def _record(targets: Collection[Target]) -> bool:
    return any("recording" in target.abilities for target in targets)
