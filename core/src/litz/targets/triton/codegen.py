"""The code generator in Triton, for CUDA and for other vendors: a kernel becomes a module with one Triton kernel.

In: a `KernelPlan`, whose loops may have reductions of several levels, scans, scatters. Out: a `KernelSource`, with

- `text`: the module; `symbol`: its kernel; `arguments`: the buffers, then the size symbols;
- `settings`: what `litz.targets.triton.build` needs to compile and launch, as JSON-able data
  (`litz.targets.triton.generate.launch_settings`).

The text depends on nothing but the loop and the target, so equal kernels of a graph are built once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from litz.errors import CodegenError
from litz_plugins import CodegenContext, KernelSource
from litz_plugins.nouns import OptionsView

if TYPE_CHECKING:
    from litz.codegen.kernel_plan import KernelPlan
    from litz.tiles.program import TileProgram
    from litz.tiles.shape import Tiling


class TritonCodegen:
    """Implements `litz_plugins.Codegen` in Triton. `load` builds and launches for CUDA: another vendor's generator
    has a `load` of its own, and the rest from here (docs/targets.md).

    The methods import what they use: a process that finds its kernels built generates none."""

    language = "triton"
    loads_from_source = True
    names_nothing = True

    def generate(self, kernel: KernelPlan, context: CodegenContext) -> KernelSource:
        """Returns the Triton source of one kernel. Errors: CodegenError."""
        from .finish import choose_tilings

        return self.generate_tiled(kernel, choose_tilings(kernel, context.target))

    def generate_tiled(self, kernel: KernelPlan, tilings: Sequence[Tiling]) -> KernelSource:
        """Returns the source of one kernel. tilings: one for each of its loops."""
        from .generate import generate_tiled

        return generate_tiled(kernel, tilings, self.language)

    def tiles(self, kernel: KernelPlan, context: CodegenContext) -> TileProgram:
        """Returns what one program of a kernel does, as data; the text is printed from it."""
        from .finish import choose_tilings
        from .kernel import make_tiles

        return make_tiles(kernel, choose_tilings(kernel, context.target))

    def near(self, kernel: KernelPlan, context: CodegenContext) -> Sequence[Mapping[str, int]]:
        """Returns settings of a kernel one step from its present ones: the blocks of its tile ("x", "y", "r"), "warps",
        "held" (rows in registers, 1 or 0), "stages"."""
        from .finish import choose_tilings
        from .settings import near

        return list(near(choose_tilings(kernel, context.target)[0], kernel))

    def join(self, sources: Sequence[KernelSource], name: str) -> KernelSource:
        """Returns one kernel of several small ones, whose sizes are known. Errors: CodegenError where they cannot be
        joined."""
        from .join import join_sources

        joined = join_sources(sources, name)
        if joined is None:
            raise CodegenError(name, f"{', '.join(source.name for source in sources)} cannot share a launch")
        return joined

    def prepare(self, options: OptionsView) -> None:
        """Starts the processes that compile, so that they are warm when there are texts."""
        import_module("litz.targets.triton.workers").start(options)

    def load(self, source: KernelSource, context: CodegenContext) -> Callable[..., None]:
        """Builds the kernel, or takes it from the cache, and loads it. Returns the function that launches the kernel on
        the current stream.

        Safe to call from several threads at a time. Errors: KernelBuildError if the kernel does not compile.
        """
        # By name: code generation does not import the runtime.
        module = source.settings.get("loader", "litz.targets.triton.build")
        launcher: Callable[..., None] = import_module(module).load(source, context)
        return launcher
