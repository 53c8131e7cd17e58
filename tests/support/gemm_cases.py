"""Matrix products for the autotuner's templates: each as a function, its inputs and a configuration.

`python -m support.gemm_cases SHARD SHARDS` (with TRITON_INTERPRET=1) runs their kernels in Triton's interpreter against
float64 and prints, for each case, "" or what went wrong, as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from litz.ir import KernelCall, Loop, Program, Template, TensorRef
from litz.ir import interpret as ir_interpret
from litz.ir.interpret import evaluate
from litz.options import make_options
from litz.pipeline import make_compiler, schedule_only
from litz.schedule.choices import Replacement, replacement_of, substituted
from litz.target import target_of
from litz_autotune.race import PART, relative_errors
from litz_contractions.epilogue import fused
from litz_contractions.products.choice import make_choice
from litz_contractions.products.configs import Config
from litz_contractions.products.joined import second_product, with_whole_rows
from litz_contractions.products.lanes import unpacked
from litz_contractions.products.offer import KINDS
from litz_contractions.products.prologue import with_prologues
from litz_contractions.subprogram import on_device
from litz_plugins import COUNTERS, ChoiceContext
from support.gemm_functions import (
    HALF,
    INT4,
    OF_INT4,
    Make,
    by_blocks,
    conv,
    gathered,
    in_blocks,
    int4,
    linear,
    linear_int4,
    made_and_scaled,
    marked,
    mm,
    mm_mm,
    mm_t,
    quantised,
    randn,
    scaled,
    scaled_exactly,
    scaled_mm,
    scaled_v2,
    three_users,
)
from support.interpreted import print_share
from support.retarget import cuda_schedules
from support.versions import OLD_TORCH


@dataclass(frozen=True)
class Case:
    """fn: what is compiled; its one contraction goes to the template. fuse: with its users and producers. reference:
    the same for float64, if `fn` is not. rows: with reductions of its rows."""

    fn: Callable[..., Any]
    make: Make
    config: Config
    dynamic: bool | None = False
    fuse: bool = True
    absorbs: int = 0
    tolerance: float = 1e-5
    reference: Callable[..., Any] | None = None
    rows: bool = False
    fake: bool = False

    def programs(self) -> tuple[Program, Program]:
        """The CUDA program as it was captured, and with the template in place of its (first) contraction."""
        torch._dynamo.reset()
        compiler = make_compiler(None, {"disable_plugins": ("autotune", "contractions")})
        tensors = self.make()
        if self.fake:
            with FakeTensorMode(), torch.no_grad():
                fakes = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda") for t in tensors]
                (schedule,) = schedule_only(self.fn, fakes, {"disable_plugins": ("autotune", "contractions")})
        else:
            (schedule,) = cuda_schedules(
                lambda backend: torch.compile(self.fn, backend=backend, dynamic=self.dynamic)(*tensors), compiler
            )
        program = schedule.program
        template = next(op for op in program.operations if isinstance(op, Template))
        return program, substituted(program, template, self.replacement(program, template))

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
        assert len(gemm.epilogue.absorbed) == self.absorbs, gemm.epilogue
        choice = make_choice(gemm, self.config, None, template, program)
        assert choice is not None
        return replacement_of(choice)

    def check(self) -> str:
        """ "" or what is wrong with what the kernel computes."""
        torch.manual_seed(0)
        tensors = self.make()
        _, program = self.programs()
        outputs = run(program, tensors)
        expected = (self.reference or self.fn)(*(t.double() if t.is_floating_point() else t for t in tensors))
        expected = expected if isinstance(expected, (tuple, list)) else (expected,)
        for number, (output, wanted) in enumerate(zip(outputs, expected, strict=True)):
            wanted = wanted.double()
            if output.shape != wanted.shape:
                return f"output {number} has shape {tuple(output.shape)}, should have {tuple(wanted.shape)}"
            error, part = relative_errors(output.double(), wanted)
            if not (error <= self.tolerance and part <= PART * self.tolerance):
                return f"output {number}: relative error {error:.2e}, of a row or column {part:.2e}"
        return ""


WIDENED = re.compile(r"(tl\.dot)\((.+?), (\w+)(?=[,)])").sub
"""The interpreter multiplies the bits of bf16 as if they were integers."""


def run(program: Program, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The program on CPU tensors: kernels in Triton's interpreter, everything else in the IR's."""
    from litz_testing.triton_interpreter import interpret_source

    memory: dict[str, torch.Tensor] = {}
    sizes: dict[Any, int] = {}
    given = iter(tensors)
    for item in program.inputs:
        if isinstance(item, str):
            memory[item] = next(given)
            ir_interpret._bind_layout(sizes, program.buffers[item].layout, memory[item])
    for operation in program.operations:
        if isinstance(operation, Loop):
            ir_interpret.run_loop(replace(operation, device=torch.device("cpu")), cpu(program), memory, sizes)
        elif isinstance(operation, KernelCall):
            for name in operation.outputs:
                layout = program.buffers[str(name)].layout
                shape = [evaluate(e, sizes) for e in layout.size], [evaluate(e, sizes) for e in layout.stride]
                memory[str(name)] = (
                    torch.full((max(1, evaluate(layout.span, sizes)),), 123)
                    .to(program.buffers[str(name)].dtype)
                    .as_strided(*shape)
                )
            text = operation.source.text
            source = replace(operation.source, text=WIDENED(r"\1((\2).to(tl.float32), (\3).to(tl.float32)", text))
            source = source if "bf16" in text else operation.source
            count = source.settings.get("counters", 0)
            own = {**memory, COUNTERS: torch.zeros(count, dtype=torch.int32)}
            buffers = [own[item] for item in source.arguments if isinstance(item, str)]
            values = [evaluate(item, sizes) for item in source.arguments if not isinstance(item, str)]
            interpret_source(source, buffers, values)
        else:
            ir_interpret._run_extern(operation, program, memory, sizes)
    return [ir_interpret.view(out, memory, sizes) for out in program.outputs if isinstance(out, TensorRef)]


