"""How much of its communication a training step hides: litz with and without `overlap`, eager, Inductor, in one run.

    torchrun --standalone --nproc-per-node 4 -m benchmarks.overlap [--parts fsdp tp] [--peers NAME ...] [--out FILE]

Parts, each a transformer in bf16, forward and backward:

    fsdp        every parameter sharded by itself: gathered where it is used, once more in the backward, its gradient
                scattered. All communication is in the compiled graph, one collective a parameter, as in "simple FSDP".
    fully_shard the same by FSDP2, a layer at a time. Its hooks run, and overlap, between the compiled graphs.
    tp          tensor parallel by DTensor: an all_reduce after attention and one after the MLP, and in their backward.

"litz overlap 40%" may take 40 % more memory than the source's order, about what Inductor's overlap takes; "litz
overlap" 10 %.

Exposed communication is the time in which only NCCL's kernels run, from torch.profiler, of four steps that the host has
queued before they begin, mean of the ranks; hidden is the share of the time of NCCL's kernels that is not exposed.
Step times are the median, slowest rank. `--tiny` runs a small model over gloo on the CPU, with made-up costs: it
measures nothing and shows that everybody computes the same.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

HEAD = 128
"""Elements of an attention head."""
SPIN_CYCLES = 100_000_000
"""About 50 ms of a GPU: longer than any kernel of a step, and than the host takes to queue a step."""


@dataclass(frozen=True)
class Size:
    """Of a model, and of a rank's batch."""

    layers: int
    width: int
    tokens: int
    batch: int
    dtype: torch.dtype = torch.bfloat16


LARGE, TINY = Size(4, 4096, 2048, 2), Size(2, 256, 16, 2, torch.float32)


@dataclass(frozen=True)
class Peer:
    """Somebody who compiles. config: of Inductor, where its version has such settings."""

    backend: str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)


PEERS: Mapping[str, Peer] = {
    "eager": Peer(None),
    "litz": Peer("litz", {"collectives.passes": ()}),
    "litz overlap": Peer("litz", {"collectives.passes": ("overlap",)}),
    "litz overlap 40%": Peer("litz", {"collectives.passes": ("overlap",), "collectives.memory_limit": "40%"}),
    "inductor": Peer("inductor"),
    "inductor reorder": Peer("inductor", config={"reorder_for_compute_comm_overlap": True}),
    "inductor overlap": Peer(
        "inductor",
        config={
            "aten_distributed_optimizations.enable_overlap_scheduling": True,
            "aten_distributed_optimizations.collective_bucketing": True,
            "aten_distributed_optimizations.insert_overlap_deps": True,
        },
    ),
}


@dataclass
class Row:
    """A peer's step. Times in ms; error of the gradients against eager, relative."""

    part: str
    peer: str
    step: float = 0.0
    communication: float = 0.0
    exposed: float = 0.0
    peak_gib: float = 0.0
    compile_seconds: float = 0.0
    error: float = 0.0
    failed: str = ""

    @property
    def hidden(self) -> float:
        """The share of communication that ran under other work."""
        return 1.0 - self.exposed / self.communication if self.communication else 1.0


# ------------------------------------------------------------------------------------------------------------- models


