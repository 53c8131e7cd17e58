"""The Triton source of one kernel, and what a launch needs of it. In: a `KernelPlan`, and a tiling for each of its
loops. Out: a `KernelSource`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from litz.codegen.kernel_plan import KernelPlan
from litz.ir import Buffer
from litz.tiles.shape import Tiling
from litz_plugins import COUNTERS, KernelSource

from .dialect import POINTER_TYPES
from .indices import LIMIT
from .kernel import make_tiles, write_kernel

Launch = Mapping[str, Any]
"""Settings of a launch: `grid`, `num_warps`, and perhaps `num_stages` and `counters` (see `launch_settings`)."""


def generate_tiled(kernel: KernelPlan, tilings: Sequence[Tiling], language: str) -> KernelSource:
    """Returns the source of one kernel. tilings: one for each of its loops. language: the source's."""
    program = make_tiles(kernel, tilings)
    sizes, written = program.names.sizes, write_kernel(kernel, program)
    counters = (COUNTERS,) if written.counters else ()
    return KernelSource(
        name=kernel.name,
        language=language,
        text=written.text,
        symbol=written.symbol,
        arguments=(*kernel.buffers, *counters, *kernel.values(tuple(sizes))),
        settings=launch_settings(
            kernel.buffers.values(),
            kernel.unaligned.__contains__,
            {
                "counters": written.counters,
                "num_warps": tilings[0].num_warps,
                "grid": int(written.grid) if written.grid.isdigit() else written.grid,
                "contracts": False,
            },
            len(sizes),
            written.limits,
            written.text,
        ),
        suffix="py",
    )


def launch_settings(
    buffers: Collection[Buffer],
    unaligned: Callable[[str], bool],
    launch: Launch,
    sizes: int,
    limits: Sequence[str],
    body: str,
    pointer: Callable[[Buffer], str] = lambda buffer: POINTER_TYPES[buffer.dtype],
) -> dict[str, Any]:
    """Returns the `settings` of a KernelSource of language "triton". A plugin's source has others: `loader`, a
    module whose `load` builds and launches the kernel, and `unstorable`, why the graph cache cannot keep the kernel.

    - `pointers`: Triton's type of each buffer argument (`pointer`); `sizes`: how many size arguments follow (int32 or
      int64);
    - `counters`: how many int32 zeros there are where `COUNTERS` is among the arguments;
    - `unaligned`: positions of buffers that may not start at a multiple of 16 bytes;
    - `num_warps`, of 32 threads each on any device; `grid`: how many programs, a number or Python text over s0, ...;
    - `limits`: texts over the sizes; where one exceeds `limit`, the kernel's INDEX argument must be int64;
    - `asserts`: the kernel asserts that indices are in range;
    - `contracts`: False where a product and the sum that reads the product are two instructions. One instruction adds
      the product unrounded, while others read the product rounded: `max(a * b) - a * b` would be below 0.
    """
    return {
        "pointers": [*map(pointer, buffers), *["*i32"] * bool(launch.get("counters"))],
        **{key: launch[key] for key in ("counters",) if key in launch},
        "sizes": sizes,
        "unaligned": [n for n, buffer in enumerate(buffers) if unaligned(buffer.name)],
        **{key: launch[key] for key in ("num_warps", "num_stages", "grid", "contracts") if key in launch},
        "limits": list(limits),
        "limit": LIMIT,
        "asserts": "device_assert" in body,
    }
