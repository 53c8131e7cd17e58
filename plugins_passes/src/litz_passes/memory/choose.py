"""Which candidate a budget gets. In: candidates and bytes. Out: one, or the error that says the least."""

from __future__ import annotations

from collections.abc import Sequence

from litz.logs.units import size_text

from .errors import MemoryBudgetError
from .plans import Candidate, Held

SHOWN = 10
"""Tensors that the error names."""


def fastest(candidates: Sequence[Candidate], budget: int) -> Candidate | None:
    """Returns the fastest candidate that fits, the smallest of several and the first of equal ones; None if none fits.

    So more bytes give no slower plan, as they leave every candidate that fitted; and fewer bytes give no larger one: a
    candidate that is taken for fewer bytes alone was beaten by one that does not fit any more.
    """
    fitting = [each for each in candidates if each.peak <= budget]
    return min(fitting, key=lambda each: (each.us, each.peak), default=None)


def refusal(least: Candidate, budget: int, graph: str) -> MemoryBudgetError:
    """Returns the error for a budget that nobody meets. least: the smallest candidate."""
    half = "forward" if least.peaks[0] == least.peak else "backward"
    held = least.held()
    lines = [f"{size_text(each.nbytes):>10}  {_about(each)}" for each in held[:SHOWN]]
    rest = held[SHOWN:]
    if rest:
        lines.append(f"{size_text(sum(each.nbytes for each in rest)):>10}  {len(rest)} others")
    what = (
        f"the memory budget of {size_text(budget)} ({budget} bytes) cannot be met: the least planned peak that litz "
        f"finds for {graph} is {size_text(least.peak)} ({least.peak} bytes), in its {half}, of which are"
    )
    return MemoryBudgetError(
        "\n    ".join([what, *lines]),
        where=f"options= or LITZ_MEMORY_BUDGET, {graph}",
        todo=f"give memory.budget={least.peak} or more, or a smaller batch",
    )


def _about(held: Held) -> str:
    return ", ".join(filter(None, (held.name, "saved for the backward" if held.saved else "", held.origin)))


__all__ = ["fastest", "refusal"]
