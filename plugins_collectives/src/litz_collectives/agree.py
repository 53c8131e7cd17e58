"""One order of communication for all ranks. In: this rank's plan. Out: the plan that all ranks go by.

What a rank would plan by itself depends on its own kernels' times, and those on sizes that ranks need not share (a
batch of its own). So the first rank that has a plan for some communication leaves it in the store of the default
process group, and the others take it from there; nobody waits for anybody. Ranks know that they mean the same
communication by a signature: the collectives in the order of the source, which must be the same on every rank of a
correct program, and which of them need which. A plan is legal for every graph of its signature, as it only orders,
merges and cuts collectives.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from litz.capture import torch_api
from litz.ir import Collective, Program
from litz.schedule.schedule import Step

from .verify import collective_line

Cuts = tuple[tuple[int, int], ...]
"""Collectives in pieces: places in the program's order, each with the number of pieces."""


class Plan(NamedTuple):
    """cuts: which collectives are in pieces. items: what is started, in order: each a collective, a piece or a bucket,
    by its members' numbers (`source`)."""

    cuts: Cuts
    items: tuple[tuple[int, ...], ...]


def signature(steps: Sequence[Step], before: Sequence[set[int]], program: Program, options: Mapping[str, Any]) -> str:
    """Returns a digest of the collectives in `steps`, of which of them need which, and of the options that a plan hangs
    on.

    Groups count by their size and by when they first come: each rank of a mesh has groups of its own.
    """
    groups: dict[str, int] = {}
    places: dict[int, int] = {}
    needs: list[int] = [0] * len(steps)
    lines: list[Any] = []
    for number, step in enumerate(steps):
        for other in before[number]:
            needs[number] |= needs[other] | (1 << places[other] if other in places else 0)
        if isinstance(step, Collective):
            group = groups.setdefault(step.group, len(groups))
            lines.append([collective_line(step, program), group, len(step.ranks), hex(needs[number])])
            places[number] = len(places)
    text = json.dumps([lines, sorted((name, str(value)) for name, value in options.items())])
    return hashlib.sha256(text.encode()).hexdigest()


def agreed(plan: Plan, key: str) -> Plan:
    """Returns the plan that the first rank left under `key`; this plan if this rank is first or has no group."""
    found = torch_api.default_store()
    if found is None:
        return plan
    store, _ = found
    kept = store.compare_set(f"litz/overlap/{key}", "", json.dumps(plan))
    cuts, items = json.loads(kept)
    return Plan(tuple((number, count) for number, count in cuts), tuple(map(tuple, items)))
