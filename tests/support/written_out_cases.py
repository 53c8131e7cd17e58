"""Attention that is written out as products and a softmax, for core's kernel: each case as a function and its inputs.

`python -m support.written_out_cases SHARD SHARDS` (with TRITON_INTERPRET=1) runs the kernels in Triton's interpreter
against float64 and prints, for each case, "" or what went wrong, as JSON: where float64 is NaN the kernel is, and its
error is at most eager's (or float32's rounding).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from litz.ir import KernelCall, Program, Template
from litz.pipeline import make_compiler
from litz.schedule.choices import substituted
from litz_contractions.attention.offer import plan_of, written_replacement
from litz_contractions.attention.plan import AttentionPlan
from litz_contractions.attention.tiles import Tiles
from litz_contractions.attention.written_out import WrittenOut, find_written_out
from litz_contractions.module import Unsuitable
from support.attention_matrix import ORDINARY, operands
from support.interpreted import print_share
from support.kernel_programs import run
from support.retarget import cuda_schedules

SMALL = Tiles(32, 16, 4, 2)
LOW = torch.finfo(torch.float32).min
Inputs = Callable[[], tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Case:
    """function: of query, key, value and whatever else `make` gives. tolerance: of results about 1, beside eager's own
    error. loads: buffers that the kernel reads, where that is checked."""

    function: Callable[..., torch.Tensor]
    make: Inputs = ORDINARY
    dynamic: bool = False
    tolerance: float = 2e-6
    loads: int = 0

    @functools.cache  # noqa: B019  several tests look at a case, which lives as long as its module
    def captured(self) -> tuple[Program, list[Any]]:
        """The CUDA program as it was captured, and its inputs."""
        torch._dynamo.reset()
        compiler = make_compiler(None, {"disable_plugins": ("autotune", "estimate")})
        torch.manual_seed(0)
        tensors, called = self.make(), list[list[Any]]()

        for tensor in tensors[:3] if self.dynamic else ():
            torch._dynamo.mark_static(tensor, 1)  # heads and widths, as in models
            torch._dynamo.mark_static(tensor, 3)

        def compiled(backend: Any) -> None:
            with torch.no_grad():
                torch.compile(self.function, backend=backend, dynamic=self.dynamic, fullgraph=True)(*tensors)

        (schedule,) = cuda_schedules(compiled, compiler, called=called)
        return schedule.program, [item for item in called[0] if isinstance(item, torch.Tensor)]

    def found(self) -> tuple[Program, Template, WrittenOut, AttentionPlan]:
        program, _ = self.captured()
        return program, *attention_of(program)

    def programs(self) -> tuple[Program, Program, list[Any]]:
        """As it was captured, the same with the kernel, and the inputs."""
        program, given = self.captured()
        first, found, plan = attention_of(program)
        return program, substituted(program, first, written_replacement(first, found, plan, SMALL, program)), given

    def kernel(self) -> KernelCall:
        (call,) = (op for op in self.programs()[1].operations if isinstance(op, KernelCall))
        return call

    def check(self) -> str:
        """ "" or what is wrong with what the kernel computes."""
        _, program, given = self.programs()
        (output,) = run(program, given)
        torch.manual_seed(0)
        tensors = self.make()
        exact = self.function(*(x.double() if x.is_floating_point() else x for x in tensors))
        eager = self.function(*tensors)
        if not torch.equal(output.isnan(), exact.isnan()):
            return f"{int(output.isnan().sum())} elements are NaN, in float64 {int(exact.isnan().sum())}"
        # Some processors' products of bfloat16 have NaN in rows beside one of NaN: eager's error is that of the others.
        errors = [(x.double() - exact).where(~eager.isnan() & ~exact.isnan(), 0.0) for x in (output, eager)]
        (most, usual), (theirs, usually) = ((e.abs().max().item(), e.square().mean().sqrt().item()) for e in errors)
        # Of one rounding each the greatest may be that of either; the interpreter cuts bfloat16 off.
        worse = 2.0 if eager.dtype == torch.bfloat16 else 1.02
        if not (most <= max(2 * theirs, self.tolerance) and usual <= max(worse * usually, self.tolerance)):
            return f"errors up to {most:.2e}, usually {usual:.2e}; eager's {theirs:.2e} and {usually:.2e}"
        (call,) = (op for op in program.operations if isinstance(op, KernelCall))
        pointers = len(call.source.settings["pointers"])
        return f"{pointers} pointers" if self.loads and pointers != self.loads + 1 else ""


def attention_of(program: Program) -> tuple[Template, WrittenOut, AttentionPlan]:
    """The program's one attention that is written out. Unsuitable where there is none."""
    why = Unsuitable("no product makes scores")
    for first in [op for op in program.operations if isinstance(op, Template)]:
        try:
            found = find_written_out(first, program)
        except Unsuitable as error:
            why = error if str(error) else why
            continue
        return first, found, plan_of(found, program, False)
    raise why


