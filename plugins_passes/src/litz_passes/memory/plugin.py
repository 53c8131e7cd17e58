"""The hooks of the plugin "memory": the option `memory.budget`, and the partitioner that obeys it.

`litz --help` and `litz options` load this module, which therefore loads torch only in hooks that a compile calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from litz_plugins import OptionSpec, OptionsView, Pass, PassContext, hookimpl
from litz_plugins.nouns import JointGraph

ACCEPTS = "bytes (21474836480), a size (20GiB), or a share of eager's planned peak (80%)"


def check_budget(text: str) -> None:
    """Raises ValueError for a text that is no budget."""
    from .amounts import bytes_of

    bytes_of(text, 1 << 30)


@hookimpl
def litz_register_options() -> Sequence[OptionSpec]:
    """Returns the option of a budget."""
    text = "the most memory of a training step's forward and backward by plan: what the backward computes again for it"
    return [OptionSpec("budget", str, None, text, check=check_budget, accepts=ACCEPTS)]


@hookimpl
def litz_register_passes(options: OptionsView) -> Sequence[Pass]:
    """Returns two passes that change nothing, and note for the report what `litz memory` shows."""
    from .notes import note_eagers_peak, note_standing_memory

    return (
        Pass("note_standing_memory", "partitioned", note_standing_memory, ("read_saved_tensors?",)),
        Pass("note_eagers_peak", "graph", note_eagers_peak, (), ("fold_constants?", "eliminate_dead_code")),
    )


@hookimpl(tryfirst=True, before=("numerics?",))  # whose halves save all: within a budget they are one of the candidates
def litz_partition(
    joint: JointGraph,
    options: OptionsView,
    planned: Callable[[tuple[Any, Any]], tuple[Any, Any]],
    context: PassContext,
) -> tuple[Any, Any] | None:
    """Returns the fastest halves whose planned peak fits the budget; None where there is no budget."""
    from .notes import ATTACHMENT, facts_of
    from .sizes import Sizes, eager_peak

    budget, eager = options.get("memory.budget"), eager_peak(Sizes(joint), joint.forward_outputs)
    facts: dict[str, Any] = {**facts_of(eager), "budget": budget, "budget_bytes": None, "candidates": []}
    if budget is None:
        context.attach(ATTACHMENT, json.dumps(facts))
        return None
    from .amounts import bytes_of
    from .budget import obey

    nbytes = bytes_of(str(budget), eager.nbytes)
    chosen, candidates = obey(joint, nbytes, planned, context, options.get("numerics.mode") == "strict")
    rows = [{"name": each.name, "bytes": each.peak, "us": each.us, "taken": each is chosen} for each in candidates]
    context.attach(ATTACHMENT, json.dumps({**facts, "budget_bytes": nbytes, "candidates": rows}))
    return chosen.modules


@hookimpl
def litz_cache_fingerprint(options: OptionsView) -> str | None:
    """Returns None: results depend on the graph, the options and the target alone, which are in the key."""
    return None
