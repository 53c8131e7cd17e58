"""What grows in a process that compiles and calls for long: litz and others, each in a process of its own.

    python -m benchmarks.soak [--compiles 3000] [--calls 200000] [--seconds 600] [--device cuda] [--out FILE]
        [--peers litz inductor aot_eager]

First the process compiles so many different small programs of the fuzzer, one after the other. Each is called some
times and dropped, and every `--reset` compiles dynamo forgets all. Then the process calls five functions that stay. Of
`--seconds` each peer gets so many, at most half of them to compile. aot_eager shows what torch, dynamo and the fuzzer
keep. With `--device cuda` litz and TorchInductor record CUDA graphs (`mode="reduce-overhead"`). Linux only. The
quantities:

    RSS         MiB of the process's memory that are resident
    heap        MiB that the C library's allocator has given out: without what it keeps
    files       open file descriptors
    threads     of the process, whoever started them
    libraries   mapped files of code
    objects     of Python's, that its collector tracks
    reserved    MiB that torch's allocator has of the GPU
    graphs      CUDA graphs alive

Below the samples is the growth of each quantity: by the quarter, as the first one warms up and what is bounded grows
less and less, and the slope of a line through all samples from the second quarter on, with its standard error.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import json
import linecache
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

ROWS = 8
"""Rows of the printed table for each of the two parts."""
SAMPLES = 64
"""Samples of each part, at most."""
PER = {"compiles": 100, "calls": 10_000}
TEMPLATES = (
    "(x * {c} + y).sin()",
    "(x.relu() * {c}).sum(-1) + y.amax(-1)",
    "torch.nn.functional.layer_norm(x + {c}, x.shape[-1:]) * y",
    "torch.cat([x * {c}, y[:, :3] - {c}], 1)",
    "(x @ y.mT + {c}).softmax(-1)",
    "(x - {c}).cumsum(0).where(x > y, y)",
)

Compile = Callable[..., Callable[..., Any]]
"""`torch.compile` for one of the peers."""


@dataclass(frozen=True)
class Sample:
    """What a process holds after so many compiles or calls."""

    part: str
    count: int
    rss: float
    heap: float
    files: int
    threads: int
    libraries: int
    objects: int
    reserved: float = 0
    graphs: int = 0


QUANTITIES = ("rss", "heap", "files", "threads", "libraries", "objects", "reserved", "graphs")


def sample(part: str, count: int) -> Sample:
    """Measures this process, once what nobody holds is gone."""
    gc.collect()
    status = Path("/proc/self/status").read_text().splitlines()
    facts = dict(line.split(":", 1) for line in status)
    maps = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    code = {row[5] for row in maps if "x" in row[1] and len(row) == 6 and row[5].startswith("/")}
    objects = gc.get_objects()
    return Sample(
        part,
        count,
        int(facts["VmRSS"].split()[0]) / 1024,
        heap() / 2**20,
        len(os.listdir("/proc/self/fd")),
        int(facts["Threads"]),
        len(code),
        len(objects),
        torch.cuda.memory_reserved() / 2**20 if torch.cuda.is_initialized() else 0,
        sum(type(one) is torch.cuda.CUDAGraph for one in objects),
    )


class _Heap(ctypes.Structure):
    """What glibc's `mallinfo2` returns."""

    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = [(name, ctypes.c_size_t) for name in _names]


def heap() -> int:
    """Returns the bytes that the C library's allocator has given out; 0 where the library does not tell."""
    try:
        ask = ctypes.CDLL(None)["mallinfo2"]
    except AttributeError:
        return 0
    ask.restype = _Heap
    found = ask()
    return int(found.uordblks + found.hblkhd)


@dataclass(frozen=True)
class Program:
    """A function and what to call it with. file: under which Python finds its source."""

    function: Callable[..., Any]
    calls: Sequence[Callable[[], Sequence[Any]]]
    file: str
    dynamic: bool | None = None


def template(number: int, device: str = "cpu") -> Program:
    """Returns a program that no other number gives: another constant, for each of the templates in turn. Each has sizes
    of its own, and every third one is trained."""
    text = TEMPLATES[number % len(TEMPLATES)].format(c=f"{1 + number / 4096}")
    file, names = f"<soak {number}>", {"torch": torch}
    source = f"def function(x, y):\n    return {text}\n"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), names)
    rows, train = 2 + number % 7, number % 3 == 0
    x = torch.randn(rows, rows + 5, device=device, requires_grad=train)
    y = torch.randn(rows, rows + 5, device=device)
    return Program(names["function"], [lambda: (x, y)] * 3, file)  # type: ignore[arg-type]


