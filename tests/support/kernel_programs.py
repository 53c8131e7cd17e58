"""Programs whose kernels run in Triton's interpreter, their inputs, and where choices are made."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from litz.ir import KernelCall, Loop, Program, Template, TensorRef
from litz.ir import interpret as ir_interpret
from litz.ir.interpret import evaluate
from litz.options import make_options
from litz.target import target_of
from litz_contractions.subprogram import on_device
from litz_plugins import COUNTERS, ChoiceContext

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


def randn(*size: int, dtype: torch.dtype = torch.float32, stride: Sequence[int] | None = None) -> torch.Tensor:
    """Numbers around 0, laid out as `stride` says."""
    values = torch.randn(size)
    if dtype == torch.int8:
        values = torch.randint(-9, 9, size)
    if stride is None:
        return values.to(dtype)
    return torch.empty_strided(size, stride, dtype=dtype).copy_(values)


__all__ = ["context", "cpu", "randn", "run"]
