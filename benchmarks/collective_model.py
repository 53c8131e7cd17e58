"""How well litz predicts NCCL, beside TorchInductor's own estimates: mean absolute percentage error of device time.

    torchrun --nproc-per-node 4 -m benchmarks.collective_model [--out FOLDER] [--most 1GiB] [--seconds 60]

Measures groups of 2, 3 and 4 GPUs as `litz calibrate-collectives` does, twice: the curves are fitted to the first run
and scored on the second, as fitting and scoring on one run would flatter them. `2+4 -> 3` means: fitted to 2 and 4
ranks, scored on 3. Inductor's estimates are asked for as its scheduler asks ("inductor") and as its FX passes do
("inductor fx"), and
with --nccl-simulator from NCCL itself, where this torch and NCCL can.

Writes times.csv, again.csv, errors.json, and the profiles p24.json and p234.json. About two minutes on 4 GPUs. On the
CPU (gloo, for a try) add --gpu H200 --most 512KiB.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from litz.capture import torch_api
from litz_collectives import job
from litz_collectives.calibrate import Measured, Request, csv_text, measure, profile_of_measured
from litz_collectives.evaluate import LARGE
from litz_collectives.fit import Point
from litz_collectives.measure import KINDS
from litz_collectives.model import collective_cost
from litz_collectives.nccl import Message
from litz_collectives.profile import Profile
from litz_collectives.together import Together
from litz_plugins.units import parse_size

Predict = Callable[[str, int, int], "float | None"]
"""(kind, bytes, ranks) -> µs; None for no answer."""
OPS = {
    "all_reduce": lambda x, n, group: (torch.ops._c10d_functional.all_reduce.default, (x, "sum", group)),
    "all_gather": lambda x, n, group: (torch.ops._c10d_functional.all_gather_into_tensor.default, (x, n, group)),
    "reduce_scatter": lambda x, n, group: (
        torch.ops._c10d_functional.reduce_scatter_tensor.default,
        (x, "sum", n, group),
    ),
    "all_to_all": lambda x, n, group: (
        torch.ops._c10d_functional.all_to_all_single.default,
        (x, [x.meta["val"].shape[0] // n] * n, [x.meta["val"].shape[0] // n] * n, group),
    ),
}


def input_bytes(kind: str, size: int, ranks: int) -> int:
    """What each rank puts in; `size` counts as in nccl-tests."""
    return size // ranks if kind == "all_gather" else size


def inductor_scheduler(kind: str, size: int, ranks: int) -> float | None:
    """As `estimate_nccl_collective_runtime` of a scheduler's node."""
    from torch._inductor import comm_analysis

    coll = getattr(comm_analysis.NCCL_COLL, kind.upper(), None)
    if coll is None:
        return None
    return 1e3 * comm_analysis.estimate_nccl_collective_runtime_impl(input_bytes(kind, size, ranks), ranks, coll)


def inductor_fx(groups: Mapping[int, Any], simulate: bool, device: torch.device) -> Predict:
    """As `estimate_nccl_collective_runtime_from_fx_node` of a graph's node; None where that fails."""
    from torch._inductor import comm_analysis
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode()
    failed: set[str] = set()

    def predict(kind: str, size: int, ranks: int) -> float | None:
        if kind in failed or ranks not in groups:
            return None
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        with mode:
            x.meta["val"] = torch.empty(input_bytes(kind, size, ranks) // 2, dtype=torch.bfloat16, device=device)
        target, args = OPS[kind](x, ranks, groups[ranks].group_name)
        node = graph.call_function(target, args)
        with mode:
            shapes = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in args]
            node.meta["val"] = target(*shapes)
        try:
            ms = comm_analysis.estimate_nccl_collective_runtime_from_fx_node(node, use_nccl_estimator=simulate)
        except Exception as error:
            failed.add(kind)
            if dist.get_rank() == 0:
                print(f"  inductor fx has no estimate of {kind}: {type(error).__name__}: {error}")
            return None
        return 1e3 * float(ms)

    return predict


def litz_of(profile: Profile) -> Predict:
    return lambda kind, size, ranks: collective_cost(Message(kind, size, ranks), profile).us


def error(points: Sequence[Point], kind: str, predict: Predict, least: int) -> float | None:
    """Mean absolute error in percent over the points of `least` bytes and more."""
    off = []
    for size, ranks, us in points:
        predicted = predict(kind, size, ranks) if size >= least else None
        if predicted is not None:
            off.append(abs(predicted / us - 1))
    return 100 * sum(off) / len(off) if off else None


def fitted(measured: Measured, topology: Any, sizes: Sequence[int]) -> Profile:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    out = sorted({row.world_size for row in measured.rows} - set(sizes))
    return profile_of_measured(measured, topology, out, job.source(sizes, topology, device))