def _policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Gathered parameters are not kept for the backward, but gathered again."""
    return CheckpointPolicy.MUST_RECOMPUTE


def _contexts() -> Any:
    return create_selective_checkpoint_contexts(_policy)


class Sharded(nn.Module):
    """A linear layer of whose weight (out, in) each rank has out / world rows, in float32."""

    def __init__(self, out: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        full = torch.randn(out, width) * width**-0.5
        self.shard = nn.Parameter(full.chunk(dist.get_world_size())[dist.get_rank()].clone())
        self.dtype = dtype

    def _gathered(self, shard: Tensor) -> Tensor:
        return fc.all_gather_tensor_autograd(shard.to(self.dtype), 0, dist.group.WORLD)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, checkpoint(self._gathered, self.shard, use_reentrant=False, context_fn=_contexts))


class Layer(nn.Module):
    """Attention and an MLP. linear: (out, in) -> a module."""

    def __init__(self, width: int, linear: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.query, self.key, self.value = (linear(width, width) for _ in range(3))
        self.out, self.up, self.down = linear(width, width), linear(4 * width, width), linear(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        y = F.rms_norm(x, (width,))
        heads = [m(y).view(batch, tokens, -1, HEAD).transpose(1, 2) for m in (self.query, self.key, self.value)]
        attention = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attention.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(F.rms_norm(x, (width,))), approximate="tanh"))


class Network(nn.Module):
    """Layers, and a loss that reaches all of them."""

    def __init__(self, size: Size, linear: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(size.width, linear) for _ in range(size.layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.float().square().mean()


Compile = Callable[[nn.Module], nn.Module]


def make_fsdp(size: Size, device: torch.device, compiled: Compile) -> tuple[nn.Module, Callable[..., Any]]:
    model = Network(size, lambda out, width: Sharded(out, width, size.dtype)).to(device)
    return model, compiled(model)


def make_fully_shard(size: Size, device: torch.device, compiled: Compile) -> tuple[nn.Module, Callable[..., Any]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    model = Network(size, lambda out, width: nn.Linear(width, out, bias=False)).to(device)
    policy = MixedPrecisionPolicy(param_dtype=size.dtype, reduce_dtype=size.dtype)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model, compiled(model)


def make_tp(size: Size, device: torch.device, compiled: Compile) -> tuple[nn.Module, Callable[..., Any]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    model = Network(size, lambda out, width: nn.Linear(width, out, bias=False)).to(device, size.dtype)
    plan = dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel)
    for layer in model.layers:
        parallelize_module(
            layer,
            mesh,
            {**{name: style() for name, style in plan.items()}, "out": RowwiseParallel(), "down": RowwiseParallel()},
        )
    return model, compiled(model)


PARTS: Mapping[str, Callable[..., tuple[nn.Module, Callable[..., Any]]]] = {
    "fsdp": make_fsdp,
    "fully_shard": make_fully_shard,
    "tp": make_tp,
}


# ------------------------------------------------------------------------------------------------------- measurement


def exposed_time(kernels: Iterable[tuple[str, float, float]]) -> tuple[float, float]:
    """(time in which a kernel of NCCL ran, time in which only such ran) of kernels (name, start, end)."""
    edges: list[tuple[float, int, int]] = []
    for name, start, end in kernels:
        side = (1, 0) if name.startswith("nccl") else (0, 1)
        edges += [(start, *side), (end, -side[0], -side[1])]
    total = exposed = last = 0.0
    communicating = computing = 0
    for at, communication, computation in sorted(edges):
        total += at - last if communicating else 0.0
        exposed += at - last if communicating and not computing else 0.0
        communicating, computing, last = communicating + communication, computing + computation, at
    return total, exposed


def kernels_of(step: Callable[[], Any], count: int, path: Path | None = None) -> list[dict[str, Any]]:
    """What ran on the device in some steps, by start. path: a Chrome trace to write, with the host's side.

    Ranks begin to record at different times, and the host is behind the device when a step begins after a wait. So they
    meet in a step that does not count, and the others are queued behind a spin of the device, as in a training loop.
    """
    activities = [torch.profiler.ProfilerActivity.CUDA]
    if path is not None:
        activities.append(torch.profiler.ProfilerActivity.CPU)
    with torch.profiler.profile(activities=activities) as recorded:
        step()
        dist.barrier()
        torch.cuda.synchronize()
        torch.cuda._sleep(SPIN_CYCLES)
        for _ in range(count):
            step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(plain))
        text = plain.read_text()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()))
    # Of the categories on a device the others are annotations, which span kernels.
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    found = sorted((e for e in json.loads(text)["traceEvents"] if e.get("cat") in kinds), key=lambda e: e["ts"])
    return after_the_spin(found)


def after_the_spin(kernels: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of kernels by start those that began after the longest that is not NCCL's."""
    spin = max((e for e in kernels if not e["name"].startswith("nccl")), key=lambda e: e["dur"])
    return [e for e in kernels if e["ts"] >= spin["ts"] + spin["dur"]]


def profiled(step: Callable[[], Any], count: int = 4) -> tuple[float, float]:
    """(ms of communication, ms of it exposed) a step, mean of the ranks."""
    found = [(e["name"], e["ts"], e["ts"] + e["dur"]) for e in kernels_of(step, count)]
    sums = torch.tensor(exposed_time(found), dtype=torch.float64, device="cuda") / (count * 1e3)
    dist.all_reduce(sums)
    return tuple((sums / dist.get_world_size()).tolist())  # type: ignore[return-value]


