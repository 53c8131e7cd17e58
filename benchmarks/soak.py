"""What grows in a process that compiles and calls for long: litz and TorchInductor, each in a process of its own.

    python -m benchmarks.soak [--compiles 200] [--calls 20000] [--peers litz inductor] [--out FILE]

First the process compiles so many different small functions, one after the other. Each is called some times and
dropped, and every `--reset` compiles dynamo forgets all. Then the process calls five functions that stay.
Linux only. The columns:

    RSS         MiB of the process's memory that are resident
    files       open file descriptors
    threads     of the process, whoever started them
    libraries   mapped files of code
    objects     of Python's, that its collector tracks

The last lines are the growth per 1,000 compiles and per 100,000 calls from the second quarter on: the first warms up.
"""

from __future__ import annotations

import argparse
import gc
import json
import linecache
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

POINTS = 8
"""Rows of a table for each of the two parts."""
PER_COMPILES, PER_CALLS = 1000, 100_000
TEMPLATES = (
    "(x * {c} + y).sin()",
    "(x.relu() * {c}).sum(-1) + y.amax(-1)",
    "torch.nn.functional.layer_norm(x + {c}, x.shape[-1:]) * y",
    "torch.cat([x * {c}, y[:, :3] - {c}], 1)",
    "(x @ y.mT + {c}).softmax(-1)",
    "(x - {c}).cumsum(0).where(x > y, y)",
)


@dataclass(frozen=True)
class Sample:
    """What a process holds after so many compiles and calls."""

    part: str
    count: int
    rss: float
    files: int
    threads: int
    libraries: int
    objects: int


QUANTITIES = ("rss", "files", "threads", "libraries", "objects")


def sample(part: str, count: int) -> Sample:
    """Measures this process, once what nobody holds is gone."""
    gc.collect()
    status = Path("/proc/self/status").read_text().splitlines()
    facts = dict(line.split(":", 1) for line in status)
    maps = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    code = {row[5] for row in maps if "x" in row[1] and len(row) == 6 and row[5].startswith("/")}
    return Sample(
        part,
        count,
        int(facts["VmRSS"].split()[0]) / 1024,
        len(os.listdir("/proc/self/fd")),
        int(facts["Threads"]),
        len(code),
        len(gc.get_objects()),
    )


def function(number: int) -> Callable[..., Any]:
    """Returns a function that no other number gives: another constant, for each of the templates in turn."""
    text = TEMPLATES[number % len(TEMPLATES)].format(c=f"{1 + number / 4096}")
    file, names = f"<soak {number}>", {"torch": torch}
    source = f"def function(x, y):\n    return {text}\n"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), names)
    found: Callable[..., Any] = names["function"]  # type: ignore[assignment]
    return found


def compiles(backend: str, count: int, reset: int, first: int = 0) -> Iterator[int]:
    """Compiles functions, each for sizes of its own and every third with its backward. Gives the number so far."""
    for number in range(first, first + count):
        rows, train = 2 + number % 7, number % 3 == 0
        x, y = torch.randn(rows, rows + 5, requires_grad=train), torch.randn(rows, rows + 5)
        compiled = torch.compile(function(number), backend=backend)
        for _ in range(3):
            result = compiled(x, y)
            if train:
                result.sum().backward()
        linecache.cache.pop(f"<soak {number}>", None)
        del compiled, result
        if number % reset == reset - 1:
            torch._dynamo.reset()
        yield number - first + 1