def fuzzed(number: int, device: str = "cpu") -> Program:
    """Returns a program of the fuzzer's, which is called with its own inputs and, if its sizes vary, with others."""
    from litz_testing.fuzz.generate import generate
    from litz_testing.fuzz.inputs import make_inputs

    program, _ = generate(f"soak:{number}")
    function = program.function()
    specs = [program.inputs] * 3 + [program.other_inputs.get("second sizes", program.inputs)]

    def inputs(specs: Any) -> list[Any]:
        return [value.to(device) if isinstance(value, torch.Tensor) else value for value in make_inputs(specs)]

    calls = [lambda specs=specs: inputs(specs) for specs in specs]
    return Program(function, calls, function.__code__.co_filename, program.dynamic)


def compiles(
    compiler: Compile, reset: int, make: Callable[[int], Program] = template, refused: Counter[str] | None = None
) -> Iterator[int]:
    """Compiles programs for ever, and gives the number so far after each. refused: by the kind of error, how many could
    not be compiled or called."""
    number = 0
    while True:
        program = make(number)
        compiled = compiler(program.function, dynamic=program.dynamic)
        try:
            for make_inputs in program.calls:
                inputs = make_inputs()
                results = compiled(*inputs)
                results = results if isinstance(results, (list, tuple)) else [results]
                wanted = [r.sum() for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
                if wanted:
                    torch.stack([value.real.double() for value in wanted]).sum().backward()
                del inputs, results, wanted
        except Exception as error:
            if refused is None:
                raise
            refused[type(error).__name__] += 1
        linecache.cache.pop(program.file, None)
        del compiled, program
        number += 1
        if number % reset == 0:
            torch._dynamo.reset()
        yield number


def calls(compiler: Compile, device: str = "cpu") -> Iterator[int]:
    """Calls functions that stay: with fixed sizes, small and large, with sizes that vary, and a training step. Gives
    the number of calls so far, for ever."""
    first, second = (compiler(template(n).function) for n in (1, 4))
    varying = compiler(template(2).function, dynamic=True)
    trained = compiler(template(6).function)
    small, large = torch.randn(4, 9, device=device), torch.randn(300, 400, device=device)
    weight = torch.randn(4, 9, device=device, requires_grad=True)
    done = 0
    while True:
        rows = torch.randn(2 + done // 5 % 50, 400, device=device)
        first(small, small)
        first(large, large)
        second(small, small)
        varying(rows, rows)
        trained(weight, small).sum().backward()
        done += 5
        yield done


def sampled(part: str, steps: Iterator[int], count: int, seconds: float, every: int) -> list[Sample]:
    """Takes steps until there are `count`, or the seconds are over. Samples each `every` steps, and rarer if those are
    many."""
    begin, found, after = time.monotonic(), list[Sample](), 0.0
    apart = every * max(1, round(count / SAMPLES / every))
    for done in steps:
        passed = time.monotonic() - begin
        ends = done >= count or passed > seconds
        # What dynamo has not been told to forget is no growth: each sample is taken right after that.
        if done % every == 0 and (done % apart == 0 or passed > after):
            found.append(sample(part, done))
            after = time.monotonic() - begin + seconds / SAMPLES
            print(row(found[-1]), file=sys.stderr, flush=True)
        if ends:
            break
    return found


def measured(backend: str, args: argparse.Namespace) -> dict[str, Any]:
    """Runs both parts in this process: its samples, and how many programs were refused, by the kind of error."""
    warnings.simplefilter("ignore")
    mode = {"mode": "reduce-overhead"} if args.device == "cuda" and backend in ("litz", "inductor") else {}

    def compiler(function: Callable[..., Any], dynamic: bool | None = None) -> Callable[..., Any]:
        made: Callable[..., Any] = torch.compile(function, backend=backend, dynamic=dynamic, **mode)
        return made

    refused: Counter[str] = Counter()
    make = {"fuzzer": fuzzed, "templates": template}[args.programs]
    random.seed(0)
    steps = compiles(compiler, args.reset, lambda number: make(number, args.device), refused)
    begin = time.monotonic()
    found = sampled("compiles", steps, args.compiles, args.seconds / 2, args.reset)
    torch._dynamo.reset()
    found += sampled("calls", calls(compiler, args.device), args.calls, args.seconds - (time.monotonic() - begin), 5)
    return {"samples": [asdict(one) for one in found], "refused": refused}


def growth(samples: Sequence[Sample], part: str) -> dict[str, list[float]]:
    """Returns, for so many compiles or calls (`PER`), what each quantity grows by: in the second, third and fourth
    quarter, and as the slope of the line through all samples of these, with its standard error."""
    all_of = [one for one in samples if one.part == part]
    found: dict[str, list[float]] = {}
    if len(all_of) < 8:
        return found
    warm, per = all_of[len(all_of) // 4 - 1 :], PER[part]
    ends = [warm[round(k * (len(warm) - 1) / 3)] for k in range(4)]
    for name in QUANTITIES:
        values_at = [float(getattr(one, name)) for one in ends]
        steps = zip(itertools.pairwise(values_at), itertools.pairwise(one.count for one in ends), strict=True)
        quarters = [(b - a) * per / (to - start) for (a, b), (start, to) in steps]
        counts, values = [one.count for one in warm], [float(getattr(one, name)) for one in warm]
        slope, at_zero = statistics.linear_regression(counts, values)
        off = sum((value - at_zero - slope * count) ** 2 for count, value in zip(counts, values, strict=True))
        mean = statistics.fmean(counts)
        error = (off / (len(warm) - 2) / sum((count - mean) ** 2 for count in counts)) ** 0.5
        found[name] = [*quarters, slope * per, error * per]
    return found


HEAD = "".join(
    f"{name:>{width}}"
    for name, width in zip(
        ("", "", "RSS MiB", "heap MiB", "files", "threads", "libraries", "objects", "reserved MiB", "graphs"),
        (9, 8, 10, 10, 7, 9, 11, 10, 14, 8),
        strict=True,
    )
)


def row(one: Sample) -> str:
    """Returns a line of the table."""
    return (
        f"{one.part:9}{one.count:8}{one.rss:10.1f}{one.heap:10.1f}{one.files:7}{one.threads:9}{one.libraries:11}"
        f"{one.objects:10}{one.reserved:14.1f}{one.graphs:8}"
    )


def table(samples: Sequence[Sample]) -> str:
    """Returns the table of one process, and its growth."""
    lines = [HEAD]
    for part in PER:
        of_part = [one for one in samples if one.part == part]
        step = max(len(of_part) // ROWS, 1)
        lines += map(row, of_part[step - 1 :: step])
    for part, per in PER.items():
        lines += ["", f"{f'per {per} {part}':20}{'quarter 2':>12}{'3':>12}{'4':>12}{'slope':>12}{'error':>12}"]
        rows = growth(samples, part)
        lines += [f"{name:20}" + "".join(f"{number:12.2f}" for number in numbers) for name, numbers in rows.items()]
        lines += [] if rows else ["too few samples: give more time, or a smaller --reset"]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table for each peer."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--compiles", type=int, default=200)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=1e9, help="of each peer; half of them to compile")
    parser.add_argument("--reset", type=int, default=10, help="compiles after which dynamo forgets")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--programs", choices=("fuzzer", "templates"), default="fuzzer")
    parser.add_argument("--peers", nargs="+", default=["litz", "inductor", "aot_eager"])
    parser.add_argument("--out", type=Path, help="write the samples to this file, as JSON")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.alone:
        args.alone.write_text(json.dumps(measured(args.peers[0], args)))
        return
    found: dict[str, Any] = {}
    for peer in args.peers:
        print(f"\n{peer} on {args.device}", flush=True)
        with tempfile.TemporaryDirectory(prefix="litz-soak-") as folder:  # nothing was compiled before
            line = [sys.executable, "-m", "benchmarks.soak", "--alone", f"{folder}/found.json", "--peers", peer]
            for name in ("compiles", "calls", "seconds", "reset", "device", "programs"):
                line += [f"--{name}", str(getattr(args, name))]
            caches = {"LITZ_CACHE_DIR": f"{folder}/litz", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
            ended = subprocess.run(line, env={**os.environ, **caches}, stdout=subprocess.DEVNULL, check=False)
            with suppress(FileNotFoundError):
                found[peer] = json.loads(Path(folder, "found.json").read_text())
        if peer not in found:
            print(f"ended with {ended.returncode}", flush=True)
            continue
        print(table([Sample(**one) for one in found[peer]["samples"]]))
        print("refused:", ", ".join(f"{n} {kind}" for kind, n in found[peer]["refused"].items()) or "none", flush=True)
        if args.out:
            args.out.write_text(json.dumps(found))
    if len(found) != len(args.peers):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
