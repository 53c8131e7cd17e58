"""How compile time grows with the length of a program: families of programs, each at n, 4n, 16n.

python -m benchmarks.growth                              every family with litz, each first call in a process of its own
python -m benchmarks.growth --only cat sum --peers litz aot_eager inductor
python -m benchmarks.growth --sizes 25 100 --stages

A row has the seconds of a first call, how many times as long it takes as the row above for four times the program, and
the seconds in litz's own stages. `torch` is the rest: dynamo's trace, AOTAutograd, and the first run. Seconds are of
processors, the compilers' own included, as other work on the machine makes wall time say little.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

SIZES = (100, 400, 1600)
LIMIT_S = 300.0
"""The least seconds in a process of its own after which a first call is given up."""

Made = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Family:
    """Programs of one kind: `make(n)` gives a function and its arguments. train: its backward is compiled too.
    dynamic: as in torch.compile. most: the greatest n that is measured, where torch's own trace takes minutes."""

    make: Callable[[int], Made]
    train: bool = False
    dynamic: bool | None = None
    most: int = 1 << 30


def _cat(shape: Callable[[int], tuple[int, ...]], dim: int, dtype: str = "float32") -> Callable[[int], Made]:
    def make(n: int) -> Made:
        import torch

        pieces = [torch.randn(shape(k)).to(getattr(torch, dtype)) for k in range(n)]
        return (lambda *xs: torch.cat(xs, dim) * 2), tuple(pieces)

    return make


def _stack(n: int) -> Made:
    import torch

    return (lambda *xs: torch.stack(xs, -1) + 1), tuple(torch.randn(4, 5) for _ in range(n))


def _cat_views(n: int) -> Made:
    import torch

    return (lambda x: torch.cat([row.sin() for row in x.unbind(0)])), (torch.randn(n, 8),)


def _unbind_each(n: int) -> Made:
    import torch

    return (lambda x: [row.sin() * k for k, row in enumerate(x.unbind(0))]), (torch.randn(n, 8),)


def _chunk_sum(n: int) -> Made:
    import torch

    def f(x: Any) -> Any:
        total = 0
        for k, part in enumerate(x.chunk(n, 1)):
            total = total + part * k
        return total

    return f, (torch.randn(6, 3 * n),)


def _sum(n: int) -> Made:
    import torch

    def f(*xs: Any) -> Any:
        total = xs[0]
        for x in xs[1:]:
            total = total + x
        return total

    return f, tuple(torch.randn(4) for _ in range(n))


def _sum_reduced(n: int) -> Made:
    import torch

    def f(*xs: Any) -> Any:
        total = 0
        for x in xs:
            total = total + (x * x).sum()
        return total

    return f, tuple(torch.randn(5 + k % 7) for k in range(n))


def _live(n: int) -> Made:
    import torch

    def f(x: Any) -> Any:
        values = [x]
        for k in range(n):
            values.append((values[-1] + k).sin())
        total = 0
        for value in values:
            total = total * 0.5 + value
        return total

    return f, (torch.randn(64, 48),)


def _mlp(n: int) -> Made:
    import torch

    model = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.LayerNorm(16), torch.nn.GELU()) for _ in range(n))
    )
    return model, (torch.randn(8, 16),)


