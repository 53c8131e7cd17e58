"""What strict mode leaves to torch, on record: a pass that changes nothing. In and out: a Program."""

from __future__ import annotations

from litz.cost import count_work
from litz.ir import Collective, Extern, Program, Wait
from litz_plugins import PassContext

from .exact import exact_table

REASON = "not strict-exact here, so torch's own kernel runs"
LIBRARY = "a library's call in any mode"


def name_torchs_kernels(program: Program, context: PassContext) -> Program:
    """Returns the program, with a decision on record for each call of torch's: why it is one, and its estimate."""
    library = exact_table().library
    for call in program.operations:
        if not isinstance(call, Extern) or isinstance(call, (Collective, Wait)):
            continue
        target = context.target_of(call.device)
        found, moved = context.estimate(call, target, program), count_work(call, program, target).total_bytes
        us = None if found is None else found.us or None  # a CPU that nobody measured costs nothing
        name = call.target_name.removeprefix("aten.")
        reason = LIBRARY if name.partition(".")[0] in library else REASON
        context.record(call.name, f"torch's {name}", f"{reason}; it reads and writes {moved:.0f} bytes", ((name, us),))
    return program
