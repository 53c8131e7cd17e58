"""One contraction of a function for a template's kernel, and whether the kernel computes what float64 does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses import FakeTensorMode

from litz.ir import KernelCall, Program, Template
from litz.pipeline import make_compiler, schedule_only
from litz.schedule.choices import Replacement, replacement_of, substituted
from litz_autotune.race import PART, relative_errors
from litz_contractions.epilogue import fused
from litz_contractions.module import Unsuitable
from litz_contractions.products.blocks import can_use_descriptors
from litz_contractions.products.choice import Kernels
from litz_contractions.products.configs import Config
from litz_contractions.products.joined import second_product, with_whole_rows
from litz_contractions.products.lanes import unpacked
from litz_contractions.products.offer import KINDS
from litz_contractions.products.prologue import with_prologues
from support.gemm_functions import Make
from support.kernel_programs import run
from support.retarget import cuda_schedules

SMALL = Config(32, 32, 32, 2, 4)
WIDE = Config(16, 64, 32, 3, 4, group=2)
SPLIT = Config(32, 32, 16, 2, 4, split=4)
TMA = Config(32, 32, 32, 2, 4, group=2, programs=3)


@dataclass(frozen=True)
class Case:
    """fn: what is compiled; its one contraction goes to the template. fuse: with its users and producers. left: loops
    that are not part of the kernel then. reference: the same for float64, if `fn` is not. rows: with reductions of its
    rows."""

    fn: Callable[..., Any]
    make: Make
    config: Config
    dynamic: bool | None = False
    fuse: bool = True
    left: int = 0
    tolerance: float = 1e-5
    reference: Callable[..., Any] | None = None
    rows: bool = False
    fake: bool = False

    def programs(self) -> tuple[Program, Program]:
        """The CUDA program as it was captured, and with the template in place of its (first) contraction."""
        before, after, _ = self.captured()
        return before, after

    def captured(self) -> tuple[Program, Program, list[torch.Tensor]]:
        """Both programs, and what they are called with."""
        torch._dynamo.reset()
        options = {"disable_plugins": ("autotune", "contractions", "layout")}
        tensors, called = self.make(), list[list[Any]]()
        if self.fake:
            with FakeTensorMode(), torch.no_grad():
                fakes = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda") for t in tensors]
                (schedule,) = schedule_only(self.fn, fakes, options)
        else:
            (schedule,) = cuda_schedules(
                lambda backend: torch.compile(self.fn, backend=backend, dynamic=self.dynamic)(*tensors),
                make_compiler(None, options),
                called=None if tensors[0].is_meta else called,
            )
        program = schedule.program
        template = next(op for op in program.operations if isinstance(op, Template))
        given = [item for item in called[0] if isinstance(item, torch.Tensor)] if called else list(tensors)
        return program, substituted(program, template, self.replacement(program, template)), given

    def replacement(self, program: Program, template: Template) -> Replacement:
        gemm = KINDS[template.kind].make(template, program, False)
        epilogues = [*fused(program, template, gemm.epilogue)]
        both = second_product(gemm, epilogues, template, program) if epilogues else None
        if both is not None:
            gemm = both
        elif self.fuse and epilogues:
            gemm = replace(gemm, epilogue=epilogues[-1])
        if self.rows:
            whole = with_whole_rows(KINDS[template.kind].make(template, program, False), template, program)
            assert whole is not None
            gemm = whole
        gemm = unpacked((self.fuse and with_prologues(gemm, template, program)) or gemm)
        if self.config.programs and not can_use_descriptors(gemm, program):
            raise Unsuitable("the accelerator cannot load its operands")
        choice = Kernels(gemm, template, program).choice(self.config)
        assert choice is not None
        return replacement_of(choice)

    def check(self) -> str:
        """ "" or what is wrong with what the kernel computes, or what it does not compute."""
        torch.manual_seed(0)
        tensors = self.make()
        torch.manual_seed(0)
        _, program, given = self.captured()
        beside = [op.name for op in program.operations if not isinstance(op, KernelCall)]
        if len(beside) != self.left:
            return f"{beside} are not part of the kernel: {self.left} should not be"
        outputs = run(program, given)
        expected = (self.reference or self.fn)(*(t.double() if t.is_floating_point() else t for t in tensors))
        return wrong(outputs, expected if isinstance(expected, (tuple, list)) else (expected,), self.tolerance)


def wrong(outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], tolerance: float) -> str:
    """ "" or how outputs differ from those of float64."""
    for number, (output, wanted) in enumerate(zip(outputs, expected, strict=True)):
        wanted = wanted.double()
        if output.shape != wanted.shape:
            return f"output {number} has shape {tuple(output.shape)}, should have {tuple(wanted.shape)}"
        error, part = relative_errors(output.double(), wanted)
        if not (error <= tolerance and part <= PART * tolerance):
            return f"output {number}: relative error {error:.2e}, of a row or column {part:.2e}"
    return ""
