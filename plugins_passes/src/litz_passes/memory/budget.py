"""A budget obeyed. In: a joint graph and bytes. Out: the candidate that runs, with all that were looked at."""

from __future__ import annotations

from litz.capture.joint.nouns import JointGraph
from litz.logs.units import size_text
from litz_plugins import PassContext

from .candidates import Planned, Search
from .choose import fastest, refusal
from .plans import Candidate


def obey(
    joint: JointGraph, budget: int, planned: Planned, context: PassContext, strict: bool = False
) -> tuple[Candidate, tuple[Candidate, ...]]:
    """Returns (the candidate that a budget gets, all that were looked at). strict: are results to have eager's bits?
    Errors: MemoryBudgetError."""
    search = Search(joint, planned, context.target_of, strict)
    candidates = search.candidates
    chosen = fastest(candidates, budget)
    if chosen is None:
        least = min(candidates, key=lambda each: each.peak)
        for other in search.repaired(least, max(each.us for each in candidates)):
            candidates, least = (*candidates, other), other
            if other.peak <= budget:
                chosen = other
                break
    if chosen is None:
        raise refusal(least, budget, joint.name)
    context.record(
        joint.name,
        f"a planned peak of {size_text(chosen.peak)} ({chosen.name})",
        f"the fastest of {len(candidates)} candidates within the budget of {size_text(budget)}",
        [(f"{each.name}, {size_text(each.peak)}", each.us) for each in candidates],
        plugin="memory",
    )
    return chosen, candidates


__all__ = ["obey"]
