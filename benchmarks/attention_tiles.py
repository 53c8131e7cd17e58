"""Attention's kernel alone, with the tiles of its table and some beside them: what the table is made from.

    python -m benchmarks.attention_tiles [--only "causal 128" ...] [--dtype bf16] [--best N]

TFLOP/s count the two products over the blocks of keys that the mask leaves. The median of 20 launches counts.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from litz.cache.disk import Cache
from litz.capture.graph import Graph
from litz.driver.stages import capture, prepare_graph, schedule_prepared
from litz.ir import Program
from litz.pipeline import make_compiler
from litz.report.log import Log
from litz.target import target_of
from litz.targets.triton.build import load as load_kernel
from litz.targets.triton.tile_shape import power_of_two
from litz_contractions.attention.forward import write_attention
from litz_contractions.attention.offer import written
from litz_contractions.attention.operation import Attention
from litz_contractions.attention.plan import make_plan
from litz_contractions.attention.tiles import Tiles, shared_bytes
from litz_contractions.module import Unsuitable
from litz_plugins import CodegenContext

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "f32": torch.float32}


@dataclass(frozen=True)
class Case:
    """batch, heads, queries (and keys), width; heads that share a key; what is done to the scores."""

    name: str
    size: tuple[int, int, int, int]
    shared: int = 1
    score_mod: Callable[..., Any] | None = None
    mask: Callable[..., Any] | None = None

    def tensors(self, dtype: torch.dtype) -> list[torch.Tensor]:
        batch, heads, queries, width = self.size
        sizes = [(batch, heads, queries, width)] + 2 * [(batch, heads // self.shared, queries, width)]
        return [torch.randn(size, device="cuda", dtype=dtype) for size in sizes]

    def function(self) -> tuple[Callable[..., Any], float]:
        """flex_attention, and the share of the scores that its blocks leave."""
        queries = self.size[2]
        blocks = None if self.mask is None else create_block_mask(self.mask, None, None, queries, queries)
        share = 1.0 if blocks is None else 1 - blocks.sparsity() / 100

        def f(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
            given = {"score_mod": self.score_mod, "block_mask": blocks, "enable_gqa": self.shared > 1}
            return flex_attention(query, key, value, **given)

        return f, share


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def window(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q >= k) & (q - k < 512)


def soft_cap(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.tanh(score / 20) * 20


def alibi(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + torch.exp2(-(h + 1) * 0.5) * (k - q)


CASES = (
    Case("plain 64", (4, 16, 4096, 64)),
    Case("causal 64", (4, 16, 4096, 64), mask=causal),
    Case("plain 128", (4, 16, 4096, 128)),
    Case("causal 128", (4, 16, 4096, 128), mask=causal),
    Case("causal 128 grouped", (4, 32, 4096, 128), shared=4, mask=causal),
    Case("plain 256", (2, 8, 4096, 256)),
    Case("plain 96", (4, 16, 4096, 96)),
    Case("window 128", (4, 16, 4096, 128), mask=window),
    Case("alibi causal 64", (4, 16, 4096, 64), score_mod=alibi, mask=causal),
    Case("soft cap causal 128", (4, 16, 4096, 128), score_mod=soft_cap, mask=causal),
)


def timed(call: Callable[[], Any], times: int = 20) -> float:
    """Microseconds."""
    for _ in range(3):
        call()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(times)]
    for start, end in pairs:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in pairs) * 1e3


def captured(function: Callable[..., Any], given: Sequence[torch.Tensor]) -> tuple[Program, list[Any]]:
    """The program with the attention as it was lowered, and what it is called with."""
    compiler, log = make_compiler(None, {"disable_plugins": ("autotune", "estimate")}), Log()
    found: list[tuple[Program, list[Any]]] = []

    def keep(graph: Graph) -> Callable[[list[Any]], Any]:
        schedule = schedule_prepared(prepare_graph(graph, compiler, log), compiler, log)

        def run(args: list[Any]) -> Any:
            found.append((schedule.program, list(args)))
            return torch.fx.Interpreter(graph.module).run(*args)

        return run

    torch._dynamo.reset()
    torch.compile(function, backend=partial(capture, compile_graph=keep, compiler=compiler), dynamic=False)(*given)
    return found[0]


def sweep(function: Callable[..., Any], given: Sequence[torch.Tensor], cache: Cache) -> Iterator[tuple[Tiles, float]]:
    """Tiles and microseconds."""
    program, args = captured(function, given)
    (attention,) = (op for op in program.operations if isinstance(op, Attention))
    target = target_of("cuda:0")
    plan = make_plan(attention, program, written(attention, program), "matmul" in target.tf32)
    memory = {name: value for name, value in zip(program.inputs, args, strict=True) if isinstance(name, str)}
    for name in plan.outputs:
        buffer = program.buffers[name]
        size, stride = (tuple(map(int, exprs)) for exprs in (buffer.layout.size, buffer.layout.stride))
        memory[name] = torch.empty_strided(size, stride, dtype=buffer.dtype, device="cuda")
    memory |= {name: value.cuda() for name, value in program.constants.items()}
    context = CodegenContext(None, target, program, cache)  # type: ignore[arg-type]
    widest = power_of_two(max(plan.widths))
    for rows, keys, warps, stages in product((64, 128), (32, 64, 128), (4, 8), (2, 3, 4)):
        tiles = Tiles(rows, keys, warps, stages)
        if shared_bytes(tiles, plan.held, plan.dtype.itemsize) > target.shared_bytes or rows * widest > 2**15:
            continue
        try:
            source = write_attention(plan, tiles, "attention")
            launch = load_kernel(source, context)
            addresses = [memory[str(name)].data_ptr() for name in source.arguments]
            yield tiles, timed(lambda launch=launch, addresses=addresses: launch(*addresses))  # type: ignore[misc]
        except (Unsuitable, RuntimeError) as why:
            print(f"    {tiles}: {str(why).splitlines()[0]}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[case.name for case in CASES])
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--best", type=int, default=6, help="how many are shown of each case")
    asked = parser.parse_args(argv)
    dtype = DTYPES[asked.dtype]
    for case in CASES:
        if case.name not in asked.only:
            continue
        given = case.tensors(dtype)
        function, share = case.function()
        batch, heads, queries, width = case.size
        flops = 4.0 * batch * heads * queries * queries * width * share
        with tempfile.TemporaryDirectory() as folder:
            found = sorted(sweep(function, given, Cache(Path(folder))), key=lambda item: item[1])
        for tiles, us in found[: asked.best]:
            print(f"{case.name:24} {tiles!s:20} {us:9.1f} us {flops / us / 1e6:7.1f} TFLOP/s", flush=True)


if __name__ == "__main__":
    main()
