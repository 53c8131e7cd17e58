"""Attention written out, gathered experts, and Triton kernels of the user's: eager, TorchInductor and litz in turn.

    python -m benchmarks.written_out [--only "causal n2048" ...] [--device cpu] [--seconds S] [--out FILE]

Microseconds of a call. Each step runs from a CUDA graph of its own, but for the rows "host", which are timed as they
are called: small kernels, of which the host is the limit. `error`: largest difference from float64, of the largest.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.device_time import in_turn, recorded

BACKENDS: Mapping[str, Mapping[str, Any] | None] = {
    "eager": None,
    "inductor": {"backend": "inductor"},
    "litz": {"backend": "litz"},
}


@dataclass(frozen=True)
class Row:
    """run: of what `make` gives, on a device and in small or not. host: is the host the limit? exact: is there a
    float64?"""

    run: Callable[..., Any]
    make: Callable[[torch.device, bool], tuple[Tensor, ...]]
    host: bool = False
    exact: bool = True


def scores(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])


def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scores(query, key).softmax(-1) @ value


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """As GPT-2 and Llama have it: the least number where a key is not seen."""
    at = torch.arange(query.shape[-2], device=query.device)
    low = torch.finfo(query.dtype).min
    bias = torch.zeros((), dtype=query.dtype, device=query.device).where(at[:, None] >= at, low)
    return F.softmax(scores(query, key) + bias, -1, dtype=torch.float32).to(query.dtype) @ value


def filled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    at = torch.arange(query.shape[-2], device=query.device)
    return scores(query, key).masked_fill(at[:, None] < at, -math.inf).softmax(-1) @ value


def positions(query: Tensor, key: Tensor, value: Tensor, table: Tensor) -> Tensor:
    """A bias by relative position, as T5 has it."""
    at = torch.arange(query.shape[-2], device=query.device)
    bias = F.embedding((at - at[:, None]).clamp(-31, 31) + 31, table).permute(2, 0, 1)
    return F.softmax((scores(query, key) + bias).float(), -1).to(query.dtype) @ value


def experts(weights: Tensor, chosen: Tensor, x: Tensor) -> Tensor:
    return torch.einsum("ti,taoi->tao", x, weights[chosen])


def heads(length: int, width: int, *more: int) -> Callable[[torch.device, bool], tuple[Tensor, ...]]:
    """Query, key and value of 16384 tokens in all, 2048 / width heads. more: the size of one more tensor."""

    def make(device: torch.device, small: bool) -> tuple[Tensor, ...]:
        n, count = (64, 1) if small else (length, max(1, 16384 // length))
        options = {"device": device, "dtype": torch.float32 if device.type == "cpu" else torch.bfloat16}
        found = [torch.randn(count, 2048 // width, n, width, **options) for _ in range(3)]
        return (*found, *([torch.randn(*more, **options)] if more else []))

    return make


def of_experts(tokens: int) -> Callable[[torch.device, bool], tuple[Tensor, ...]]:
    """Two of eight experts for each token, sizes of Mixtral 8x7B's first product."""

    def make(device: torch.device, small: bool) -> tuple[Tensor, ...]:
        out, depth = (64, 32) if small else (14336, 4096)
        options = {"device": device, "dtype": torch.float32 if device.type == "cpu" else torch.bfloat16}
        chosen = torch.randint(0, 8, (tokens, 2), device=device)
        return torch.randn(8, out, depth, **options), chosen, torch.randn(tokens, depth, **options)

    return make


def rows(device: torch.device) -> dict[str, Row]:
    found = {}
    for length in (512, 1024, 2048, 4096):
        for width in (64, 128):
            for function in (plain, causal, filled):
                found[f"{function.__name__} d{width} n{length}"] = Row(function, heads(length, width))
        found[f"positions d64 n{length}"] = Row(positions, heads(length, 64, 63, 32))
    found |= {f"experts of {count} tokens": Row(experts, of_experts(count)) for count in (1, 2, 4)}
    if device.type == "cuda":
        found["user's kernels, host"] = Row(users_kernels(), elements, host=True, exact=False)
        found["user's kernels"] = Row(users_kernels(), elements, exact=False)
    return found


def elements(device: torch.device, small: bool) -> tuple[Tensor, ...]:
    return tuple(torch.randn(256, 256, device=device) for _ in range(2))


def users_kernels() -> Callable[..., Any]:
    """Eight launches, into fresh memory and in place."""
    import triton
    import triton.language as tl

    @triton.jit
    def add(x, y, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)

    def run(x: Tensor, y: Tensor) -> Tensor:
        grid = (triton.cdiv(x.numel(), 1024),)
        for _ in range(4):
            out = torch.empty_like(x)
            add[grid](x, y, out, x.numel(), BLOCK=1024)
            add[grid](out, y, out, x.numel(), BLOCK=1024)
            x = out
        return x

    return run


def host_us(step: Callable[[], Any], calls: int = 200) -> float:
    """Microseconds of a call, of many in a row."""
    for _ in range(10):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e6 / calls


def measure(row: Row, device: torch.device, seconds: float) -> dict[str, Any]:
    small = device.type == "cpu"
    inputs = row.make(device, small)
    steps: dict[str, Callable[[], Any]] = {}
    errors: dict[str, float] = {}
    with torch.no_grad():
        exact = row.run(*(x.double() if x.is_floating_point() else x for x in _part(inputs))) if row.exact else None
        for name, how in BACKENDS.items():
            torch._dynamo.reset()
            function = row.run if how is None else torch.compile(row.run, **how)
            for _ in range(3):
                function(*inputs)
            if exact is not None:
                got = torch.compile(row.run, **how)(*inputs) if how is not None else function(*inputs)
                errors[name] = _error(got[: exact.shape[0]], exact)
            steps[name] = lambda function=function: function(*inputs)  # type: ignore[misc]
            if device.type == "cuda" and not row.host:
                steps[name] = recorded(steps[name])
        if row.host:
            us = {name: host_us(step) for name, step in steps.items()}
        else:
            us = {name: ms * 1e3 for name, ms in in_turn(steps, device, seconds).items()}
    return {"us": us, "error": errors}


def _part(inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """The first of a batch: float64 takes its time, and memory."""
    return [x[:1] if x.dim() == 4 else x for x in inputs]


def _error(got: Tensor, exact: Tensor) -> float:
    return float((got.double() - exact).abs().max() / exact.abs().max())


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for each row as soon as it is measured; write JSON to --out."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.written_out", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="rows that have all words of one of these texts")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=0.3, help="of measuring per row")
    parser.add_argument("--out")
    args = parser.parse_args(argv)
    device, results = torch.device(args.device), {}
    for name, row in rows(device).items():
        if args.only and not any(set(text.split()) <= set(name.split()) for text in args.only):
            continue
        results[name] = found = measure(row, device, args.seconds)
        us, error = found["us"], found["error"]
        cells = "".join(f"{backend} {us[backend]:9.1f}  " for backend in us)
        wrong = " ".join(f"{value:.1e}" for value in error.values())
        print(f"{name:24}{cells}x{us['inductor'] / us['litz']:.2f} of inductor  error {wrong}", flush=True)
        if args.out:
            with open(args.out, "w") as file:
                json.dump({"torch": torch.__version__, "rows": results}, file, indent=1)


if __name__ == "__main__":
    main()
