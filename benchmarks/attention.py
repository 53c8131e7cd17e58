"""flex_attention under TorchInductor and litz, and torch's best SDPA backend where it has the variant, in turn.

    python -m benchmarks.attention [--only "causal d128" "window n4096 forward" ...] [--backends sdpa inductor litz]
                                   [--minutes N] [--out FILE]

Rows: variant, head dim (d), length (n), and forward or both (forward and backward). A text of --only chooses the rows
that have all its words. Batch times length is 16384, heads times head dim 2048, bf16. Every step runs from a CUDA graph
of its own. TFLOP/s count the blocks of 128 by 128 that are not all masked: 4 flops for each of their scores and
components forward, 3.5 times that with the backward. `MiB` is peak memory beside the inputs. `error`: largest
difference from float64, of the largest value, over all rows of one group of heads of the first sequence: output and,
with the backward, three gradients. Rows are shuffled, always alike, so that `--minutes` leaves some of each kind.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from benchmarks.device_time import Step, describe, in_turn, recorded
from benchmarks.record import OWN_NAMES, add_option, recorder

BLOCK = 128
WINDOW = 512
CAP = 20.0
DOCUMENT = 700
"""Mean length of a document, in tokens."""
DIMS, LENGTHS, PASSES = (64, 128, 256), (512, 2048, 4096, 16384), ("forward", "both")
BACKENDS: Mapping[str, Mapping[str, Any]] = {
    "sdpa": {},
    "inductor": {"backend": "inductor"},
    "inductor-max": {"backend": "inductor", "mode": "max-autotune-no-cudagraphs"},
    "litz": {"backend": "litz"},
    "litz-max": {"backend": "litz", "mode": "max-autotune-no-cudagraphs"},
}
"""What torch.compile gets, by name; "sdpa" is not compiled."""
LIBRARY = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
Modifier = Callable[..., Tensor]


@dataclass(frozen=True)
class Variant:
    """A kind of attention. score, mask: make a modifier of flex_attention's from the heads, the length and the device.
    group: query heads to a key head. library: SDPA has it, with is_causal or without."""

    score: Callable[[int, int, torch.device], Modifier] | None = None
    mask: Callable[[int, int, torch.device], Modifier] | None = None
    group: int = 1
    library: bool = False


def _causal(heads: int, length: int, device: torch.device) -> Modifier:
    return lambda b, h, q, k: q >= k


def _window(heads: int, length: int, device: torch.device) -> Modifier:
    return lambda b, h, q, k: (q >= k) & (q - k < WINDOW)


def _documents(heads: int, length: int, device: torch.device) -> Modifier:
    starts = torch.rand(length, generator=torch.Generator().manual_seed(1)) < 1 / DOCUMENT
    document = starts.cumsum(0).to(device)
    return lambda b, h, q, k: (q >= k) & (document[q] == document[k])


def _alibi(heads: int, length: int, device: torch.device) -> Modifier:
    slopes = torch.exp2(-8 * torch.arange(1, heads + 1, device=device) / heads)
    return lambda score, b, h, q, k: score + slopes[h] * (k - q)


def _soft_cap(heads: int, length: int, device: torch.device) -> Modifier:
    return lambda score, b, h, q, k: CAP * torch.tanh(score / CAP)


VARIANTS: Mapping[str, Variant] = {
    "full": Variant(library=True),
    "causal": Variant(mask=_causal, library=True),
    "window": Variant(mask=_window),
    "alibi": Variant(_alibi, _causal),
    "softcap": Variant(_soft_cap, _causal),
    "document": Variant(mask=_documents),
    "gqa": Variant(mask=_causal, group=4, library=True),
}


@dataclass
class Row:
    """One attention; figures by backend. flops: of unmasked blocks. library: the SDPA backend that was best."""

    variant: str
    dim: int
    length: int
    passes: str
    flops: float = 0.0
    ms: dict[str, float] = field(default_factory=dict)
    tflops: dict[str, float] = field(default_factory=dict)
    mib: dict[str, float] = field(default_factory=dict)
    error: dict[str, float] = field(default_factory=dict)
    first_call_s: dict[str, float] = field(default_factory=dict)
    library: str = ""
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.variant} d{self.dim} n{self.length} {self.passes}"


@dataclass(frozen=True)
class Case:
    """A row's tensors: query (batch, heads, length, dim), key and value with fewer heads, the output's gradient."""

    variant: Variant
    q: Tensor
    k: Tensor
    v: Tensor
    gradient: Tensor
    score: Modifier | None
    mask: Modifier | None
    blocks: BlockMask | None
    backward: bool

    @property
    def flops(self) -> float:
        """Of all blocks that are not all masked."""
        batch, heads, length, dim = self.q.shape
        blocks = math.ceil(length / BLOCK) ** 2
        if self.blocks is not None:
            partial, full = self.blocks.kv_num_blocks, self.blocks.full_kv_num_blocks
            blocks = int(partial.sum()) + (0 if full is None else int(full.sum()))
        return batch * heads * blocks * BLOCK**2 * 4 * dim * (3.5 if self.backward else 1)

    def step(self, attention: Callable[..., Tensor]) -> Callable[[], list[Tensor]]:
        """A call of an attention of query, key and value: its output and, with the backward, three gradients."""
        inputs = (self.q, self.k, self.v)

        def run() -> list[Tensor]:
            if not self.backward:
                with torch.no_grad():
                    return [attention(*inputs)]
            output = attention(*inputs)
            return [output.detach(), *torch.autograd.grad(output, inputs, self.gradient)]

        return run

    def flex(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """flex_attention, to be compiled."""
        enable = self.variant.group > 1
        return flex_attention(q, k, v, score_mod=self.score, block_mask=self.blocks, enable_gqa=enable)

    def sdpa(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """torch's scaled_dot_product_attention, where it has the variant."""
        causal, enable = self.mask is not None, self.variant.group > 1
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=enable)


