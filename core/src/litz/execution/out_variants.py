"""Library calls that can write into memory of our choosing.

A call that allocates its own result in host memory takes fresh pages each time; given a buffer of the pool it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from litz.ir import Extern, Program
from litz_plugins import Target

from .plan import MemoryPlan

aten = torch.ops.aten

_OUT = {op.default: op.out for op in (aten.mm, aten.bmm, aten.addmm, aten.baddbmm)}


def out_variant(
    extern: Extern, program: Program, targets: Mapping[torch.device, Target], memory: MemoryPlan
) -> Callable[..., Any] | None:
    """Returns the `out=` form of a call's op where writing into a planned buffer pays and is the same computation, else
    None."""
    target = _OUT.get(extern.target)  # type: ignore[call-overload]
    if target is None or len(extern.outputs) != 1 or extern.outputs[0] is None:
        return None
    if memory.reuse.get(extern.outputs[0]) in extern.reads:
        return target  # over what it adds to
    if targets[program.buffers[extern.outputs[0]].device].allocator != "pool":
        return None
    # With a dense row-major result the out= form computes in place; otherwise it would copy at the end.
    return target if program.buffers[extern.outputs[0]].layout.is_contiguous() else None
