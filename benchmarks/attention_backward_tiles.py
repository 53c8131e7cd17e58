"""The two kernels of attention's backward alone, with the tiles of their table and some beside them.

    python -m benchmarks.attention_backward_tiles [--only "causal 128" ...] [--dtype bf16] [--best N]

TFLOP/s count the products that a kernel makes, three of the query's and four of that of key and value, over the blocks
of keys that the mask leaves. The median of 20 launches counts.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.attention_tiles import CASES, DTYPES, Case, timed
from litz.cache.disk import Cache
from litz.capture.graph import Graph
from litz.driver.stages import capture, lowerings
from litz.ir import Program
from litz.lower import lower
from litz.pipeline import make_compiler
from litz.target import target_of
from litz.targets.triton.build import load as load_kernel
from litz_contractions.attention.backward import KeyGradients, QueryGradient
from litz_contractions.attention.offer import backward_plan
from litz_contractions.attention.operation import AttentionBackward
from litz_contractions.attention.tiles import BackwardTiles, Tiles
from litz_plugins import CodegenContext

KERNELS = (("dq", QueryGradient, 3), ("dkdv", KeyGradients, 4))
"""What a kernel is called, who writes it, and how many products it makes."""


def captured(function: Callable[..., Any], given: Sequence[torch.Tensor]) -> tuple[Program, list[Any]]:
    """The backward's program as it was lowered, and what it is called with."""
    compiler = make_compiler()
    found: list[tuple[Program, list[Any]]] = []

    def keep(graph: Graph) -> Callable[[list[Any]], Any]:
        program = lower(graph, lowerings(compiler)) if graph.kind == "backward" else None

        def run(args: list[Any]) -> Any:
            if program is None:
                return torch.fx.Interpreter(graph.module).run(*args)
            found.append((program, list(args)))
            fakes = [None if item is None else item.meta["val"] for item in graph.outputs]
            # What the gradients are does not matter.
            return [x if x is None else torch.zeros(x.shape, dtype=x.dtype, device=given[0].device) for x in fakes]

        return run

    torch._dynamo.reset()
    inputs = [x.requires_grad_() for x in given]
    backend = partial(capture, compile_graph=keep, compiler=compiler)
    # Scores are in memory here, as eager runs the forward: a case may take tens of GB.
    torch.compile(function, backend=backend, dynamic=False)(*inputs).sum().backward()
    return found[0]


def sweep(program: Program, args: Sequence[Any], cache: Cache) -> Iterator[tuple[str, int, Tiles, float]]:
    """(kernel, its products, tile, microseconds)."""
    (attention,) = (op for op in program.operations if isinstance(op, AttentionBackward))
    target = target_of("cuda:0")
    plan = backward_plan(attention, program, "matmul" in target.tf32)
    memory = {name: value for name, value in zip(program.inputs, args, strict=True) if isinstance(name, str)}
    for name, buffer in plan.program.buffers.items():
        if name not in memory:
            size, stride = (tuple(map(int, exprs)) for exprs in (buffer.layout.size, buffer.layout.stride))
            memory[name] = torch.zeros(1, dtype=buffer.dtype, device="cuda").new_empty_strided(size, stride)
    memory |= {name: value.cuda() for name, value in program.constants.items()}
    context = CodegenContext(None, target, plan.program, cache)  # type: ignore[arg-type]
    for name, kernel, products in KERNELS:
        for own, walked, warps, stages in product((64, 128), (32, 64, 128), (4, 8), (2, 3)):
            sides = (own, walked) if name == "dq" else (walked, own)
            tile = Tiles(*sides, warps, stages)
            if BackwardTiles(tile, tile).shared_bytes(plan.widths, plan.dtype.itemsize) > 1.5 * target.shared_bytes:
                continue
            try:
                source = kernel(plan, tile).source(name)
                launch = load_kernel(source, context)
                addresses = [memory[str(buffer)].data_ptr() for buffer in source.arguments]
                yield name, products, tile, timed(lambda launch=launch, to=addresses: launch(*to))  # type: ignore[misc]
            except Exception as why:
                print(f"    {name} {tile}: {str(why).splitlines()[0]}")


def run(case: Case, dtype: torch.dtype, best: int) -> None:
    given = case.tensors(dtype)
    function, share = case.function()
    batch, heads, queries, width = case.size
    with tempfile.TemporaryDirectory() as folder:
        found = list(sweep(*captured(function, given), Cache(Path(folder))))
    for name, _, _ in KERNELS:
        for _, products, tile, us in sorted((f for f in found if f[0] == name), key=lambda f: f[3])[:best]:
            flops = 2.0 * products * batch * heads * queries * queries * width * share
            print(f"{case.name:24} {name:5} {tile!s:20} {us:9.1f} us {flops / us / 1e6:7.1f} TFLOP/s", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[case.name for case in CASES])
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--best", type=int, default=4, help="how many are shown of each kernel")
    asked = parser.parse_args(argv)
    for case in CASES:
        if case.name in asked.only:
            run(case, DTYPES[asked.dtype], asked.best)


if __name__ == "__main__":
    main()
