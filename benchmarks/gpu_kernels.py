"""Memory throughput of litz's Triton kernels, as a fraction of what a copy reaches on the same device.

    python -m benchmarks.gpu_kernels [--only NAME ...] [--dtype bf16 f32] [--columns NAME ...] [--seconds S]
                                    [--json PATH]

Four columns in one run: `eager`; `inductor` (torch.compile's default); `litz`, all of litz through torch.compile; and
`kernel`, one hand-built loop through the code generator alone, where the case is one kernel. Bytes are those that a
perfect kernel moves: every input once, every output once. Before each call the L2 cache is flushed; that also keeps
the device busy while the host launches. The median of many calls counts. `--only` takes parts of names with their type
("softmax 64 f32"), in the order in which to measure; after `--seconds` no further case is begun.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from litz.cache.disk import Cache
from litz.codegen.kernel_plan import plan_kernel
from litz.ir import Buffer, Layout, Loop, Node, Program, Range, Store
from litz.ir.build import bounded, call, cast, const, load, reduce
from litz.ir.index import loop_var, placeholder, reduction_var, to_expr
from litz.schedule.schedule import Kernel
from litz.target import target_of
from litz.targets.triton.build import load as load_kernel
from litz.targets.triton.codegen import TritonCodegen
from litz_plugins import CodegenContext

from .device_time import CYCLES_PER_S, SPIN_MAX_S
from .kernel_case import Case, LoopCase
from .model_kernels import MODEL_CASES
from .record import add_option, recorder

i0, i1 = loop_var(0), loop_var(1)
r0, r1 = reduction_var(0), reduction_var(1)
f32 = torch.float32
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
FLUSH_BYTES = 256 * 2**20
LEAST_SPIN_S = 2e-5
"""Of the device before a call, besides twice the host's time for the call."""


def _wide(name: str, position: tuple[Any, ...], dtype: torch.dtype) -> Node:
    return cast(load(name, position, dtype), f32)


def pointwise(dtype: torch.dtype) -> Case:
    n = 2**26
    x = torch.randn(n, device="cuda").to(dtype)
    line = call("add", call("mul", _wide("x", (i0,), dtype), const(2, f32)), const(1, f32))
    value = call("maximum", line, const(0, f32))
    loop = LoopCase(["x"], {"o": ((n,), dtype)}, [n], [], [Store("o", (i0,), cast(value, dtype))])
    return Case(lambda x: F.relu(x * 2 + 1), (x,), 2 * x.nbytes, loop)


def bias_gelu(dtype: torch.dtype) -> Case:
    rows, columns = 16384, 4096
    x, b = torch.randn(rows, columns, device="cuda").to(dtype), torch.randn(columns, device="cuda").to(dtype)
    v = cast(cast(call("add", _wide("x", (i0, i1), dtype), _wide("b", (i1,), dtype)), dtype), f32)
    bell = call("add", call("erf", call("mul", v, const(0.7071067811865476, f32))), const(1, f32))
    value = call("mul", call("mul", v, const(0.5, f32)), bell)
    stores = [Store("o", (i0, i1), cast(value, dtype))]
    loop = LoopCase(["x", "b"], {"o": ((rows, columns), dtype)}, [rows, columns], [], stores)
    return Case(lambda x, b: F.gelu(x + b), (x, b), 2 * x.nbytes, loop)


def softmax(width: int) -> Callable[[torch.dtype], Case]:
    def build(dtype: torch.dtype) -> Case:
        rows = 2**26 // width
        x = torch.randn(rows, width, device="cuda").to(dtype)
        v = _wide("x", (i0, r0), dtype)
        power = call("exp", call("sub", v, reduce("max", v)))
        value = cast(call("div", power, reduce("sum", power)), dtype)
        loop = LoopCase(["x"], {"o": ((rows, width), dtype)}, [rows], [width], [Store("o", (i0, r0), value)])
        return Case(lambda x: F.softmax(x, -1), (x,), 2 * x.nbytes, loop)

    return build