def calls(backend: str, count: int) -> Iterator[int]:
    """Calls functions that stay: with fixed sizes, small and large, with sizes that vary, and a training step. Gives
    the number of calls so far."""
    first, second = (torch.compile(function(n), backend=backend) for n in (1, 4))
    varying = torch.compile(function(2), backend=backend, dynamic=True)
    trained = torch.compile(function(6), backend=backend)
    small, large = torch.randn(4, 9), torch.randn(300, 400)
    weight = torch.randn(4, 9, requires_grad=True)
    done = 0
    while done < count:
        rows = torch.randn(2 + done // 5 % 50, 400)
        first(small, small)
        first(large, large)
        second(small, small)
        varying(rows, rows)
        trained(weight, small).sum().backward()
        done += 5
        yield done


def measured(backend: str, compile_count: int, call_count: int, reset: int) -> list[Sample]:
    """Runs both parts in this process."""
    found = []
    parts = (
        ("compiles", compiles(backend, compile_count, reset), compile_count, reset),
        ("calls", calls(backend, call_count), call_count, 1),
    )
    for part, steps, count, every in parts:
        # What dynamo has not been told to forget is no growth: each sample is taken right after that.
        wanted = sorted({max(every, round(count * (k + 1) / POINTS / every) * every) for k in range(POINTS)})
        for done in steps:
            if wanted and done >= wanted[0]:
                wanted.pop(0)
                found.append(sample(part, done))
                print(row(found[-1]), file=sys.stderr, flush=True)
    return found


def growth(samples: Sequence[Sample], part: str, per: int) -> dict[str, float]:
    """Returns what each quantity grows by, from the end of the first quarter to the end, for so many."""
    of_part = [one for one in samples if one.part == part]
    begin, end = of_part[max(len(of_part) // 4 - 1, 0)], of_part[-1]
    steps = max(end.count - begin.count, 1)
    return {name: (getattr(end, name) - getattr(begin, name)) * per / steps for name in QUANTITIES}


HEAD = f"{'':9}{'':>8}{'RSS MiB':>10}{'files':>7}{'threads':>9}{'libraries':>11}{'objects':>10}"


def row(one: Sample) -> str:
    """Returns a line of the table."""
    return (
        f"{one.part:9}{one.count:8}{one.rss:10.1f}{one.files:7}{one.threads:9}{one.libraries:11}{one.objects:10}"
    )  # fmt: skip


def table(samples: Sequence[Sample]) -> str:
    """Returns the table of one process, and its growth."""
    lines = [HEAD, *map(row, samples)]
    for part, per in (("compiles", PER_COMPILES), ("calls", PER_CALLS)):
        by = growth(samples, part, per)
        lines.append(
            f"growth per {per} {part}: RSS {by['rss']:+.1f} MiB, files {by['files']:+.1f}, "
            f"threads {by['threads']:+.1f}, libraries {by['libraries']:+.1f}, objects {by['objects']:+.0f}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table for each peer."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--compiles", type=int, default=200)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--reset", type=int, default=25, help="compiles after which dynamo forgets")
    parser.add_argument("--peers", nargs="+", default=["litz", "inductor"])
    parser.add_argument("--out", type=Path, help="write the samples to this file, as JSON")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.alone:
        print(json.dumps([asdict(one) for one in measured(args.alone, args.compiles, args.calls, args.reset)]))
        return
    found: dict[str, list[Sample]] = {}
    for peer in args.peers:
        print(f"{peer}: {args.compiles} compiles, {args.calls} calls", flush=True)
        with tempfile.TemporaryDirectory(prefix="litz-soak-") as folder:  # nothing was compiled before
            line = [sys.executable, "-m", "benchmarks.soak", "--alone", peer, "--compiles", str(args.compiles)]
            line += ["--calls", str(args.calls), "--reset", str(args.reset)]
            caches = {"LITZ_CACHE_DIR": f"{folder}/litz", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
            done = subprocess.run(line, stdout=subprocess.PIPE, check=True, text=True, env={**os.environ, **caches})
        found[peer] = [Sample(**one) for one in json.loads(done.stdout.splitlines()[-1])]
        print(table(found[peer]), flush=True)
    if args.out:
        args.out.write_text(json.dumps({peer: [asdict(s) for s in samples] for peer, samples in found.items()}))


if __name__ == "__main__":
    main()
