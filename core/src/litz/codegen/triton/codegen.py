"""The code generator for CUDA: a kernel of the schedule becomes a module with one Triton kernel.

In: a `Kernel`, whose loop may have reductions of several levels, scans, scatters. Out: a `KernelSource`, with

- `text`: the module; `symbol`: its kernel; `arguments`: the buffers, then the size symbols;
- `settings`: what `litz.runtime.triton_build` needs to compile and launch, as JSON-able data (see `make_settings`).

The text depends on nothing but the loop and the target, so equal kernels of a graph are built once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

from litz.ir import Extern, Program
from litz.ir.transform import collapse, flatten
from litz.schedule.schedule import Kernel
from litz_plugins import COUNTERS, CodegenContext, KernelSource

from ..named_sizes import name_sizes
from .dialect import POINTER_TYPES
from .finish import tile_finished
from .indices import LIMIT, choose_index_type
from .kernel import KernelText, Part, late_stores, write_kernel
from .names import Names, make_names
from .tiling import Tiling, choose_tiling

Loader = Callable[[KernelSource, CodegenContext], Callable[..., None]]


class TritonCodegen:
    """Implements `litz_plugins.Codegen` for device type "cuda"."""

    language = "triton"

    def __init__(self, loader: Loader | None = None) -> None:
        """loader: builds and loads a source; by default `litz.runtime.triton_build.load`."""
        self._loader = loader

    def generate(self, kernel: Kernel, context: CodegenContext) -> KernelSource:
        """The source of one kernel."""
        program: Program = context.program
        (first, *finish), buffers, sizes = name_sizes(kernel.loops, program.buffers)
        if sizes:
            kernel, program = replace(kernel, loop=first, finish=tuple(finish)), replace(program, buffers=buffers)
        if kernel.finish:
            tiled = tile_finished(kernel.loop, kernel.finish, program, context.target.units)
        else:
            loop = collapse(flatten(kernel.loop, program.buffers))
            tiled = ((loop, choose_tiling(loop, program, context.target.units)),)
        index = choose_index_type([loop for loop, _ in tiled], program)
        names = make_names(tiled, index[1])
        parts = [
            Part(loop, tiling, own, frozenset(late_stores(loop) | set(kernel.inplace)))
            for (loop, tiling), own in zip(tiled, names, strict=True)
        ]
        written = write_kernel(program, index, *parts)
        counters = (COUNTERS,) if written.counters else ()
        return KernelSource(
            name=kernel.name,
            language=self.language,
            text=written.text,
            symbol=written.symbol,
            arguments=(*names[0].buffers, *counters, *(sizes.get(size, size) for size in names[0].sizes)),
            settings=make_settings(written, program, tiled[0][1], names[0]),
        )

    def load(self, source: KernelSource, context: CodegenContext) -> Callable[..., None]:
        """Build (or fetch from the cache) and load; the result launches the kernel on the current stream.

        Safe to call from several threads at a time. KernelBuildError if the kernel does not compile.
        """
        if self._loader is None:
            # By name: code generation does not import the runtime.
            self._loader = import_module("litz.runtime.triton_build").load
        return self._loader(source, context)


def make_settings(written: KernelText, program: Program, tiling: Tiling, names: Names) -> dict[str, Any]:
    """What a KernelSource of language "triton" holds in `settings`:

    - `pointers`: Triton's type of each buffer argument; `sizes`: how many size arguments follow (int32 or int64);
    - `counters`: how many int32 zeros there are where `COUNTERS` is among the arguments;
    - `unaligned`: positions of buffers that may not start at a multiple of 16 bytes;
    - `num_warps`; `grid`: how many programs, a number or Python text over s0, s1, ...;
    - `limits`: texts over the sizes; where one exceeds `limit`, the kernel's INDEX argument must be int64;
    - `asserts`: the kernel asserts that indices are in range;
    - `host_scalars`: positions of buffers that lie in host memory (CPU scalars); the caller passes a device copy.
    """
    buffers = [program.buffers[name] for name in names.buffers]
    aliases = {name for op in program.operations if isinstance(op, Extern) for name in op.aliases}
    unaligned = [
        position
        for position, buffer in enumerate(buffers)
        if (buffer.kind == "input" and program.writers[buffer.name]) or buffer.name in aliases
    ]
    return {
        "pointers": [*(POINTER_TYPES[buffer.dtype] for buffer in buffers), *(["*i32"] if written.counters else [])],
        "counters": written.counters,
        "sizes": len(names.sizes),
        "unaligned": unaligned,
        "num_warps": tiling.num_warps,
        "grid": int(written.grid) if written.grid.isdigit() else written.grid,
        "limits": list(written.limits),
        "limit": LIMIT,
        "asserts": written.asserts,
        "host_scalars": [n for n, buffer in enumerate(buffers) if buffer.device.type == "cpu"],
    }