def scores(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return query @ key.transpose(-1, -2)


def plain(query: Any, key: Any, value: Any) -> torch.Tensor:
    return F.softmax(scores(query, key) / math.sqrt(query.shape[-1]), dim=-1) @ value


def unscaled(query: Any, key: Any, value: Any) -> torch.Tensor:
    return scores(query, key).softmax(-1) @ value


def dropout(query: Any, key: Any, value: Any) -> torch.Tensor:
    return F.dropout(F.softmax(scores(query, key) * 0.3, dim=-1), 0.0, training=False) @ value


def in_float32(query: Any, key: Any, value: Any, bias: Any) -> torch.Tensor:
    weights = F.softmax(scores(query, key) * 0.25 + bias, dim=-1, dtype=torch.float32)
    return weights.to(query.dtype) @ value


def float_scores(query: Any, key: Any, value: Any) -> torch.Tensor:
    weights = F.softmax(scores(query, key).float() * 0.25, dim=-1)
    return weights.to(query.dtype) @ value


def filled(query: Any, key: Any, value: Any, mask: Any) -> torch.Tensor:
    return scores(query, key).mul(0.25).masked_fill(~mask, -math.inf).softmax(-1) @ value


def filled_low(query: Any, key: Any, value: Any, mask: Any) -> torch.Tensor:
    raw = scores(query, key) * 0.25
    return torch.where(mask, raw, torch.full([], torch.finfo(raw.dtype).min, dtype=raw.dtype)).softmax(-1) @ value


def added_low(query: Any, key: Any, value: Any, mask: Any, least: float | None = None) -> torch.Tensor:
    raw = scores(query, key) * 0.25
    lowest = torch.finfo(raw.dtype).min if least is None else least
    bias = torch.zeros_like(mask, dtype=raw.dtype).masked_fill(~mask, lowest)
    return (raw + bias).softmax(-1) @ value


def in_pieces(query: Any, key: Any, value: Any, mask: Any = None, **given: Any) -> torch.Tensor:
    """torch's own attention where it has no fused kernel: in float32, and 0 for a row without a key."""
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, **given)


def in_pieces_merged(query: Any, key: Any, value: Any, mask: Any) -> torch.Tensor:
    """As models put heads together afterwards; the mask is expanded."""
    open_ = (torch.arange(query.shape[2], device=query.device)[:, None] >= 0).expand(query.shape[2], key.shape[2])
    return in_pieces(query, key, value, mask & open_).transpose(1, 2).flatten(2)


def in_pieces_joined(query: Any, key: Any, value: Any) -> torch.Tensor:
    """The result is a part of what else is written."""
    return torch.cat((in_pieces(query, key, value).transpose(1, 2), value.transpose(1, 2)), 1)


def in_pieces_biased(query: Any, key: Any, value: Any, bias: Any) -> torch.Tensor:
    return in_pieces(query, key, value, bias, scale=0.3)


def in_pieces_causal(query: Any, key: Any, value: Any) -> torch.Tensor:
    return in_pieces(query, key, value, is_causal=True)


def in_pieces_summed(query: Any, key: Any, value: Any) -> torch.Tensor:
    """A sum of two before any rounding: nothing to be narrowed."""
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(query.float(), key.float(), value.float())


def added_half(query: Any, key: Any, value: Any, mask: Any) -> torch.Tensor:
    """float16's least number, in float64 too: a score that is added to it is not lost there."""
    return added_low(query, key, value, mask, torch.finfo(torch.float16).min)


