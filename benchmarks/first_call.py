"""First calls: each compiler in a process of its own, with an empty cache ("cold") and then with a full one ("warm").

python -m benchmarks.first_call [--only MODEL ...] [--tasks inference training] [--device cpu] [--json FILE]
python -m benchmarks.first_call --only transformers:dpt --stages           where the seconds of a warm call go
python -m benchmarks.first_call --only layers:32 --share                   what the compilers add to dynamo's share
python -m benchmarks.first_call --cold-jobs 6 --warm-jobs 3 --seconds 420  as many rows as fit into seven minutes

A model is one of the zoo's, or `transformers:TYPE`, `timm:NAME`, `layers:N` (N equal layers). Two figures each: seconds
on the clock, and of the processors, with those of processes that were started and awaited, which say more where other
programs run too. Importing torch and an eager call come before. First all caches are filled; then the peers' warm calls
come in turns, and of several the one with the fewest processor seconds counts. With jobs, calls of the same phase run
at a time: their seconds on the clock include the wait for each other's processors. `--stages` adds a warm call of each
peer under cProfile, which makes everything slower: its seconds say how the stages share the call, not how long it
takes. `--share` adds a call of dynamo alone, which runs what it captured in eager mode: no backend can spare this
share. Bytecode is written, as for an installed package, whatever the environment says.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import math
import os
import platform
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.record import add_option, recorder
from benchmarks.zoo import find, known
from benchmarks.zoo_step import (
    TASKS,
    Step,
    Subject,
    error,
    make_peer_step,
    make_step,
    make_subject,
    subject_patches,
    why_not,
)

PEERS = ("inductor", "litz")
DYNAMO = "dynamo"
"""The peer that compiles nothing."""
TEN = ("gpt2", "llama", "bert", "t5", "vit_b", "resnet50", "mobilenet_v3", "convnext_t", "dlrm", "gru")
"""Of every kind one, and none that a CPU is long at."""
MORE = ("albert", "swin_t", "gpt_neox", "qwen2", "unet", "densenet121", "deberta_v2", "bart", "lstm_norm", "layers:32")
"""With `TEN`, what is measured on a GPU."""
BARS: Mapping[str, tuple[float, float]] = {"cold": (0.33, 0.5), "warm": (0.5, 0.8)}
"""litz over Inductor at most, in geometric mean and in any row."""
FILLING = 0.6
"""The share of all seconds in which caches are filled."""
PATIENCE = 400.0
"""Seconds after which a call is given up."""

STAGES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "imports": (("importlib._bootstrap", "_find_and_load"),),
    "dynamo and all below": (("_dynamo/convert_frame.py", "_compile"),),
    "the backend": (("_dynamo/output_graph.py", "call_user_compiler"),),
    "AOTAutograd's cache": (("_aot_autograd/autograd_cache.py", "try_load"),),
    "its key": (("aot_cache_key.py", "own_key"), ("_aot_autograd/autograd_cache.py", "autograd_cache_key")),
    "a trace": (("_aot_autograd/graph_compile.py", "aot_stage1_graph_capture"),),
    "litz: plugins, options": (("driver/compiler.py", "make_compiler"),),
    "litz: what keys have in common": (("graph_cache/without_trace.py", "setting_of"),),
    "litz: key of a traced graph": (("graph_cache/lookup.py", "make_key"),),
    "litz: look-up, graphs read and loaded": (
        ("graph_cache/without_trace.py", "take"),
        ("graph_cache/lookup.py", "load"),
    ),
    "litz: files vouched for": (("cache/manifest.py", "holds"),),
    "litz: kernels waited for": (("driver/kernel_loading.py", "load_kernels"),),
    "litz: wrappers' code": (("runtime/compiled_graph.py", "load_wrapper"),),
    "litz: reports": (("driver/graph_store.py", "publish"), ("report/stored.py", "from_data")),
    "Inductor: look-up": (("_inductor/codecache.py", "load_with_key"),),
    "Inductor: graphs loaded": (("_inductor/codecache.py", "cache_hit_post_compile"),),
    "a backward compiled late": (("runtime_wrappers.py", "_backward_impl"),),
}
"""What `--stages` shows: functions, by the end of their file and their name. A stage includes those it calls."""


@dataclass(frozen=True)
class FirstCall:
    """Seconds of a first step: on the clock and of processors; graphs that AOTAutograd's cache had, and graphs that it
    did not have; the difference from eager mode; seconds under cProfile by stage; modules that the call imported, by
    package; what went wrong."""

    seconds: float = math.nan
    processor: float = math.nan
    hits: int = 0
    misses: int = 0
    error: float = math.nan
    stages: Mapping[str, float] = field(default_factory=dict)
    modules: Mapping[str, int] = field(default_factory=dict)
    top: Sequence[str] = ()
    problem: str = ""


@dataclass
class Row:
    """One model in one task: calls by "inductor cold" and so on. problem: why there is nothing to be seen of it."""

    model: str
    task: str
    calls: dict[str, FirstCall] = field(default_factory=dict)
    problem: str = ""

    @property
    def filled(self) -> bool:
        """Whether both caches are full."""
        return all(not self.calls[f"{peer} cold"].problem for peer in PEERS)

    def ratio(self, state: str, what: str = "seconds") -> float:
        """litz over Inductor; nan where one of the calls is missing."""
        pair = [getattr(self.calls.get(f"{peer} {state}", FirstCall()), what) for peer in ("litz", "inductor")]
        return float(pair[0] / pair[1]) if pair[1] else math.nan


def as_record(row: Row, note: str) -> dict[str, Any]:
    """What a line of benchmarks/results has of a row (`benchmarks.record`)."""
    peers: dict[str, dict[str, float]] = {peer: {} for peer in PEERS}
    for peer, figures in peers.items():
        for state in ("cold", "warm"):
            call = row.calls.get(f"{peer} {state}", FirstCall())
            figures |= {f"{state}_s": call.seconds, f"{state}_processor_s": call.processor}
    return {"task": "first_calls", "case": f"{row.model}, {row.task}", "peers": peers, "note": note}


class Clock:
    """The seconds that are left for the whole run. seconds: None without an end."""

    def __init__(self, seconds: float | None) -> None:
        self._end = math.inf if seconds is None else time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self._end - time.monotonic()


def first_call(row: Row, peer: str, folder: str, device: str, clock: Clock, profiled: bool = False) -> FirstCall:
    """The first step in a new process whose caches lie in `folder`."""
    if clock.left < 5:
        return FirstCall(problem="no time was left")
    place = f"{folder}/{row.model.replace(':', '-')}-{row.task}"
    variables = {
        "LITZ_CACHE_DIR": f"{place}/litz",
        "TORCHINDUCTOR_CACHE_DIR": f"{place}/{peer}",  # AOTAutograd's cache lies there, too
        "TRITON_CACHE_DIR": f"{place}/{peer}-triton",
        "PYTHONDONTWRITEBYTECODE": "",
    }
    command = [sys.executable, "-m", "benchmarks.first_call", "--child", row.model, row.task, peer, "--device", device]
    command += ["--stages"] if profiled else []
    patience = min(PATIENCE, clock.left)
    try:
        done = subprocess.run(
            command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=patience
        )
    except subprocess.TimeoutExpired:
        return FirstCall(problem=f"did not end in {patience:.0f} s")
    if done.returncode:
        return FirstCall(problem=done.stderr.strip()[-600:] or f"ended with {done.returncode}")
    return FirstCall(**json.loads(done.stdout.strip().splitlines()[-1]))


def child(name: str, task: str, peer: str, device: torch.device, profiled: bool) -> None:
    """One first call, timed; prints it."""
    subject = make_subject(find(name), task, device, small=device.type == "cpu")
    expected = [t.clone() for t in make_peer_step(subject, "eager", "default")()]  # libraries start up, too
    wait = torch.cuda.synchronize if device.type == "cuda" else _nothing
    wait()
    before, profile = set(sys.modules), cProfile.Profile()
    start, spent = time.perf_counter(), _processor()
    if profiled:
        profile.enable()
    found = _step(subject, peer)()
    wait()
    if profiled:
        profile.disable()
    seconds, processor = time.perf_counter() - start, _processor() - spent
    counted = torch._dynamo.utils.counters["aot_autograd"]
    modules: dict[str, int] = {}
    for module in set(sys.modules) - before:
        modules[module.partition(".")[0]] = modules.get(module.partition(".")[0], 0) + 1
    call = FirstCall(
        seconds,
        processor,
        counted["autograd_cache_hit"],
        counted["autograd_cache_miss"] + counted["autograd_cache_bypass"],
        error(found, expected),
        _stages(profile) if profiled else {},
        dict(sorted(modules.items(), key=lambda item: -item[1])[:20]),
        _top(profile) if profiled else (),
    )
    print(json.dumps(asdict(call)))


def _step(subject: Subject, peer: str) -> Step:
    if peer != DYNAMO:
        return make_peer_step(subject, peer, "default")
    with subject_patches(subject.model):
        return make_step(subject, torch.compile(subject.module, backend="eager"))


def _nothing() -> None:
    """A CPU's call is over when it returns."""


