"""The TilePrograms of a program's kernels, for a GPU and for a processor, verified, read back of their texts, and run
with torch on the CPU: what they store is compared with what the IR's interpreter stores of the kernel's loops, for
inputs of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import torch

from litz.capture.graph import Graph
from litz.codegen.kernel_plan import KernelPlan, plan_kernel
from litz.driver.builtin import builtin_plugins
from litz.driver.stages import schedule_program
from litz.ir import Program
from litz.ir.dtypes import FLOAT8, HALF
from litz.ir.index import Expr
from litz.ir.interpret import OutsideBufferError, evaluate, run_loop
from litz.ir.operation import Operation
from litz.pipeline import make_compiler
from litz.report.log import Log
from litz.schedule.schedule import Kernel
from litz.target import target_named
from litz.targets.cpp.generate import make_nest
from litz.targets.triton.codegen import TritonCodegen
from litz.tiles.program import Nest, TileProgram
from litz_plugins import CodegenContext, Target
from litz_plugins.manager import make_plugins
from litz_testing.parse import ParseError, parse_kernel_plan
from litz_testing.parse.tiles import parse_tiles
from litz_testing.tiles.interpret import interpret_tiles
from litz_testing.tiles.nest import TooLong
from litz_testing.tiles.rules import verify_tiles
from litz_tools.nest_text import tiles_text

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
GPU = "NVIDIA H100 80GB HBM3"
MOST_PROGRAMS, MOST_LINES, MOST_ELEMENTS = 64, 500, 2**16
"""Of a kernel that is run; larger ones are verified."""


class TilesWrong(AssertionError):
    """A TileProgram breaks a rule, or stores something else than its loops do."""


class Tiles:
    """Checks programs. counts: how many kernels were verified, and how many were run; `cpu run` of these for a
    processor."""

    def __init__(self, folder: str) -> None:
        self.compiler = make_compiler(None, {"cache_dir": folder}, make_plugins(builtin_plugins(), entry_points=()))
        self.compiler.targets[CUDA] = target_named(GPU)
        self.counts: Counter[str] = Counter()

    def check(self, graph: Graph, program: Program) -> None:
        """Checks the kernels that a lowered program has on a GPU and on a processor. Errors: TilesWrong."""
        for device in (CUDA, CPU):
            schedule = schedule_program(graph, on_device(program, device), self.compiler, Log())
            for kernel in schedule.kernels:
                for part in kernel.parts:
                    self.check_kernel(part, schedule.program)

    def check_kernel(self, kernel: Kernel, program: Program) -> None:
        """Checks one kernel. Errors: TilesWrong."""
        plan = plan_kernel(kernel, program)
        target = self.compiler.target_of(kernel.device)
        made = tiles_of(plan, target, program)
        text = tiles_text(made)
        if wrong := [*verify_tiles(made), *_unread(plan, made, text)]:
            raise TilesWrong("\n".join([*wrong, str(plan), text]))
        self.counts["verified"] += 1

        layouts = [program.buffers[name].layout for loop in kernel.loops for name in (*loop.reads, *loop.writes)]
        symbols = {symbol for layout in layouts for n in (*layout.size, *layout.stride) for symbol in n.free_symbols}
        if not symbols.union(*(loop.free_symbols for loop in kernel.loops)) <= program.hints.keys():
            return  # a size that data decides
        if any(store.mode == "set" and store.indirect for loop in kernel.loops for store in loop.stores):
            return  # made up positions may be the same, and then any of the values may stay

        def size(expr: Expr) -> int:
            return int(evaluate(expr, program.hints))

        blocks = 1
        for axis in () if isinstance(made, Nest) else made.tiling.grid_axes:
            blocks *= -(-size(axis.size.xreplace(dict(plan.host))) // axis.block)
        for piece in () if isinstance(made, Nest) else made.tiling.pieces:
            blocks *= size(piece.size.xreplace(dict(plan.host)))
        memory = dict(_inputs(kernel, program))
        if blocks > MOST_PROGRAMS or max((each.numel() for each in memory.values()), default=0) > MOST_ELEMENTS:
            return
        expected = {name: _copy(tensor) for name, tensor in memory.items()}
        for tensors in (memory, expected):
            tensors.update((new, tensors[old]) for new, old in kernel.inplace.items())
        loops = [replace(loop, device=CPU) for loop in kernel.loops]
        try:
            for loop in loops:
                run_loop(loop, program, expected, dict(program.hints))
        except (IndexError, OutsideBufferError):
            self.counts["refused"] += 1
            return  # positions are loaded that other kernels make
        sizes = {each: int(evaluate(value, program.hints)) for each, value in zip(plan.sizes, plan.values(plan.sizes))}
        try:
            interpret_tiles(made, memory, sizes, self.counts["run"], MOST_LINES)
        except TooLong:
            return
        except AssertionError as error:
            raise TilesWrong(f"{error}\n{plan}\n{text}") from error
        self.counts["run"] += 1
        self.counts["cpu run"] += isinstance(made, Nest)
        for name in dict.fromkeys(name for loop in loops for name in loop.writes):
            if (said := _difference(memory[name], expected[name])) is not None:
                raise TilesWrong(f"{name}: {said}\n{plan}\n{text}")


def tiles_of(plan: KernelPlan, target: Target, program: Program) -> TileProgram | Nest:
    """Returns what a kernel does on its target, as data."""
    if plan.device.type == "cpu":
        return make_nest(plan, target)[1]
    return TritonCodegen().tiles(plan, CodegenContext(None, target, program))  # type: ignore[arg-type]


def _unread(plan: KernelPlan, made: TileProgram | Nest, text: str) -> Iterator[str]:
    """Yields how what is read of the texts differs from what was printed."""
    try:
        if parse_kernel_plan(str(plan)) != plan:
            yield "another plan is read of the plan's text"
        if (found := parse_tiles(text)) != made:
            yield f"another TileProgram is read of the text:\n{tiles_text(found)}"
    except ParseError as error:
        yield f"a text cannot be read: {error}"


def on_device(program: Program, device: torch.device) -> Program:
    """Returns a program with all buffers and operations on a device."""

    def moved(operation: Operation) -> Operation:
        return replace(operation, device=device)

    return replace(
        program,
        buffers={name: replace(buffer, device=device) for name, buffer in program.buffers.items()},
        operations=tuple(map(moved, program.operations)),
        regions={},
    )


def _inputs(kernel: Kernel, program: Program) -> Iterator[tuple[str, torch.Tensor]]:
    """Memory for the buffers that a kernel touches: small numbers, positions of two elements, and a pattern where
    nothing is read."""
    touched = dict.fromkeys(name for loop in kernel.loops for name in (*loop.reads, *loop.writes))
    generator = torch.Generator().manual_seed(len(touched))
    for name in touched:
        if name in kernel.inplace:
            continue
        buffer = program.buffers[name]
        layout = buffer.layout
        shape = [int(evaluate(n, program.hints)) for n in layout.size]
        stride = [int(evaluate(n, program.hints)) for n in layout.stride]
        span = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if 0 not in shape else 0
        if buffer.dtype.is_floating_point:
            values = torch.randn(span, generator=generator).clamp(-3, 3)
        else:
            values = torch.randint(0, 2, [span], generator=generator)
        yield name, values.to(buffer.dtype).as_strided(shape, stride)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with elements of its own, which lie as the other's do."""
    return (
        tensor.as_strided([tensor.untyped_storage().nbytes() // tensor.itemsize], [1])
        .clone()
        .as_strided(tensor.shape, tensor.stride())
    )


def _difference(found: torch.Tensor, wanted: torch.Tensor) -> str | None:
    """Returns what differs by more than roundings in another order make; None if nothing does."""
    if wanted.numel() == 0:
        return None
    if wanted.dtype in FLOAT8 or not wanted.dtype.is_floating_point:
        differ = (found.to(torch.float64) - wanted.to(torch.float64)).abs()
        most = 0.07 * wanted.to(torch.float64).abs() if wanted.dtype in FLOAT8 else torch.zeros(())
    else:
        loose = 2e-2 if wanted.dtype in HALF else 1e-3
        differ = (found.to(torch.float64) - wanted.to(torch.float64)).abs()
        most = loose * (1 + wanted.to(torch.float64).abs())
    same = (differ <= most) | (found == wanted) | ((found != found) & (wanted != wanted))
    wrong = int((~same).sum())
    if wrong == 0:
        return None
    at = int((~same).flatten().nonzero()[0])
    return f"{wrong} of {wanted.numel()} elements differ: {found.flatten()[at]} is not {wanted.flatten()[at]}, at {at}"


__all__ = ["Tiles", "TilesWrong", "on_device"]
