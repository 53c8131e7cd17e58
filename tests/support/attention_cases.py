"""Attention for core's kernel: each case as a function, its inputs and tiles.

`python -m support.attention_cases SHARD SHARDS` (with TRITON_INTERPRET=1) runs the kernels in Triton's interpreter
against float64 and prints, for each case, "" or what went wrong, as JSON.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._higher_order_ops.flex_attention import math_attention
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from litz.ir import KernelCall, Program, TensorRef
from litz.pipeline import make_compiler
from litz.schedule.choices import Replacement, substituted
from litz_contractions.attention.offer import kernel_call, written
from litz_contractions.attention.operation import Attention
from litz_contractions.attention.plan import make_plan
from litz_contractions.attention.tiles import Tiles
from support.eager_attention import untraced
from support.gemm_cases import run
from support.interpreted import print_share
from support.retarget import cuda_schedules

warnings.filterwarnings("ignore", message=".*flex_attention called without torch.compile.*")
SMALL = Tiles(32, 16, 4, 2)
TALL = Tiles(16, 32, 4, 2)
HALF = 8e-3

Make = Callable[[], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def operands(
    batch: int = 2,
    heads: int = 2,
    queries: int = 40,
    keys: int = 50,
    width: int = 16,
    value_width: int | None = None,
    shared: int = 1,
    key_batch: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Make:
    """Query, key and value. shared: heads of the query that share one of the key."""

    def make() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        others = (key_batch or batch, heads // shared, keys)
        sizes = (batch, heads, queries, width), (*others, width), (*others, value_width or width)
        query, key, value = (torch.randn(size).to(dtype) for size in sizes)
        return query, key, value

    return make


ORDINARY = operands()


def transposed(make: Make) -> Make:
    """The same with heads behind positions in memory, as a linear layer leaves them."""

    def made() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        query, key, value = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in make())
        return query, key, value

    return made


def packed(make: Make) -> Make:
    """The same as slices of one tensor."""

    def made() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        query, key, value = torch.stack(make(), 3).unbind(3)
        return query, key, value

    return made


@dataclass(frozen=True)
class Case:
    """What flex_attention is given. mask, block, per_batch, per_head: of the BlockMask. lse: is the logsumexp a result?
    most: are the maxima checked, which flex_attention does not return on a CPU? listed: are the mask's blocks for the
    kernel to look at?"""

    make: Make = ORDINARY
    score_mod: Callable[..., torch.Tensor] | None = None
    mask: Callable[..., torch.Tensor] | None = None
    block: int | tuple[int, int] = 32
    tiles: Tiles = SMALL
    dynamic: bool = False
    lse: bool = False
    most: bool = False
    tolerance: float = 2e-6
    scale: float | None = None
    per_head: bool = False
    per_batch: bool = False
    listed: bool = True

    def block_mask(self) -> BlockMask | None:
        if self.mask is None:
            return None
        query, key, _ = self.make()
        batch, heads = (query.shape[0] if self.per_batch else None), (query.shape[1] if self.per_head else None)
        sizes = (batch, heads, query.shape[2], key.shape[2])
        return create_block_mask(self.mask, *sizes, device="cpu", BLOCK_SIZE=self.block)

    def function(self) -> Callable[..., Any]:
        block_mask, lse = self.block_mask(), self.lse

        def f(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
            given = {"score_mod": self.score_mod, "block_mask": block_mask, "scale": self.scale}
            gqa = query.shape[1] != key.shape[1]
            return flex_attention(query, key, value, return_lse=lse, enable_gqa=gqa, **given)

        return f

    def programs(self) -> tuple[Program, Program, list[torch.Tensor]]:
        """The CUDA program as it was captured, the same with the kernel in place of the library call, and its inputs,
        captured tensors among them."""
        torch._dynamo.reset()
        compiler = make_compiler(None, {"disable_plugins": ("autotune", "estimate")})
        torch.manual_seed(0)
        tensors, fn, called = self.make(), self.function(), list[list[Any]]()

        def compiled(backend: Any) -> Any:
            return torch.compile(fn, backend=backend, dynamic=self.dynamic)(*tensors)

        (schedule,) = cuda_schedules(compiled, compiler, called=called)
        program = schedule.program
        (attention,) = (op for op in program.operations if isinstance(op, Attention))
        if not self.listed:
            program, attention = unlisted(program, attention)
        if self.most:
            name = str(attention.outputs[2])
            program = replace(program, outputs=(*program.outputs, TensorRef(name, program.buffers[name].layout)))
        plan = make_plan(attention, program, written(attention, program), False)
        replaced = substituted(program, attention, Replacement((kernel_call(plan, self.tiles),)))
        return program, replaced, [item for item in called[0] if isinstance(item, torch.Tensor)]

    def kernel(self) -> KernelCall:
        (call,) = (op for op in self.programs()[1].operations if isinstance(op, KernelCall))
        return call

    def maxima(self, *tensors: torch.Tensor) -> torch.Tensor:
        """In powers of 2, as the op gives them."""
        blocks = self.block_mask() or create_block_mask(lambda b, h, q, k: q >= 0, None, None, 1, 1, device="cpu")
        score_mod = self.score_mod or (lambda score, b, h, q, k: score)
        scale = tensors[0].shape[-1] ** -0.5 if self.scale is None else self.scale
        return math_attention(*tensors, score_mod, blocks.as_tuple(), scale, {})[2]

    def check(self) -> str:
        """ "" or what is wrong with what the kernel computes."""
        _, program, given = self.programs()
        outputs = run(program, given)
        torch.manual_seed(0)
        tensors = self.make()
        exact = [tensor.double() for tensor in tensors]
        with untraced():
            expected = self.function()(*exact)
        expected = expected if isinstance(expected, (tuple, list)) else (expected,)
        if self.most:
            expected = (*expected, self.maxima(*exact))
        for number, (output, wanted) in enumerate(zip(outputs, expected, strict=True)):
            if output.shape != wanted.shape:
                return f"output {number} has shape {tuple(output.shape)}, should have {tuple(wanted.shape)}"
            if not torch.equal(output.isinf(), wanted.isinf()):
                return f"output {number} is infinite elsewhere"
            error = (output.double() - wanted).where(wanted.isfinite(), 0.0).abs().max().item()
            scale = wanted.where(wanted.isfinite(), 0.0).abs().max().item()
            if not error <= self.tolerance * max(scale, 1.0):
                return f"output {number}: error {error:.2e} of {scale:.2e}"
        return ""


def unlisted(program: Program, attention: Attention) -> tuple[Program, Attention]:
    """The same attention with a mask, and no list of blocks."""
    bare = replace(attention, blocks=None)
    operations = tuple(bare if op is attention else op for op in program.operations)
    return replace(program, operations=operations), bare


SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
TABLE = torch.randn(4, 200, generator=torch.Generator().manual_seed(1))
DOCUMENTS = torch.tensor([0] * 7 + [1] * 20 + [2] * 30 + [0] * 20)
LENGTHS = torch.tensor([33, 0, 1, 50])


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def window(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q - k).abs() <= 5


def document(b: Any, h: Any, q: Any, k: Any) -> Any:
    return DOCUMENTS[q] == DOCUMENTS[k]


def padding(b: Any, h: Any, q: Any, k: Any) -> Any:
    """A batch without any key among them."""
    return k < LENGTHS[b]


def far(b: Any, h: Any, q: Any, k: Any) -> Any:
    """Windows that end before and begin behind some queries' keys: rows without a key."""
    return (k - q >= 20) & (k < 45) & (h >= 0)


