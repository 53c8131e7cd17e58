"""Functions and their gradients, compiled for a GPU that is not there: all kernels run in Triton's interpreter.

`python -m support.interpreted_graphs SHARD OF` checks the cases. The graphs are captured on the CPU and scheduled for
CUDA (`support.retarget`); library calls run on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from litz.capture.graph import Graph
from litz.capture.layout import changed_strides
from litz.driver.stages import capture, prepare_graph, schedule_prepared
from litz.ir import Extern, Program
from litz.ir.arguments import rebuild
from litz.ir.buffer import Layout, TensorRef
from litz.pipeline import generate, make_compiler, plan_schedule
from litz.report.log import Log
from litz_plugins import Plugins
from support.interpreted import print_share
from support.retarget import captured_for_cuda, to_cuda


def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any], plugins: Plugins | None = None) -> Any:
    """A backend of torch.compile, for static sizes. plugins: in place of the installed ones."""
    compiler = make_compiler(plugins=plugins)

    def compile_graph(graph: Graph) -> Callable[[list[Any]], Sequence[Any]]:
        from litz.targets.triton.interpret import interpret_source

        moved, log = to_cuda(graph), Log()
        prepared = prepare_graph(moved, compiler, log)
        plan = plan_schedule(schedule_prepared(prepared, compiler, log), compiler, log)
        sources, program = generate(plan, compiler), plan.program

        def run(args: list[Any]) -> Sequence[Any]:
            memory = dict(zip(map(str, program.inputs), args, strict=True))
            args.clear()
            for step in plan.steps:
                if step.name not in sources:
                    assert isinstance(step, Extern)
                    _call(step, program, memory)
                    continue
                source = sources[step.name]
                for name in source.arguments:
                    if name in program.buffers and name not in memory:
                        memory[name] = _empty(program.buffers[name].dtype, program.buffers[name].layout)
                    elif name not in memory:
                        memory[name] = torch.zeros(source.settings["counters"], dtype=torch.int32)
                interpret_source(source, [memory[name] for name in source.arguments])
            refs = (ref if isinstance(ref, TensorRef) else None for ref in program.outputs)
            return [None if ref is None else _seen(memory[ref.buffer], ref.layout) for ref in refs]

        run.output_strides = changed_strides(moved, prepared)  # type: ignore[attr-defined]
        return run

    with captured_for_cuda():
        return partial(capture, compile_graph=compile_graph, compiler=compiler)(gm, inputs)


def _call(step: Extern, program: Program, memory: dict[str, Tensor]) -> None:
    """Runs a library call. Its results lie as its buffers do."""

    def value(leaf: Any) -> Any:
        if isinstance(leaf, TensorRef):
            return _seen(memory[leaf.buffer], leaf.layout)
        return torch.device("cpu") if isinstance(leaf, torch.device) else leaf

    found = step.target(*rebuild(step.args, value), **rebuild(dict(step.kwargs), value))
    for name, result in zip(step.outputs, found if isinstance(found, (tuple, list)) else (found,), strict=True):
        if name is None:
            continue
        buffer = program.buffers[name]
        memory[name] = memory[step.aliases[name]] if name in step.aliases else _empty(buffer.dtype, buffer.layout)
        if name not in step.aliases:
            _seen(memory[name], buffer.layout).copy_(result)


def _empty(dtype: torch.dtype, layout: Layout) -> Tensor:
    return torch.empty_strided(tuple(map(int, layout.size)), tuple(map(int, layout.stride)), dtype=dtype)


def _seen(memory: Tensor, layout: Layout) -> Tensor:
    start = memory.storage_offset() + int(layout.offset)  # an input may lie inside of its storage
    return memory.as_strided(tuple(map(int, layout.size)), tuple(map(int, layout.stride)), start)


@dataclass(frozen=True)
class Case:
    """A function of an image, and the image's size. last: whether the image is channels last."""

    function: Callable[[Tensor], Tensor]
    size: tuple[int, ...]
    last: bool = True

    def check(self) -> str:
        """ "" or how far off the result or the gradient is."""
        torch._dynamo.reset()
        x = torch.randn(self.size, generator=torch.Generator().manual_seed(0))
        x = x.contiguous(memory_format=torch.channels_last) if self.last else x
        with mock.patch("litz_passes.joint.saved_positions.LEAST_BYTES", 0):
            ours = self.results(torch.compile(self.function, backend=backend, dynamic=False), x)
        for name, got, want in zip(("result", "gradient"), ours, self.results(self.function, x.double()), strict=True):
            off = float((got.double() - want).abs().max() / want.abs().max())
            if not off < 2e-6:
                return f"the {name} is {off:.1e} off"
        return ""

    def results(self, function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        out = function(x)
        out.mul(torch.linspace(0.5, 1.5, out.numel(), dtype=x.dtype).view(out.shape)).sum().backward()
        assert x.grad is not None
        return out.detach(), x.grad


def pool(*window: Any, **options: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: F.max_pool2d(x.relu(), *window, **options)


def resample(**options: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: F.interpolate(x.sin(), **options)


CASES: Mapping[str, Case] = {
    "pool": Case(pool(3, 2, 1), (2, 4, 19, 31)),
    "pool of pairs": Case(pool(2), (2, 4, 18, 30), last=False),
    "pool to the end": Case(pool((3, 2), (1, 2), 1, ceil_mode=True), (2, 4, 19, 31), last=False),
    "nearest": Case(resample(scale_factor=2), (2, 4, 5, 6)),
    "nearest of another size": Case(resample(size=(7, 4)), (2, 4, 5, 6)),
    "bilinear": Case(resample(scale_factor=2, mode="bilinear"), (2, 4, 5, 6)),
    "bilinear, one dimension after the other": Case(
        resample(scale_factor=4, mode="bilinear", align_corners=True), (2, 4, 5, 6), last=False
    ),
    "bicubic": Case(resample(scale_factor=2, mode="bicubic"), (2, 4, 5, 6)),
}


if __name__ == "__main__":
    print_share(CASES)
