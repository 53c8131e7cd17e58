"""CppCodegen: a KernelPlan in, C++ source out, and a function that launches it.

The text names neither buffers nor the kernel, so that kernels that differ only in those are built once. Its arguments
are p0, p1, ... (buffers in order of first use) and s0, s1, ... (sizes, then the elements that some of the buffers are
counted from).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from litz.errors import CodegenError
from litz_plugins.errors import describe
from litz_plugins.records import CodegenContext, KernelSource

if TYPE_CHECKING:
    from litz.codegen.kernel_plan import KernelPlan

SYMBOL = "kernel"
Load = Callable[[KernelSource, CodegenContext], Callable[..., Any]]


@dataclass(frozen=True)
class CppCodegen:
    """The code generator for the CPU. `loader` builds and loads; by default `litz.targets.cpp.build.load_kernel`."""

    loader: Load | None = None
    language: str = "cpp"
    loads_from_source: bool = True
    names_nothing: bool = True

    def generate(self, kernel: KernelPlan, context: CodegenContext) -> KernelSource:
        """Returns the C++ of one kernel, the same text for the same kernel. Errors: CodegenError if the kernel has no
        C++."""
        from .generate import generate  # here: a process that finds its kernels built generates none

        try:
            return generate(kernel, context)
        except (NotImplementedError, KeyError) as error:
            problem = f"no C++ for {' + '.join(kernel.origins)}: {describe(error)}"
            raise CodegenError(kernel.name, problem, device="cpu") from error

    def load(self, source: KernelSource, context: CodegenContext) -> Callable[..., Any]:
        """Builds the kernel's library, or takes it from the cache, and loads it. Returns the function that runs the
        kernel, whose arguments are addresses and sizes as ints."""
        # By name: code generation does not import the runtime.
        loader = self.loader or import_module("litz.targets.cpp.build").load_kernel
        launch: Callable[..., Any] = loader(source, context)
        return launch
