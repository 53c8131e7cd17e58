"""Why communication stands where `overlap` put it, for `litz explain`. In: a Planner and its choice. Out: decisions."""

from __future__ import annotations

from collections.abc import Sequence

from .planner import Candidate, Planner
from .streams import Replay, Task, replay


def record(planner: Planner, chosen: Candidate, own: Candidate, blind: str) -> None:
    """Records why the order is as it is: for all, for each bucket, and for each collective that moved."""
    if chosen is planner.source and blind:
        planner.context.record("overlap", "source order", blind)
        return
    old, new = replay(planner.source.tasks), replay(chosen.tasks)
    memory = f"peak {planner.source.peak} B before, {chosen.peak} B after, limit {planner.limit:.0f} B"
    if chosen is planner.source:
        reason = "no other order is surely faster" if own is planner.source else "another rank planned so"
        reason = f"{reason}: {_exposed(old)}; {memory}"
        planner.context.record("overlap", "source order", reason, planner.considered)
        return
    reason = f"{_exposed(old)} before, {_exposed(new)} after; {memory}"
    planner.context.record("overlap", chosen.name, reason, planner.considered)
    for name, members in chosen.buckets.members.items():
        apart = sum(planner.estimates[one].us for one in members)
        reason = f"{', '.join(members)}: {apart:.4g} µs one by one, {chosen.buckets.estimates[name].us:.4g} µs as one"
        planner.context.record(name, f"bucket of {len(members)}", reason)
    was = {step.name: number for number, step in enumerate(planner.schedule.steps)}
    ran_before = _before_starts(planner.source.tasks)
    for name, done in _before_starts(chosen.tasks).items():
        members = chosen.buckets.members.get(name, (name,))
        first = min(members, key=lambda one: was[one])
        moved = ran_before[first] - done
        then = sum(old.exposed.get(one, 0.0) for one in members)
        now = new.exposed.get(name, 0.0)
        if moved or then != now:
            side = "earlier" if moved > 0 else "later"
            where = f"starts {abs(moved):.4g} µs of computation {side}" if moved else "starts where it did"
            planner.context.record(name, where, f"exposed {then:.4g} µs before, {now:.4g} µs after")


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
