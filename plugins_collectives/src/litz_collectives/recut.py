"""Collectives in more or fewer pieces where communication is exposed. In: a candidate. Out: a better one, or the same.

No order hides a message that the next product needs at once, or that waits for the product before it: pieces do
(`pieces`). For the collectives that are exposed longest each number of pieces is replayed, for all of a kind (a model's
layers have the same) and for the one. The best is taken, and so on, until none helps or enough steps were replayed.
What pieces cost is in the replay: each piece's own latency, each product's launch and worse fill of the device, and the
copy where something reads what was gathered as a whole. So small messages stay whole. A cut has to pay by more than
what it adds may cost beyond what is thought (`Planner.surely_beats`). Every rank does the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .improve import JUDGES, LEAST, judged

if TYPE_CHECKING:
    from .planner import Candidate, Planner

COUNTS = (1, 2, 3, 4, 6, 8)
"""Numbers of pieces that are tried."""
REPLAYED = 12_000
"""Steps that may be put in order and replayed in all: about 1 s."""
NEAR = 1.05
"""How many times the score it began with an order may have to be looked at."""
ROUND, IMPROVED, ORDERED = 3, 9, 40_000
"""Orders that are improved in a round and in all, and tasks that may be replayed for each."""
WORST = 4
"""Exposed collectives that are looked at in a round."""


def recut(found: Candidate, planner: Planner) -> Candidate:
    """Returns the candidate with other collectives in pieces, of a lower score and within the memory limit, or the
    candidate. Pieces that stand where the whole stood may want other places, so that the order of the best few of a
    round is improved before they are compared."""
    left, improvable = REPLAYED, IMPROVED
    seen: set[tuple[tuple[str, int], ...]] = set()
    while left > 0:
        made: list[tuple[Candidate, str, int]] = []
        for name, counts in _moves(found, planner):
            key = tuple(sorted(counts.items()))
            if left <= 0:
                break
            if key in seen:
                continue
            seen.add(key)
            left -= len(found.steps)
            one = planner.cut(found, counts, NEAR * found.score)
            if one is not None:
                made.append((one, name, counts[name]))
        made.sort(key=lambda row: row[0].score)
        best = None
        for number, (one, name, count) in enumerate(made):
            if one.peak <= planner.limit and number < ROUND and improvable > 0:
                improvable -= 1
                one = planner.improved(one, replayed=ORDERED)
            planner.note_cut(name, count, one.score - found.score)
            better = one.score < (found.score if best is None else best.score) - LEAST
            if better and one.peak <= planner.limit and planner.surely_beats(one, found):
                best = one
        if best is None:
            break
        found = best
    return found


def _moves(found: Candidate, planner: Planner) -> Iterator[tuple[str, Mapping[str, int]]]:
    """The numbers of pieces to try, of all that are cut; each with the collective that it is about. All of a kind that
    are exposed come first, then single ones."""
    now = planner.cutter.counts_of(found.plan.cuts)
    exposed = _exposed(found, planner)
    worst = sorted(exposed, key=lambda one: (-exposed[one], planner.whole.numbers[one]))
    alike: dict[tuple[Any, ...], list[str]] = {}
    for name in worst:
        alike.setdefault(planner.sites[name].family, []).append(name)
    families = sorted(alike.values(), key=lambda names: -sum(map(exposed.__getitem__, names)))
    for names in (*families[:WORST], *([name] for name in worst[:WORST])):
        for count in COUNTS:
            if count <= planner.sites[names[0]].rows and any(count != now.get(name, 1) for name in names):
                yield names[0], {**now, **dict.fromkeys(names, count)}


def _exposed(found: Candidate, planner: Planner) -> dict[str, float]:
    """By collective that can be cut: µs for which it, or its pieces, or the bucket that it is in, is exposed."""
    own = {step: name for name in planner.sites for step in planner.steps_of(name, found)}
    exposed: dict[str, float] = {}
    for replayed in judged(found.tasks):
        for step, us in replayed.exposed.items():
            for one in found.buckets.members.get(step, (step,)):
                name = own.get(one)
                if name is not None and planner.sites[name].products:
                    exposed[name] = exposed.get(name, 0.0) + us
    return {name: us for name, us in exposed.items() if us > LEAST * len(JUDGES)}
