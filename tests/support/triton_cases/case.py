"""Case: a loop to test the Triton code generator with, and the helpers that make one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import sympy
import torch

from litz.codegen.kernel_plan import KernelPlan, plan_kernel
from litz.codegen.plan_rules import verify_plan
from litz.ir import Buffer, Layout, Loop, Program, Range, Store, TensorRef
from litz.ir.dtypes import FLOAT8
from litz.ir.index import Expr, Symbol, loop_var, placeholder, reduction_var, to_expr
from litz.ir.interpret import run_loop
from litz.ir.verify import verify
from litz.schedule.schedule import Kernel
from litz.target import target_of
from litz_plugins import COUNTERS, CodegenContext, KernelSource

CUDA = torch.device("cuda", 0)
f16, bf16, f32, f64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
i0, i1, i2 = loop_var(0), loop_var(1), loop_var(2)
r0, r1 = reduction_var(0), reduction_var(1)
arg0 = placeholder(0)
S = sympy.Symbol("s77", integer=True, nonnegative=True)
T = sympy.Symbol("s12", integer=True, nonnegative=True)


@dataclass
class Case:
    """A loop to test, and perhaps others that finish it. `tolerance` is relative and absolute; `close` replaces a
    tolerance for half types. `units`: of the device, fewer than it has where a small case stands for one of many
    rows. `settings`: of the kernel, empty for those that are worked out."""

    program: Program
    inputs: Mapping[str, torch.Tensor]
    sizes: Mapping[Symbol, int] = field(default_factory=dict)
    tolerance: float = 2e-6
    interpreted: bool = True
    inplace: Mapping[str, str] = field(default_factory=dict)
    equal_nan: bool = True
    units: int = 0
    settings: Mapping[str, int] = field(default_factory=dict)

    @property
    def loop(self) -> Loop:
        return self.program.loops[0]

    @cached_property
    def source(self) -> KernelSource:
        from litz.targets.triton.codegen import TritonCodegen

        return TritonCodegen().generate(self.plan, self.context)

    @property
    def context(self) -> CodegenContext:
        target = target_of("cuda:0")
        target = replace(target, units=self.units or target.units)
        return CodegenContext(None, target, self.program)  # type: ignore[arg-type]

    @property
    def plan(self) -> KernelPlan:
        loop, *finish = self.program.loops
        kernel = Kernel("kernel", loop, inplace=self.inplace, finish=tuple(finish), settings=self.settings)
        plan = plan_kernel(kernel, self.program)
        assert not list(verify_plan(plan))
        return plan

    def tensors(self, device: torch.device | str = "cpu") -> dict[str, torch.Tensor]:
        """Fresh memory for every buffer; what is no input is filled with a pattern."""
        memory: dict[str, torch.Tensor] = {}
        for name, buffer in self.program.buffers.items():
            if name in self.inplace:
                continue
            if name in self.inputs:
                given = self.inputs[name]
                held = torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device=device)
                memory[name] = held.copy_(given) if 0 not in given.stride() else given.to(device)
            else:
                size = [int(expr.xreplace(dict(self.sizes))) for expr in buffer.layout.size]
                stride = [int(expr.xreplace(dict(self.sizes))) for expr in buffer.layout.stride]
                memory[name] = torch.empty_strided(size, stride, dtype=buffer.dtype, device=device).zero_()
        for name, other in self.inplace.items():
            memory[name] = memory[other]
        memory[COUNTERS] = torch.zeros(self.source.settings["counters"], dtype=torch.int32, device=device)
        return memory

    def expected(self) -> dict[str, torch.Tensor]:
        """What the IR interpreter writes."""
        memory = self.tensors()
        cpu = torch.device("cpu")
        for loop in self.program.loops:
            run_loop(replace(loop, device=cpu), self.program, memory, dict(self.sizes))
        return {name: memory[name] for loop in self.program.loops for name in loop.writes}

    def arguments(self, memory: Mapping[str, torch.Tensor]) -> tuple[list[torch.Tensor], list[int]]:
        items = self.source.arguments
        tensors = [memory[item] for item in items if isinstance(item, str)]
        return tensors, [int(self.sizes[item]) for item in items if not isinstance(item, str)]

    def check(self, memory: Mapping[str, torch.Tensor]) -> None:
        """Compare what a kernel has written with the interpreter."""
        for name, want in self.expected().items():
            got = memory[name].cpu()
            loose = {bf16: 1.6e-2, f16: 2e-3, f64: 1e-9}.get(want.dtype, 0.0)
            tolerance = max(self.tolerance, loose) if want.dtype != f64 else max(1e-9, self.tolerance)
            torch.testing.assert_close(
                *map(comparable, (got, want)),
                rtol=tolerance,
                atol=tolerance,
                equal_nan=True,
                msg=lambda text, n=name: f"{n}: {text}",
            )


def comparable(tensor: torch.Tensor) -> torch.Tensor:
    """As a type that tensors may be compared in."""
    return tensor.float() if tensor.dtype in FLOAT8 else tensor


def tensor_buffer(name: str, tensor: torch.Tensor, kind: str = "input") -> Buffer:
    layout = Layout(tuple(map(to_expr, tensor.shape)), tuple(map(to_expr, tensor.stride())))
    return Buffer(name, tensor.dtype, CUDA, layout, kind)  # type: ignore[arg-type]


def output(name: str, size: Sequence[int | Expr], dtype: torch.dtype) -> Buffer:
    return Buffer(name, dtype, CUDA, Layout.contiguous(tuple(size)))


def make(
    inputs: Mapping[str, torch.Tensor],
    outputs: Sequence[Buffer],
    ranges: Sequence[int | Expr],
    reduction: Sequence[int | Expr],
    stores: Sequence[Store],
    *,
    buffers: Sequence[Buffer] = (),
    hints: Mapping[Symbol, int] | None = None,
    **rest: object,
) -> Case:
    """A case of one loop. `buffers` replace those made from the inputs, for symbolic layouts."""
    held = {name: tensor_buffer(name, tensor) for name, tensor in inputs.items()}
    held.update({buffer.name: buffer for buffer in (*buffers, *outputs)})
    loop = Loop(
        "loop",
        CUDA,
        tuple(Range(loop_var(n), to_expr(size)) for n, size in enumerate(ranges)),
        tuple(Range(reduction_var(n), to_expr(size)) for n, size in enumerate(reduction)),
        tuple(stores),
    )
    symbols = sorted({s for b in held.values() for s in b.layout.free_symbols}, key=str)
    results = tuple(TensorRef(name, held[name].layout) for name in loop.writes)
    program = Program("case", (*symbols, *inputs), held, (loop,), results, hints=hints or {})
    verify(program)
    return Case(program, inputs, **rest)  # type: ignore[arg-type]


CASES: dict[str, Callable[[], Case]] = {}


def case(name: str) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    def register(function: Callable[[], Case]) -> Callable[[], Case]:
        CASES[name] = cache(function)
        return function

    return register


def random(*size: int, dtype: torch.dtype = f32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, size, generator=generator).bool()
    if dtype.is_floating_point:
        return torch.randn(size, generator=generator, dtype=f32).to(dtype)
    low = 0 if dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64) else -9
    return torch.randint(low, 10, size, generator=generator).to(dtype)