def _flips(n: int) -> Made:
    import torch

    def f(v: Any) -> Any:
        for _ in range(n // 2):
            v = v.flip(0)
            v = v.t().reshape(v.shape) + 1
        return v

    return f, (torch.randn(64, 48),)


def _views(n: int) -> Made:
    import torch

    def f(v: Any) -> Any:
        for k in range(n):
            if k % 6 == 0:
                v = v.roll(3, 0)
            elif k % 6 == 1:
                v = v.reshape(48, 64).t()
            elif k % 6 == 2:
                v = v.flip(1) * 1.5
            elif k % 6 == 3:
                v = torch.nn.functional.pad(v[1:, :-2], (1, 1, 0, 1))
            elif k % 6 == 4:
                v = v.reshape(8, 8, 6, 8).permute(2, 1, 3, 0).reshape(64, 48)
            else:
                v = v + v.roll(1, 1)
        return v

    return f, (torch.randn(64, 48),)


def _writes(n: int) -> Made:
    import torch

    def f(x: Any) -> Any:
        x = x.clone()
        for k in range(n):
            x[k] = x[k - 1].sin() + k
        return x

    return f, (torch.randn(n, 8),)


def _where(n: int) -> Made:
    import torch

    def f(x: Any) -> Any:
        value = x
        for k in range(n):
            value = torch.where(x > k, value * 2, value - x)
        return value

    return f, (torch.randn(64, 48),)


def _lstm(n: int) -> Made:
    import torch

    cell = torch.nn.LSTMCell(16, 16)

    def f(x: Any) -> Any:
        h, c = x[0] * 0, x[0] * 0
        outputs = []
        for step in range(n):
            h, c = cell(x[step], (h, c))
            outputs.append(h)
        return torch.stack(outputs)

    return f, (torch.randn(n, 4, 16),)


def _cumsum(n: int) -> Made:
    def f(x: Any) -> Any:
        for k in range(n):
            x = x.cumsum(k % 2) * 0.1
        return x

    import torch

    return f, (torch.randn(32, 24),)


def _adam(n: int) -> Made:
    import torch

    def f(*xs: Any) -> Any:
        third = len(xs) // 3
        params, grads, moments = list(xs[:third]), list(xs[third : 2 * third]), list(xs[2 * third :])
        torch._foreach_mul_(moments, 0.9)
        torch._foreach_add_(moments, grads, alpha=0.1)
        torch._foreach_addcdiv_(params, moments, torch._foreach_add(torch._foreach_abs(grads), 1e-3), value=-0.01)
        return params[0].sum()

    return f, tuple(torch.randn(4 + k % 5, 8) for _ in range(3) for k in range(n))


def _fibonacci(n: int) -> Made:
    import torch

    def f(a: Any, b: Any) -> Any:
        for _ in range(n):
            a, b = (a + b) * 0.5, a
        return a

    return f, (torch.randn(64, 48), torch.randn(64, 48))


def _shifted(n: int) -> Made:
    """Each step reads the one before at two places: recomputed, the last would read 2**n."""
    import torch

    def f(x: Any) -> Any:
        for _ in range(n):
            x = (x + x.roll(1, 0)) * 0.5
        return x

    return f, (torch.randn(64, 48),)


def _chain(n: int) -> Made:
    """One value at a time, of n operations: the length itself, with the least of everything else."""
    import torch

    def f(x: Any) -> Any:
        for k in range(n // 2):
            x = x.sin() + k
        return x

    return f, (torch.randn(64, 48),)


def _layers(n: int) -> Made:
    """GPT-2 of n layers: its widths, few tokens and few words."""
    import torch
    import transformers

    sizes = {"n_layer": n, "vocab_size": 1000, "bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
    dropped = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **dropped))
    tokens = torch.randint(0, 1000, (2, 32))
    return (lambda x: model(input_ids=x).logits), (tokens,)


FAMILIES = {
    "chain": Family(_chain),
    "chain train": Family(_chain, train=True),
    "layers": Family(_layers, most=48),
    "layers train": Family(_layers, train=True, most=48),
    "cat": Family(_cat(lambda k: (4, 5), 0)),
    "cat sizes": Family(_cat(lambda k: (3, 1 + k % 7), -1)),
    "cat half": Family(_cat(lambda k: (4, 5), 1, "float16")),
    "cat views": Family(_cat_views),
    "cat symbolic": Family(_cat(lambda k: (4, 5), 0), dynamic=True),
    "cat train": Family(_cat(lambda k: (4, 5), 0), train=True),
    "stack": Family(_stack),
    "unbind": Family(_unbind_each),
    "chunk": Family(_chunk_sum),
    "sum": Family(_sum),
    "sum train": Family(_sum, train=True),
    "sum reduced": Family(_sum_reduced),
    "live": Family(_live),
    "live train": Family(_live, train=True),
    "mlp": Family(_mlp),
    "mlp dynamic": Family(_mlp, dynamic=True),
    "mlp train": Family(_mlp, train=True, most=400),
    "flips": Family(_flips),
    "flips train": Family(_flips, train=True),
    "views": Family(_views),
    "views train": Family(_views, train=True),
    "writes": Family(_writes, most=400),
    "where": Family(_where),
    "lstm": Family(_lstm),
    "lstm train": Family(_lstm, train=True, most=400),
    "cumsum": Family(_cumsum),
    "adam": Family(_adam),
    "fibonacci": Family(_fibonacci),
    "shifted": Family(_shifted),
}


def processor_seconds() -> float:
    """What this process and the compilers that it ran have taken so far."""
    own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def child(name: str, n: int, peer: str, profile: str) -> None:
    """One first call; prints a line of JSON: seconds in all, litz's stages, kernels."""
    import torch

    family = FAMILIES[name]
    torch.manual_seed(0)
    fn, args = family.make(n)
    if family.train:
        args = tuple(x.requires_grad_() if x.is_floating_point() else x for x in args)
    sys.setrecursionlimit(100_000)  # for a peer's: litz does not recurse over a program
    compiled = torch.compile(fn, backend=peer, dynamic=family.dynamic)

    def step() -> None:
        with torch.set_grad_enabled(family.train):
            out = compiled(*args)
        if family.train:
            out.sum().backward()

    profiler = None
    if profile:
        import cProfile

        profiler = cProfile.Profile()
    torch.compile(lambda x: x + 1, backend=peer)(torch.ones(3))  # the start-up is not the program's
    from litz import report
    from litz.report import log

    log.clock = processor_seconds
    start = processor_seconds()
    with report.collect() as reports:
        if profiler:
            profiler.runcall(step)
            profiler.dump_stats(profile)
        else:
            step()
    total = processor_seconds() - start
    stages: dict[str, float] = {}
    for made in reports:
        for stage, seconds in made.stage_seconds.items():
            stages[stage] = stages.get(stage, 0.0) + seconds
    kernels = sum(made.kernels_after for made in reports)
    print(json.dumps({"total": total, "stages": stages, "kernels": kernels}))


def measure(name: str, n: int, peer: str, limit: float = LIMIT_S, profile: str = "") -> dict[str, Any] | str:
    """The figures of one first call with empty caches, or what went wrong."""
    with tempfile.TemporaryDirectory(prefix="litz-growth-") as folder:
        variables = {"LITZ_CACHE_DIR": f"{folder}/litz", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        command = [sys.executable, "-m", "benchmarks.growth", "--child", name, str(n), peer, "--profile", profile]
        try:
            done = subprocess.run(
                command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=limit
            )
        except subprocess.TimeoutExpired:
            return f"more than {limit:.0f} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no message"])[-1][:100]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


