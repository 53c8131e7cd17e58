"""Attention of one query over a cache, as decoding has it: eager, litz, and litz with other ways to split the keys.

    python -m benchmarks.attention_splits [--batch 1 8] [--length 2048] [--sweep] [--dtype bf16]

32 heads of 128, 8 of the key; keys and values are repeated for the heads that share them, and a bool mask hides the end
of the cache. Every call reads another cache, so that none comes out of the L2. Microseconds a call, in a CUDA graph of
many: the median of 20 replays. The bound is the bytes of keys and values at the target's bandwidth.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import ceil
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

from litz.target import target_of
from litz_contractions.attention import decode
from litz_contractions.attention.tiles import Tiles

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "f32": torch.float32}
HEADS, SHARED, WIDTH = 32, 8, 128
COLD = 4 * 10**8
"""Bytes of all caches together, several times an L2."""

Call = Callable[..., torch.Tensor]
Caches = Sequence[tuple[torch.Tensor, ...]]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    keys, values = (each.repeat_interleave(HEADS // SHARED, dim=1) for each in (k, v))
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)


def caches(batch: int, length: int, dtype: torch.dtype) -> Caches:
    each = 2 * batch * SHARED * length * WIDTH * dtype.itemsize
    mask = (torch.arange(length, device="cuda") < length - 7)[None, None, None]

    def tensors() -> tuple[torch.Tensor, ...]:
        q = torch.randn(batch, HEADS, 1, WIDTH, device="cuda", dtype=dtype)
        k, v = (torch.randn(batch, SHARED, length, WIDTH, device="cuda", dtype=dtype) for _ in range(2))
        return q, k, v, mask

    return [tensors() for _ in range(min(64, max(8, ceil(COLD / each))))]


def timed(call: Call, given: Caches) -> float:
    """Microseconds a call."""
    for one in given[:3]:
        call(*one)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for one in given:
            call(*one)
    found = []
    for _ in range(23):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) * 1e3 / len(given))
    return statistics.median(found[3:])


def compiled(split: Tiles | None = None) -> Iterator[Call]:
    """litz's, with what it chooses or with this split."""
    torch._dynamo.reset()
    if split is None:
        yield torch.compile(attention, backend="litz", dynamic=False)
        return
    with mock.patch.object(decode, "choose_split", lambda *args: split):
        yield torch.compile(attention, backend="litz", dynamic=False)


def splits(batch: int, length: int) -> Iterator[Tiles]:
    for parts, keys, stages, warps in product((1, 2, 4, 8, 16, 32), (32, 64, 128), (2, 3, 4), (2, 4, 8)):
        programs = parts * batch * SHARED
        if 64 <= programs <= 1024 and ceil(length / parts) >= keys:
            yield Tiles(16, keys, warps, stages, parts)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--sweep", action="store_true", help="other splits too, the best 8 of which are shown")
    parser.add_argument("--every", type=int, default=1, help="of the sweep, each so many-th split")
    options = parser.parse_args(arguments)
    for batch in options.batch:
        given = caches(batch, options.length, DTYPES[options.dtype])
        with torch.no_grad():
            wanted = attention(*given[0])
            rows: list[tuple[float, str]] = []

            def row(call: Call, name: str, given: Caches = given, wanted: Any = wanted, rows: Any = rows) -> None:
                error = (call(*given[0]) - wanted).abs().max().item()
                rows.append((timed(call, given), f"{name}, differs from eager by {error:.1e}"))

            row(attention, "eager")
            for call in compiled():
                row(call, "litz")
            first = rows.copy()
            if options.sweep:
                for split in list(splits(batch, options.length))[:: options.every]:
                    for call in compiled(split):
                        try:
                            row(call, str(split))
                        except Exception as error:
                            print(f"{split}: {type(error).__name__}: {str(error)[:100]}")
        moved = sum(each.nbytes for each in given[0][1:3])
        bound = moved / target_of("cuda:0").bandwidth
        print(f"batch {batch}, {options.length} keys, {options.dtype}: {moved / 1e6:.1f} MB, {bound:.1f} us at least")
        for us, name in [*first, *sorted(rows[len(first) :])[:8]]:
            print(f"  {us:8.2f} us  {bound / us:6.1%} of the bandwidth  {name}")


if __name__ == "__main__":
    main()
