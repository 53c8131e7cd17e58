"""Which regions of `nested_compile_region` are compiled once for all their calls.

In: a region and how many calls it has. Out: is it kept, or written into the graph that calls it? A graph is quicker
where loops fuse across the border, and takes longer to compile with each call. The decision has a key:
`keep_region/NAME`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from litz.capture import torch_api
from litz.driver.compiler import Compiler
from litz.report.log import Log
from litz.target import Room, figures_of
from litz_plugins import Decision
from litz_plugins.vetoes import key_of

_CHOSEN = {True: "compiled once for all calls", False: "written into the graph that calls it"}


@dataclass(frozen=True)
class RegionFigures(Room):
    """From how many calls on a region is kept, which share of its time a call may lose at the border, and what a call
    takes on the host, in microseconds."""

    table = "regions"
    called_times: int
    lost_share: float
    call_us: float


def keeps_region(compiler: Compiler, log: Log, name: str, calls: int, body: torch.fx.GraphModule) -> bool:
    """Says whether a region is kept, and puts the reason on record. name: the region's in dynamo's graph."""
    from litz.target.describe import rate_kind  # here: most programs have no regions
    from litz.target.times import longest, matrix, memory

    work = torch_api.work_of(body)
    if work.draws and compiler.options.fallback_random:
        work.problem = "the region draws random numbers, in eager's order"
    if work.problem or work.like is None:
        log.note(Decision("traced", name, _CHOSEN[False], work.problem))
        return False
    target = compiler.target_of(work.like.device)
    figures = figures_of(target, RegionFigures)
    inside = longest([matrix(work.flops, rate_kind(work.like.dtype), target), memory(work.moved, target)]).at("usual")
    border = 2 * memory(work.results, target).at("usual") + figures.call_us  # results are written and read again
    pays = calls >= figures.called_times and border <= figures.lost_share * inside
    kept, why = log.gate.weigh("keep_region", name, pays, calls * inside, calls * (inside + border))
    limits = f"kept from {figures.called_times} calls on, up to a loss of {figures.lost_share:.0%}"
    why = why or f"each of {calls} calls loses {border:.3g} us of {inside:.3g} at the border; {limits}"
    log.note(Decision("traced", name, _CHOSEN[kept], why, key=key_of(log.gate.graph, "keep_region", name)))
    return kept