def make_case(
    variant: Variant, dim: int, length: int, backward: bool, tokens: int, width: int, device: torch.device
) -> Case:
    """tokens: batch times length (one sequence at least); width: heads times head dim."""
    torch.manual_seed(0)
    heads, batch = max(variant.group, width // dim), max(1, tokens // length)
    size = (batch, heads // variant.group, length, dim)

    def randn(*size: int) -> Tensor:
        return torch.randn(*size, device=device).to(torch.bfloat16)

    q, k, v = randn(batch, heads, length, dim), randn(*size), randn(*size)
    score = variant.score(heads, length, device) if variant.score else None
    mask = variant.mask(heads, length, device) if variant.mask else None
    blocks = create_block_mask(mask, None, None, length, length, device=device, BLOCK_SIZE=BLOCK) if mask else None
    leaves = [t.requires_grad_(backward) for t in (q, k, v)]
    return Case(variant, *leaves, randn(*q.shape), score, mask, blocks, backward)


def reference(case: Case, rows: int = 1024) -> list[Tensor]:
    """What `Case.step` returns in float64, of the first sequence's first key head and its group of query heads; so many
    rows of scores at a time."""
    group, length = case.variant.group, case.q.shape[2]
    q, k, v = (t.detach()[0, : group if at == 0 else 1].double() for at, t in enumerate((case.q, case.k, case.v)))
    gradient = case.gradient[0, :group].double()
    k, v = k.requires_grad_(case.backward), v.requires_grad_(case.backward)
    zero, h = torch.zeros((), dtype=torch.int64, device=q.device), torch.arange(group, device=q.device)[:, None, None]
    columns = torch.arange(length, device=q.device)
    outputs, of_q, of_k, of_v = [], [], torch.zeros_like(k), torch.zeros_like(v)
    for start in range(0, length, rows):
        part = q[:, start : start + rows].requires_grad_(case.backward)
        at = torch.arange(start, min(start + rows, length), device=q.device)[:, None]
        scores = part @ k.transpose(1, 2) / math.sqrt(q.shape[2])
        if case.score is not None:
            scores = case.score(scores, zero, h, at, columns)
        if case.mask is not None:
            scores = scores.masked_fill(~case.mask(zero, h, at, columns), -math.inf)
        output = scores.softmax(-1) @ v
        outputs.append(output.detach())
        if case.backward:
            found = torch.autograd.grad(output, (part, k, v), gradient[:, start : start + rows])
            of_q.append(found[0])
            of_k += found[1]
            of_v += found[2]
    return [torch.cat(outputs, 1), *((torch.cat(of_q, 1), of_k, of_v) if case.backward else ())]


def distance(got: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The largest difference, of the largest value, of the worst tensor; `exact` has fewer sequences and heads."""
    found = [
        float((a[0, : b.shape[0]].double() - b).abs().max() / b.abs().max()) for a, b in zip(got, exact, strict=True)
    ]
    return math.nan if any(map(math.isnan, found)) else max(found)


def measure(row: Row, case: Case, backends: Sequence[str], seconds: float) -> None:
    """Fill in a row: every backend's first call, error and memory, and the times, in turn."""
    torch._dynamo.reset()
    device = case.q.device
    row.flops, exact = case.flops, reference(case)
    steps: dict[str, Step] = {}
    for name in backends:
        if name == "sdpa" and not case.variant.library:
            continue
        try:
            with torch.enable_grad():
                start = time.perf_counter()
                if name == "sdpa":
                    step = _best_library(row, case, seconds / 10)
                else:
                    step = case.step(torch.compile(case.flex, dynamic=False, **BACKENDS[name]))
                row.error[name] = distance(step(), exact)
                row.first_call_s[name] = time.perf_counter() - start
                row.mib[name] = _peak_mib(step, device)
                steps[name] = recorded(step) if device.type == "cuda" else step
        except Exception as problem:  # one backend's failure must not cost the others
            row.problems[name] = f"{type(problem).__name__}: {problem}".splitlines()[0][:200]
            traceback.print_exc(limit=3, file=sys.stderr)
    row.ms = in_turn(steps, device, seconds)
    row.tflops = {name: row.flops / (ms * 1e9) for name, ms in row.ms.items()}


def _best_library(row: Row, case: Case, seconds: float) -> Step:
    """The step under the fastest of torch's SDPA backends; whichever torch takes on the CPU."""
    step = case.step(case.sdpa)
    if case.q.device.type != "cuda":
        row.library = "any"
        return step
    steps: dict[str, Step] = {}
    for backend in LIBRARY:

        def under(backend: SDPBackend = backend) -> Any:
            with sdpa_kernel(backend):
                return step()

        try:
            under()
        except RuntimeError:  # it has no kernel for these sizes
            continue
        steps[backend.name.removesuffix("_ATTENTION").lower()] = under
    if not steps:
        raise RuntimeError("none of torch's SDPA backends takes this")
    times = in_turn(steps, case.q.device, seconds)
    row.library = min(times, key=lambda name: times[name])
    return steps[row.library]


def _peak_mib(step: Step, device: torch.device) -> float:
    if device.type != "cuda":
        return math.nan
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def rows(only: Sequence[str], dims: Sequence[int], lengths: Sequence[int]) -> list[Row]:
    """All rows that are asked for, in an order without a pattern that is always the same."""
    every = [Row(*key) for key in itertools.product(VARIANTS, dims, lengths, PASSES)]
    random.Random(0).shuffle(every)
    return [row for row in every if not only or any(set(text.split()) <= set(row.name.split()) for text in only)]


def line(row: Row, backends: Sequence[str]) -> list[str]:
    """A row of the table: a line for each backend, the name on the first."""
    found = []
    for name in backends:
        label = f"{row.name if not found else '':31}{name:13}"
        if name in row.problems:
            found += [label + "failed", f"    {row.problems[name]}"[:80]]
        elif name in row.ms:
            figures = f"{row.ms[name]:8.3f}{row.tflops[name]:7.1f}{row.mib[name]:8.0f}{row.error[name]:9.1e}"
            found.append(label + figures + (f" {row.library[:4]}" if name == "sdpa" else ""))
    return found


HEADER = f"{'variant, head dim, length':31}{'backend':13}{'ms':>8}{'TFLOPs':>7}{'MiB':>8}{'error':>9}"


def summary(found: Sequence[Row], backends: Sequence[str]) -> list[str]:
    """How many times as fast litz is as each other: geometric mean and worst row, by passes."""
    lines = []
    for ours in (name for name in backends if name.startswith("litz")):
        for other in (name for name in backends if not name.startswith("litz")):
            for passes in PASSES:
                pairs = [
                    (r.ms[other] / r.ms[ours], r) for r in found if r.passes == passes and {ours, other} <= set(r.ms)
                ]
                if pairs:
                    mean = math.exp(sum(math.log(ratio) for ratio, _ in pairs) / len(pairs))
                    worst, row = min(pairs, key=lambda pair: pair[0])
                    lines.append(
                        f"{ours} against {other}, {passes}: {mean:.3f} times ({len(pairs)}), "
                        f"worst {worst:.2f}: {row.variant} d{row.dim} n{row.length}"
                    )
    return lines


def as_record(row: Row) -> dict[str, Any]:
    """What a line of benchmarks/results has of a row (`benchmarks.record`)."""
    peers = {
        name: {
            "kernel_ms": ms, "tflops": row.tflops[name], "peak_mib": row.mib[name], "error": row.error[name],
            "cold_s": row.first_call_s.get(name),
        }
        for name, ms in row.ms.items()
    }  # fmt: skip
    case = f"{row.variant}, {row.dim}, {row.length}, {row.passes}"
    return {
        "task": "attention",
        "case": case,
        "dtype": "bfloat16",
        "peers": peers,
        "problems": row.problems,
        "note": row.library,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table, rows as soon as they are measured; write JSON to --out."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], help='rows that have all words of a text: "causal d128"')
    parser.add_argument("--dims", nargs="+", type=int, default=list(DIMS), help="head dims")
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS))
    parser.add_argument("--backends", nargs="+", choices=list(BACKENDS), default=["sdpa", "inductor", "litz"])
    parser.add_argument("--tokens", type=int, default=16384, help="batch times length")
    parser.add_argument("--width", type=int, default=2048, help="heads times head dim")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=1.0, help="of measuring per row, beside compiling")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no row after so many, and sum up")
    parser.add_argument("--out", help="write the figures to this file, as JSON")
    add_option(parser)
    args = parser.parse_args(argv)
    device, stop = torch.device(args.device), time.monotonic() + 60 * args.minutes
    facts = {"where": describe(device), "tokens": args.tokens, "width": args.width}
    print(f"{facts['where']}; {args.tokens} tokens, width {args.width}, bf16\n{HEADER}")
    record = recorder(args.json, "attention", device, argv, OWN_NAMES | {"sdpa": "library"})
    found: list[Row] = []
    for row in rows(args.only, args.dims, args.lengths):
        if time.monotonic() > stop:
            print("out of time")
            break
        backward = row.passes == "both"
        case = make_case(VARIANTS[row.variant], row.dim, row.length, backward, args.tokens, args.width, device)
        measure(row, case, args.backends, args.seconds)
        found.append(row)
        print("\n".join(line(row, args.backends)), flush=True)
        if args.out:
            Path(args.out).write_text(json.dumps({**facts, "rows": [asdict(row) for row in found]}, indent=1))
        record(**as_record(row))
        del case
        if device.type == "cuda":
            torch.cuda.empty_cache()
    print("\n".join(summary(found, args.backends)))


if __name__ == "__main__":
    main()
