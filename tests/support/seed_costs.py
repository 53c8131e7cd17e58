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
