"""Every example of this folder in one job.

torchrun --standalone --nproc-per-node 2 examples/distributed/all.py [NAME ...]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial

import context_parallel
import expert_parallel
import fsdp_tensor_parallel
import pipeline
import sequence_parallel
import simple_fsdp
import torch
import torch.distributed as dist
from common import job, report

EXAMPLES: Mapping[str, Callable[[torch.device], None]] = {
    "simple_fsdp": simple_fsdp.run,
    "fsdp2": partial(fsdp_tensor_parallel.run, tensor_parallel=1),
    "fsdp_tensor_parallel": fsdp_tensor_parallel.run,
    "sequence_parallel": sequence_parallel.run,
    "context_parallel": context_parallel.run,
    "expert_parallel": expert_parallel.run,
    "pipeline": pipeline.run,
}

if __name__ == "__main__":
    with job() as device:
        for name in sys.argv[1:] or EXAMPLES:
            start = time.perf_counter()
            torch._dynamo.reset()
            EXAMPLES[name](device)
            dist.barrier()
            report(name, f"done in {time.perf_counter() - start:.1f} s")
