"""scaled_dot_product_attention with a mask that the compiler sees: torch's fused kernel, and core's in its place.

    python -m benchmarks.attention_masked [--only CASE ...] [--part K/N] [--build]

Microseconds a call, in a CUDA graph: the median of 20 replays of 20 calls. Beside them how many
times as fast the kernel is by what the choice counts. --build compiles only, for many processes at once.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

from litz_contractions.attention import masked_call
from litz_plugins import Estimate

CALLS = 20
Tensor = torch.Tensor
Mask = Callable[[Tensor, Tensor, Tensor], Tensor]


def causal(rows: Tensor, columns: Tensor, padding: Tensor) -> Tensor:
    return columns <= rows


def open_(rows: Tensor, columns: Tensor, padding: Tensor) -> Tensor:
    return (rows >= 0) & (columns >= 0)


def padded(rows: Tensor, columns: Tensor, padding: Tensor) -> Tensor:
    return padding[:, None, None, :].expand(-1, 1, len(rows), -1)


def causal_padded(rows: Tensor, columns: Tensor, padding: Tensor) -> Tensor:
    return padding[:, None, None, :] & (columns <= rows)


def window(rows: Tensor, columns: Tensor, padding: Tensor) -> Tensor:
    return (columns <= rows) & (rows - columns < 256)


CASES: dict[str, tuple[tuple[int, ...], Mask | None]] = {
    # batch, heads, queries, keys, width
    **{f"bias {size}": ((2048, 3, size, size, 32), None) for size in (49,)},
    "bias 64": ((512, 6, 64, 64, 32), None),
    "bias 196": ((32, 12, 196, 196, 64), None),
    "bias 512": ((8, 12, 512, 512, 64), None),
    "bias 1024": ((4, 16, 1024, 1024, 64), None),
    **{
        f"{mask.__name__} {size} of {width}": ((max(1, 8192 // size), 768 // width, size, size, width), mask)
        for width in (64, 128)
        for size in (256, 512, 1024, 4096)
        for mask in (causal, causal_padded)
    },
    **{f"open {size}": ((32, 12, size, size, 64), open_) for size in (197, 384)},
    **{f"padded {size}": ((16, 12, size, size, 64), padded) for size in (128, 384, 1500)},
    "padded 77 of 4096": ((8, 10, 4096, 77, 64), padded),
    "window 2048": ((2, 16, 2048, 2048, 128), window),
    "causal 1024 of 256": ((4, 8, 1024, 1024, 256), causal),
}


def operands(case: str) -> tuple[Any, ...]:
    """Query, key, value, and a bias or which keys are padding."""
    (batch, heads, queries, keys, width), mask = CASES[case]
    made = [
        torch.randn(batch, size, heads, width, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        for size in (queries, keys, keys)
    ]
    if mask is None:
        return *made, torch.randn(1, heads, queries, keys, device="cuda", dtype=torch.bfloat16)
    padding = torch.arange(keys, device="cuda")[None] < torch.randint(keys // 2, keys + 1, (batch, 1), device="cuda")
    return *made, padding


def step(case: str) -> Callable[..., Tensor]:
    mask = CASES[case][1]

    def attention(q: Tensor, k: Tensor, v: Tensor, more: Tensor) -> Tensor:
        if mask is None:
            bias = more.expand(q.shape[0], -1, -1, -1)
        else:
            rows, columns = torch.arange(q.shape[2], device="cuda")[:, None], torch.arange(k.shape[2], device="cuda")
            bias = mask(rows, columns, more).expand(q.shape[0], 1, -1, -1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    return attention


def timed(call: Callable[..., Tensor], given: Sequence[Any]) -> float:
    """Microseconds a call."""
    for _ in range(2):
        call(*given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call(*given)
    found = []
    for _ in range(22):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) * 1e3 / CALLS)
    return statistics.median(found[2:])


def compiled(case: str, wins: bool, told: list[float]) -> Callable[..., Tensor]:
    """litz's, with the kernel or without. Dynamo knows code by its backend's name, so it has to forget the other.
    told: takes the scores' times as they are counted, the library's over the kernel's."""
    torch._dynamo.reset()
    offered = masked_call.offer_masked

    def offer(attention: Any, context: Any) -> Any:
        choices = offered(attention, context)
        told.extend(choice.replaced.us / choice.estimate.us for choice in choices)
        us = 0.0 if wins else 1e9
        return [
            replace(choice, estimate=Estimate(us, us, us, "told"), replaced=Estimate(1.0, 1.0, 1.0, "told"))
            for choice in choices
        ]

    fn = torch.compile(step(case), backend="litz", dynamic=False, options={"disable_plugins": ("autotune",)})

    def run(*given: Any) -> Tensor:
        with mock.patch.object(masked_call, "offer_masked", offer):
            return fn(*given)

    return run


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES), metavar="CASE")
    parser.add_argument("--part", default="1/1", metavar="K/N")
    parser.add_argument("--build", action="store_true", help="compile only")
    options = parser.parse_args(arguments)
    part, parts = map(int, options.part.split("/"))
    if not options.build:
        print(f"{'us a call':22}{'eager':>9}{'library':>9}{'kernel':>9}{'times':>7}{'counted':>9}   errors")
    with torch.no_grad():
        for case in options.only[part - 1 :: parts]:
            given = operands(case)
            told: list[float] = []
            exact = step(case)(*(x.double() if x.is_floating_point() else x for x in given))
            us = {} if options.build else {"eager": timed(step(case), given)}
            errors = [(step(case)(*given) - exact).norm() / exact.norm()]
            for name, wins in (("library", False), ("kernel", True)):
                way = compiled(case, wins, told)
                errors.append((way(*given) - exact).norm() / exact.norm())
                if not options.build:
                    us[name] = timed(way, given)
            if options.build:
                continue
            del exact
            print(
                f"{case:22}{us['eager']:9.1f}{us['library']:9.1f}{us['kernel']:9.1f}"
                f"{us['library'] / us['kernel']:7.2f}{told[0] if told else 0:9.2f}   "
                + " ".join(f"{float(error):.1e}" for error in errors),
                flush=True,
            )


if __name__ == "__main__":
    main()