STAGES = ("graph passes", "lower", "program passes", "schedule", "generate", "build")


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table of seconds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(FAMILIES), metavar="FAMILY", help=", ".join(FAMILIES))
    parser.add_argument("--sizes", nargs="*", type=int, default=list(SIZES))
    parser.add_argument("--peers", nargs="*", default=["litz"])
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds after which a call is given up")
    parser.add_argument("--profile", default="", help=argparse.SUPPRESS)
    parser.add_argument("--child", nargs=3, metavar=("FAMILY", "N", "PEER"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        child(args.child[0], int(args.child[1]), args.child[2], args.profile)
        return
    heads = "".join(f"{stage:>15}" for stage in STAGES)
    print(
        f"{'family':14}{'peer':10}{'n':>6}{'seconds':>9}{'growth':>8}{'torch':>8}{'litz':>8}{'growth':>8}{heads}{'kernels':>9}"
    )
    for name in args.only:
        for peer in args.peers:
            last: dict[str, Any] | None = None
            for n in args.sizes:
                if n <= FAMILIES[name].most:
                    found = measure(name, n, peer, args.limit, args.profile)
                    print(_row(name, peer, n, found, last), flush=True)
                    last = found if isinstance(found, dict) else None
                    if last is None:
                        break


def _row(name: str, peer: str, n: int, found: dict[str, Any] | str, last: dict[str, Any] | None) -> str:
    head = f"{name:14}{peer:10}{n:6}"
    if isinstance(found, str):
        return f"{head}  {found}"
    stages = found["stages"]
    own = sum(stages.values())
    growth = f"{found['total'] / last['total']:8.1f}" if last else f"{'':8}"
    text = f"{head}{found['total']:9.1f}{growth}"
    if not stages:
        return text
    before = sum(last["stages"].values()) if last else 0.0
    ratio = f"{own / before:8.1f}" if before else f"{'':8}"
    parts = "".join(f"{stages.get(stage, 0.0):15.2f}" for stage in STAGES)
    return f"{text}{found['total'] - own:8.1f}{own:8.1f}{ratio}{parts}{found['kernels']:9}"


if __name__ == "__main__":
    main()
