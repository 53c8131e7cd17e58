"""The code generator in Triton, for CUDA and for other vendors: a kernel becomes a module with one Triton kernel.

In: a `KernelPlan`, whose loops may have reductions of several levels, scans, scatters. Out: a `KernelSource`, with

- `text`: the module; `symbol`: its kernel; `arguments`: the buffers, then the size symbols;
- `settings`: what `litz.targets.triton.build` needs to compile and launch, as JSON-able data (see `launch_settings`).

The text depends on nothing but the loop and the target, so equal kernels of a graph are built once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from typing import Any

from litz.codegen.kernel_plan import KernelPlan
from litz.errors import CodegenError
from litz.ir import Buffer
from litz_plugins import COUNTERS, CodegenContext, KernelSource
from litz_plugins.nouns import OptionsView

from .dialect import POINTER_TYPES
from .finish import choose_tilings
from .indices import LIMIT, choose_index_type
from .join import join_sources
from .kernel import Part, write_kernel
from .names import make_names
from .settings import near
from .tile_shape import Tiling

Launch = Mapping[str, Any]
"""Settings of a launch: `grid`, `num_warps`, and perhaps `num_stages` and `counters` (see `launch_settings`)."""


class TritonCodegen:
    """Implements `litz_plugins.Codegen` in Triton. `load` builds and launches for CUDA: another vendor's generator
    has a `load` of its own, and the rest from here (docs/targets.md)."""

    language = "triton"
    loads_from_source = True
    names_nothing = True

    def generate(self, kernel: KernelPlan, context: CodegenContext) -> KernelSource:
        """Returns the Triton source of one kernel. Errors: CodegenError."""
        return self.generate_tiled(kernel, choose_tilings(kernel, context.target))

    def generate_tiled(self, kernel: KernelPlan, tilings: Sequence[Tiling]) -> KernelSource:
        """Returns the source of one kernel. tilings: one for each of its loops."""
        index = choose_index_type(kernel)
        names = make_names(kernel, tilings, index[1])
        parts = [
            Part(loop, tiling, own, kernel.stages(loop, one_walk=not tiling.persistent))
            for loop, tiling, own in zip(kernel.loops, tilings, names, strict=True)
        ]
        written = write_kernel(kernel, index, *parts)
        counters = (COUNTERS,) if written.counters else ()
        return KernelSource(
            name=kernel.name,
            language=self.language,
            text=written.text,
            symbol=written.symbol,
            arguments=(*kernel.buffers, *counters, *kernel.values(tuple(names[0].sizes))),
            settings=launch_settings(
                kernel.buffers.values(),
                kernel.unaligned.__contains__,
                {
                    "counters": written.counters,
                    "num_warps": tilings[0].num_warps,
                    "grid": int(written.grid) if written.grid.isdigit() else written.grid,
                },
                len(names[0].sizes),
                written.limits,
                written.text,
            ),
            suffix="py",
        )

    def near(self, kernel: KernelPlan, context: CodegenContext) -> Sequence[Mapping[str, int]]:
        """Returns settings of a kernel one step from its present ones: the blocks of its tile ("x", "y", "r"), "warps",
        "held" (rows in registers, 1 or 0), "stages"."""
        return list(near(choose_tilings(kernel, context.target)[0], kernel))

    def join(self, sources: Sequence[KernelSource], name: str) -> KernelSource:
        """Returns one kernel of several small ones, whose sizes are known. Errors: CodegenError where they cannot be
        joined."""
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
        module = "litz.targets.triton.user_kernels" if "user_kernel" in source.settings else "litz.targets.triton.build"
        launcher: Callable[..., None] = import_module(module).load(source, context)
        return launcher


def launch_settings(
    buffers: Collection[Buffer],
    unaligned: Callable[[str], bool],
    launch: Launch,
    sizes: int,
    limits: Sequence[str],
    body: str,
    pointer: Callable[[Buffer], str] = lambda buffer: POINTER_TYPES[buffer.dtype],
) -> dict[str, Any]:
    """Returns the `settings` of a KernelSource of language "triton".

    - `pointers`: Triton's type of each buffer argument (`pointer`); `sizes`: how many size arguments follow (int32 or
      int64);
    - `counters`: how many int32 zeros there are where `COUNTERS` is among the arguments;
    - `unaligned`: positions of buffers that may not start at a multiple of 16 bytes;
    - `num_warps`, of 32 threads each on any device; `grid`: how many programs, a number or Python text over s0, ...;
    - `limits`: texts over the sizes; where one exceeds `limit`, the kernel's INDEX argument must be int64;
    - `asserts`: the kernel asserts that indices are in range;
    - `host_scalars`: positions of buffers that lie in host memory (CPU scalars); the caller passes a device copy.
    """
    return {
        "pointers": [*map(pointer, buffers), *["*i32"] * bool(launch.get("counters"))],
        **{key: launch[key] for key in ("counters",) if key in launch},
        "sizes": sizes,
        "unaligned": [n for n, buffer in enumerate(buffers) if unaligned(buffer.name)],
        **{key: launch[key] for key in ("num_warps", "num_stages", "grid") if key in launch},
        "limits": list(limits),
        "limit": LIMIT,
        "asserts": "device_assert" in body,
        "host_scalars": [n for n, buffer in enumerate(buffers) if buffer.device.type == "cpu"],
    }
