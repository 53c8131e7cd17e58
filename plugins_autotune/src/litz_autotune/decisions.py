"""`litz_tune`: what is to be done about a graph's decisions. In: a `Tuning` and the plugin. Out: the variant that runs.

What was kept by an earlier process is taken at once. What is left to try is measured now, within what is left of the
graph's budget, or in the background, once the graph was called, if `autotune.background` says so.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from litz.cache.disk import digest
from litz.driver.unused_options import warn_once
from litz.driver.variants import Tuning, Variant
from litz_plugins import Decision

from . import kept
from .contest import environment, makers
from .difference import same_steps
from .kept import Tuned
from .pool import InProcess, Runner
from .search import Search
from .switches import ASKS, why_never
from .timing import can_measure

if TYPE_CHECKING:
    from .plugin import Autotune
    from .tune import Tuner

ATTACHMENT = "decisions measured.txt"
NOTHING_HERE = (
    "max_autotune has nothing to measure on this CPU: no contraction has kernels that compete with the library, and no "
    "other decision makes a difference. The code is that of the default mode"
)
"""Said once where there is no GPU."""
NO_KERNELS = "on a CPU no contraction has kernels that compete with the library, and no kernel has other tiles"
KEPT = "as measured by an earlier process"


def tune_decisions(tuning: Tuning, plugin: Autotune) -> Variant | None:
    """Returns the variant to run; None if the estimates decide."""
    options = tuning.options
    measures = bool(options["max_autotune"])
    if not options["autotune.decisions"] or not (measures or options["autotune.search_cache"]):
        return None
    if reason := tuning.why_not or why_never():
        _left(tuning, reason)
        return None
    cache: Any = tuning.cache
    key = _key(tuning)
    found, count = kept.find(cache, key) if options["autotune.local_cache"] else (None, 0)
    before = found or Tuned()
    if not measures or options["veto"] or (found is not None and found.complete):
        # Who vetoes looks for something: what is tried must not depend on it.
        if measures and (found is None or not found.complete):
            tuning.unsettled("its decisions are not all measured yet")
        if measures:
            _tell_idle(tuning, before, plugin.tuner)
        return None if found is None else _known(tuning, before)
    if not can_measure(tuning.device):
        _left(tuning, reason := f"there is no {tuning.device.type} device here to measure on")
        tuning.unsettled(reason)
        return None
    if options["autotune.background"]:
        tuning.later(lambda stopped: _beside(tuning, plugin, key, before, count, stopped))
        if before.ways:
            return _known(tuning, before)
        _left(tuning, "they are measured in the background, once the graph was called")
        return None
    tuner = plugin.tuner
    search = _search(tuning, plugin, tuner, before)
    return _done(tuning, search, tuner, key, count)


def _search(tuning: Tuning, plugin: Autotune, tuner: Tuner, before: Tuned, **more: Any) -> Search:
    settled = {f"choose/{name}" for name in tuner.decided}
    deadline = time.monotonic() + tuner.budget.left
    return Search(tuning, _runner(tuning, tuner), deadline, settled, plugin.timer, before=before, **more)


def _done(tuning: Tuning, search: Search, tuner: Tuner, key: str, count: int) -> Variant | None:
    """Search, keep what was found, and put it on record."""
    begun, cache = time.monotonic(), tuning.cache
    try:
        best, tuned = search.run()
    finally:
        tuner.budget.spent += time.monotonic() - begun
        tuner.counters.races += search.duels
    if tuning.options["autotune.local_cache"] and (tuned.tried or tuned.complete):
        kept.put(cache, key, tuned, count)  # type: ignore[arg-type]
    if not tuned.complete:
        tuning.unsettled("the budget was spent before all decisions were measured")
    tuning.attach(best, ATTACHMENT, str(tuned))
    _tell_idle(tuning, tuned, tuner, best)
    return best


def _beside(tuning: Tuning, plugin: Autotune, key: str, before: Tuned, count: int, stopped: Any) -> Variant | None:
    """Tunes in the background: contractions first, as the compile would have measured them, then decisions."""
    tuner = plugin.make_tuner(background=True)
    tuner.start(tuning.options["autotune.budget_s"])
    with plugin.beside(tuner):
        base = tuning.make({})
        search = _search(tuning, plugin, tuner, before, stopped=stopped, base=base, early=False)
        best = _done(tuning, search, tuner, key, count)
    return None if best is None or same_steps(tuning.first.schedule, best.schedule) else best


def _runner(tuning: Tuning, tuner: Tuner) -> Runner:
    """Returns the runner that measures: on a processor this process, as it has the processor's settings already."""
    if tuning.device.type == "cpu":
        return InProcess()
    return tuner.runner(tuning.options, tuning.device.type, tuning.device.index)


def _known(tuning: Tuning, tuned: Tuned) -> Variant:
    """The variant that was found before."""
    variant = tuning.make(tuned.ways) if tuned.ways else tuning.first
    tuning.note(variant, Decision("schedule", tuning.graph.name, f"{len(tuned.ways)} taken otherwise", KEPT))
    tuning.attach(variant, ATTACHMENT, f"{KEPT}\n{tuned}")
    return variant


def _tell_idle(tuning: Tuning, tuned: Tuned, tuner: Tuner, variant: Variant | None = None) -> None:
    """Nothing of the graph was or is worth measuring: on record, and a warning on a machine without a GPU."""
    if tuner.decided or not tuned.complete or any(each.us is not None or each.won for each in tuned.tried):
        return
    where = tuning.device.type
    reason = f"no contraction has other kernels on a {where}, and no other decision makes a difference"
    decision = Decision("schedule", tuning.graph.name, "nothing measured", reason, plugin="autotune")
    tuning.note(variant or tuning.first, decision)
    if tuning.device.type == "cpu" and not torch.cuda.is_available():
        warn_once(NOTHING_HERE)


def tell_no_kernels(tuning: Tuning, tuner: Tuner) -> None:
    """Puts on record that nothing was measured, where decisions are not and no kernel has others to compete with on a
    CPU, or none may be measured; warns on a machine without a GPU, once."""
    asked = [name for name in ASKS if tuning.options[name]]
    decisions = tuning.options["max_autotune"] and tuning.options["autotune.decisions"]
    if not asked or decisions or tuner.decided or tuner.kernels or (tuning.device.type != "cpu" and not why_never()):
        return
    reason = why_never() or NO_KERNELS
    decision = Decision("schedule", tuning.graph.name, "nothing measured", reason, plugin="autotune")
    tuning.note(tuning.first, decision)
    if not torch.cuda.is_available():
        warn_once(f"{' and '.join(asked)} measured nothing: {reason}. The code is that of the default mode")


def _left(tuning: Tuning, reason: str) -> None:
    """Nothing is measured: on record, with why."""
    decision = Decision("schedule", tuning.graph.name, "decisions as estimated", reason, plugin="autotune")
    tuning.note(tuning.first, decision)


def _key(tuning: Tuning) -> str:
    """Returns a digest of what is tuned, with what compiles it and computes."""
    return digest(tuning.key, makers(), *environment())


__all__ = ["tell_no_kernels", "tune_decisions"]