def near(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q - k < 7) & (q + 3 >= k)


def prefix(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (k < 9) | (q >= k)


def alibi(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + SLOPES[h] * (k - q)


def relative(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + TABLE[h, q - k + 100]


def soft_cap(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.tanh(score / 20) * 20


def masked_by_score(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.where(q >= k, score, -float("inf"))


def least_by_score(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """Tiles of nothing but masked keys come before others, and rows of nothing else have even weights."""
    return torch.where((k >= 33) & (q != 3), score, torch.finfo(torch.float32).min)


LEAST_BIAS = torch.zeros(77).index_fill(0, torch.arange(33), torch.finfo(torch.float32).min)


def least_by_bias(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + LEAST_BIAS[k]


CASES: Mapping[str, Case] = {
    "plain": Case(),
    "even": Case(operands(queries=64, keys=48), lse=True),
    "bf16": Case(operands(dtype=torch.bfloat16), tolerance=HALF, lse=True),
    "fp16": Case(operands(dtype=torch.float16), tolerance=1e-3),
    "one-query": Case(operands(queries=1), score_mod=alibi),
    "one-key": Case(operands(keys=1), score_mod=relative, lse=True),
    "one-batch-one-head": Case(operands(batch=1, heads=1), score_mod=relative, mask=causal),
    "odd-widths": Case(operands(width=24, value_width=40), lse=True),
    "two-parts": Case(operands(width=192, value_width=160), score_mod=alibi, mask=causal, lse=True),
    "two-parts-masked": Case(operands(width=130, value_width=36), lse=True),
    "padded": Case(operands(keys=1, width=96, value_width=80), score_mod=alibi, lse=True),
    "narrow": Case(operands(width=3, value_width=5)),
    "scale": Case(scale=0.3, lse=True),
    "negative-scale": Case(scale=-0.3, lse=True),
    "scale-0": Case(scale=0.0),
    "transposed": Case(transposed(operands())),
    "packed": Case(packed(operands(queries=50))),
    "grouped": Case(operands(heads=4, shared=2), lse=True),
    "grouped-all": Case(operands(heads=4, shared=4), score_mod=alibi),
    "one-key-batch": Case(operands(batch=3, key_batch=1), mask=prefix, per_batch=True, lse=True),
    "alibi": Case(operands(heads=4), score_mod=alibi, lse=True),
    "relative": Case(score_mod=relative, lse=True),
    "soft-cap": Case(score_mod=soft_cap, tolerance=5e-6),
    "masked-by-score": Case(operands(queries=50), score_mod=masked_by_score, lse=True),
    "least-by-score": Case(score_mod=least_by_score),
    "least-by-bias": Case(score_mod=least_by_bias, lse=True),
    "causal": Case(operands(queries=64, keys=64), mask=causal, lse=True),
    "causal-odd": Case(mask=causal, lse=True),
    "causal-large-blocks": Case(mask=causal, block=128, lse=True),
    "causal-blocks-larger-than-all": Case(operands(queries=64, keys=64), mask=causal, block=128, lse=True),
    "causal-blocks-larger-than-the-keys": Case(operands(queries=160, keys=32), mask=causal, block=(32, 128), lse=True),
    "near-blocks-larger-than-the-queries": Case(operands(queries=32, keys=96), mask=near, block=(128, 32), lse=True),
    "window-blocks-of-no-tile": Case(operands(queries=64, keys=32), mask=window, block=(100, 72), lse=True),
    "causal-soft-cap": Case(mask=causal, score_mod=soft_cap, tolerance=5e-6),
    "window": Case(operands(queries=64, keys=64), mask=window, lse=True),
    "window-uneven-blocks": Case(operands(queries=70, keys=70), mask=window, block=(64, 16), lse=True),
    "odd-blocks": Case(mask=window, block=48, tiles=Tiles(16, 16, 4, 2), lse=True),
    "document": Case(mask=document, lse=True),
    "padding": Case(operands(batch=4), mask=padding, per_batch=True, lse=True),
    "padding-per-head": Case(operands(batch=4), mask=padding, per_batch=True, per_head=True),
    "prefix": Case(mask=prefix, tiles=TALL, lse=True),
    "prefix-grouped": Case(operands(heads=4, shared=2), mask=prefix, score_mod=relative),
    "maxima": Case(operands(batch=4), mask=padding, per_batch=True, lse=True, most=True),
    "maxima-alone": Case(score_mod=alibi, most=True),
    "bounded-causal": Case(operands(queries=64, keys=64), mask=causal, listed=False, lse=True),
    "bounded-causal-odd": Case(mask=causal, listed=False, lse=True),
    "bounded-causal-more-queries": Case(operands(queries=70, keys=30), mask=causal, listed=False, lse=True),
    "bounded-near": Case(operands(queries=64, keys=96), mask=near, listed=False, lse=True),
    "bounded-near-odd": Case(operands(queries=70, keys=90), mask=near, listed=False, tiles=TALL, lse=True),
    "bounded-far": Case(operands(queries=64, keys=64), mask=far, listed=False, lse=True),
    "bounded-far-odd": Case(operands(queries=70, keys=60), mask=far, listed=False, tiles=TALL, lse=True),
    "bounded-window": Case(operands(queries=70, keys=60), mask=window, listed=False, lse=True),
    "bounded-document": Case(mask=document, listed=False, lse=True),
    "bounded-padding": Case(operands(batch=4), mask=padding, listed=False, per_batch=True, lse=True),
    "bounded-dynamic": Case(operands(queries=70, keys=60), dynamic=True, mask=near, listed=False, lse=True),
    "bounded-dynamic-causal": Case(dynamic=True, mask=causal, listed=False, score_mod=alibi, lse=True),
    "dynamic": Case(dynamic=True, lse=True),
    "dynamic-causal": Case(dynamic=True, mask=causal, lse=True),
    "dynamic-relative": Case(dynamic=True, score_mod=relative, mask=document, block=64),
    "dynamic-grouped": Case(operands(heads=4, shared=2), dynamic=True, score_mod=alibi, lse=True),
}


if __name__ == "__main__":
    print_share(CASES)

__all__ = ["CASES", "Case", "operands"]
