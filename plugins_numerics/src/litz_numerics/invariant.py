"""What `numerics.batch_invariant` leaves of what is registered, and which calls may depend on the batch.

In, decompositions, lowerings, passes or templates; out, some of them. A kernel template or a pass that chooses an order
of additions by the sizes stays out (`invariant.toml` has the passes that stay); `orders` fixes the orders.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from litz.ir import Collective, Extern, Program, Wait
from litz_plugins import PassContext

REASON = "torch's own kernel, whose rows may depend on the batch"


@dataclass(frozen=True)
class InvariantTable:
    """The file's contents. passes: that stay. copies: ops that stay calls. invariant: ops whose kernels in torch do not
    depend on other rows."""

    passes: frozenset[str]
    copies: frozenset[str]
    invariant: frozenset[str]


@cache
def invariant_table() -> InvariantTable:
    """Returns the table."""
    content = tomllib.loads(Path(__file__).with_name("invariant.toml").read_text(encoding="utf-8"))
    lists = (content["passes"]["kept"], content["copies"]["ops"], content["invariant"]["ops"])
    return InvariantTable(*map(frozenset, lists))


def _without_copies(registered: Mapping[Any, Any]) -> Mapping[Any, Any]:
    copies = invariant_table().copies
    return {op: rule for op, rule in registered.items() if str(op).removeprefix("aten.") not in copies}


def _passes(registered: Mapping[Any, Any]) -> Mapping[Any, Any]:
    kept = invariant_table().passes
    return {name: item for name, item in registered.items() if name in kept}


NARROWED: Mapping[str, Callable[[Mapping[Any, Any]], Mapping[Any, Any]]] = {
    "decomposition": _without_copies,
    "lowering": _without_copies,
    "pass": _passes,
    "template": lambda registered: {},
}
"""What the option uses of what is registered, by the kind that the hook `litz_narrow` names."""


def name_dependent_kernels(program: Program, context: PassContext) -> Program:
    """Returns the program, with a decision on record for each call of torch's whose rows may depend on the batch (a
    pass that changes nothing)."""
    invariant = invariant_table().invariant
    for call in program.operations:
        if isinstance(call, Extern) and not isinstance(call, (Collective, Wait)):
            name = call.target_name.removeprefix("aten.")
            if name.partition(".")[0] not in invariant:
                context.record(call.name, f"torch's {name}", REASON)
    return program
