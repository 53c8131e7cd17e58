"""Look at what litz makes of a function, stage by stage, without building anything.

    python examples/inspect_schedule.py

Works for a GPU on a machine that has none: the tensors are fake, so nothing is computed either.
"""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from litz.pipeline import make_compiler, plan_schedule, schedule_only
from litz.report.log import Log


def block(x, scale, shift, weight):
    y = torch.nn.functional.layer_norm(x, (x.shape[-1],), scale, shift)
    return x + torch.nn.functional.gelu(y @ weight)


with FakeTensorMode():
    x, weight = torch.empty(4096, 1024, device="cuda"), torch.empty(1024, 1024, device="cuda")
    scale, shift = torch.empty(1024, device="cuda"), torch.empty(1024, device="cuda")

log = Log()
(schedule,) = schedule_only(block, [x, scale, shift, weight], log=log)
plan = plan_schedule(schedule, make_compiler(), log)

# The Program: buffers and operations in data-flow order. A Loop is ranges and stores of scalar expressions; what litz
# leaves to a library is an Extern. Here passes have run already, which inlined cheap loops into their readers.
print("=== the program")
print(schedule.program)

# The Schedule: loops fused into kernels, in order; its ExecutionPlan: their names, where memory is allocated and freed.
print("\n=== the schedule")
print(schedule)
print("\n=== the plan")
print(plan)

# What each kernel is expected to take, and why. Without a GPU here, the device is taken for an H100.
print("\n=== estimates")
for name, estimate in plan.estimates.items():
    print(f"{name}: {estimate.us:.1f} µs ({estimate.low_us:.1f} to {estimate.high_us:.1f}), {estimate.why}")

# Why loops were fused, or not, and whose memory was taken over.
print("\n=== decisions")
for decision in log.decisions:
    print(f"{decision.subject}: {decision.chosen} ({decision.reason})")
