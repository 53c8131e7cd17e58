# ruff: noqa: E501  (a case a line)
"""Memory throughput of C++ kernels: each kernel of a kind against eager and against a plain copy.

    python -m benchmarks.cpu_kernels [name ...]

In: nothing. Out: a table of milliseconds and GB/s. Bytes are those of each tensor once: what a perfect kernel moves.
Best of many calls on warm output, since what fresh pages cost is the allocator's affair, not the kernel's.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.record import add_option, recorder
from litz.cache.disk import Cache
from litz.codegen.kernel_plan import plan_kernel
from litz.ir import Buffer, Layout, Loop, Node, Program, Range, Store, build
from litz.ir.index import loop_var, placeholder, reduction_var, to_expr
from litz.options import Options
from litz.schedule.schedule import Kernel
from litz.target import target_of
from litz.targets.cpp.codegen import CppCodegen
from litz_plugins.records import CodegenContext

CPU = torch.device("cpu")
I = [loop_var(n) for n in range(4)]  # noqa: E741
R = [reduction_var(n) for n in range(4)]
F32, BF16 = torch.float32, torch.bfloat16


@dataclass
class Case:
    """One kernel: a loop, its tensors, and what eager does instead."""

    name: str
    ranges: Sequence[int]
    reduction: Sequence[int]
    stores: Sequence[Store]
    tensors: Mapping[str, torch.Tensor]
    eager: Callable[[], object]


def best_ms(function: Callable[[], object], seconds: float = 0.6) -> float:
    function()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def launcher(case: Case, cache: Cache) -> tuple[Callable[[], object], str]:
    loop = Loop(
        case.name,
        CPU,
        tuple(Range(I[n], to_expr(size)) for n, size in enumerate(case.ranges)),
        tuple(Range(R[n], to_expr(size)) for n, size in enumerate(case.reduction)),
        tuple(case.stores),
    )
    layouts = {
        name: Layout(tuple(map(to_expr, map(int, t.shape))), tuple(map(to_expr, map(int, t.stride()))))
        for name, t in case.tensors.items()
    }
    buffers = {name: Buffer(name, t.dtype, CPU, layouts[name]) for name, t in case.tensors.items()}
    program = Program("benchmark", (), buffers, (loop,), ())
    context = CodegenContext(Options(), target_of("cpu"), program, cache)
    codegen = CppCodegen()
    source = codegen.generate(plan_kernel(Kernel(case.name, loop), program), context)
    function = codegen.load(source, context)
    addresses = [case.tensors[name].data_ptr() for name in source.arguments]
    return lambda: function(*addresses), source.text


def call(name: str, *args: Node) -> Node:
    return build.call(name, *args)


def softmax(row: Node) -> tuple[Node, Node, Node]:
    top = build.reduce("max", row)
    e = call("exp", call("sub", row, top))
    total = build.reduce("sum", e)
    return call("div", e, total), top, total


def layer_norm(row: Node, count: int, weight: Node, bias: Node) -> Node:
    mean, m2 = build.reduce("welford_mean", row), build.reduce("welford_m2", row)
    variance = call("div", m2, build.const(float(count), F32))
    scale = call("rsqrt", call("add", variance, build.const(1e-5, F32)))
    return call("add", call("mul", call("mul", call("sub", row, mean), scale), weight), bias)


def cases() -> list[Case]:
    """The layouts of the design's list, at sizes that no cache holds."""
    functional = torch.nn.functional
    found: list[Case] = []
    n = 8 << 20
    x, y, o = torch.randn(n), torch.randn(n), torch.empty(n)
    X, Y = build.load("x", (I[0],), F32), build.load("y", (I[0],), F32)
    found.append(Case("copy", [n], [], [Store("o", (I[0],), X)], {"x": x, "o": o}, lambda: o.copy_(x)))
    found.append(Case("a add", [n], [], [Store("o", (I[0],), call("add", X, Y))], {"x": x, "y": y, "o": o},
                      lambda: torch.add(x, y, out=o)))  # fmt: skip
    gate = call("add", call("mul", call("sigmoid", X), Y), call("tanh", X))
    found.append(Case("a sigmoid*y+tanh", [n], [], [Store("o", (I[0],), gate)], {"x": x, "y": y, "o": o},
                      lambda: torch.sigmoid(x) * y + torch.tanh(x)))  # fmt: skip
    half = call("mul", X, build.const(0.5, F32))
    gelu = call(
        "mul", half, call("add", call("erf", call("mul", X, build.const(0.70710678, F32))), build.const(1.0, F32))
    )
    found.append(Case("a gelu", [n], [], [Store("o", (I[0],), gelu)], {"x": x, "o": o}, lambda: functional.gelu(x)))

    x2, o2, bias = torch.randn(8192, 1024), torch.empty(8192, 1024), torch.randn(1024)
    X2 = build.load("x", (I[0], I[1]), F32)
    found.append(Case("b bias", [8192, 1024], [], [Store("o", (I[0], I[1]), call("add", X2, build.load("b", (I[1],), F32)))],
                      {"x": x2, "b": bias, "o": o2}, lambda: torch.add(x2, bias, out=o2)))  # fmt: skip
    x4, o4, scale = torch.randn(32, 64, 64, 64), torch.empty(32, 64, 64, 64), torch.randn(64)
    X4 = build.load("x", tuple(I), F32)
    found.append(Case("b channel scale", x4.shape, [], [Store("o", tuple(I), call("mul", X4, build.load("s", (I[1],), F32)))],
                      {"x": x4, "s": scale, "o": o4}, lambda: torch.mul(x4, scale[:, None, None], out=o4)))  # fmt: skip

    for side in (2048, 3000):
        t, to = torch.randn(side, side), torch.empty(side, side)
        found.append(Case(f"c transpose {side}", [side, side], [], [Store("o", (I[0], I[1]), build.load("t", (I[1], I[0]), F32))],
                          {"t": t, "o": to}, lambda t=t, to=to: to.copy_(t.t())))  # fmt: skip
    last = torch.empty(32, 64, 64, 64).contiguous(memory_format=torch.channels_last)
    found.append(Case("c to channels last", x4.shape, [], [Store("o", tuple(I), X4)], {"x": x4, "o": last},
                      lambda: last.copy_(x4)))  # fmt: skip

    row = build.load("x", (I[0], R[0]), F32)
    found.append(Case("d softmax", [8192], [1024], [Store("o", (I[0], R[0]), softmax(row)[0])], {"x": x2, "o": o2},
                      lambda: torch.softmax(x2, -1)))  # fmt: skip
    w = torch.randn(1024)
    W, B = build.load("w", (R[0],), F32), build.load("b", (R[0],), F32)
    found.append(Case("d layer norm", [8192], [1024], [Store("o", (I[0], R[0]), layer_norm(row, 1024, W, B))],
                      {"x": x2, "w": w, "b": bias, "o": o2}, lambda: functional.layer_norm(x2, (1024,), w, bias)))  # fmt: skip
    sums = torch.empty(8192)
    found.append(Case("d row sum", [8192], [1024], [Store("s", (I[0],), build.reduce("sum", row))], {"x": x2, "s": sums},
                      lambda: torch.sum(x2, 1)))  # fmt: skip
    at = torch.empty(8192, dtype=torch.int64)
    found.append(Case("d argmax", [8192], [1024], [Store("s", (I[0],), build.reduce("argmax", row))], {"x": x2, "s": at},
                      lambda: torch.argmax(x2, 1)))  # fmt: skip
    found.append(Case("d cumsum", [8192], [1024], [Store("o", (I[0], R[0]), build.scan("sum", row))], {"x": x2, "o": o2},
                      lambda: torch.cumsum(x2, 1)))  # fmt: skip

    column = build.load("x", (R[0], I[0]), F32)
    total = torch.empty(1024)
    found.append(Case("e column sum", [1024], [8192], [Store("s", (I[0],), build.reduce("sum", column))], {"x": x2, "s": total},
                      lambda: torch.sum(x2, 0)))  # fmt: skip
    found.append(Case("e column softmax", [1024], [8192], [Store("o", (R[0], I[0]), softmax(column)[0])], {"x": x2, "o": o2},
                      lambda: torch.softmax(x2, 0)))  # fmt: skip

    for rows, columns in ((8192, 1024), (1570, 128), (98, 256)):
        (g, gx), (ms, rs) = torch.randn(2, rows, columns), torch.rand(2, rows, 1)
        per_row = [build.load(name, (R[0],), F32) for name in ("mean", "scale")]
        normal = call("mul", call("sub", build.load("x", (R[0], I[0]), F32), per_row[0]), per_row[1])
        value = build.reduce("sum", call("mul", build.load("g", (R[0], I[0]), F32), normal))
        found.append(Case(f"e norm's weights {rows}", [columns], [rows], [Store("s", (I[0],), value)],
                          {"g": g, "x": gx, "mean": ms[:, 0], "scale": rs[:, 0], "s": torch.empty(columns)},
                          lambda g=g, gx=gx, ms=ms, rs=rs: torch.ops.aten.native_layer_norm_backward(
                              g, gx, (gx.shape[1],), ms, rs, torch.ones(gx.shape[1]), None, [False, True, False])))  # fmt: skip

    mean, m2 = torch.empty(64), torch.empty(64)
    z = build.load("x", (R[0], I[0], R[1], R[2]), F32)
    stats = [Store("m", (I[0],), build.reduce("welford_mean", z)), Store("v", (I[0],), build.reduce("welford_m2", z))]
    found.append(Case("f batch norm stats", [64], [32, 64, 64], stats, {"x": x4, "m": mean, "v": m2},
                      lambda: torch.var_mean(x4, (0, 2, 3))))  # fmt: skip
    x4l = x4.contiguous(memory_format=torch.channels_last)
    found.append(Case("f channels last stats", [64], [32, 64, 64], stats, {"x": x4l, "m": mean, "v": m2},
                      lambda: torch.var_mean(x4l, (0, 2, 3))))  # fmt: skip
    several = [Store(k, (I[0],), build.reduce(k, column)) for k in ("sum", "max", "min")]
    found.append(Case("g column sum max min", [1024], [8192], several,
                      {"x": x2, **{k: torch.empty(1024) for k in ("sum", "max", "min")}},
                      lambda: (torch.sum(x2, 0), torch.amax(x2, 0), torch.amin(x2, 0))))  # fmt: skip

    for dtype, label in ((BF16, "bf16"), (torch.float16, "f16")):
        hx, hy, ho = torch.randn(2 * n).to(dtype), torch.randn(2 * n).to(dtype), torch.empty(2 * n, dtype=dtype)
        HX, HY = build.load("x", (I[0],), dtype), build.load("y", (I[0],), dtype)
        found.append(Case(f"h {label} add", [2 * n], [], [Store("o", (I[0],), call("add", HX, HY))],
                          {"x": hx, "y": hy, "o": ho}, lambda hx=hx, hy=hy, ho=ho: torch.add(hx, hy, out=ho)))  # fmt: skip
        hrow = build.cast(build.load("x", (I[0], R[0]), dtype), F32)
        h2, h2o = hx.view(16384, 1024), ho.view(16384, 1024)
        found.append(Case(f"h {label} softmax", [16384], [1024],
                          [Store("o", (I[0], R[0]), build.cast(softmax(hrow)[0], dtype))], {"x": h2, "o": h2o},
                          lambda h2=h2: torch.softmax(h2, -1)))  # fmt: skip

    table, index = torch.randn(30000, 512), torch.randint(0, 30000, (16384,))
    go = torch.empty(16384, 512)
    at_row = build.bounded(build.load("i", (I[0],), torch.int64), 30000)
    found.append(Case("i embedding", [16384, 512], [], [Store("o", (I[0], I[1]), build.load("t", (placeholder(0), I[1]), F32, (at_row,)))],
                      {"t": table, "i": index, "o": go}, lambda: functional.embedding(index, table)))  # fmt: skip
    grad = torch.zeros(30000, 512)
    found.append(Case("i embedding backward", [16384, 512], [],
                      [Store("g", (placeholder(0), I[1]), build.load("o", (I[0], I[1]), F32), (at_row,), "add")],
                      {"o": go, "i": index, "g": grad}, lambda: grad.index_add_(0, index, go)))  # fmt: skip
    drop = call("where", call("gt", call("random_uniform", build.load("seed", (), torch.int64), build.index(I[0])),
                              build.const(0.1, F32)), X, build.const(0.0, F32))  # fmt: skip
    found.append(Case("i dropout", [n], [], [Store("o", (I[0],), drop)], {"seed": torch.tensor(1), "x": x, "o": o},
                      lambda: functional.dropout(x, 0.1)))  # fmt: skip

    at = build.index(I[1] - 1)
    within = call("bitwise_and", call("ge", at, build.index(0)), call("lt", at, build.index(62)))
    for label, dtype in (("f32", F32), ("bf16", BF16), ("f16", torch.float16)):
        for columns in (2, 6):
            short, padded = torch.randn(2048, 62, columns).to(dtype), torch.empty(2048, 64, columns, dtype=dtype)
            read = build.load("x", (I[0], I[1] - 1, I[2]), dtype, mask=within)
            found.append(Case(f"j pad rows of {columns} {label}", padded.shape, [], [Store("o", tuple(I[:3]), read)],
                              {"x": short, "o": padded}, lambda s=short: functional.pad(s, (0, 0, 1, 1))))  # fmt: skip
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cpu_kernels", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("names", nargs="*", help="parts of names of cases; all cases if there is none")
    add_option(parser)
    args = parser.parse_args(argv)
    record = recorder(args.json, "cpu_kernels", "cpu", argv)
    source = torch.randn(16 << 20)
    target = torch.empty_like(source)
    copy = 2 * source.nbytes / best_ms(lambda: target.copy_(source)) / 1e6
    print(f"plain copy of 64 MiB: {copy:.1f} GB/s, {torch.get_num_threads()} threads")
    print(f"{'kernel':24} {'ms':>8} {'GB/s':>7} {'of copy':>8} {'eager ms':>9} {'speed-up':>8}")
    cache = Cache(Path(tempfile.gettempdir()) / "litz-benchmark-cpp")
    for case in cases():
        if args.names and not any(name in case.name for name in args.names):
            continue
        run, _ = launcher(case, cache)
        ms, eager = best_ms(run), best_ms(case.eager)
        moved = sum(
            t.nbytes for name, t in case.tensors.items() if not (case.name.startswith("i emb") and name in "tg")
        )
        if case.name.startswith("i emb"):
            moved += 16384 * 512 * 4 * (2 if "backward" in case.name else 1)
        rate = moved / ms / 1e6
        print(f"{case.name:24} {ms:8.3f} {rate:7.1f} {rate / copy:8.2f} {eager:9.3f} {eager / ms:8.2f}", flush=True)
        peers = {"eager": {"wall_ms": eager}, "litz": {"wall_ms": ms, "copy_share": rate / copy}}
        record(task="kernels", case=case.name, peers=peers)


if __name__ == "__main__":
    main()
