"""Do all ranks of a group plan the same communication? In: a Schedule. Out: nothing, or a `PlanMismatchError`.

Ranks that start different collectives wait for each other for ever. Each rank puts its plan into the store of the
default process group, waits for the plans of the ranks that it communicates with, and compares, group by group. All of
them see the same plans, so each raises the same error.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from litz.capture import torch_api
from litz.ir import Collective, Program, TensorRef
from litz.schedule.schedule import Schedule
from litz_plugins import LitzError, PassContext

Plan = Mapping[str, list[str]]
"""Group, as the text of its ranks -> a line for each of its collectives, in order."""

OWN_SIZES = ("all_to_all_single",)
"""Ops whose sizes each rank has its own of."""


class PlanMismatchError(LitzError):
    """Ranks of one group would start different collectives. `rank` is the one that differs from most."""

    def __init__(self, graph: str, rank: int, other: int, number: int, lines: tuple[str, str]) -> None:
        self.rank = rank
        super().__init__(
            f"rank {rank} plans other communication than rank {other} in {graph}; collective {number} of the group is\n"
            f"    on rank {rank}: {lines[0]}\n    on rank {other}: {lines[1]}",
            todo="make every rank run the same code on inputs of the same sizes, with the same options; they would "
            "have waited for each other. options={'collectives.verify_plan': False} leaves out this check",
        )


def make_plan(schedule: Schedule) -> dict[str, list[str]]:
    """Returns a schedule's plan: exactly what all ranks of a group have to agree on."""
    plan: dict[str, list[str]] = {}
    for step in schedule.steps:
        if isinstance(step, Collective) and step.ranks:
            plan.setdefault(str(list(step.ranks)), []).append(collective_line(step, schedule.program))
    return plan


def verify_plan(schedule: Schedule, context: PassContext) -> Schedule:
    """Compares the ranks' plans before they run (a pass, which returns its schedule). Errors: PlanMismatchError; a
    UserWarning where a rank has no plan of this graph in time."""
    found = torch_api.default_store()
    if found is None:
        return schedule
    store, rank = found
    plan, graph = make_plan(schedule), schedule.program.name
    # A graph of one name may be compiled again; each rank counts by itself.
    turn = store.add(f"litz/plan/{graph}/{rank}/turns", 1)
    place = f"litz/plan/{graph}/{turn}"
    store.set(f"{place}/{rank}", json.dumps(plan))
    others = sorted({other for group in plan for other in json.loads(group)} - {rank})
    plans: dict[int, Plan] = {rank: plan}
    seconds = context.options["collectives.verify_seconds"]
    for other in others:
        try:
            store.wait([f"{place}/{other}"], timedelta(seconds=seconds))
        except RuntimeError:  # torch raises DistStoreError, a RuntimeError
            warnings.warn(f"rank {other} has not compiled {graph} within {seconds:g} s of rank {rank}", stacklevel=2)
            continue
        plans[other] = json.loads(store.get(f"{place}/{other}"))
    compare(graph, plans)
    return schedule


def compare(graph: str, plans: Mapping[int, Plan]) -> None:
    """Raises PlanMismatchError for the first group, in the order of their ranks, whose ranks do not agree."""
    for group in sorted({group for plan in plans.values() for group in plan}, key=json.loads):
        lines = {rank: tuple(plans[rank].get(group, ())) for rank in json.loads(group) if rank in plans}
        count = Counter(lines.values())
        usual = min(lines, key=lambda rank: (-count[lines[rank]], rank))
        for rank, own in sorted(lines.items()):
            if own != lines[usual]:
                most = lines[usual]
                number = next(n for n in range(len(own) + len(most)) if own[n : n + 1] != most[n : n + 1])
                pair = (_text(own, number), _text(most, number))
                raise PlanMismatchError(graph, rank, usual, number, pair)


def _text(lines: Sequence[str], number: int) -> str:
    return lines[number] if number < len(lines) else "none"


def collective_line(step: Collective, program: Program) -> str:
    """Returns the op, its plain arguments and the tensors it takes. In place or not is each rank's own affair."""
    name = step.target_name.split(".")[1].removesuffix("_")
    tensors = [] if name in OWN_SIZES else [_tensor(ref, program) for ref in step.refs if ref.buffer not in _outs(step)]
    plain = [str(value) for value in step.args if isinstance(value, (int, str)) and value != step.group]
    return " ".join([name, *plain, *tensors])


def _outs(step: Collective) -> set[str]:
    return set(step.mutates) if step.target_name.endswith("_out.default") else set()


def _tensor(ref: TensorRef, program: Program) -> str:
    """Returns a tensor's dtype and sizes, such as "float32 [4, 16]"; a size that is not fixed is *, as ranks may differ
    in it."""
    size = ", ".join(str(extent) if extent.is_Integer else "*" for extent in ref.layout.size)
    return f"{str(program.buffers[ref.buffer].dtype).removeprefix('torch.')} [{size}]"


def wanted(options: Any) -> bool:
    """Returns whether the check is on: as the option says, or in debug mode where the option is not set."""
    said = options.get("collectives.verify_plan")
    return bool(options.get("debug", False) if said is None else said)