def main(argv: Sequence[str] | None = None) -> int:
    """Every rank measures and predicts; rank 0 prints and writes. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="collective_model", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for what is written")
    parser.add_argument("--least", type=parse_size, default=1 << 10)
    parser.add_argument("--most", type=parse_size, default=1 << 30)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each of the two runs")
    parser.add_argument("--gpu", help="take this machine's for one of these")
    parser.add_argument("--nccl-simulator", action="store_true", help="ask NCCL's simulator too, through Inductor")
    args = parser.parse_args(argv)

    place = job.make_place(*(int(os.environ[n]) for n in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")))
    device = job.find_device(place)
    topology = job.find_topology(args.gpu, None, device, place)
    sizes = tuple(n for n in (2, 3, 4) if n <= place.local_world_size)
    request = Request(sizes, (), KINDS, args.least, args.most, args.seconds)
    with job.group(device):
        store = torch_api.default_store()
        assert store is not None
        ranks = Together(store[0], place.rank, place.world_size)
        with job.progress(place) as tell:
            first = measure(request, ranks, device, tell)
            again = measure(Request(sizes, (), KINDS, args.least, args.most, args.seconds, False), ranks, device, tell)
        if place.rank == 0:
            args.out.mkdir(parents=True, exist_ok=True)
            (args.out / "times.csv").write_text(csv_text(first.rows))
            (args.out / "again.csv").write_text(csv_text(again.rows))
        groups = {n: dist.new_group(list(range(n))) for n in sizes}
        mine = {n: group for n, group in groups.items() if place.rank < n}
        for group in mine.values():  # NCCL's simulator needs a group that has started
            dist.all_reduce(torch.zeros(16, device=device), group=group)
        predictions = {
            "inductor": inductor_scheduler,
            "inductor fx": inductor_fx(mine, False, device),
        }
        if args.nccl_simulator:
            predictions["nccl simulator"] = inductor_fx(mine, True, device)
        points = again.points
        table: dict[str, dict[str, list[float | None]]] = {}

        def score(name: str, kind: str, predict: Predict, on: Sequence[int]) -> None:
            chosen = [point for point in points[kind] if point[1] in on]
            found = [error(chosen, kind, predict, least) for least in (0, LARGE)]
            table.setdefault(name, {})[kind] = found

        plans = [((2, 4), (2, 4)), ((2, 4), (3,)), ((2, 3), (2, 3)), ((2, 3), (4,)), ((2, 3, 4), (2, 3, 4))]
        for fit_to, on in plans:
            if set(fit_to) | set(on) <= set(sizes):
                made = litz_of(fitted(first, topology, fit_to))
                for kind in KINDS:
                    score(f"litz {'+'.join(map(str, fit_to))} -> {','.join(map(str, on))}", kind, made, on)
        for kind in KINDS:
            score("litz, built in", kind, litz_of(Profile(topology)), sizes)
        for name, predict in predictions.items():
            for kind in KINDS:
                score(name, kind, predict, sizes)
        repeat = {(r.kind, r.world_size, r.bytes): r.time_us for r in first.rows}
        for kind in KINDS:  # what two runs of one measurement differ by: nobody can be better
            score("the first run", kind, lambda kind, size, n: repeat.get((kind, n, size)), sizes)

    if place.rank == 0:
        report(table, first, again, topology, sizes, args.out)
    return 0


def report(
    table: Mapping[str, Mapping[str, Sequence[float | None]]],
    first: Measured,
    again: Measured,
    topology: Any,
    sizes: Sequence[int],
    out: Path,
) -> None:
    def cell(values: Sequence[float | None]) -> str:
        return " / ".join("   -" if value is None else f"{value:4.1f}" for value in values).rjust(16)

    print("mean absolute error in percent: all sizes / from 1 MiB up")
    print(f"{'':24}" + "".join(f"{kind:>16}" for kind in KINDS))
    for name, row in table.items():
        print(f"{name:24}" + "".join(cell(row[kind]) for kind in KINDS))
    print(f"GEMM {first.gemm_tflops:.0f} TFLOP/s (bf16), copy {first.copy_gb_s:.0f} GB/s")
    for kind, found in first.contention.items():
        for one in found:
            print(
                f"{kind} {one.bytes / (1 << 20):g} MiB beside kernels: x{one.collective:.2f} + {one.delay_us:.0f} µs, "
                f"GEMM x{one.gemm:.2f}, copy x{one.copy:.2f}"
            )
    print(f"measured in {first.seconds:.0f} and {again.seconds:.0f} s, {first.skipped + again.skipped} left out")
    (out / "errors.json").write_text(json.dumps(table, indent=1) + "\n")
    for fit_to in ((2, 4), (2, 3, 4)):
        if set(fit_to) <= set(sizes):
            name = "p" + "".join(map(str, fit_to)) + ".json"
            (out / name).write_text(fitted(first, topology, fit_to).dumps())


if __name__ == "__main__":
    sys.exit(main())
