"""What operations cost: a roofline from a device's figures.

In: an operation, its Program and a `Target`. Out: an `Estimate`. Behind the hook `litz_estimate_runtime` as the
built-in plugin `Roofline`; whatever another plugin answers goes before it.

    target = target_of(torch.device("cuda"), options)   # litz.target; quick when asked again
    estimate(operation, target, program)                # core's own answer
    count_work(operation, program, target)              # FLOPs and bytes, for a model of one's own
"""

from .plugin import Roofline
from .roofline import estimate, estimate_work
from .work import Work, bytes_of, count_work

__all__ = ["Roofline", "Work", "bytes_of", "count_work", "estimate", "estimate_work"]
