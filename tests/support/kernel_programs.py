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
from litz.tiles.program import Nest
from litz_contractions.subprogram import on_device
from litz_plugins import COUNTERS, ChoiceContext

WIDENED = re.compile(r"(tl\.dot)\((.+?), (\w+)(?=[,)])").sub
"""The interpreter multiplies the bits of bf16 as if they were integers."""


def run(program: Program, tensors: Sequence[torch.Tensor], tiles: bool = False) -> list[torch.Tensor]:
    """The program on CPU tensors: kernels in Triton's interpreter, or as TilePrograms, everything else in the IR's."""
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
            (run_tiles if tiles else _run_text)(operation.source, memory, sizes)
        else:
            ir_interpret._run_extern(operation, program, memory, sizes)
    return [ir_interpret.view(out, memory, sizes) for out in program.outputs if isinstance(out, TensorRef)]


def _run_text(source: Any, memory: dict[str, torch.Tensor], sizes: dict[Any, int]) -> None:
    from litz_testing.triton_interpreter import interpret_source

    text = WIDENED(r"\1((\2).to(tl.float32), (\3).to(tl.float32)", source.text)
    source = replace(source, text=text) if "bf16" in source.text else source
    count = source.settings.get("counters", 0)
    own = {**memory, COUNTERS: torch.zeros(count, dtype=torch.int32)}
    buffers = [own[item] for item in source.arguments if isinstance(item, str)]
    values = [evaluate(item, sizes) for item in source.arguments if not isinstance(item, str)]
    interpret_source(source, buffers, values)


def run_tiles(source: Any, memory: dict[str, torch.Tensor], sizes: dict[Any, int]) -> None:
    """Verifies and runs the TilePrograms of a kernel."""
    from litz_contractions.products.lines import Blocks
    from litz_testing.parse.tiles import parse_tiles
    from litz_testing.tiles import attention, attention_nest
    from litz_testing.tiles.products import interpret_product, verify_product
    from litz_tools.nest_text import tiles_text

    assert source.tiles, "the kernel has no TileProgram"
    for order, made in enumerate(source.tiles):
        if isinstance(made, Nest):
            verify, interpret = attention_nest.verify_attention, attention_nest.interpret_attention
        elif isinstance(made.lines[0], Blocks):
            verify, interpret = verify_product, interpret_product
        else:
            verify, interpret = attention.verify_attention, attention.interpret_attention
        said = list(verify(made))
        assert said == [], said
        assert parse_tiles(tiles_text(made)) == made
        interpret(made, memory, sizes, order)


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


__all__ = ["context", "cpu", "randn", "run", "run_tiles"]