def _processor() -> float:
    """Seconds of this process, and of those that it has started and awaited."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _stages(profile: cProfile.Profile) -> dict[str, float]:
    stats: Any = pstats.Stats(profile)
    found = {}
    for stage, functions in STAGES.items():
        times = (
            row[3]
            for (file, _, name), row in stats.stats.items()
            for end, wanted in functions
            if name == wanted and (file.endswith(end) or end in file)
        )
        # A stage with several names has the one that was called; the two of litz's reports are apart.
        found[stage] = sum(times) if stage.startswith("litz") else max(times, default=0.0)
    return {stage: seconds for stage, seconds in found.items() if seconds}


def _top(profile: cProfile.Profile) -> list[str]:
    """The functions of litz's packages and of the CUDA driver's library in which most time was spent with all below."""
    stats: Any = pstats.Stats(profile)
    rows = [(row[3], row[1], f"{file[-48:]}:{name}") for (file, _, name), row in stats.stats.items() if "litz" in file]
    return [f"{total:.3f} {calls} {place}" for total, calls, place in sorted(rows, reverse=True)[:40]]


def fill(row: Row, folder: str, device: str, clock: Clock) -> dict[str, FirstCall]:
    """The cold calls of a row."""
    return {f"{peer} cold": first_call(row, peer, folder, device, clock) for peer in PEERS}


def reuse(row: Row, folder: str, device: str, clock: Clock, warm: int, share: bool) -> dict[str, FirstCall]:
    """The warm calls of a row, in turns. warm: processes of each peer, of which the quickest counts. share: those of
    dynamo alone, too."""
    calls: dict[str, FirstCall] = {}
    peers = (*PEERS, DYNAMO) if share else PEERS
    for turn in range(warm if row.filled else 0):
        for peer in peers if turn % 2 else reversed(peers):
            call, name = first_call(row, peer, folder, device, clock), f"{peer} warm"
            if name not in calls or call.processor < calls[name].processor or calls[name].problem:
                calls[name] = call
    return calls


def profile(row: Row, folder: str, device: str, clock: Clock) -> dict[str, FirstCall]:
    """A warm call of each peer under cProfile."""
    peers = PEERS if row.filled else ()
    return {f"{peer} stages": first_call(row, peer, folder, device, clock, profiled=True) for peer in peers}


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


def table(rows: Sequence[Row]) -> str:
    """Lines for people: seconds on the clock (of processors), and litz's over Inductor's."""
    heads = [f"{peer} {state}" for state in ("cold", "warm") for peer in PEERS]
    lines = [f"{'':28}" + "".join(f"{head:>18}" for head in heads) + f"{'cold':>14}{'warm':>14}"]
    for row in rows:
        line = f"{row.model + ' ' + row.task:28}"
        calls = [row.calls.get(head, FirstCall(problem="not measured")) for head in heads]
        line += "".join(f"{call.seconds:10.2f} ({call.processor:5.2f})" for call in calls)
        for state in ("cold", "warm"):
            line += f"{row.ratio(state):7.2f} ({row.ratio(state, 'processor'):4.2f})"
        lines.append(line)
        alone, litz = (row.calls.get(f"{peer} warm", FirstCall()) for peer in (DYNAMO, "litz"))
        if not math.isnan(alone.seconds):
            more = f"{litz.seconds - alone.seconds:.2f} ({litz.processor - alone.processor:.2f})"
            lines.append(f"    dynamo alone {alone.seconds:.2f} ({alone.processor:.2f}), litz warm {more} more")
        traced = row.calls.get("litz warm", FirstCall()).misses
        lines += [f"    litz traced {traced} of its graphs in a warm call"] if traced else []
        problems = {head: call.problem for head, call in zip(heads, calls, strict=True) if call.problem}
        lines += [f"    {head}: {problem}" for head, problem in problems.items()]
    for task in dict.fromkeys(row.task for row in rows):
        for state in ("cold", "warm"):
            clock, processor = (
                [r for row in rows if row.task == task and not math.isnan(r := row.ratio(state, what))]
                for what in ("seconds", "processor")
            )
            if clock:
                means = f"{_mean(clock):.2f} on the clock ({_mean(processor):.2f} of processors)"
                largest = f"largest {max(clock):.2f} ({max(processor):.2f}), {len(clock)} rows"
                lines.append(f"{task} {state}: geometric mean {means}, {largest}; {_verdict(state, clock)}")
    return "\n".join(lines)


def _verdict(state: str, ratios: Sequence[float]) -> str:
    mean, each = BARS[state]
    above = sum(ratio > each for ratio in ratios)
    met = "met" if _mean(ratios) <= mean and not above else "missed"
    return f"bar {mean}, none above {each}: {met}" + (f", {above} above" if above else "")


def stages_table(row: Row) -> str:
    """Seconds of the peers' stages in a warm call, under cProfile."""
    calls = {peer: row.calls.get(f"{peer} stages", FirstCall()) for peer in PEERS}
    lines = [f"{row.model} {row.task}, warm, under cProfile".ljust(60) + "".join(f"{peer:>10}" for peer in PEERS)]
    lines.append("  in all".ljust(60) + "".join(f"{call.seconds:10.2f}" for call in calls.values()))
    for stage in STAGES:
        if any(stage in call.stages for call in calls.values()):
            lines.append(f"  {stage}".ljust(60) + "".join(f"{c.stages.get(stage, 0.0):10.3f}" for c in calls.values()))
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table of seconds, and litz's over TorchInductor's."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_call")
    parser.add_argument("--only", nargs="*", type=known, help="models; else ten on a CPU, and twenty on a GPU")
    parser.add_argument("--tasks", nargs="*", choices=TASKS, default=["inference", "training"])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--warm", type=int, default=2, help="processes with full caches, of which the quickest counts")
    parser.add_argument("--cold-jobs", type=int, default=1, help="rows at a time while caches are filled")
    parser.add_argument("--warm-jobs", type=int, default=1, help="rows at a time with full caches")
    parser.add_argument("--seconds", type=float, help="of the whole run: what does not fit is left out")
    parser.add_argument("--share", action="store_true", help="a warm call of dynamo alone, too")
    parser.add_argument("--stages", action="store_true", help="a table of the stages of a warm call")
    add_option(parser)
    parser.add_argument("--out", type=Path, help="write the rows with stages and modules there, as JSON")
    parser.add_argument("--child", nargs=3, metavar=("MODEL", "TASK", "PEER"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        child(*args.child, torch.device(args.device), args.stages)
        return
    clock = Clock(args.seconds)
    names = args.only or (TEN if args.device == "cpu" else (*TEN, *MORE))
    rows = [Row(name, task) for task in args.tasks for name in names if not why_not(find(name), task)]
    machine = torch.cuda.get_device_name() if args.device == "cuda" else platform.processor() or platform.machine()
    about = {"machine": machine, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"), "jobs": args.warm_jobs}

    print(f"first call: seconds on the clock (of processors); litz over TorchInductor; {about}", flush=True)
    with tempfile.TemporaryDirectory(prefix="litz-first-call-") as folder:
        place: dict[str, Any] = {"folder": folder, "device": args.device, "clock": clock}
        phases = [(partial(fill, **place | {"clock": Clock(args.seconds and args.seconds * FILLING)}), args.cold_jobs)]
        phases.append((partial(reuse, **place, warm=args.warm, share=args.share), args.warm_jobs))
        phases += [(partial(profile, **place), args.warm_jobs)] if args.stages else []
        for job, count in phases:
            with ThreadPoolExecutor(max(count, 1)) as pool:
                for row, calls in zip(rows, pool.map(job, rows), strict=True):
                    row.calls.update(calls)
                    if args.out:
                        args.out.write_text(json.dumps({**about, "rows": list(map(asdict, rows))}, indent=1))
    print(table(rows))
    record = recorder(args.json, "first_call", args.device, argv)
    for row in rows:
        record(**as_record(row, f"{args.cold_jobs} rows at a time with empty caches, {args.warm_jobs} with full ones"))
    for row in rows:
        if any(row.calls.get(f"{peer} stages", FirstCall()).stages for peer in PEERS):
            print(stages_table(row))


if __name__ == "__main__":
    main()
