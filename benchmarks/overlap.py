"""How much of its communication a training step hides: litz with and without `overlap`, eager, Inductor, in one run.

    torchrun --standalone --nproc-per-node 4 -m benchmarks.overlap [--parts fsdp tp] [--peers NAME ...] [--out FILE]

Parts, each a transformer in bf16, forward and backward:

    fsdp        every parameter sharded by itself: gathered where it is used, once more in the backward, its gradient
                scattered. All communication is in the compiled graph, one collective a parameter, as in "simple FSDP".
    fully_shard the same by FSDP2, a layer at a time. Its hooks run, and overlap, between the compiled graphs.
    tp          tensor parallel by DTensor: an all_reduce after attention and one after the MLP, and in their backward.
    sequence    tensor parallel with the sequence in parts: an all_gather before each product that is split by columns,
                a reduce_scatter behind each that is split by rows.
    fsdp_tp     tensor parallel between two ranks, and FSDP2 between the pairs.
    experts     an MLP on each rank, to which an all_to_all brings a share of every rank's tokens, and another returns
                them.

`--pieces` measures what cutting products and their collectives brings (collectives.pieces), on tensor parallel layers:
whole, as the planner finds, and in 2, 4 and 8 pieces, beside Inductor and Inductor's fused products over symmetric
memory. Two GPUs take under 120 s:

    torchrun --standalone --nproc-per-node 2 -m benchmarks.overlap --pieces

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
import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.exposed import kernels_of, longest_exposed, profiled
from benchmarks.record import OWN_NAMES, add_option, recorder
from benchmarks.sharded import LARGE, PARTS, TINY, Size


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


PIECES: Mapping[str, Peer] = {
    "eager": PEERS["eager"],
    "litz whole": Peer("litz"),
    "litz pieces": Peer("litz", {"collectives.pieces": 0}),
    **{f"litz {count} pieces": Peer("litz", {"collectives.pieces": count}) for count in (2, 4, 8)},
    "inductor": PEERS["inductor"],
    "inductor fused": Peer("inductor", config={"_micro_pipeline_tp": True}),
}
"""The peers of `--pieces`."""


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


NAMES = OWN_NAMES | {"litz overlap": "litz, overlap", "inductor overlap": "inductor, overlap"}
"""Peers that rows of benchmarks/results have, and their names there."""


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
    peer, row, on_gpu = (PEERS | PIECES)[name], Row(part, name), device.type == "cuda"
    if "_micro_pipeline_tp" in peer.config:
        from torch.distributed._symmetric_memory import enable_symm_mem_for_group

        enable_symm_mem_for_group(dist.group.WORLD.group_name)
    torch._dynamo.reset()
    torch.manual_seed(0)
    options = {**peer.options, **(extra if peer.backend == "litz" else {})}

    def compiled(model: nn.Module) -> nn.Module:
        if peer.backend is None:
            return model
        return torch.compile(model, backend=peer.backend, **({"options": options} if options else {}))

    model, run = PARTS[part].make(size, device, compiled)
    torch.manual_seed(1 + dist.get_rank() // PARTS[part].same_data())
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
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=None)
    parser.add_argument("--peers", nargs="+", choices=PEERS | PIECES, default=None)
    parser.add_argument("--pieces", action="store_true", help="products and their collectives in pieces; two layers")
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
    add_option(parser)
    args = parser.parse_args(argv)

    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu") if args.tiny else torch.device("cuda", local)
    if not args.tiny:
        torch.cuda.set_device(device)
    dist.init_process_group("gloo") if args.tiny else dist.init_process_group("nccl", device_id=device)
    base = TINY if args.tiny else replace(LARGE, layers=2) if args.pieces else LARGE
    parts = args.parts or (["sequence", "tp"] if args.pieces else ["fsdp", "tp"])
    given = {name: getattr(args, name) for name in ("layers", "width", "tokens", "batch")}
    size = Size(**{**asdict(base), **{name: value for name, value in given.items() if value}})
    known = PIECES if args.pieces else PEERS
    peers = args.peers or [name for name in known if not (args.tiny and "inductor" in name)]
    extra: dict[str, Any] = dict(item.split("=", 1) for item in args.option)
    if args.tiny:
        extra |= {"collectives.cost": "benchmarks.overlap:made_up_costs", "debug": True}

    rows: list[Row] = []
    for part in parts:
        expected: list[Tensor] = []
        for name in peers:
            steps = 2 if args.tiny else args.steps
            rows.append(attempt(part, name, size, device, steps, extra, expected, args.report, args.trace))
            if dist.get_rank() == 0:
                print(table(rows[-1:]).splitlines()[-1], flush=True)
    if dist.get_rank() == 0:
        print("\n" + table(rows))
        record = recorder(args.json, "overlap", device, argv, NAMES)
        for part in parts:
            record(**as_record(part, rows))
        if args.out:
            with open(args.out, "w") as file:
                json.dump(
                    {**facts(size, device), "rows": [{**asdict(r), "hidden": r.hidden} for r in rows]}, file, indent=1
                )
    dist.barrier()
    dist.destroy_process_group()
    return int(any(row.failed for row in rows))


def as_record(part: str, rows: Sequence[Row]) -> dict[str, Any]:
    """What a line of benchmarks/results has of a part (`benchmarks.record`)."""
    of = {row.peer: row for row in rows if row.part == part}
    peers = {
        peer: {"wall_ms": row.step, "communication_ms": row.communication, "exposed_ms": row.exposed,
               "peak_mib": row.peak_gib * 1024, "error": row.error, "cold_s": row.compile_seconds}
        for peer, row in of.items()
        if not row.failed
    }  # fmt: skip
    problems = {peer: row.failed for peer, row in of.items() if row.failed}
    return {"task": "communication", "case": part, "dtype": "bfloat16", "peers": peers, "problems": problems}


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
