"""Run one Loop twice: by the interpreter and as a C++ kernel.

A test builds stores with `litz.ir.build`, gives tensors for the buffers that they name, and `check` compares.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from litz.cache.disk import Cache
from litz.codegen.kernel_plan import plan_kernel
from litz.codegen.plan_rules import verify_plan
from litz.ir import Buffer, Layout, Loop, Node, Program, Range, Store, TensorRef, build
from litz.ir.index import Expr, Symbol, loop_var, reduction_var, to_expr
from litz.ir.interpret import evaluate, interpret
from litz.options import make_options
from litz.schedule.schedule import Kernel
from litz.target import target_of
from litz.targets.cpp.codegen import CppCodegen
from litz_plugins.records import CodegenContext, KernelSource

CPU = torch.device("cpu")
I = [loop_var(n) for n in range(6)]  # noqa: E741
R = [reduction_var(n) for n in range(4)]
CODEGEN = CppCodegen()
OPTIONS = make_options()
"""With the environment's compiler and processor (LITZ_CXX, LITZ_CPP_MARCH), for `make test-compilers`."""
CACHE = Cache(Path(os.environ["LITZ_CACHE_DIR"]))
"""That of the run: what compiled graphs have built is not built again."""


@dataclass
class Case:
    """A loop over `ranges` and `reduction`, with the tensors of its buffers: those it reads and those it makes."""

    ranges: Sequence[int | Expr]
    stores: Sequence[Store]
    inputs: Mapping[str, torch.Tensor]
    outputs: Mapping[str, torch.Tensor]
    reduction: Sequence[int | Expr] = ()
    inplace: Mapping[str, str] = field(default_factory=dict)
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    sizes: Mapping[Symbol, int] = field(default_factory=dict)
    name: str = "case"

    def program(self) -> Program:
        ranges = tuple(Range(I[n], to_expr(size)) for n, size in enumerate(self.ranges))
        inner = tuple(Range(R[n], to_expr(size)) for n, size in enumerate(self.reduction))
        loop = Loop(self.name, CPU, ranges, inner, tuple(self.stores))
        tensors = {**self.inputs, **self.outputs}
        buffers = {
            name: Buffer(name, t.dtype, CPU, self.layouts.get(name) or layout_of(t), self._kind(name))
            for name, t in tensors.items()
        }
        outputs = tuple(TensorRef(name, buffers[name].layout) for name in self.outputs)
        return Program("test", (*self.inputs, *self.sizes), buffers, (loop,), outputs)

    def _kind(self, name: str) -> Any:
        return "input" if name in self.inputs else "temporary"

    def context(self) -> CodegenContext:
        return CodegenContext(OPTIONS, target_of("cpu"), self.program(), CACHE)

    def source(self) -> KernelSource:
        context = self.context()
        loop = context.program.operations[0]
        kernel = plan_kernel(Kernel(self.name, loop, (self.name,), self.inplace), context.program)
        assert not list(verify_plan(kernel))
        return CODEGEN.generate(kernel, context)

    def run(self, source: KernelSource | None = None) -> dict[str, torch.Tensor]:
        """The kernel's outputs, on copies of the inputs."""
        source = source or self.source()
        memory = {name: like(t) for name, t in self.inputs.items()}
        for name, t in self.outputs.items():
            if name in self.inplace:
                memory[name] = memory[self.inplace[name]]
            elif name not in memory:
                memory[name] = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).fill_(7)
        launch = CODEGEN.load(source, self.context())
        launch(*(memory[a].data_ptr() if isinstance(a, str) else evaluate(a, self.sizes) for a in source.arguments))
        return {name: memory[name] for name in self.outputs}

    def check(self, **tolerance: float) -> KernelSource:
        """Both ways give the same."""
        source = self.source()
        got = self.run(source)
        copies = [like(t) for t in self.inputs.values()]
        want = interpret(self.program(), [*copies, *self.sizes.values()])
        for (name, mine), theirs in zip(got.items(), want, strict=True):
            torch.testing.assert_close(
                mine, theirs, equal_nan=True, msg=lambda m, name=name: f"{name}: {m}\n{source.text}", **tolerance
            )
        return source


def like(t: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides (expanded tensors as they are)."""
    return t if 0 in t.stride() else torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t)


def layout_of(t: torch.Tensor) -> Layout:
    return Layout(tuple(map(to_expr, map(int, t.shape))), tuple(map(to_expr, map(int, t.stride()))))


def load(name: str, tensor: torch.Tensor, *index: Any, **kwargs: Any) -> Node:
    """A load of a buffer at the given position; by default the loop variables in order."""
    position = tuple(map(to_expr, index)) if index else tuple(I[: tensor.dim()])
    return build.load(name, position, tensor.dtype, **kwargs)
