"""Products of many rows with their users, and those that were padded: each as a function of what it is called with.

`python -m support.many_rows_cases SHARD SHARDS` (with TRITON_INTERPRET=1) runs their kernels in Triton's interpreter
against float64 and prints, for each case, "" or what went wrong, as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from litz.contractions.products import many_rows
from litz.ir import Program, Template
from litz.pipeline import make_compiler
from litz.schedule.choices import replacement_of, substituted
from litz.target import make_target
from litz_plugins import Estimate
from support.gemm_cases import context, randn, run
from support.interpreted import print_share
from support.retarget import cuda_schedules
from support.triton_without_gpu import SM_90

Tensor = torch.Tensor
HALF = torch.float16


@dataclass(frozen=True)
class Case:
    """fn: of tensors in the order of their first use. options: of litz. offers: are there kernels for it?"""

    fn: Callable[..., Any]
    make: Callable[[], tuple[Tensor, ...]]
    offers: bool = True

    def programs(self, number: int = 0) -> tuple[Program, Program]:
        """As it was captured, and with one of the kernels in place."""
        torch._dynamo.reset()
        compiler = make_compiler(None, {"disable_plugins": ("autotune", "contractions"), "layout.pad": "always"})
        tensors = self.make()
        with torch.no_grad():
            run = lambda backend: torch.compile(self.fn, backend=backend, dynamic=False)(*tensors)
            (schedule,) = cuda_schedules(run, compiler)
        before = schedule.program
        (template,) = (op for op in before.operations if isinstance(op, Template))
        offers = many_rows.offer_many_rows(template, known(before, template))
        if not offers:
            return before, before
        return before, substituted(before, template, replacement_of(offers[number]))

    def check(self) -> str:
        """ "" or what is wrong with what the kernels compute."""
        torch.manual_seed(0)
        tensors = self.make()
        before, program = self.programs()
        if (program is before) == self.offers:
            return "kernels are offered" if not self.offers else "no kernel is offered"
        (output,) = run(program, tensors)
        wanted = self.fn(*(t.double() for t in tensors))
        error = float((output.double() - wanted).norm() / wanted.norm())
        return "" if output.shape == wanted.shape and error < 1e-2 else f"{tuple(output.shape)}, error {error:.2e}"
