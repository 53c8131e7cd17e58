"""Attention of few queries for the kernel that splits the keys: each as a function of what it is called with.

`python -m support.split_cases SHARD SHARDS` (with TRITON_INTERPRET=1) runs the kernels in Triton's interpreter against
float64 and prints, for each case, "" or what went wrong, as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.nn.attention.flex_attention import flex_attention as flex

from litz.ir import Program
from litz.pipeline import make_compiler, schedule_only
from litz.schedule.choices import substituted
from litz.target import target_named
from litz_contractions.attention.decode import choose_split, refuse, replacement
from litz_contractions.attention.in_place import InPlace, read_in_place
from litz_contractions.attention.operation import Attention
from litz_contractions.attention.tiles import Tiles
from support.interpreted import print_share
from support.retarget import cuda_schedules

aten = torch.ops.aten
Tensor = torch.Tensor
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def efficient(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, **kwargs: Any) -> Tensor:
    """What torch calls where there is a mask."""
    if bias is not None:
        bias = bias.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    causal = kwargs.pop("is_causal", False)
    return aten._scaled_dot_product_efficient_attention(q, k, v, bias, False, 0.0, causal, **kwargs)[0]


def flash(q: Tensor, k: Tensor, v: Tensor, **kwargs: Any) -> Tensor:
    return aten._scaled_dot_product_flash_attention(q, k, v, **kwargs)[0]


def cudnn(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, **kwargs: Any) -> Tensor:
    return aten._scaled_dot_product_cudnn_attention(q, k, v, bias, False, **kwargs)[0]


def repeated(x: Tensor, times: int) -> Tensor:
    return x.repeat_interleave(times, 1)


def expanded(x: Tensor, times: int) -> Tensor:
    batch, heads, keys, width = x.shape
    return x.unsqueeze(2).expand(batch, heads, times, keys, width).reshape(batch, heads * times, keys, width)


def as_bias(mask: Tensor, q: Tensor) -> Tensor:
    """As torch makes a bias of a mask."""
    return torch.where(mask, 0.0, float("-inf")).to(q.dtype)


def exactly(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, is_causal: bool = False, scale: float | None = None
) -> Tensor:
    """In float64. bias: may be a mask. Queries without a key get 0."""
    q, k, v = q.double(), k.double(), v.double()
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores.masked_fill(~bias, float("-inf")) if bias.dtype == torch.bool else scores + bias.double()
    if is_causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), float("-inf"))
    return torch.where(scores.isneginf().all(-1, True), 0.0, scores.softmax(-1)) @ v


Fn = Callable[..., Any]


SMALL = Tiles(16, 16, 4, 2, 3)


@dataclass(frozen=True)
class Case:
    """fn: of q, k, v and what else there is. sizes: batch, heads, heads of the key, queries, keys, width, and the
    value's. split: None for what is chosen. more: makes what comes after v. view: of q, k and v: how they come to lie.
    reference: `exactly`, of the same arguments. absorbs: how many operations the kernel takes over, None for any
    number (the lists of blocks that nobody asked for). dynamic: (tensor, dimension) of sizes that are symbols. on_cpu:
    captured there, as what it calls needs."""

    fn: Fn
    sizes: tuple[int, ...]
    split: Tiles | None = SMALL
    dtype: torch.dtype = F32
    more: Callable[[Tensor, Tensor], Sequence[Tensor]] = lambda q, k: ()
    view: Callable[[Tensor], Tensor] = lambda x: x
    reference: Fn = exactly
    absorbs: int | None = 0
    dynamic: Sequence[tuple[int, int]] = ()
    on_cpu: bool = False
    tolerance: float = 1e-5

    def tensors(self) -> list[Tensor]:
        batch, heads, shared, queries, keys, width, *out = self.sizes
        shapes = (heads, queries, width), (shared, keys, width), (shared, keys, out[0] if out else width)
        q, k, v = (torch.randn(batch, *shape).to(self.dtype) for shape in shapes)
        return [*map(self.view, (q, k, v)), *self.more(q, k)]

    def _in_order(self, *tensors: Tensor) -> Any:
        """A graph's inputs come in the order in which they are first used. Sizes are checked as torch's front door does
        that."""
        q, k, v = tensors[:3]
        torch._check(q.shape[0] == k.shape[0])
        torch._check(k.shape[0] == v.shape[0])
        torch._check(k.shape[2] == v.shape[2])
        return self.fn(*[tensor.view(tensor.shape) for tensor in tensors])

    def capture(self) -> tuple[Program, Attention]:
        """The CUDA program with the library call."""
        torch._dynamo.reset()
        with torch.device("cpu" if self.on_cpu else "meta"):
            tensors = self.tensors()
        # Without the plugin that chooses, the library call stays.
        options = {"disable_plugins": ("estimate", "autotune")}
        if self.on_cpu:
            for tensor, dim in self.dynamic:
                torch._dynamo.mark_dynamic(tensors[tensor], dim)
            compiler = make_compiler(None, options)
            (schedule,) = cuda_schedules(lambda own: torch.compile(self._in_order, backend=own)(*tensors), compiler)
        else:
            with FakeTensorMode(), torch.no_grad():
                fakes = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda") for t in tensors]
                for tensor, dim in self.dynamic:
                    torch._dynamo.mark_dynamic(fakes[tensor], dim)
                (schedule,) = schedule_only(self._in_order, fakes, options)
        (attention,) = (op for op in schedule.program.operations if isinstance(op, Attention))
        return schedule.program, attention

    def found(self) -> tuple[Program, Attention, InPlace]:
        program, attention = self.capture()
        found = read_in_place(attention, program)
        refuse(found.attention, attention, program)
        return program, attention, found

    def compiled(self) -> Program:
        """The CUDA program with the kernel."""
        return self.replaced()[-1]

    def replaced(self) -> tuple[Program, Attention, InPlace, Program]:
        """The program, its library call, what a kernel reads in place, and the program with the kernel."""
        program, attention, found = self.found()
        split = self.split or choose_split(found.attention, program, target_named("H100"))
        return program, attention, found, substituted(program, attention, replacement(attention, found, split, program))

    def check(self) -> str:
        """ "" or what is wrong with what the kernel computes, or with what it takes over: what nobody else needs."""
        from support.kernel_programs import run

        torch.manual_seed(0)
        tensors = self.tensors()
        before, attention, found, program = self.replaced()
        if self.absorbs not in (None, len(found.absorbs)):
            return f"takes over {found.absorbs}, should take over {self.absorbs}"
        kept = {operation.name for operation in before.operations} - {attention.name, *found.absorbs}
        if lost := kept - {operation.name for operation in program.operations}:
            return f"{sorted(lost)} are gone, which the kernel does not take over"
        (output,) = run(program, tensors)
        wanted = self.reference(*tensors)
        if output.shape != wanted.shape:
            return f"shape {tuple(output.shape)}, should be {tuple(wanted.shape)}"
        error = (output.double() - wanted).abs().max().item() / max(1e-9, wanted.abs().max().item())
        return "" if error <= self.tolerance else f"relative error {error:.2e}"


def _least(*size: int) -> Callable[[Tensor, Tensor], Sequence[Tensor]]:
    """A bias of 0 and of the least number there is, which is all that the second query has."""

    def made(q: Tensor, k: Tensor) -> Sequence[Tensor]:
        bias = torch.zeros(size).masked_fill(torch.rand(size) < 0.5, torch.finfo(torch.float32).min)
        bias[..., 1, :] = torch.finfo(torch.float32).min
        return (bias,)

    return made


def _bias(*size: int, dtype: torch.dtype | None = None) -> Callable[[Tensor, Tensor], Sequence[Tensor]]:
    return lambda q, k: (torch.randn(size).to(dtype or q.dtype),)


def _mask(*size: int, none: bool = False) -> Callable[[Tensor, Tensor], Sequence[Tensor]]:
    """none: the first query has no key."""

    def make(q: Tensor, k: Tensor) -> Sequence[Tensor]:
        mask = torch.rand(size) < 0.7
        if none:
            mask[0] = False
        return (mask,)

    return make


def masked(repeat: Callable[[Tensor, int], Tensor], times: int) -> Fn:
    """Keys and values repeated, and a mask made a bias."""

    def call(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        bias = as_bias(mask, q) if mask is not None and mask.dtype == torch.bool else mask
        return efficient(q, repeat(k, times), repeat(v, times), bias)

    return call


def _tilted(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return score + (k - q) * (h + 1) * 0.01


def _tilt(heads: int, queries: int, keys: int) -> Tensor:
    distance = torch.arange(keys)[None, None] - torch.arange(queries)[None, :, None]
    return distance * (torch.arange(heads)[:, None, None] + 1) * 0.01


HALF = 8e-3
BATCH, KEYS = ((0, 0), (1, 0), (2, 0)), ((1, 2), (2, 2))
CASES: Mapping[str, Case] = {
    "one": Case(efficient, (1, 1, 1, 1, 1, 16)),
    "plain": Case(efficient, (2, 3, 3, 1, 50, 32)),
    "whole-tiles": Case(efficient, (1, 2, 2, 1, 96, 32)),
    "one-part": Case(efficient, (2, 3, 3, 1, 50, 32), Tiles(16, 16, 4, 2, 1)),
    "one-part-dynamic": Case(efficient, (2, 3, 3, 1, 50, 32), Tiles(16, 16, 4, 2, 1), dynamic=KEYS),
    "many-parts": Case(masked(expanded, 2), (2, 4, 2, 3, 300, 256), Tiles(16, 16, 4, 2, 19), absorbs=2),
    "more-parts-than-keys": Case(efficient, (2, 2, 2, 1, 20, 32), Tiles(16, 16, 4, 2, 9)),
    "chosen": Case(efficient, (1, 4, 4, 1, 300, 64), None),
    "bf16": Case(efficient, (1, 2, 2, 1, 70, 64), dtype=BF16, tolerance=HALF),
    "f16": Case(efficient, (1, 2, 2, 1, 70, 64), dtype=F16, tolerance=HALF),
    "odd-width": Case(efficient, (2, 2, 2, 2, 37, 24, 40)),
    "few-queries": Case(efficient, (1, 3, 3, 5, 37, 16)),
    "scale": Case(
        lambda q, k, v: efficient(q, k, v, scale=0.3), (1, 2, 2, 1, 37, 16), reference=lambda *t: exactly(*t, scale=0.3)
    ),
    "causal": Case(
        lambda q, k, v: efficient(q, k, v, is_causal=True),
        (1, 2, 2, 5, 37, 16),
        reference=lambda *t: exactly(*t, is_causal=True),
    ),
    "flash": Case(flash, (2, 4, 2, 1, 37, 16), dtype=F16, tolerance=HALF),
    "flash-causal": Case(
        lambda q, k, v: flash(q, k, v, is_causal=True),
        (1, 4, 2, 6, 6, 16),
        dtype=F16,
        tolerance=HALF,
        reference=lambda *t: exactly(*t, is_causal=True),
    ),
    "cudnn-bias": Case(cudnn, (2, 4, 2, 3, 37, 16), dtype=F16, tolerance=HALF, more=_bias(3, 37)),
    "bias": Case(efficient, (2, 3, 3, 2, 37, 16), more=_bias(2, 3, 2, 37)),
    "bias-row": Case(efficient, (2, 3, 3, 2, 37, 16), more=_bias(37)),
    "bias-of-heads": Case(efficient, (2, 3, 3, 2, 37, 16), more=_bias(3, 1, 1)),
    "bias-sliced": Case(
        lambda q, k, v, b: efficient(q, k, v, b.narrow(-1, 3, 37)),
        (2, 3, 3, 2, 37, 16),
        more=_bias(2, 1, 2, 48),
        reference=lambda q, k, v, b: exactly(q, k, v, b[..., 3:40]),
    ),
    # As torch aligns what it makes of a mask.
    "bias-padded": Case(
        lambda q, k, v, m: efficient(q, k, v, torch.nn.functional.pad(as_bias(m, q), (0, 11)).narrow(-1, 0, 37)),
        (2, 3, 3, 2, 37, 16),
        more=_mask(2, 1, 2, 37),
        absorbs=1,
    ),
    "bias-computed": Case(
        lambda q, k, v, b: efficient(q, k, v, b.cos() * 2),
        (2, 3, 3, 2, 37, 16),
        more=_bias(2, 1, 2, 37),
        reference=lambda q, k, v, b: exactly(q, k, v, b.cos() * 2),
        absorbs=1,
    ),
    "bias-least": Case(efficient, (2, 2, 2, 3, 48, 16), more=_least(2, 1, 3, 48)),
    "bias-infinite": Case(
        lambda q, k, v, m: efficient(q, k, v, as_bias(m, q)), (2, 2, 2, 3, 37, 16), more=_mask(2, 1, 3, 37), absorbs=1
    ),
    "no-key": Case(
        lambda q, k, v, m: efficient(q, k, v, as_bias(m, q)),
        (2, 2, 2, 3, 37, 16),
        more=_mask(2, 1, 3, 37, none=True),
        absorbs=1,
    ),
    "no-key-one-part": Case(
        lambda q, k, v, m: efficient(q, k, v, as_bias(m, q)),
        (2, 2, 2, 3, 37, 16),
        Tiles(16, 16, 4, 2, 1),
        more=_mask(2, 1, 3, 37, none=True),
        absorbs=1,
    ),
    "group": Case(masked(repeated, 4), (2, 8, 2, 1, 37, 16), absorbs=2),
    "group-expanded": Case(masked(expanded, 4), (2, 8, 2, 1, 37, 16), absorbs=2),
    "group-of-queries": Case(masked(expanded, 3), (2, 6, 2, 5, 37, 16), absorbs=2),
    "group-mask": Case(masked(repeated, 4), (2, 8, 2, 1, 37, 16), more=_mask(2, 1, 1, 37), absorbs=3),
    "group-mask-bf16": Case(
        masked(repeated, 4), (1, 8, 2, 1, 70, 64), dtype=BF16, tolerance=HALF, more=_mask(70), absorbs=3
    ),
    "group-one-head": Case(masked(repeated, 6), (2, 6, 1, 1, 37, 16), absorbs=2),
    "group-one-batch": Case(masked(repeated, 2), (1, 4, 2, 1, 37, 16), absorbs=2),
    "group-dynamic": Case(masked(expanded, 4), (2, 8, 2, 1, 37, 16), absorbs=2, dynamic=BATCH + KEYS),
    "mask-of-keys-dynamic": Case(
        lambda q, k, v, m: efficient(q, k, v, as_bias(m, q)),
        (2, 2, 2, 3, 37, 16),
        more=_mask(37),
        absorbs=1,
        dynamic=(*KEYS, (3, 0)),
    ),
    "group-mask-dynamic": Case(
        masked(expanded, 4),
        (2, 8, 2, 1, 37, 16),
        more=_mask(2, 1, 1, 37),
        absorbs=3,
        dynamic=(*BATCH, *KEYS, (3, 0), (3, 3)),
    ),
    "cache": Case(  # (batch, keys, heads, width), as some caches lie
        masked(expanded, 4),
        (2, 8, 2, 1, 37, 16),
        view=lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        absorbs=2,
    ),
    "cache-slice": Case(
        lambda q, k, v: masked(expanded, 4)(q, k.narrow(2, 5, 25), v.narrow(2, 5, 25)),
        (2, 8, 2, 1, 37, 16),
        reference=lambda q, k, v: exactly(q, k[:, :, 5:30], v[:, :, 5:30]),
        absorbs=2,
    ),
    "flex": Case(
        lambda q, k, v: flex(q, k, v, score_mod=_tilted, enable_gqa=True),
        (2, 8, 2, 1, 37, 16),
        reference=lambda q, k, v: exactly(q, k, v, _tilt(8, 1, 37)),
        on_cpu=True,
        absorbs=None,
    ),
    "flex-dynamic": Case(
        lambda q, k, v: flex(q, k, v, score_mod=_tilted, enable_gqa=True),
        (2, 8, 2, 3, 37, 16),
        reference=lambda q, k, v: exactly(q, k, v, _tilt(8, 3, 37)),
        dynamic=KEYS,
        on_cpu=True,
        absorbs=None,
    ),
    **{
        f"float8-{name}-{str(stored)[-4:]}": Case(
            lambda q, k, v: masked(expanded, 4)(q, k.to(q.dtype), v.to(q.dtype)),
            (2, 8, 2, 1, 37, 16),
            dtype=dtype,
            tolerance=HALF,
            view=lambda x, stored=stored: x.to(stored) if x.shape[2] > 1 else x,
            absorbs=2,
        )
        for name, dtype, stored in (
            ("bf16", BF16, torch.float8_e4m3fn),
            ("f16", F16, torch.float8_e5m2),
            ("f32", F32, torch.float8_e4m3fn),
        )
    },
    "narrowed": Case(
        lambda q, k, v: efficient(q, k.to(F16), v.to(F16)).float(),
        (1, 2, 2, 1, 37, 16),
        dtype=F16,
        tolerance=HALF,
        view=lambda x: x.float() if x.shape[2] > 1 else x,
        absorbs=2,
    ),
}


if __name__ == "__main__":
    print_share(CASES)