def places(query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions of queries, as a column, and of keys."""
    rows, keys = (torch.arange(x.shape[-2], device=query.device) for x in (query, key))
    return rows[:, None], keys


def causal(query: Any, key: Any, value: Any) -> torch.Tensor:
    mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    return scores(query, key).masked_fill(~mask, -math.inf).mul(0.25).softmax(-1) @ value


def causal_low(query: Any, key: Any, value: Any) -> torch.Tensor:
    rows, keys = places(query, key)
    at = rows >= keys
    raw = scores(query, key) * 0.25
    return (raw + torch.zeros_like(raw).masked_fill(~at, torch.finfo(raw.dtype).min)).softmax(-1) @ value


def causal_padded(query: Any, key: Any, value: Any, seen: Any) -> torch.Tensor:
    """As Llama has it with texts that begin later: rows before that see nothing, and all keys count the same."""
    rows, keys = places(query, key)
    at = rows >= keys
    raw = scores(query, key) * 0.25
    bias = torch.where(at & seen[:, None, None, :], 0.0, torch.finfo(torch.bfloat16).min).to(raw.dtype)
    return (raw + bias).softmax(-1) @ value


def causal_where(query: Any, key: Any, value: Any) -> torch.Tensor:
    """As GPT-2 had it."""
    rows, keys = places(query, key)
    at = rows >= keys
    raw = scores(query, key) * 0.25
    return torch.where(at, raw, raw.new_full([], torch.finfo(raw.dtype).min)).softmax(-1) @ value


def late(tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Texts that begin at 0 and at 21."""
    found = torch.ones(tensors[0].shape[0], tensors[1].shape[-2], dtype=torch.bool)
    found[1, :21] = False
    return found


def soft_cap(query: Any, key: Any, value: Any) -> torch.Tensor:
    return (torch.tanh(scores(query, key) * 0.25 / 5) * 5).softmax(-1) @ value


def t5(query: Any, key: Any, value: Any, table: Any) -> torch.Tensor:
    """A bias by relative position, of buckets, which is computed in the graph."""
    rows, keys = places(query, key)
    away = keys - rows
    bias = F.embedding(away.clamp(-7, 7) + 7, table).permute(2, 0, 1)
    return F.softmax((scores(query, key) + bias).float(), dim=-1).type_as(query) @ value


def deberta(query: Any, key: Any, value: Any, positions: Any, mask: Any) -> torch.Tensor:
    """Contents to positions and positions to contents, gathered."""
    rows, keys = places(query, key)
    place = ((rows - keys).clamp(-8, 7) + 8).expand(*query.shape[:2], -1, -1)
    raw = scores(query, key)
    raw = raw + torch.gather(query @ positions.transpose(-1, -2), -1, place)
    raw = raw + torch.gather(key @ positions.transpose(-1, -2), -1, place.transpose(-1, -2)).transpose(-1, -2)
    return (raw / math.sqrt(3 * query.shape[-1])).masked_fill(~mask, LOW).softmax(-1) @ value


def grouped(query: Any, key: Any, value: Any) -> torch.Tensor:
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    return (scores(query, key) * 0.25).softmax(-1) @ value


def from_linear(hidden: Any, weight: Any) -> torch.Tensor:
    """Heads of what linear layers give, as models have it."""
    query, key, value = (part.unflatten(-1, (4, 16)).transpose(1, 2) for part in (hidden @ weight).chunk(3, -1))
    return ((scores(query, key) * 0.25).softmax(-1) @ value).transpose(1, 2).flatten(2)


def flat(query: Any, key: Any, value: Any) -> torch.Tensor:
    """Batch and heads as one dimension."""
    return torch.bmm(torch.bmm(query, key.transpose(1, 2)).mul(0.25).softmax(-1), value)


def matrix(query: Any, key: Any, value: Any) -> torch.Tensor:
    return (query @ key.t() * 0.25).softmax(-1) @ value


def by_hand(query: Any, key: Any, value: Any) -> torch.Tensor:
    """The softmax too."""
    raw = scores(query, key) * 0.25
    weights = (raw - raw.amax(-1, keepdim=True)).exp()
    return (weights / weights.sum(-1, keepdim=True)) @ value


def with_more(make: Inputs, *more: Callable[[tuple[torch.Tensor, ...]], torch.Tensor]) -> Inputs:
    """The same, and what is made of it."""

    def made() -> tuple[torch.Tensor, ...]:
        tensors = make()
        return (*tensors, *(each(tensors) for each in more))

    return made


def mask(holes: bool = False, rows: bool = False) -> Callable[[tuple[torch.Tensor, ...]], torch.Tensor]:
    """Of half of the pairs. holes: none of some tiles of keys. rows: none of some rows."""

    def made(tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
        found = torch.rand(tensors[0].shape[-2], tensors[1].shape[-2]) < 0.5
        found[:, -1] = True
        if holes:
            found[:, :33] = False
        if rows:
            found[3] = found[-1] = False
        return found

    return made


def bias(*size: int) -> Callable[[tuple[torch.Tensor, ...]], torch.Tensor]:
    return lambda tensors: torch.randn(*size).to(tensors[0].dtype)


BF16, FP16 = torch.bfloat16, torch.float16

CASES: Mapping[str, Case] = {
    "plain": Case(plain, loads=3),
    "plain-even": Case(plain, operands(queries=64, keys=48)),
    "plain-bf16": Case(plain, operands(dtype=BF16)),
    "plain-fp16": Case(plain, operands(dtype=FP16)),
    "unscaled": Case(unscaled),
    "dropout-of-nothing": Case(dropout, loads=3),
    "in-float32": Case(in_float32, with_more(operands(dtype=BF16), bias(2, 1, 1, 50)), loads=4),
    "in-float32-fp16": Case(in_float32, with_more(operands(dtype=FP16), bias(1, 2, 40, 50)), loads=4),
    "float-scores": Case(float_scores, operands(dtype=BF16), loads=3),
    "filled": Case(filled, with_more(operands(), mask())),
    "filled-holes": Case(filled, with_more(operands(), mask(holes=True))),
    "filled-rows-are-nan": Case(filled, with_more(operands(), mask(rows=True))),
    "filled-rows-are-nan-bf16": Case(filled, with_more(operands(dtype=BF16), mask(rows=True, holes=True))),
    "filled-low": Case(filled_low, with_more(operands(), mask(holes=True))),
    "filled-low-rows-are-even": Case(filled_low, with_more(operands(), mask(rows=True, holes=True))),
    "filled-low-rows-bf16": Case(filled_low, with_more(operands(dtype=BF16), mask(rows=True, holes=True))),
    "added-low-rows": Case(added_low, with_more(operands(), mask(rows=True, holes=True))),
    "added-low-rows-fp16": Case(added_half, with_more(operands(dtype=FP16), mask(rows=True, holes=True))),
    "pieces": Case(in_pieces, operands(dtype=FP16), loads=3),
    "pieces-bf16": Case(in_pieces, operands(dtype=BF16), loads=3),
    "pieces-mask": Case(in_pieces, with_more(operands(dtype=FP16), mask(rows=True, holes=True)), loads=4),
    "pieces-merged": Case(in_pieces_merged, with_more(operands(dtype=FP16), mask(rows=True)), loads=4),
    "pieces-merged-bf16": Case(in_pieces_merged, with_more(operands(dtype=BF16), mask(rows=True)), loads=4),
    "pieces-joined": Case(in_pieces_joined, operands(dtype=FP16)),
    "pieces-bias": Case(in_pieces_biased, with_more(operands(dtype=FP16), bias(2, 1, 40, 50)), loads=4),
    "pieces-causal": Case(in_pieces_causal, operands(queries=64, keys=64, dtype=FP16), loads=3),
    "pieces-float32": Case(in_pieces, with_more(operands(), mask(rows=True))),
    "pieces-kept": Case(in_pieces_summed, operands(dtype=FP16)),
    "added-low-rows-bf16": Case(added_low, with_more(operands(dtype=BF16), mask(rows=True, holes=True))),
    "causal": Case(causal, loads=3),
    "causal-more-keys": Case(causal, operands(queries=33, keys=70)),
    "causal-low": Case(causal_low, loads=3),
    "causal-low-bf16": Case(causal_low, operands(dtype=BF16), loads=3),
    "causal-low-even": Case(causal_low, operands(queries=64, keys=64)),
    "causal-low-more-queries": Case(causal_low, operands(queries=70, keys=33)),
    "causal-padded": Case(causal_padded, with_more(operands(queries=64, keys=64), late)),
    "causal-padded-odd": Case(causal_padded, with_more(operands(), late)),
    "causal-padded-bf16": Case(causal_padded, with_more(operands(dtype=BF16), late)),
    "causal-where": Case(causal_where),
    "causal-where-fp16": Case(causal_where, operands(dtype=FP16)),
    "dynamic-causal-padded": Case(causal_padded, with_more(operands(), late), dynamic=True),
    "soft-cap": Case(soft_cap, tolerance=5e-6, loads=3),
    "t5": Case(t5, with_more(operands(heads=4), bias(15, 4))),
    "t5-bf16": Case(t5, with_more(operands(heads=4, dtype=BF16), bias(15, 4))),
    "deberta": Case(deberta, with_more(operands(), bias(2, 16, 16), mask(rows=True))),
    "grouped": Case(grouped, operands(heads=4, shared=2), loads=3),
    "from-linear": Case(from_linear, lambda: (torch.randn(2, 40, 32), torch.randn(32, 192) * 0.3), tolerance=2e-5),
    "one-batch": Case(plain, operands(batch=1)),
    "one-head": Case(plain, operands(heads=1)),
    "one-batch-one-head": Case(plain, operands(batch=1, heads=1)),
    "flat": Case(flat, lambda: tuple(x.flatten(0, 1) for x in operands()())),
    "matrix": Case(matrix, lambda: tuple(x[0, 0] for x in operands()())),
    "by-hand": Case(by_hand),
    "odd-widths": Case(plain, operands(width=24, value_width=40)),
    "dynamic": Case(plain, dynamic=True),
    "dynamic-filled": Case(filled, with_more(operands(), mask(rows=True)), dynamic=True),
    "dynamic-causal": Case(causal, dynamic=True),
    "dynamic-grouped": Case(grouped, operands(heads=4, shared=2), dynamic=True),
}


if __name__ == "__main__":
    print_share(CASES)

__all__ = ["CASES", "Case", "attention_of"]
