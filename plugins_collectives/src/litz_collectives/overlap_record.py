"""Why communication stands where `overlap` put it, for `litz explain`. In: a Planner and its choice. Out: decisions."""

from __future__ import annotations

from collections.abc import Sequence

from .improve import JUDGES, LEAST, score_of
from .planner import Candidate, Planner
from .streams import Replay, Task, replay

SCORED = score_of([1.0] * len(JUDGES))
"""What one µs by each judge counts in a score."""


def record(planner: Planner, chosen: Candidate, own: Candidate, blind: str) -> None:
    """Records why the order is as it is: for all, for each bucket, for each collective that moved, and for each that
    is in pieces or might have been."""
    if chosen is planner.source and blind:
        planner.context.record("overlap", "source order", blind)
        _record_pieces(planner, chosen, blind)
        return
    old, new = replay(planner.source.tasks), replay(chosen.tasks)
    memory = f"peak {planner.source.peak} B before, {chosen.peak} B after, limit {planner.limit:.0f} B"
    if chosen is planner.source:
        reason = "no other order is surely faster" if own is planner.source else "another rank planned so"
        reason = f"{reason}: {_exposed(old)}; {memory}"
        planner.context.record("overlap", "source order", reason, planner.considered)
        _record_pieces(planner, chosen, blind)
        return
    reason = f"{_exposed(old)} before, {_exposed(new)} after; {memory}"
    planner.context.record("overlap", chosen.name, reason, planner.considered)
    estimates = chosen.source.estimates
    for name, members in chosen.buckets.members.items():
        apart = sum(estimates[one].us for one in members)
        reason = f"{', '.join(members)}: {apart:.4g} µs one by one, {chosen.buckets.estimates[name].us:.4g} µs as one"
        planner.context.record(name, f"bucket of {len(members)}", reason)
    was = {step.name: number for number, step in enumerate(planner.source.steps)}
    ran_before = _before_starts(planner.source.tasks)
    for name, done in _before_starts(chosen.tasks).items():
        members = chosen.buckets.members.get(name, (name,))
        if any(one not in was for one in members):
            continue  # pieces, of which one row tells
        first = min(members, key=lambda one: was[one])
        moved = ran_before[first] - done
        then = sum(old.exposed.get(one, 0.0) for one in members)
        now = new.exposed.get(name, 0.0)
        if moved or then != now:
            side = "earlier" if moved > 0 else "later"
            where = f"starts {abs(moved):.4g} µs of computation {side}" if moved else "starts where it did"
            planner.context.record(name, where, f"exposed {then:.4g} µs before, {now:.4g} µs after")
    _record_pieces(planner, chosen, blind)


def _record_pieces(planner: Planner, chosen: Candidate, blind: str) -> None:
    """Records what was cut and why; and why not, of what waits for communication that a product stands next to."""
    counts = planner.cutter.counts_of(chosen.plan.cuts)
    whole = planner.whole_order
    exposed, old, new = _exposures(planner, chosen), replay(whole.tasks).exposed, replay(chosen.tasks).exposed
    for name, site in planner.sites.items():
        if name in counts:
            now = sum(new.get(one, 0.0) for one in planner.steps_of(name, chosen))
            products = ", ".join(product.name for product in site.products) or "no product on this rank"
            times = "" if blind else f": exposed {old.get(name, 0.0):.4g} µs whole, {now:.4g} µs in pieces"
            asked = "" if planner.searches_pieces else "; asked for by collectives.pieces"
            planner.context.record(name, f"{min(counts[name], site.rows)} pieces", f"with {products}{times}{asked}")
        elif not blind and exposed.get(name, 0.0) > LEAST:
            planner.context.record(name, "whole", _why_whole(planner, name, exposed[name]))


def _exposures(planner: Planner, chosen: Candidate) -> dict[str, float]:
    """µs for which the schedule's collectives are exposed, those of a bucket together."""
    found = replay(chosen.tasks).exposed
    bucket_of = {one: name for name, members in chosen.buckets.members.items() for one in members}
    return {name: found.get(bucket_of.get(name, name), 0.0) for name in planner.sites}


def _why_whole(planner: Planner, name: str, us: float) -> str:
    site, exposed = planner.sites[name], f"exposed {us:.4g} µs; "
    if not site.products:
        return f"{exposed}no product can be cut with it: {site.why}"
    if not planner.searches_pieces:
        return f"{exposed}collectives.pieces asks for none"
    if name not in planner.tried:
        return f"{exposed}others are exposed longer, and the search ended with them"
    count, us = planner.tried[name]
    score = us / SCORED
    if us < 0:
        return f"{exposed}{count} pieces would take {-score:.4g} µs less: not surely less, or beyond the memory limit"
    return f"{exposed}{count} pieces, the best, would take {score:.4g} µs more: each has its own latency and launch"


def _exposed(found: Replay) -> str:
    return f"{found.us:.5g} µs, {found.exposed_us:.4g} of {found.communication_us:.4g} µs of communication exposed"


def _before_starts(tasks: Sequence[Task]) -> dict[str, float]:
    """Collective -> µs of computation that stand before it."""
    total, found = 0.0, {}
    for task in tasks:
        if task.kind == "start":
            found[task.name] = total
        total += task.time.us if task.kind == "compute" else 0.0
    return found