def longest_exposed(kernels: Sequence[Mapping[str, Any]], count: int = 12) -> list[str]:
    """The longest times in which only communication ran, as lines: how long, when, the collective, and the kernels
    before and after."""
    others = [e for e in kernels if not e["name"].startswith("nccl")]
    begin = kernels[0]["ts"] if kernels else 0.0
    found: list[tuple[float, str]] = []
    number = 0
    for event in kernels:
        if not event["name"].startswith("nccl"):
            continue
        number += 1
        start, end = event["ts"], event["ts"] + event["dur"]
        beside = sorted((max(start, e["ts"]), min(end, e["ts"] + e["dur"])) for e in others if _meet(e, start, end))
        at, hole = start, (0.0, start)
        for low, high in [*beside, (end, end)]:
            hole = max(hole, (low - at, at))
            at = max(at, high)
        before = next((e["name"] for e in reversed(others) if e["ts"] < hole[1]), "none")
        after = next((e["name"] for e in others if e["ts"] >= hole[1]), "none")
        took = f"{event['dur']:.0f} µs from {(start - begin) / 1e3:.2f} ms"
        what = event["name"].removeprefix("ncclDevKernel_").partition("(")[0]
        size = event.get("args", {}).get("In msg nelems", "")
        found.append(
            (
                hole[0],
                f"{hole[0]:7.0f} µs at {(hole[1] - begin) / 1e3:7.2f} ms of collective {number}, {what} {size} "
                f"({took}): after {before[:48]}, before {after[:48]}",
            )
        )
    return [line for us, line in sorted(found, key=lambda pair: -pair[0])[:count] if us > 1.0]


def _meet(event: Mapping[str, Any], start: float, end: float) -> bool:
    return event["ts"] < end and event["ts"] + event["dur"] > start


def known_settings(peer: Peer) -> dict[str, Any]:
    """Those of Inductor's settings for a peer that this torch has. Errors: AttributeError where it has none of them."""
    import torch._inductor.config as settings

    def has(name: str) -> bool:
        place: Any = settings
        for part in name.split("."):
            if not hasattr(place, part):
                return False
            place = getattr(place, part)
        return True

    found = {name: value for name, value in peer.config.items() if has(name)}
    if not found:
        raise AttributeError(f"torch {torch.__version__} has none of {', '.join(peer.config)}")
    return found


def inductor_settings(peer: Peer) -> contextlib.AbstractContextManager[Any]:
    """Inductor with a peer's settings, for as long as it compiles."""
    if not peer.config:
        return contextlib.nullcontext()
    import torch._inductor.config as settings

    return settings.patch(known_settings(peer))


