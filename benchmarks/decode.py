"""One decoding step of a Llama-like model: eager, TorchInductor and litz in one process, in turn.

    python -m benchmarks.decode [--weights bf16 int8 int4 float8] [--batch 1 8] [--backends NAME ...] [--kernels]
                                [--layers 8] [--width 4096] [--minutes N] [--out FILE]

The model: RMS norm, rotary embedding, grouped queries (4 to 1) over a static cache that is written in place, SwiGLU; no
vocabulary. Weights are bf16; int8 or float8 with a scale for each row; or int4, two to a byte, a scale for each group
of 128.
Dequantisation, repeated keys and the mask are ordinary torch code, as users write them. All backends run under CUDA
graphs: eager by `torch.cuda.graph`, the others by their modes. A step must read all weights and the cache once;
`share` is that over the time, as a fraction of what a copy of 1 GiB moves in the same run. `error` is the largest
difference from the same step in float64, of the largest output; eager's is the one to compare with. Where a mode made
no CUDA graph (Inductor skips what it finds unsafe), the step is recorded by hand, and `graph` in the JSON says so.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
import time
import traceback
from ast import literal_eval
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.device_time import DeviceKernel, copy_speed, describe, graphs_made, in_turn, kernels, recorded
from benchmarks.record import add_option, recorder
from litz_contractions.products import rows

HEAD = 128
"""Width of a head."""
QUERIES_PER_KEY = 4
GROUP = 128
"""Columns of a weight in int4 that share a scale."""
BACKENDS: Mapping[str, Mapping[str, Any] | None] = {
    "eager": None,
    "inductor": {"backend": "inductor", "mode": "reduce-overhead"},
    "inductor-max": {"backend": "inductor", "mode": "max-autotune"},
    "litz": {"backend": "litz", "mode": "reduce-overhead"},
    "litz-max": {"backend": "litz", "mode": "max-autotune"},
}
"""What torch.compile gets, by name."""


class Full(nn.Module):
    """A linear layer as it is: (..., inputs) to (..., outputs)."""

    def __init__(self, weight: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", weight.to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class Int8(nn.Module):
    """Weights in int8, a scale for each row."""

    def __init__(self, weight: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        scale = weight.abs().amax(1) / 127
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale.to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype)) * self.scale


class Float8(nn.Module):
    """Weights in float8_e4m3fn, a scale for each row."""

    def __init__(self, weight: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        scale = weight.abs().amax(1) / 448
        self.register_buffer("weight", (weight / scale[:, None]).to(torch.float8_e4m3fn))
        self.register_buffer("scale", scale.to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype)) * self.scale


class Int4(nn.Module):
    """Weights in int4, even columns in a byte's low half; a scale for each group of a row."""

    def __init__(self, weight: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        groups = weight.view(weight.shape[0], -1, GROUP)
        scale = groups.abs().amax(2, keepdim=True) / 7
        digits = ((groups / scale).round() + 8).to(torch.uint8).flatten(1)
        self.register_buffer("weight", digits[:, ::2] | digits[:, 1::2] << 4)
        self.register_buffer("scale", scale.to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        digits = torch.stack((self.weight & 15, self.weight >> 4), -1)
        groups = digits.reshape(self.scale.shape[0], -1, GROUP).to(x.dtype)
        return F.linear(x, ((groups - 8) * self.scale).flatten(1))


WEIGHTS: Mapping[str, Callable[[Tensor, torch.dtype], nn.Module]] = {
    "bf16": Full,
    "int8": Int8,
    "int4": Int4,
    "float8": Float8,
}


@dataclass(frozen=True)
class Sizes:
    """Of a model. hidden: width of the MLP; length: positions that the cache has room for."""

    layers: int = 8
    width: int = 4096
    length: int = 2048
    batch: int = 1

    @property
    def heads(self) -> int:
        return self.width // HEAD

    @property
    def key_heads(self) -> int:
        return max(1, self.heads // QUERIES_PER_KEY)

    @property
    def hidden(self) -> int:
        return self.width * 7 // 2


class Norm(nn.Module):
    """RMS norm, in float32 as Llama has it (in float64 if the input is)."""

    def __init__(self, width: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", 1 + 0.1 * torch.randn(width, device=device).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


class Layer(nn.Module):
    """Attention over the cache, and the MLP."""

    def __init__(self, sizes: Sizes, weights: Callable[[Tensor, torch.dtype], nn.Module], device: torch.device) -> None:
        super().__init__()
        self.sizes = sizes
        dtype = torch.bfloat16

        def linear(inputs: int, outputs: int) -> nn.Module:
            return weights(torch.randn(outputs, inputs, device=device) / math.sqrt(inputs), dtype)

        keys = sizes.key_heads * HEAD
        self.norm, self.mlp_norm = (Norm(sizes.width, device, dtype) for _ in range(2))
        self.q, self.out = linear(sizes.width, sizes.width), linear(sizes.width, sizes.width)
        self.k, self.v = linear(sizes.width, keys), linear(sizes.width, keys)
        self.gate, self.up = linear(sizes.width, sizes.hidden), linear(sizes.width, sizes.hidden)
        self.down = linear(sizes.hidden, sizes.width)
        for name in ("keys", "values"):
            size = (sizes.batch, sizes.key_heads, sizes.length, HEAD)
            self.register_buffer(name, torch.randn(size, device=device).to(dtype))
        # What the mask hides is large, so that a step that forgets the mask is seen to be wrong.
        self.keys[:, :, -1], self.values[:, :, -1] = 10, 100

    def forward(self, x: Tensor, position: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        normal, batch = self.norm(x), self.sizes.batch
        q = _rotate(self.q(normal).view(batch, 1, -1, HEAD).transpose(1, 2), cos, sin)
        k = _rotate(self.k(normal).view(batch, 1, -1, HEAD).transpose(1, 2), cos, sin)
        v = self.v(normal).view(batch, 1, -1, HEAD).transpose(1, 2)
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        repeats = self.sizes.heads // self.sizes.key_heads
        keys, values = (cache.repeat_interleave(repeats, dim=1) for cache in (self.keys, self.values))
        heads = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        x = x + self.out(heads.transpose(1, 2).reshape(batch, 1, -1))
        normal = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(normal)) * self.up(normal))


class Decoder(nn.Module):
    """A step: x (batch, 1, width), position (1,) int64; returns (batch, 1, width)."""

    def __init__(self, sizes: Sizes, weights: str, device: torch.device) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(sizes, WEIGHTS[weights], device) for _ in range(sizes.layers))
        self.norm = Norm(sizes.width, device, torch.bfloat16)
        self.register_buffer("frequency", 500000.0 ** -(torch.arange(0, HEAD, 2, device=device) / HEAD))
        self.register_buffer("positions", torch.arange(sizes.length, device=device))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        angle = (position[:, None] * self.frequency).repeat(1, 2)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        mask = (self.positions <= position)[None, None, None]
        for layer in self.layers:
            x = layer(x, position, cos, sin, mask)
        return self.norm(x)

    def bytes_read(self) -> int:
        """What a step must read: weights, scales and cache, once."""
        return sum(buffer.nbytes for buffer in self.buffers())


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat((-high, low), -1) * sin


@dataclass
class Row:
    """One model under one backend. first_call_s: seconds, dynamo's own work included. kernel_us: their sum.
    graph: who made the CUDA graph: its mode, or the benchmark by hand."""

    weights: str
    batch: int
    backend: str
    bytes: int
    ms: float = math.nan
    share: float = math.nan
    kernel_count: float = math.nan
    kernel_us: float = math.nan
    error: float = math.nan
    first_call_s: float = math.nan
    longest: list[DeviceKernel] = field(default_factory=list)
    graph: str = ""
    problem: str = ""


def measure(
    sizes: Sizes, weights: str, backends: Sequence[str], device: torch.device, peak: float, seconds: float
) -> list[Row]:
    """One model under every backend, steps in turn. peak: bytes a second of a copy."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Decoder(sizes, weights, device)
    x = torch.randn(sizes.batch, 1, sizes.width, device=device).to(torch.bfloat16)
    position = torch.tensor([sizes.length - 2], device=device)  # the last but one, so that the mask hides something
    exact = copy.deepcopy(model).double()(x.double(), position)
    lines = {name: Row(weights, sizes.batch, name, model.bytes_read()) for name in backends}
    steps: dict[str, Callable[[], Any]] = {}
    for name, row in lines.items():
        try:
            start = time.perf_counter()
            before = graphs_made(name)
            step = _prepare(model, BACKENDS[name], x, position)
            row.graph = "its mode" if graphs_made(name) > before else "by hand"
            if x.is_cuda and row.graph == "by hand":
                step = recorded(step)
            output = step()
            row.error = float((output.double() - exact).abs().max() / exact.abs().max())
            row.first_call_s = time.perf_counter() - start
            for _ in range(3):
                step()
            found = kernels(step, device)
            row.kernel_count, row.kernel_us = sum(k.count for k in found), sum(k.us for k in found)
            row.longest = found[:10]
            steps[name] = step
        except Exception as problem:  # one backend's failure must not cost the others
            row.problem = f"{type(problem).__name__}: {problem}".splitlines()[0][:200]
            traceback.print_exc(limit=3, file=sys.stderr)
    for name, ms in in_turn(steps, device, seconds).items():
        lines[name].ms, lines[name].share = ms, lines[name].bytes / (ms * 1e-3) / peak
    return list(lines.values())


def _prepare(model: nn.Module, how: Mapping[str, Any] | None, x: Tensor, position: Tensor) -> Callable[[], Tensor]:
    if how is None:
        return lambda: model(x, position)
    compiled = torch.compile(model, dynamic=False, fullgraph=True, **how)

    def step() -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return compiled(x, position)

    for _ in range(4):  # compile, warm up, record, replay
        step()
    return step


def line(row: Row) -> str:
    """A row of the table."""
    label = f"{row.weights:6}{row.batch:>3}  {row.backend:12}"
    if row.problem:
        return f"{label}failed\n    {row.problem}"[:100]
    return (
        f"{label}{row.ms:9.3f}{row.share:7.3f}{row.kernel_count:9.0f}{row.kernel_us / 1e3:9.3f}"
        f"{row.error:10.1e}{row.first_call_s:8.1f}"
    )


HEADER = f"{'weights, batch, backend':23}{'ms':>9}{'share':>7}{'kernels':>9}{'in them':>9}{'error':>10}{'first s':>8}"


def as_record(found: Sequence[Row]) -> dict[str, Any]:
    """What a line of benchmarks/results has of one model under every backend (`benchmarks.record`)."""
    peers = {
        row.backend: {"wall_ms": row.ms, "copy_share": row.share, "kernels": row.kernel_count,
                      "kernel_ms": row.kernel_us / 1e3, "error": row.error, "cold_s": row.first_call_s}
        for row in found
    }  # fmt: skip
    case = f"{found[0].weights} weights, batch {found[0].batch}"
    problems = {row.backend: row.problem for row in found if row.problem}
    return {
        "task": "decoding",
        "case": case,
        "mode": "reduce-overhead",
        "dtype": "bfloat16",
        "peers": peers,
        "problems": problems,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table, lines as soon as they are measured; write JSON to --out."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--weights", nargs="+", choices=list(WEIGHTS), default=list(WEIGHTS))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--backends", nargs="+", choices=list(BACKENDS), default=list(BACKENDS))
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=4096, help="a multiple of 512, or of 128 below that")
    parser.add_argument("--length", type=int, default=2048, help="positions that the cache has room for")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--kernels", action="store_true", help="show the ten longest kernels of litz")
    parser.add_argument("--seconds", type=float, default=2.0, help="of measuring per model, beside compiling")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no model after so many")
    parser.add_argument("--out", help="write the figures to this file, as JSON")
    add_option(parser)
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="to try in litz_contractions.products.rows; give each try a LITZ_CACHE_DIR of its own",
    )
    args = parser.parse_args(argv)
    for name, value in (each.split("=") for each in args.set):
        getattr(rows, name)
        setattr(rows, name, literal_eval(value))
    device, stop = torch.device(args.device), time.monotonic() + 60 * args.minutes
    facts: dict[str, Any] = {"where": describe(device), "layers": args.layers, "width": args.width}
    with torch.no_grad():
        peak = facts["copy_bytes_per_second"] = copy_speed(device)
        print(f"{facts['where']}; copy {peak / 1e9:.0f} GB/s; {args.layers} layers of {args.width}")
        print(HEADER)
        record = recorder(args.json, "decode", device, argv)
        lines: list[Row] = []
        for weights in args.weights:
            for batch in args.batch:
                if time.monotonic() > stop:
                    print("out of time")
                    return
                sizes = Sizes(args.layers, args.width, args.length, batch)
                found = measure(sizes, weights, args.backends, device, peak, args.seconds)
                lines += found
                record(**as_record(found))
                for row in found:
                    print(line(row), flush=True)
                    if args.kernels and row.backend.startswith("litz"):
                        for kernel in row.longest:
                            print(f"    {kernel.us:9.1f} us {kernel.count:4.0f}x  {kernel.name[:56]}")
                if args.out:
                    Path(args.out).write_text(json.dumps({**facts, "rows": [asdict(row) for row in lines]}, indent=1))
                if device.type == "cuda":
                    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