def cpu(program: Program) -> Program:
    """The program with all its buffers on the CPU."""
    return on_device(program, torch.device("cpu"))


def context(program: Program, template: Template, **options: Any) -> ChoiceContext:
    """Where a template is asked for choices, on an H100."""
    from litz_autotune.plugin import Autotune

    specs = [replace(spec, name=f"autotune.{spec.name}") for spec in Autotune().litz_register_options()]
    opts = make_options(None, {"max_autotune": True, **options}, specs)
    return ChoiceContext(template, target_of("cuda", opts), opts, program)


F = torch.nn.functional
SMALL = Config(32, 32, 32, 2, 4)
WIDE = Config(16, 64, 32, 3, 4, group=2)
SPLIT = Config(32, 32, 16, 2, 4, split=4)
TMA = Config(32, 32, 32, 2, 4, group=2, programs=3)


CASES: Mapping[str, Case] = {
    "mm": Case(torch.mm, mm(64, 64, 64), SMALL),
    "mm-odd": Case(torch.mm, mm(37, 29, 45), SMALL),
    "mm-one-row": Case(torch.mm, mm(1, 70, 33), WIDE),
    "mm-one-column": Case(torch.mm, mm(50, 70, 1), SMALL),
    "mm-one-deep": Case(torch.mm, mm(20, 1, 30), SMALL),
    "mm-nothing-deep": Case(torch.mm, mm(20, 0, 30), SMALL),
    "mm-tall": Case(torch.mm, mm(200, 16, 17), SMALL),
    "mm-bf16": Case(torch.mm, mm(40, 50, 60, torch.bfloat16), SMALL, tolerance=HALF),
    "mm-fp16": Case(torch.mm, mm(40, 50, 60, torch.float16), SMALL, tolerance=HALF),
    "mm-transposed-left": Case(lambda a, b: a.t() @ b, lambda: (randn(45, 33), randn(45, 20)), SMALL),
    "mm-transposed-both": Case(lambda a, b: a.t() @ b.t(), lambda: (randn(45, 33), randn(20, 45)), SMALL),
    "mm-strided": Case(torch.mm, lambda: (randn(57, 33, stride=(1, 64)), randn(33, 20, stride=(20, 1))), SMALL),
    "mm-strided-bf16": Case(
        torch.mm,
        lambda: (
            randn(57, 33, stride=(1, 64), dtype=torch.bfloat16),
            randn(33, 20, stride=(20, 1), dtype=torch.bfloat16),
        ),
        SMALL,
        tolerance=HALF,
    ),
    "mm-sliced": Case(lambda a, b: a[3:20, 1:30] @ b[2:31, 5:], lambda: (randn(30, 40), randn(40, 25)), SMALL),
    "mm-expanded": Case(lambda a, b: a.expand(20, 33) @ b, lambda: (randn(1, 33), randn(33, 40)), SMALL),
    "mm-same-twice": Case(lambda a: a @ a, lambda: (randn(40, 40),), SMALL),
    "mm-split": Case(torch.mm, mm(20, 500, 40), SPLIT),
    "mm-split-odd": Case(torch.mm, mm(20, 67, 40), SPLIT),
    "mm-split-short": Case(torch.mm, mm(20, 17, 40), SPLIT),
    "mm-split-relu": Case(
        lambda a, b: (a @ b).relu(), mm(20, 300, 40, torch.bfloat16), SPLIT, absorbs=1, tolerance=HALF
    ),
    "mm-relu": Case(lambda a, b: (a @ b).relu(), mm(33, 40, 50), SMALL, absorbs=1),
    "mm-rows-gathered": Case(lambda a, rows, b: a[rows] @ b, gathered(33, 40, 50), SMALL, absorbs=1),
    "mm-rows-gathered-bf16": Case(
        lambda a, rows, b: (a.index_select(0, rows) @ b).relu(),
        gathered(33, 41, 50, torch.bfloat16),
        SPLIT,
        absorbs=2,
        tolerance=HALF,
    ),
    "mm-rows-gathered-split": Case(lambda a, rows, b: a[rows] @ b, gathered(20, 300, 40), SPLIT, absorbs=1),
    "mm-rows-gathered-dynamic": Case(
        lambda a, rows, b: a[rows] @ b, gathered(33, 40, 50), SMALL, dynamic=True, absorbs=1
    ),
    "mm-gelu-bf16": Case(lambda a, b: F.gelu(a @ b), mm(33, 40, 50, torch.bfloat16), SMALL, absorbs=1, tolerance=HALF),
    "mm-unfused": Case(lambda a, b: (a @ b).relu(), mm(33, 40, 50), SMALL, fuse=False),
    "mm-three-users": Case(three_users, lambda: (randn(33, 40), randn(40, 50), randn(33, 1)), SMALL, absorbs=2),
    "mm-transposed-user": Case(lambda a, b: (a @ b).t().contiguous().cos(), mm(33, 40, 50), SMALL, absorbs=1),
    "mm-row-user": Case(
        lambda a, b, c: (a @ b) * c[:, None] + c[None, :33].sum(),
        lambda: (randn(33, 40), randn(40, 50), randn(33)),
        SMALL,
        absorbs=1,
    ),
    "mm-cast": Case(
        lambda a, b: (a @ b).float() * 0.5, mm(33, 40, 50, torch.bfloat16), SMALL, absorbs=1, tolerance=HALF
    ),
    "mm-dynamic": Case(torch.mm, mm(37, 29, 45), SMALL, dynamic=True),
    "mm-dynamic-split": Case(torch.mm, mm(37, 290, 45), SPLIT, dynamic=True),
    "mm-dynamic-relu": Case(lambda a, b: (a @ b).relu(), mm(64, 32, 48), SMALL, dynamic=True, absorbs=1),
    "addmm": Case(torch.addmm, lambda: (randn(50), randn(33, 40), randn(40, 50)), SMALL),
    "addmm-matrix": Case(torch.addmm, lambda: (randn(33, 50), randn(33, 40), randn(40, 50)), SMALL),
    "addmm-column": Case(torch.addmm, lambda: (randn(33, 1), randn(33, 40), randn(40, 50)), SMALL),
    "addmm-one": Case(torch.addmm, lambda: (randn(1), randn(33, 40), randn(40, 50)), SMALL),
    "addmm-view": Case(
        lambda c, a, b: torch.addmm(c[2:35, 1:51], a, b), lambda: (randn(40, 60), randn(33, 40), randn(40, 50)), SMALL
    ),
    "addmm-factors": Case(
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=-2),
        lambda: (randn(50), randn(33, 40), randn(40, 50)),
        SMALL,
    ),
    "addmm-split": Case(torch.addmm, lambda: (randn(50), randn(33, 200), randn(200, 50)), SPLIT),
    "addmm-strided": Case(
        torch.addmm, lambda: (randn(20), randn(57, 33, stride=(1, 64)), randn(33, 20, stride=(20, 1))), SMALL
    ),
    "addmm-bf16": Case(
        torch.addmm,
        lambda: tuple(randn(*s, dtype=torch.bfloat16) for s in ((50,), (33, 40), (40, 50))),
        SMALL,
        tolerance=HALF,
    ),
    "linear-3d-gelu": Case(lambda x, w, b: F.gelu(F.linear(x, w, b)), linear(3, 11, 40, out=50), SMALL, absorbs=1),
    "linear-3d-residual": Case(
        lambda x, w, b, r: F.linear(x, w, b) + r,
        lambda: (randn(3, 11, 40), randn(40, 40), randn(40), randn(3, 11, 40)),
        SMALL,
        absorbs=1,
    ),
    "linear-dynamic-gelu": Case(
        lambda x, w, b: F.gelu(F.linear(x, w, b)), linear(33, 40, out=50), SMALL, dynamic=True, absorbs=1
    ),
    "bmm": Case(torch.bmm, lambda: (randn(3, 33, 40), randn(3, 40, 50)), SMALL),
    "bmm-expanded": Case(
        lambda b, a: torch.bmm(a, b.expand(3, 40, 50)), lambda: (randn(1, 40, 50), randn(3, 33, 40)), SMALL
    ),
    "bmm-transposed": Case(
        lambda a, b: torch.bmm(a.transpose(1, 2), b), lambda: (randn(3, 40, 33), randn(3, 40, 50)), SMALL
    ),
    "bmm-strided": Case(
        torch.bmm, lambda: (randn(1, 57, 33, stride=(0, 1, 64)), randn(1, 33, 20, stride=(0, 20, 1))), SMALL
    ),
    "bmm-split": Case(torch.bmm, lambda: (randn(3, 33, 300), randn(3, 300, 20)), SPLIT),
    "bmm-scaled": Case(
        lambda a, b: (a @ b) * 0.125 + 1, lambda: (randn(3, 33, 40), randn(3, 40, 50)), SMALL, absorbs=1
    ),
    "bmm-dynamic": Case(torch.bmm, lambda: (randn(3, 33, 40), randn(3, 40, 50)), SMALL, dynamic=True),
    "baddbmm": Case(torch.baddbmm, lambda: (randn(3, 33, 50), randn(3, 33, 40), randn(3, 40, 50)), SMALL),
    "baddbmm-row": Case(
        lambda c, a, b: torch.baddbmm(c, a, b, beta=2),
        lambda: (randn(1, 1, 50), randn(3, 33, 40), randn(3, 40, 50)),
        SMALL,
    ),
    "mm-mm": Case(lambda a, b, c, d: a @ b + c @ d, mm_mm(), SMALL, absorbs=2),
    "mm-mm-bf16": Case(lambda a, b, c, d: a @ b + c @ d, mm_mm(torch.bfloat16), SMALL, absorbs=2, tolerance=HALF),
    "mm-mm-strided": Case(
        lambda a, b, c, d: a @ b + c @ d,
        lambda: (
            *(randn(57, 33, stride=(1, 64)), randn(33, 20, stride=(20, 1))),
            *(randn(57, 33, stride=(1, 64)), randn(33, 20, stride=(20, 1))),
        ),
        SMALL,
        absorbs=2,
    ),
    "mm-mm-relu": Case(lambda a, b, c, d: (a @ b + c @ d).relu() * 2, mm_mm(), SMALL, absorbs=2),
    "mm-mm-both-used": Case(lambda a, b, c, d: ((x := a @ b), (y := c @ d), x + y)[1:], mm_mm(), SMALL, absorbs=1),
    "int-mm": Case(torch._int_mm, lambda: (randn(40, 48, dtype=torch.int8), randn(48, 56, dtype=torch.int8)), SMALL),
    "int-mm-scaled": Case(
        lambda a, b, s: torch._int_mm(a, b).float() * s,
        lambda: (randn(40, 48, dtype=torch.int8), randn(48, 56, dtype=torch.int8), randn(56)),
        SMALL,
        absorbs=1,
    ),
    "of-cast": Case(
        lambda a, b: a.to(torch.bfloat16) @ b,
        lambda: (randn(33, 40), randn(40, 50, dtype=torch.bfloat16)),
        SMALL,
        absorbs=1,
        tolerance=HALF,
        reference=torch.mm,
    ),
    "mm-softmax": Case(lambda a, b: torch.softmax(a @ b, -1), mm(37, 40, 20), SMALL, rows=True, absorbs=3),
    "tma-softmax": Case(lambda a, b: torch.softmax(a @ b, -1), mm(70, 44, 28), TMA, rows=True, absorbs=3),
    "linear-layernorm": Case(
        lambda x, w, b, s: F.layer_norm(F.linear(x, w, b), (24,), s, None, 1e-3),
        lambda: (randn(37, 40), randn(24, 40), randn(24), randn(24)),
        SMALL,
        rows=True,
        absorbs=2,
    ),
    "bmm-sum-of-squares": Case(
        lambda a, b: ((y := torch.bmm(a, b)).square().sum(-1), y)[0],
        lambda: (randn(3, 33, 40), randn(3, 40, 32)),
        SMALL,
        rows=True,
        absorbs=1,
    ),
    # exp(0) is not 0: what lies beyond the depth must not count.
    "of-exp-both": Case(lambda a, b: (a.exp() @ b.t().exp()).relu(), mm_t(33, 45, 50), SMALL, absorbs=3),
    "of-exp-whole": Case(lambda a, b: a.exp() @ b, mm(32, 64, 32), SMALL, absorbs=1),
    "linear-of-int8": Case(
        lambda w, s, x, b: F.linear(x, w.to(torch.bfloat16) * s[:, None], b).relu(),
        lambda: (
            randn(50, 45, dtype=torch.int8),
            randn(50, dtype=torch.bfloat16),
            randn(5, 45, dtype=torch.bfloat16),
            randn(50, dtype=torch.bfloat16),
        ),
        WIDE,
        absorbs=2,
        tolerance=HALF,
        reference=lambda w, s, x, b: F.linear(x, w.double() * s[:, None], b).relu(),
    ),
    "linear-of-int8-split": Case(
        lambda w, x, s: F.linear(x, w.to(torch.bfloat16)) * s,
        lambda: (
            randn(50, 300, dtype=torch.int8),
            randn(5, 300, dtype=torch.bfloat16),
            randn(50, dtype=torch.bfloat16),
        ),
        replace(WIDE, split=4),
        absorbs=2,
        tolerance=HALF,
        reference=lambda w, x, s: F.linear(x, w.double()) * s,
    ),
    "linear-of-int4": Case(linear_int4(32), int4(3, 70, 256, 32), INT4, **OF_INT4),
    "linear-of-int4-split": Case(linear_int4(128), int4(1, 40, 512, 128), replace(INT4, split=3), **OF_INT4),
    "linear-of-int4-short": Case(linear_int4(12), int4(17, 40, 84, 12), INT4, **OF_INT4),
    "linear-3d-of-silu": Case(
        lambda x, r, w, b: F.linear(F.silu(x) * r, w, b),
        lambda: (randn(3, 11, 40), randn(11, 1), randn(50, 40), randn(50)),
        SMALL,
        absorbs=1,
    ),
    "bmm-of": Case(
        lambda a, b: torch.bmm(a.cos(), b.transpose(1, 2)),
        lambda: (randn(3, 33, 40), randn(3, 50, 40)),
        SMALL,
        absorbs=1,
    ),
    "of-dynamic": Case(lambda a, b: a.cos() @ b, mm(37, 29, 45), SMALL, dynamic=True, absorbs=1),
    "tma": Case(torch.mm, mm(64, 64, 64), TMA),
    "tma-odd": Case(lambda a, b: (a @ b).relu(), mm(70, 44, 92), TMA, absorbs=1),
    "tma-one-tile": Case(torch.mm, mm(20, 8, 12), TMA),
    "tma-transposed": Case(lambda a, b: a.t() @ b.t(), lambda: (randn(44, 72), randn(92, 44)), TMA),
    "tma-batch": Case(
        lambda b, a: torch.bmm(a, b.transpose(1, 2)).relu(),
        lambda: (randn(3, 52, 44), randn(3, 45, 44)),
        TMA,
        absorbs=1,
    ),
    "tma-batch-expanded": Case(
        lambda b, a: torch.bmm(a, b.expand(3, 40, 52)), lambda: (randn(1, 40, 52), randn(3, 33, 40)), TMA
    ),
    "tma-strided": Case(lambda a, b: a[4:68, 4:] @ b, lambda: (randn(80, 68), randn(64, 92)), TMA),
    "tma-linear-bf16": Case(
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        linear(70, 40, out=72, dtype=torch.bfloat16),
        TMA,
        absorbs=1,
        tolerance=HALF,
    ),
    "scaled-mm": Case(scaled_mm, scaled((1,), (1,)), SMALL, tolerance=HALF, reference=scaled_exactly),
    "scaled-mm-rows": Case(scaled_mm, scaled((64, 1), (1, 96)), SMALL, tolerance=HALF, reference=scaled_exactly),
    "scaled-mm-f8-out": Case(
        quantised,
        scaled((64, 1), (1, 96)),
        SMALL,
        absorbs=1,
        tolerance=5e-2,
        reference=lambda *t: F.silu(scaled_exactly(*t)) / 8,
    ),
    "scaled-mm-made": Case(  # the activation is quantised as it is loaded
        made_and_scaled,
        lambda: (randn(40, 80, dtype=torch.bfloat16), torch.rand(()) + 1, randn(48, 80).to(torch.float8_e4m3fn).t()),
        SMALL,
        absorbs=2,
        tolerance=5e-2,
        reference=lambda x, s, w: F.relu(x @ w) * s,
    ),
    "scaled-mm-v2": Case(scaled_v2(0), scaled((), ()), SMALL, tolerance=HALF, reference=scaled_exactly),
    "scaled-mm-v2-rows": Case(scaled_v2(1), scaled((64, 1), (1, 96)), SMALL, tolerance=HALF, reference=scaled_exactly),
    **{
        f"scaled-mm-{name}": Case(scaled_mm, make, config, tolerance=HALF, reference=by_blocks, fake=True)
        for name, make, config in (
            ("1x128-128x128", in_blocks((1, 128), (128, 128)), SMALL),
            ("1x128-1x128", in_blocks((1, 128), (1, 128)), Config(32, 32, 128, 2, 4)),
            ("128x128-1x128", in_blocks((128, 128), (1, 128), m=256), Config(32, 64, 64, 2, 4)),
            ("1x128-split", in_blocks((1, 128), (128, 128), m=8, k=1024), Config(16, 64, 128, 2, 4, split=4)),
        )
    },
    "conv1x1": Case(F.conv2d, conv((2, 5, 7, 6), (9, 5, 1, 1), (9,)), SMALL, absorbs=1),
    "conv1x1-last": Case(F.conv2d, conv((2, 5, 7, 6), (9, 5, 1, 1), (9,), last=True), SMALL, absorbs=1),
    "conv1x1-stride": Case(lambda x, w: F.conv2d(x, w, stride=2), conv((2, 5, 7, 6), (9, 5, 1, 1)), SMALL),
    "conv3x3": Case(
        lambda x, w, b: F.conv2d(x, w, b, padding=1), conv((2, 5, 7, 6), (9, 5, 3, 3), (9,)), SMALL, absorbs=1
    ),
    "conv3x3-last-relu": Case(
        lambda x, w, b: F.conv2d(x, w, b, padding=1).relu(),
        conv((2, 16, 7, 6), (9, 16, 3, 3), (9,), last=True),
        SMALL,
        absorbs=1,
    ),
    "conv3x3-unpadded": Case(F.conv2d, conv((2, 5, 7, 6), (9, 5, 3, 3)), SMALL),
    "conv-dilated": Case(
        lambda x, w: F.conv2d(x, w, padding=(2, 1), stride=(2, 1), dilation=(2, 1)),
        conv((2, 5, 9, 6), (9, 5, 3, 2)),
        SMALL,
    ),
    "conv1d": Case(lambda x, w: F.conv1d(x, w, padding=2), conv((3, 4, 20), (6, 4, 5)), SMALL),
    "conv3d": Case(lambda x, w: F.conv3d(x, w, padding=1), conv((1, 3, 5, 4, 6), (4, 3, 3, 3, 3)), SMALL),
    "conv3d-last": Case(
        lambda x, w: F.conv3d(x, w), conv((1, 3, 5, 4, 6), (4, 3, 2, 2, 2), last=True), SMALL, absorbs=1
    ),
    "conv-grouped": Case(
        lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=3).relu(),
        conv((2, 12, 7, 6), (24, 4, 3, 3), (24,)),
        SMALL,
        absorbs=1,
    ),
    "conv-grouped-last": Case(
        lambda x, w: F.conv2d(x, w, groups=2, stride=2), conv((2, 32, 7, 6), (32, 16, 1, 1), last=True), SMALL
    ),
    "conv-transposed": Case(
        lambda x, w, b: F.conv_transpose2d(x, w, b, padding=1).sigmoid(),
        conv((2, 5, 7, 6), (5, 9, 3, 3), (9,)),
        SMALL,
        absorbs=1,
    ),
    "conv-transposed-grouped": Case(
        lambda x, w: F.conv_transpose1d(x, w, dilation=2, groups=2), conv((2, 6, 20), (6, 8, 3)), SMALL
    ),
    "conv-transposed-stride2": Case(
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1).relu(),
        conv((2, 5, 7, 6), (5, 9, 4, 4), (9,)),
        SMALL,
        absorbs=1,
    ),
    "conv-transposed-stride2-last": Case(
        lambda x, w: F.conv_transpose2d(x, w, stride=2), conv((2, 16, 7, 6), (16, 9, 2, 2), last=True), SMALL
    ),
    "conv-transposed-odd-taps": Case(
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1).sigmoid(),
        conv((2, 5, 7, 6), (5, 9, 3, 3)),
        SMALL,
        absorbs=1,
    ),
    "conv-transposed-stride3-grouped": Case(
        lambda x, w: F.conv_transpose1d(x, w, stride=3, padding=1, groups=2, output_padding=0),
        conv((2, 6, 20), (6, 8, 5)),
        SMALL,
    ),
    "conv-transposed-mixed": Case(
        lambda x, w: F.conv_transpose2d(x, w, stride=(1, 2), padding=(2, 0)),
        conv((2, 5, 7, 6), (5, 9, 3, 4)),
        SMALL,
    ),
    "conv-transposed-3d": Case(
        lambda x, w: F.conv_transpose3d(x, w, stride=2), conv((1, 3, 3, 4, 2), (3, 8, 2, 2, 2)), SMALL
    ),
    "conv-transposed-stride2-dynamic": Case(
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1),
        marked(conv((2, 5, 7, 6), (5, 9, 4, 4)), 2, 3),
        SMALL,
        dynamic=None,
    ),
    "conv3x3-dynamic": Case(
        lambda x, w: F.conv2d(x, w, padding=1), conv((2, 5, 7, 6), (9, 5, 3, 3)), SMALL, dynamic=True
    ),
}

ONE_SCALE = "torch 2.11's CPU has one scale a tensor only"
UNSUPPORTED = (
    dict.fromkeys(("scaled-mm-rows", "scaled-mm-v2", "scaled-mm-v2-rows", "scaled-mm-f8-out"), ONE_SCALE)
    if OLD_TORCH
    else {}
)
"""Cases that eager cannot run on a CPU, and why."""


def case_params(names: Iterable[str], thorough: Collection[str] = ()) -> list[Any]:
    """The names as parameters of a test, some of them for `make test-all`; what eager cannot run is skipped with the
    reason."""
    listed = list(names)
    assert set(thorough) <= set(listed)

    def marks(name: str) -> list[pytest.MarkDecorator]:
        skipped = [pytest.mark.skip(reason=UNSUPPORTED[name])] if name in UNSUPPORTED else []
        return [*skipped, *([pytest.mark.thorough] if name in thorough else [])]

    return [pytest.param(name, marks=marks(name)) for name in listed]


if __name__ == "__main__":
    print_share(CASES)

__all__ = ["CASES", "Case", "case_params", "context", "randn", "run"]