def layer_norm(width: int) -> Callable[[torch.dtype], Case]:
    def build(dtype: torch.dtype) -> Case:
        rows = 2**26 // width
        x = torch.randn(rows, width, device="cuda").to(dtype)
        w, b = torch.randn(width, device="cuda").to(dtype), torch.randn(width, device="cuda").to(dtype)
        v = _wide("x", (i0, r0), dtype)
        mean, m2 = reduce("welford_mean", v), reduce("welford_m2", v)
        scale = call("rsqrt", call("add", call("div", m2, const(width, f32)), const(1e-5, f32)))
        normal = call("mul", call("sub", v, mean), scale)
        value = call("add", call("mul", normal, _wide("w", (r0,), dtype)), _wide("b", (r0,), dtype))
        stores = [Store("o", (i0, r0), cast(value, dtype))]
        loop = LoopCase(["x", "w", "b"], {"o": ((rows, width), dtype)}, [rows], [width], stores)
        return Case(lambda x, w, b: F.layer_norm(x, (width,), w, b), (x, w, b), 2 * x.nbytes, loop)

    return build


def column_sum(dtype: torch.dtype) -> Case:
    rows, columns = 8192, 16384
    x = torch.randn(rows, columns, device="cuda").to(dtype)
    total = reduce("sum", _wide("x", (r0, i0), dtype))
    loop = LoopCase(["x"], {"o": ((columns,), dtype)}, [columns], [rows], [Store("o", (i0,), cast(total, dtype))])
    return Case(lambda x: x.sum(0), (x,), x.nbytes, loop)


def full_sum(dtype: torch.dtype) -> Case:
    x = torch.randn(2**27, device="cuda").to(dtype)
    # One loop would be one program: this takes the scheduler's split.
    return Case(lambda x: x.sum(), (x,), x.nbytes)


def transpose(dtype: torch.dtype) -> Case:
    n = 8192
    x = torch.randn(n, n, device="cuda").to(dtype)
    value = call("mul", _wide("x", (i1, i0), dtype), const(2, f32))
    loop = LoopCase(["x"], {"o": ((n, n), dtype)}, [n, n], [], [Store("o", (i0, i1), cast(value, dtype))])
    return Case(lambda x: (x.t() * 2).contiguous(), (x,), 2 * x.nbytes, loop)


def batch_norm_stats(dtype: torch.dtype) -> Case:
    batch, channels, area = 64, 512, 56 * 56
    x = torch.randn(batch, channels, area, device="cuda").to(dtype)
    v = _wide("x", (r0, i0, r1), dtype)
    count = const(batch * area, f32)
    stores = [
        Store("var", (i0,), cast(call("div", reduce("welford_m2", v), count), dtype)),
        Store("mean", (i0,), cast(reduce("welford_mean", v), dtype)),
    ]
    outputs = {"var": ((channels,), dtype), "mean": ((channels,), dtype)}
    loop = LoopCase(["x"], outputs, [channels], [batch, area], stores)
    return Case(lambda x: torch.var_mean(x, (0, 2), correction=0), (x,), x.nbytes, loop)


def cross_entropy(classes: int) -> Callable[[torch.dtype], Case]:
    return lambda dtype: _cross_entropy(dtype, classes)


def _cross_entropy(dtype: torch.dtype, classes: int) -> Case:
    rows = 4096
    x = torch.randn(rows, classes, device="cuda").to(dtype)
    target = torch.randint(0, classes, (rows,), device="cuda")
    v = _wide("x", (i0, r0), dtype)
    top = reduce("max", v)
    total = reduce("sum", call("exp", call("sub", v, top)))
    row = bounded(load("target", (i0,), torch.int64), classes)
    chosen = cast(load("x", (i0, placeholder(0)), dtype, (row,)), f32)
    value = call("sub", call("add", call("log", total), top), chosen)
    stores = [Store("o", (i0,), cast(value, dtype))]
    loop = LoopCase(["x", "target"], {"o": ((rows,), dtype)}, [rows], [classes], stores)
    return Case(lambda x, target: F.cross_entropy(x, target, reduction="none"), (x, target), x.nbytes, loop)


