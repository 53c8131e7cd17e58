"""Cost functions for the option collectives.cost, as users write them."""

from __future__ import annotations

from typing import Any

from litz.ir import Collective, Extern, Wait


def runtime(operation: Any, device: Any, program: Any) -> float:
    """The seed's: 100 µs a collective, nothing a wait, 5 a library call, 1 anything else."""
    if isinstance(operation, Collective):
        return 100.0
    if isinstance(operation, Wait):
        return 0.0
    return 5.0 if isinstance(operation, Extern) else 1.0


def free_communication(operation: Any, device: Any, program: Any) -> float:
    """Communication takes no time."""
    return 0.0 if isinstance(operation, (Collective, Wait)) else 1.0


def by_rank(operation: Any, device: Any, program: Any) -> float:
    """Each rank thinks otherwise: the first that a merged collective costs no more than one, the others as many."""
    import torch.distributed as dist

    if isinstance(operation, Collective) and dist.get_rank() > 0:
        return 100.0 * len(operation.outputs)
    return runtime(operation, device, program)


def short_communication(operation: Any, device: Any, program: Any) -> float:
    """As the seed's, but 8 µs a collective: what is needed first takes 6 of it, and one product more hides the rest."""
    return 8.0 if isinstance(operation, Collective) else runtime(operation, device, program)


def slow_calls(operation: Any, device: Any, program: Any) -> float:
    """As `short_communication`, but 20 µs a library call: what is needed first hides the communication already."""
    called = isinstance(operation, Extern) and not isinstance(operation, (Collective, Wait))
    return 20.0 if called else short_communication(operation, device, program)


def computation_alone(operation: Any, device: Any, program: Any) -> float | None:
    """3 µs a library call, 1 a kernel; no opinion on communication, which litz's own model then has."""
    if isinstance(operation, (Collective, Wait)):
        return None
    return 3.0 if isinstance(operation, Extern) else 1.0
