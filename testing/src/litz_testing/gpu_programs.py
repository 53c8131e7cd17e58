"""Programs for a GPU without a GPU: made with fake CUDA tensors, run in Triton's interpreter, compiled by Triton. For
tests of templates and passes.

Triton decides when it is imported whether `@triton.jit` makes kernels or interpreted functions. So `interpret_program`
runs in a process that has TRITON_INTERPRET=1 in its environment from the start, and `compile_program` in one that has
not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses import FakeTensorMode

from litz.driver.builtin import builtin_plugins
from litz.ir import Extern, KernelCall, Operation, Program, TensorRef
from litz.ir.interpret import interpret
from litz.pipeline import schedule_only
from litz_plugins import COUNTERS, KernelSource, make_plugins

from .triton_interpreter import interpret_source

CPU = torch.device("cpu")


def gpu_program(
    f: Callable[..., Any],
    tensors: Sequence[torch.Tensor],
    options: Mapping[str, Any] | None = None,
    dynamic: Sequence[tuple[int, int]] = (),
    **plugins: object,
) -> Program:
    """Returns the Program of a function's only graph, scheduled for a GPU that looks like an H100 where there is none.

    tensors: of any device; the graph is captured for fake CUDA tensors of their sizes, strides and types. options: as
    in torch.compile. dynamic: the sizes that are symbols, each as a tensor's place and a dimension. plugins: those to
    compile with besides core's, by their names.
    """
    torch._dynamo.reset()
    with FakeTensorMode(), torch.no_grad():
        fakes = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda") for t in tensors]
        for place, dim in dynamic:
            torch._dynamo.mark_dynamic(fakes[place], dim)
        found = make_plugins(builtin_plugins(), extra=tuple(plugins.items()), entry_points=())
        (schedule,) = schedule_only(f, fakes, options, found)
    return schedule.program


def interpret_program(program: Program, tensors: Sequence[Any]) -> list[Any]:
    """Runs a program on CPU tensors, and returns its outputs: kernels that templates brought run in Triton's
    interpreter, all else runs in plain torch. Errors: RuntimeError without TRITON_INTERPRET=1."""
    buffers = {name: replace(buffer, device=CPU) for name, buffer in program.buffers.items()}
    operations = tuple(_on_cpu(operation, program) for operation in program.operations)
    inputs = tuple(item for item in program.inputs if isinstance(item, str))  # sizes are found in the tensors
    return interpret(replace(program, buffers=buffers, operations=operations, inputs=inputs), tensors)


def compile_program(program: Program, capability: int = 90) -> dict[str, str]:
    """Returns the PTX of each kernel that a template brought, by the kernel's name. capability: of the GPU, 90 for an
    H100. Errors: those of Triton's compiler."""
    from litz.targets.triton.compile import compile_kernel, make_target

    target = make_target(divmod(capability, 10))  # type: ignore[arg-type]
    sources = [operation.source for operation in program.operations if isinstance(operation, KernelCall)]
    return {source.symbol: compile_kernel(source, target).asm["ptx"] for source in sources}


def _on_cpu(operation: Operation, program: Program) -> Operation:
    if not isinstance(operation, KernelCall):
        return replace(operation, device=CPU)
    source: KernelSource = operation.source
    made = [name for name in operation.outputs if name is not None]
    named = [item for item in source.arguments if isinstance(item, str) and item != COUNTERS]
    read = {name: TensorRef(name, program.buffers[name].layout) for name in named if name not in made}
    layouts = {name: (program.buffers[name].layout.size, program.buffers[name].layout.stride) for name in made}
    sizes = tuple(item for item in source.arguments if not isinstance(item, str))
    run = _Interpreted(source, {name: program.buffers[name].dtype for name in made})
    return Extern(
        operation.name,
        CPU,
        run,
        (read, layouts, sizes),
        outputs=operation.outputs,
        mutates=operation.mutates,
        origins=operation.origins,
    )


@dataclass(frozen=True)
class _Interpreted:
    """Runs a kernel. dtypes: of the buffers that it makes."""

    source: KernelSource
    dtypes: Mapping[str, torch.dtype]
    __name__ = "interpreted"

    def __call__(
        self, read: Mapping[str, torch.Tensor], layouts: Mapping[str, Any], sizes: Sequence[int]
    ) -> list[torch.Tensor]:
        made = {name: torch.empty_strided(*layouts[name], dtype=dtype) for name, dtype in self.dtypes.items()}
        counters = torch.zeros(self.source.settings.get("counters", 0), dtype=torch.int32)
        memory = {**read, **made, COUNTERS: counters}
        interpret_source(self.source, [memory[n] for n in self.source.arguments if isinstance(n, str)], sizes)
        return list(made.values())


__all__ = ["compile_program", "gpu_program", "interpret_program"]