def cross_entropy_backward(dtype: torch.dtype) -> Case:
    """The gradient of the scores, in the type of the scores, from the scores and what the forward kept of each row."""
    rows, classes = 4096, 50257
    x = torch.randn(rows, classes, device="cuda").to(dtype)
    target = torch.randint(0, classes, (rows,), device="cuda")
    sums, grad = torch.logsumexp(x.float(), -1, keepdim=True), torch.rand(rows, 1, device="cuda")

    def function(x: torch.Tensor, target: torch.Tensor, sums: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        chosen = torch.arange(classes, device=x.device) == target[:, None]
        made = torch.where(chosen, -1.0, 0.0) * grad
        return (made - (x.float() - sums).exp() * made.sum(-1, keepdim=True)).to(x.dtype)

    return Case(function, (x, target, sums, grad), 2 * x.nbytes)


# What is more than one kernel, or one that the scheduler has to find.


def batch_norm_training(last: bool) -> Callable[[torch.dtype], Case]:
    """Statistics, normalisation and a relu. A perfect pair of kernels reads x twice and writes once; counted are one
    read and one write, as for the others."""

    def build(dtype: torch.dtype) -> Case:
        channels = 256
        x = torch.randn(64, channels, 56, 56, device="cuda").to(dtype)
        x = x.to(memory_format=torch.channels_last) if last else x
        scale, shift, mean, var = (torch.rand(channels, device="cuda") for _ in range(4))

        def function(x: torch.Tensor, *args: torch.Tensor) -> torch.Tensor:
            scale, shift, mean, var = args
            # 0: the running statistics stay as they are, so that every column has the same.
            return F.relu(F.batch_norm(x, mean, var, scale, shift, True, 0.0))

        return Case(function, (x, scale, shift, mean, var), 2 * x.nbytes)

    return build


def add_rms_norm(dtype: torch.dtype) -> Case:
    x, residual = (torch.randn(16384, 4096, device="cuda").to(dtype) for _ in range(2))
    weight = torch.randn(4096, device="cuda").to(dtype)

    def function(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x + residual
        wide = total.float()
        normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return total, normal.to(x.dtype) * weight

    return Case(function, (x, residual, weight), 4 * x.nbytes)


def embedding(dtype: torch.dtype) -> Case:
    table, rows = torch.randn(50257, 768, device="cuda").to(dtype), torch.randint(0, 50257, (2**16,), device="cuda")
    # Each row of the table counts once, as the rest of its readers find it in the cache.
    seen = int(rows.unique().numel()) * 768 * table.element_size()
    written = rows.numel() * 768 * table.element_size()
    return Case(lambda rows, table: F.embedding(rows, table), (rows, table), rows.nbytes + seen + written)


def bias_rows(width: int) -> Callable[[torch.dtype], Case]:
    def build(dtype: torch.dtype) -> Case:
        x = torch.randn(2**26 // width, width, device="cuda").to(dtype)
        bias = torch.randn(width, device="cuda").to(dtype)
        return Case(lambda x, b: F.relu(x + b), (x, bias), 2 * x.nbytes)

    return build


def bucketed_softmax(dtype: torch.dtype) -> Case:
    """Scores of an attention whose bias goes by the logarithm of the distance, as DeBERTa's: two gathers, a mask."""
    heads, n = 96, 512
    score, to_position, from_position = (torch.randn(heads, n, n, device="cuda").to(dtype) for _ in range(3))
    mask = torch.ones(1, n, n, dtype=torch.bool, device="cuda").tril()

    def function(
        score: torch.Tensor, to_position: torch.Tensor, from_position: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        place = torch.arange(n, device=score.device)
        distance, middle = place[:, None] - place[None, :], 128
        near = (distance < middle) & (distance > -middle)
        length = torch.where(near, middle - 1, distance.abs())
        steps = torch.ceil(torch.log(length / middle) / math.log(511 / middle) * (middle - 1)) + middle
        bucket = torch.where(length <= middle, distance.float(), steps * torch.sign(distance)).long()
        one = torch.clamp(bucket + 256, 0, 511).expand(score.shape)
        other = torch.clamp(256 - bucket, 0, 511).expand(score.shape)
        total = score + torch.gather(to_position, -1, one) + torch.gather(from_position, -1, other).transpose(-1, -2)
        return torch.softmax(total.masked_fill(~mask, torch.finfo(total.dtype).min), -1)

    args = (score, to_position, from_position, mask)
    return Case(function, args, sum(arg.nbytes for arg in args) + score.nbytes)


def gelu_backward(dtype: torch.dtype) -> Case:
    """The gradient of a gelu by tanh, and of the bias before it."""
    x, grad = (torch.randn(4096, 3072, device="cuda").to(dtype) for _ in range(2))

    def function(x: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = torch.ops.aten.gelu_backward(grad, x, approximate="tanh")
        return made, made.sum(0)

    return Case(function, (x, grad), 3 * x.nbytes)


def layer_norm_backward(dtype: torch.dtype) -> Case:
    rows, width = 8192, 768
    x, grad = (torch.randn(rows, width, device="cuda").to(dtype) for _ in range(2))
    mean, scale = (torch.rand(rows, 1, device="cuda") for _ in range(2))
    weight = torch.randn(width, device="cuda").to(dtype)

    def function(x: torch.Tensor, grad: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean, scale, weight = rest
        return torch.ops.aten.native_layer_norm_backward(
            grad, x, (width,), mean, scale, weight, weight, [True, True, True]
        )

    return Case(function, (x, grad, mean, scale, weight), 3 * x.nbytes)


def modulation_backward(dtype: torch.dtype) -> Case:
    """The gradients of a gate per image, as adaptive norms have: products, summed over the tokens of an image."""
    x, grad = (torch.randn(8, 1024, 1152, device="cuda").to(dtype) for _ in range(2))
    gate = torch.randn(8, 1, 1152, device="cuda").to(dtype)

    def function(x: torch.Tensor, grad: torch.Tensor, gate: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = grad * gate
        return made, made.sum((0, 1)), (grad * x).sum(1), grad.sum(1)

    return Case(function, (x, grad, gate), 3 * x.nbytes)


def distance_biases(dtype: torch.dtype) -> Case:
    """The gradient of biases by distance, as T5's and MPNet's: a sum over texts, and many additions at 32 positions."""
    batch, heads, n, most = 16, 12, 384, 32
    grad = torch.randn(batch, heads, n, n, device="cuda").to(dtype)
    place = torch.arange(n, device="cuda")
    far = (place[None, :] - place[:, None]).clamp(-most // 2, most // 2 - 1) + most // 2

    def function(grad: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
        each = grad.sum(0).permute(1, 2, 0)
        return torch.zeros(most, heads, dtype=each.dtype, device=each.device).index_put((far,), each, accumulate=True)

    return Case(function, (grad, far), grad.nbytes + far.nbytes)


def small_sums(dtype: torch.dtype) -> Case:
    """The gradients of the biases of twelve layers, which need nothing of each other."""
    given = tuple(torch.randn(6144, 768, device="cuda").to(dtype) for _ in range(12))
    return Case(lambda *given: [x.sum(0) for x in given], given, sum(x.nbytes for x in given))


def silu_backward(dtype: torch.dtype) -> Case:
    """The gradient of a silu, and of the bias before it: few columns, many rows."""
    x, grad = (torch.randn(2**17, 128, device="cuda").to(dtype) for _ in range(2))

    def function(x: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = torch.ops.aten.silu_backward(grad, x)
        return made, made.sum(0)

    return Case(function, (x, grad), 3 * x.nbytes)


def shared_heads(dtype: torch.dtype) -> Case:
    """Gradients of keys that four heads share."""
    x = torch.randn(4, 1024, 32, 128, device="cuda").to(dtype).transpose(1, 2)
    return Case(lambda x: x.reshape(4, 8, 4, 1024, 128).sum(2), (x,), x.nbytes * 5 // 4)


def experts(dtype: torch.dtype) -> Case:
    """What four experts made of each token, gathered and summed, and its mean square."""
    tokens, width, each = 4096, 2048, 4
    made = torch.randn(tokens * each, width, device="cuda").to(dtype)
    place = torch.randperm(tokens * each, device="cuda").view(tokens, each)
    residual = torch.randn(tokens, width, device="cuda").to(dtype)

    def function(made: torch.Tensor, place: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = residual + made[place].sum(1)
        return total, total.float().square().mean(-1)

    return Case(function, (made, place, residual), made.nbytes + place.nbytes + 2 * residual.nbytes)


def gru_cell(dtype: torch.dtype) -> Case:
    given, made = (torch.randn(32, 3 * 512, device="cuda").to(dtype) for _ in range(2))
    state = torch.randn(32, 512, device="cuda").to(dtype)

    def function(given: torch.Tensor, made: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        (a, b, c), (d, e, f) = given.chunk(3, -1), made.chunk(3, -1)
        new = torch.tanh(c + torch.sigmoid(a + d) * f)
        return new + torch.sigmoid(b + e) * (state - new)

    return Case(function, (given, made, state), 2 * given.nbytes + 2 * state.nbytes)


def window_norm(dtype: torch.dtype) -> Case:
    """An image of NCHW as 7 x 7 windows with the channels last, scaled."""
    x = torch.randn(64, 96, 56, 56, device="cuda").to(dtype)
    scale = torch.randn(96, device="cuda").to(dtype)

    def function(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        windows = (x.permute(0, 2, 3, 1) * scale).reshape(64, 8, 7, 8, 7, 96)
        return windows.transpose(2, 3).contiguous()

    return Case(function, (x, scale), 2 * x.nbytes)


def stencil(dtype: torch.dtype) -> Case:
    """Differences on a periodic grid."""
    u, v = (torch.randn(16, 1024, 1024, device="cuda").to(dtype) for _ in range(2))

    def function(u: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        flow = (u.roll(-1, -1) - u.roll(1, -1)) / 2 + (v.roll(-1, -2) - v.roll(1, -2)) / 2
        energy = (u * u + v * v) / 2
        return u - 0.1 * flow, v - 0.1 * (energy.roll(-1, -2) - energy.roll(1, -2)) / 2

    return Case(function, (u, v), 4 * u.nbytes)


CASES: Mapping[str, Callable[[torch.dtype], Case]] = {
    "pointwise": pointwise,
    "bias+gelu": bias_gelu,
    **{f"softmax {width}": softmax(width) for width in (64, 256, 1024, 4096, 8192, 32768)},
    **{f"layer norm {width}": layer_norm(width) for width in (256, 1024, 4096, 16384)},
    "column sum": column_sum,
    "full sum": full_sum,
    "transpose": transpose,
    "batch-norm stats": batch_norm_stats,
    **{f"cross-entropy {classes}": cross_entropy(classes) for classes in (32768, 50257)},
    **{f"softmax {width}": softmax(width) for width in (49, 197, 1001, 50257)},
    "layer norm 1001": layer_norm(1001),
    **{f"bias + relu {width}": bias_rows(width) for width in (197, 50257)},
    "batch norm + relu": batch_norm_training(False),
    "batch norm + relu, channels last": batch_norm_training(True),
    "add + rms norm": add_rms_norm,
    "embedding": embedding,
    "bucketed softmax": bucketed_softmax,
    "gelu backward": gelu_backward,
    "layer norm backward": layer_norm_backward,
    "modulation backward": modulation_backward,
    "distance biases": distance_biases,
    "small sums": small_sums,
    "silu backward": silu_backward,
    "shared heads": shared_heads,
    "experts": experts,
    "gru cell": gru_cell,
    "window norm": window_norm,
    "stencil": stencil,
    "cross-entropy backward 50257": cross_entropy_backward,
    **MODEL_CASES,
}
"""By name."""


class Timer:
    """Median microseconds of a call on the device, with a cold L2 cache. The device spins before each call, so that the
    host, which may be busy, is ahead of it."""

    def __init__(self) -> None:
        self.scratch = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")

    def __call__(self, function: Callable[[], Any], calls: int = 40) -> float:
        for _ in range(3):
            torch.cuda.synchronize()
            began = time.perf_counter()
            function()
            host = time.perf_counter() - began
        torch.cuda.synchronize()
        spin = int(min(2 * host + LEAST_SPIN_S, SPIN_MAX_S) * CYCLES_PER_S)
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
        for start, end in pairs:
            self.scratch.zero_()
            torch.cuda._sleep(spin)
            start.record()
            function()
            end.record()
        torch.cuda.synchronize()
        return statistics.median(start.elapsed_time(end) for start, end in pairs) * 1e3


def _kernel(case: Case, cache: Cache) -> Callable[[], Any]:
    """The case's loop, generated and loaded, on its arguments."""
    made = case.loop
    assert made is not None
    memory = dict(zip(made.inputs, case.args, strict=True))
    for name, (size, dtype) in made.outputs.items():
        memory[name] = torch.empty(size, dtype=dtype, device="cuda")
    device = torch.device("cuda", 0)
    buffers = {
        name: Buffer(
            name,
            tensor.dtype,
            device,
            Layout(tuple(map(to_expr, tensor.shape)), tuple(map(to_expr, tensor.stride()))),
            "input" if name in made.inputs else "temporary",
        )
        for name, tensor in memory.items()
    }
    ranges = tuple(Range(loop_var(n), to_expr(size)) for n, size in enumerate(made.ranges))
    reduction = tuple(Range(reduction_var(n), to_expr(size)) for n, size in enumerate(made.reduction))
    loop = Loop("loop", device, ranges, reduction, tuple(made.stores))
    program = Program("benchmark", tuple(made.inputs), buffers, (loop,), ())
    context = CodegenContext(None, target_of("cuda:0"), program, cache)  # type: ignore[arg-type]
    source = TritonCodegen().generate(plan_kernel(Kernel("kernel", loop), program), context)
    launch = load_kernel(source, context)
    addresses = [memory[name].data_ptr() for name in source.arguments]
    launch(*addresses)
    check(case, [memory[name] for name in made.outputs])
    return lambda: launch(*addresses)


def check(case: Case, got: Sequence[torch.Tensor]) -> None:
    """Errors: AssertionError where results are further from those of float64 than rounding explains: twice as far as
    eager's, where those are not near. Eager sums some columns of half types in the half type, a row at a time."""
    eager, exact = as_list(case.function(*case.args)), as_list(case.function(*map(_exact, case.args)))
    for mine, theirs, want in zip(got, eager, exact, strict=True):
        far = 2 * float((theirs.double() - want.double()).abs().max()) if want.numel() else 0.0
        torch.testing.assert_close(mine.double(), want.double(), rtol=2e-2, atol=max(2e-2, far))


def as_list(results: Any) -> list[torch.Tensor]:
    """Returns a function's result, or results, as a list."""
    return list(results) if isinstance(results, (tuple, list)) else [results]


def _exact(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _compiled(case: Case, backend: str) -> Callable[[], Any]:
    torch._dynamo.reset()
    compiled = torch.compile(case.function, backend=backend, dynamic=False)
    check(case, as_list(compiled(*case.args)))
    return lambda: compiled(*case.args)


def measure(case: Case, timer: Timer, cache: Cache, columns: Sequence[str]) -> None:
    """Fill in the case's microseconds by column, and what went wrong where there are none."""
    ways: dict[str, Callable[[], Callable[[], Any]]] = {
        "eager": lambda: lambda: case.function(*case.args),
        "inductor": lambda: _compiled(case, "inductor"),
        "litz": lambda: _compiled(case, "litz"),
    }
    if case.loop is not None:
        ways["kernel"] = lambda: _kernel(case, cache)
    for name, prepare in ways.items():
        if name not in columns:
            continue
        try:
            with torch.no_grad():
                case.results[name] = timer(prepare())
        except Exception as error:  # one column's failure must not cost the others
            case.problems[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def copy_bandwidth(timer: Timer) -> float:
    """Bytes a second, read and written, of a copy of 512 MiB."""
    source = torch.empty(2**29, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / (timer(lambda: target.copy_(source)) * 1e-6)


COLUMNS = ("eager", "inductor", "litz", "kernel")


def chosen_cases(only: Sequence[str], dtypes: Sequence[str]) -> list[tuple[str, str]]:
    """Returns names and types of the cases that have a part of `only` in "name type", in the order of `only`; all if
    that is empty."""
    every = [(name, short) for name in CASES for short in dtypes]
    return list(dict.fromkeys(pair for part in only or ("",) for pair in every if part in " ".join(pair)))


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table; write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    add_option(parser)
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of cases, with their types")
    parser.add_argument("--columns", nargs="*", default=list(COLUMNS), choices=COLUMNS)
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no further case is begun")
    parser.add_argument("--dtype", nargs="*", default=list(DTYPES), choices=list(DTYPES))
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device")
    columns = [name for name in COLUMNS if name in options.columns]
    begun, timer = time.monotonic(), Timer()
    peak = copy_bandwidth(timer)
    print(f"{torch.cuda.get_device_name()}: copy {peak / 1e9:.0f} GB/s; fractions of that (microseconds)")
    print(f"{'case':36}" + "".join(f"{name:>18}" for name in columns))
    record = recorder(options.json, "gpu_kernels", "cuda", argv)
    with tempfile.TemporaryDirectory(prefix="litz-benchmark-") as folder:
        cache = Cache(Path(folder))
        for name, short in chosen_cases(options.only, options.dtype):
            if time.monotonic() - begun > options.seconds:
                print(f"{name + ' ' + short:36}no time left")
                continue
            case = CASES[name](DTYPES[short])
            measure(case, timer, cache, columns)
            cells = []
            for column in columns:
                us = case.results.get(column)
                cells.append(f"{'-':>18}" if us is None else f"{case.bytes / us * 1e6 / peak:8.2f} ({us:7.1f})")
            print(f"{name + ' ' + short:36}" + "".join(f"{cell:>18}" for cell in cells), flush=True)
            for column, problem in case.problems.items():
                print(f"    {column}: {problem}")
            figures = {
                column: {"kernel_ms": us / 1e3, "copy_share": case.bytes / us * 1e6 / peak}
                for column, us in case.results.items()
            }
            dtype = str(DTYPES[short]).removeprefix("torch.")
            record(task="kernels", case=f"{name} {short}", dtype=dtype, peers=figures, problems=case.problems)
            del case
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