def measure(
    part: str,
    name: str,
    size: Size,
    device: torch.device,
    steps: int,
    extra: Mapping[str, Any],
    expected: list[Tensor],
    trace: Path | None = None,
) -> Row:
    """One peer. expected: gradients that the first peer fills in and the others are compared with. trace: a folder for
    the Chrome trace of a step of rank 0."""
    peer, row, on_gpu = PEERS[name], Row(part, name), device.type == "cuda"
    torch._dynamo.reset()
    torch.manual_seed(0)
    options = {**peer.options, **(extra if peer.backend == "litz" else {})}

    def compiled(model: nn.Module) -> nn.Module:
        if peer.backend is None:
            return model
        return torch.compile(model, backend=peer.backend, **({"options": options} if options else {}))

    model, run = PARTS[part](size, device, compiled)
    torch.manual_seed(1 + (0 if part == "tp" else dist.get_rank()))
    x = torch.randn(size.batch, size.tokens, size.width, device=device, dtype=size.dtype)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        run(x).backward()

    def wait() -> None:
        if on_gpu:
            torch.cuda.synchronize()

    with inductor_settings(peer):
        begin = time.perf_counter()
        step()
        wait()
        row.compile_seconds = time.perf_counter() - begin
        for _ in range(3):
            step()
        gradients = [getattr(p.grad, "_local_tensor", p.grad).double().cpu() for p in model.parameters()]
        if not expected:
            expected += gradients
        row.error = max(
            float((mine - theirs).norm() / theirs.norm()) for mine, theirs in zip(gradients, expected, strict=True)
        )
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        times = []
        for _ in range(steps):
            dist.barrier()
            wait()
            begin = time.perf_counter()
            step()
            wait()
            times.append(time.perf_counter() - begin)
        slowest = torch.tensor(times, dtype=torch.float64, device=device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        row.step = statistics.median(slowest.tolist()) * 1e3
        if on_gpu:
            row.peak_gib = torch.cuda.max_memory_allocated() / 2**30
            row.communication, row.exposed = profiled(step)
            if trace is not None:
                place = trace / f"{part}-{name.replace(' ', '-')}-rank{dist.get_rank()}.json.gz"
                lines = longest_exposed(kernels_of(step, 1, place if dist.get_rank() == 0 else None))
                if dist.get_rank() == 0:
                    print(f"{part}, {name}: the longest exposed times of rank 0, see {place}", *lines, sep="\n  ")
    return row


def made_up_costs(operation: Any, device: Any, program: Any) -> float:
    """For `--tiny`, where nothing has a time: communication dear, library calls less, the rest cheap."""
    from litz.ir import Collective, Extern, Wait

    kinds = ((Wait, 0.0), (Collective, 30.0), (Extern, 20.0))
    return next((us for kind, us in kinds if isinstance(operation, kind)), 2.0)


def table(rows: Sequence[Row]) -> str:
    """The rows as text."""
    columns = ("step ms", 9), ("comm ms", 9), ("exposed", 9), ("hidden", 8), ("GiB", 7), ("first s", 9), ("error", 9)
    lines = [f"{'part':12}{'peer':18}" + "".join(f"{name:>{width}}" for name, width in columns)]
    for row in rows:
        if row.failed:
            lines.append(f"{row.part:12}{row.peer:18}failed: {row.failed}")
            continue
        lines.append(
            f"{row.part:12}{row.peer:18}{row.step:9.2f}{row.communication:9.2f}{row.exposed:9.2f}{row.hidden:8.1%}"
            f"{row.peak_gib:7.2f}{row.compile_seconds:9.1f}{row.error:9.1e}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Everyone's step in every part. Returns 1 if a peer failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overlap", description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["fsdp", "tp"])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=None)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--width", type=int)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--steps", type=int, default=10, help="timed steps")
    parser.add_argument(
        "--option", action="append", default=[], help="NAME=VALUE, an option of litz for all of its peers"
    )
    parser.add_argument("--tiny", action="store_true", help="a small model over gloo on the CPU")
    parser.add_argument("--trace", type=Path, help="folder for Chrome traces of a step; prints what is exposed longest")
    parser.add_argument("--report", action="store_true", help="print what overlap decided")
    parser.add_argument("--out", help="write the rows to this file, as JSON")
    args = parser.parse_args(argv)

    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu") if args.tiny else torch.device("cuda", local)
    if not args.tiny:
        torch.cuda.set_device(device)
    dist.init_process_group("gloo") if args.tiny else dist.init_process_group("nccl", device_id=device)
    base = TINY if args.tiny else LARGE
    given = {name: getattr(args, name) for name in ("layers", "width", "tokens", "batch")}
    size = Size(**{**asdict(base), **{name: value for name, value in given.items() if value}})
    peers = args.peers or [name for name in PEERS if not (args.tiny and "inductor" in name)]
    extra: dict[str, Any] = dict(item.split("=", 1) for item in args.option)
    if args.tiny:
        extra |= {"collectives.cost": "benchmarks.overlap:made_up_costs", "debug": True}

    rows: list[Row] = []
    for part in args.parts:
        expected: list[Tensor] = []
        for name in peers:
            steps = 2 if args.tiny else args.steps
            rows.append(attempt(part, name, size, device, steps, extra, expected, args.report, args.trace))
            if dist.get_rank() == 0:
                print(table(rows[-1:]).splitlines()[-1], flush=True)
    if dist.get_rank() == 0:
        print("\n" + table(rows))
        if args.out:
            with open(args.out, "w") as file:
                json.dump(
                    {**facts(size, device), "rows": [{**asdict(r), "hidden": r.hidden} for r in rows]}, file, indent=1
                )
    dist.barrier()
    dist.destroy_process_group()
    return int(any(row.failed for row in rows))


def attempt(
    part: str,
    name: str,
    size: Size,
    device: torch.device,
    steps: int,
    extra: Mapping[str, Any],
    expected: list[Tensor],
    report: bool,
    trace: Path | None,
) -> Row:
    """`measure`, or the row of a peer that failed: all ranks alike, or the process group's time-out ends the run."""
    from litz.report import collect

    try:
        with collect() as reports:
            row = measure(part, name, size, device, steps, extra, expected, trace)
    except Exception as error:
        return Row(part, name, failed=f"{type(error).__name__}: {error}"[:300])
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()
    for one in reports if report and dist.get_rank() == 0 else ():
        for decision in one.decisions:
            if decision.plugin == "collectives":
                print(f"{one.name}: {decision}")
    return row


def facts(size: Size, device: torch.device) -> dict[str, Any]:
    """What ran where."""
    on_gpu = device.type == "cuda"
    return {
        "size": {**asdict(size), "dtype": str(size.dtype)},
        "world_size": dist.get_world_size(),
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if on_gpu else "",
        "date": time.strftime("%Y-%m-%d"),
    }


if __name__ == "__main__":
    raise SystemExit(main())
