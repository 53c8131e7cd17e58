"""Single ops and small fusions on a CPU, in several types and layouts: where is compiled code slower than eager?

    python -m benchmarks.single_ops [--only roll pad] [--peers eager litz] [--threads 1] [--seconds 0.3]

In: nothing. Out: a table of microseconds, with the largest losses first. Eager, Inductor and litz run in turns in one
process, and the least of many calls counts. A call of compiled code takes some microseconds before its kernel runs; the
first line has the time of a call for one element. A loss is what a case takes beyond its peer's, both without that.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .function_cases import PEERS
from .record import add_option, recorder

F32, BF16, F16, U8, I64 = torch.float32, torch.bfloat16, torch.float16, torch.uint8, torch.int64
FLOATS, ALL = (F32, BF16), (F32, BF16, U8, I64)
CALL = "a call for one element"


@dataclass(frozen=True)
class Op:
    """A function of tensors of the given sizes, once for each type and layout. layouts: of "", "last" (channels last)
    and "t" (transposed)."""

    function: Callable[..., Any]
    sizes: Sequence[tuple[int, ...]]
    types: Sequence[torch.dtype] = FLOATS
    layouts: Sequence[str] = ("",)


def _rows(count: int, of: int) -> Tensor:
    return torch.arange(count) % of


def _norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


IMAGE, SMALL, MATRIX = (4, 64, 56, 56), (16, 64, 14, 14), (1000, 1000)
BOTH = ("", "last")
OPS: Mapping[str, Op] = {
    "pad image": Op(lambda x: F.pad(x, (1, 1, 1, 1)), [IMAGE], ALL, BOTH),
    "pad small image": Op(lambda x: F.pad(x, (1, 1, 1, 1)), [SMALL], ALL, BOTH),
    "pad image, reflect": Op(lambda x: F.pad(x, (3, 3, 3, 3), mode="reflect"), [(4, 16, 56, 56)], (F32, BF16, F16)),
    "pad image, replicate": Op(lambda x: F.pad(x, (3, 3, 3, 3), mode="replicate"), [(4, 16, 56, 56)]),
    "pad image, circular": Op(lambda x: F.pad(x, (3, 3, 3, 3), mode="circular"), [(4, 16, 56, 56)]),
    "pad rows of 6": Op(lambda x: F.pad(x, (1, 1)), [(20000, 6)], ALL),
    "pad rows of 1000": Op(lambda x: F.pad(x, (0, 24)), [(500, 1000)], ALL),
    "roll rows": Op(lambda x: x.roll(1, -1), [(4000, 64)], ALL),
    "roll windows": Op(lambda x: x.roll((-3, -3), (1, 2)), [(4, 56, 56, 96)], ALL),
    "flip rows": Op(lambda x: x.flip(-1), [(4000, 64)], ALL),
    "flip columns": Op(lambda x: x.flip(0), [(4000, 64)], ALL),
    "cat rows": Op(lambda x, y: torch.cat([x, y], 1), [(4000, 64), (4000, 32)], ALL),
    "cat channels": Op(lambda x, y: torch.cat([x, y], 1), [IMAGE, IMAGE], ALL, BOTH),
    "stack of 2": Op(lambda x, y: torch.stack([x, y], -1), [(20000, 8), (20000, 8)], ALL),
    "narrow and copy": Op(lambda x: x[:, 8:56].contiguous(), [(4000, 64)], ALL),
    "every other": Op(lambda x: x[:, ::2].contiguous(), [(4000, 64)], ALL),
    "write a slice": Op(lambda x, y: x.slice_scatter(y, 1, 8, 40), [(4000, 64), (4000, 32)], ALL),
    "transpose": Op(lambda x: x.t().contiguous(), [MATRIX], (*ALL, F16)),
    "heads first": Op(lambda x: x.permute(0, 2, 1, 3).contiguous(), [(8, 64, 12, 64)], (*ALL, F16)),
    "to channels last": Op(lambda x: x.contiguous(memory_format=torch.channels_last), [IMAGE], (*ALL, F16)),
    "to contiguous": Op(lambda x: x.contiguous(), [IMAGE], (*ALL, F16), ("last",)),
    "window partition": Op(
        lambda x: x.view(4, 8, 7, 8, 7, 96).permute(0, 1, 3, 2, 4, 5).contiguous(), [(4, 56, 56, 96)], FLOATS
    ),
    "pixel shuffle": Op(lambda x: F.pixel_shuffle(x, 2), [(4, 64, 28, 28)]),
    "repeat": Op(lambda x: x.repeat(2, 3), [(500, 200)], ALL),
    "repeat_interleave": Op(lambda x: x.repeat_interleave(2, 1), [(4, 8, 128, 64)]),
    "tril": Op(lambda x: x.tril(), [MATRIX], ALL),
    "resample nearest": Op(lambda x: F.interpolate(x, scale_factor=2), [(4, 16, 32, 32)], FLOATS, BOTH),
    "resample bilinear": Op(
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), [(4, 16, 32, 32)], (F32, BF16, F16), BOTH
    ),
    "resample bicubic": Op(lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), [(4, 16, 32, 32)], FLOATS),
    "gather": Op(lambda x: x.gather(1, _rows(64, 64).flip(0).expand(4000, 64)), [(4000, 64)], ALL),
    "index rows": Op(lambda x: x[_rows(4000, 50)], [(50, 64)], ALL),
    "index columns": Op(lambda x: x[:, _rows(64, 50)], [(4000, 64)], ALL),
    "index_add into 50 rows": Op(
        lambda x, y: x.index_add(0, _rows(4000, 50), y), [(50, 64), (4000, 64)], (F32, BF16, I64)
    ),
    "index_put at one row": Op(
        lambda x, y: x.index_put((torch.zeros(4000, dtype=I64),), y, accumulate=True), [(8, 64), (4000, 64)], ALL
    ),
    "scatter_add": Op(
        lambda x, y: x.scatter_add(0, _rows(4000, 50).unsqueeze(1).expand(4000, 64), y), [(50, 64), (4000, 64)]
    ),
    "embedding": Op(lambda x: F.embedding(_rows(4000, 900), x), [(1000, 64)], FLOATS),
    "one_hot": Op(lambda x: F.one_hot(_rows(4000, 10), 10).to(x.dtype) + x, [(4000, 10)]),
    "masked_fill": Op(lambda x: x.masked_fill(x > 0, -1), [MATRIX], ALL),
    "clamp": Op(lambda x: x.clamp(0, 1), [MATRIX], ALL),
    "add": Op(lambda x, y: x + y, [MATRIX, MATRIX], ALL, ("", "t")),
    "add a row": Op(lambda x, y: x + y, [MATRIX, (1000,)], ALL, ("", "t")),
    "gelu": Op(F.gelu, [MATRIX]),
    "silu": Op(F.silu, [MATRIX]),
    "to float": Op(lambda x: x.float(), [MATRIX], (BF16, F16, U8, I64)),
    "to bfloat16": Op(lambda x: x.bfloat16(), [MATRIX], (F32, U8, I64)),
    "normalize an image": Op(lambda x: (x.float() / 255 - 0.45) / 0.22, [(4, 3, 224, 224)], (U8,), BOTH),
    "softmax of 24": Op(lambda x: x.softmax(-1), [(4096, 24)], (F32, BF16, F16)),
    "softmax of 1000": Op(lambda x: x.softmax(-1), [(500, 1000)]),
    "log_softmax of columns": Op(lambda x: x.log_softmax(1), [(8, 21, 64, 64)]),
    "layer norm of 64": Op(_norm, [(4096, 64)]),
    "layer norm of 768": Op(_norm, [(128, 768)], (F32, BF16, F16)),
    "rms norm of 1024": Op(lambda x: F.rms_norm(x, x.shape[-1:]), [(500, 1024)]),
    "group norm": Op(lambda x: F.group_norm(x, 8), [(8, 64, 32, 32)], FLOATS, BOTH),
    "sum of rows": Op(lambda x: x.sum(1), [(4096, 1024)], ALL),
    "sum of columns": Op(lambda x: x.sum(0), [(4096, 1024)], ALL),
    "sum of all": Op(lambda x: x.sum(), [MATRIX], ALL),
    "mean of an image": Op(lambda x: x.mean((2, 3)), [(8, 256, 14, 14)], FLOATS, BOTH),
    "amax of rows": Op(lambda x: x.amax(1), [(4096, 64)], ALL),
    "argmax of rows": Op(lambda x: x.argmax(1), [(4096, 64)], ALL),
    "any": Op(lambda x: (x > 3).any(1), [(4096, 64)], ALL),
    "var": Op(lambda x: x.var(1), [(2048, 512)]),
    "norm": Op(lambda x: x.norm(dim=1), [(2048, 512)]),
    "cumsum of rows": Op(lambda x: x.cumsum(1), [(4096, 64)], (F32, BF16, I64)),
    "cumsum of columns": Op(lambda x: x.cumsum(0), [(4096, 64)], (F32, BF16, I64)),
    "cross entropy": Op(lambda x: F.cross_entropy(x, _rows(1024, 1000)), [(1024, 1000)]),
    "max pool": Op(lambda x: F.max_pool2d(x, 3, 2, 1), [IMAGE], FLOATS, BOTH),
    "average pool": Op(lambda x: F.avg_pool2d(x, 2), [IMAGE], FLOATS, BOTH),
    "sort": Op(lambda x: x.sort(-1)[0], [(512, 128)]),
    "topk": Op(lambda x: x.topk(5)[0], [(512, 512)]),
}


def cases(only: Sequence[str]) -> Iterator[tuple[str, Op, list[Tensor]]]:
    """Yields each op with its arguments, in each type and layout. only: names begin with one of these."""
    for name, op in OPS.items():
        if only and not name.startswith(tuple(only)):
            continue
        for dtype in op.types:
            for layout in op.layouts:
                args = [_drawn(size, dtype, layout) for size in op.sizes]
                words = [name, str(dtype).removeprefix("torch."), *filter(None, [layout])]
                yield ", ".join(words), op, args


def _drawn(size: tuple[int, ...], dtype: torch.dtype, layout: str) -> Tensor:
    x = torch.randn(size) if dtype.is_floating_point else torch.randint(0, 100, size)
    x = x.to(dtype)
    if layout == "last":
        return x.contiguous(memory_format=torch.channels_last)
    return x.t().contiguous().t() if layout == "t" and x.dim() == 2 else x


def least(steps: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """The least time of each step in microseconds; they run in turns."""
    found = dict.fromkeys(steps, float("inf"))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for peer, step in steps.items():
            step()
            for _ in range(5):
                start = time.perf_counter()
                step()
                found[peer] = min(found[peer], 1e6 * (time.perf_counter() - start))
    return found


def measured(op: Op, args: Sequence[Tensor], peers: Sequence[str], seconds: float) -> dict[str, float]:
    """Microseconds of each peer."""
    torch._dynamo.reset()
    found: dict[str, Callable[..., Any]] = {
        peer: op.function if peer == "eager" else torch.compile(op.function, backend=peer, dynamic=False)
        for peer in peers
    }
    with torch.no_grad():
        for _ in range(3):
            for each in found.values():
                each(*args)
        return least({peer: lambda each=each: each(*args) for peer, each in found.items()}, seconds)  # type: ignore[misc]


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.single_ops", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", default=(), metavar="OP", help=f"names begin with: {', '.join(OPS)}")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.3, help="of measuring, for each case")
    add_option(parser)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    record = recorder(options.json, "single_ops", torch.device("cpu"), argv)
    floor = measured(Op(lambda x: x + 1, [(1,)]), [torch.randn(1)], options.peers, options.seconds)
    rows = [(CALL, floor)]
    for name, op, args in cases(options.only):
        times = measured(op, args, options.peers, options.seconds)
        rows.append((name, times))
        print(".", end="", flush=True)
        peers = {peer: {"wall_ms": times[peer] / 1e3} for peer in options.peers}
        record(task="kernels", case=f"single op: {name}", dtype=str(args[0].dtype).removeprefix("torch."), peers=peers)

    def ratio(times: Mapping[str, float], peer: str) -> float:
        return max(times["litz"] - floor["litz"], 0.1) / max(times[peer] - floor[peer], 0.1)

    others = [peer for peer in options.peers if peer != "litz"]
    rows.sort(key=lambda row: (row[0] != CALL, -ratio(row[1], others[0])))
    print("\n" + f"{'us':46}" + "".join(f"{peer:>10}" for peer in options.peers) + f"   litz / {', / '.join(others)}")
    for name, times in rows:
        cells = "".join(f"{times[peer]:10.1f}" for peer in options.peers)
        print(f"{name:46}{cells}   " + "  ".join(f"{ratio(times, peer):6.2f}" for peer in others if name != CALL))


if __name__ == "__main__":
    main()
