"""Attention as data: a contraction, what becomes of its scores, and a second contraction.

    scores[b, h, q, k] = scale * sum over d of query[b, h, q, d] * key[b, h // group, k, d]
    weights            = softmax over k of score(scores), where mask; 0 where not
    out[b, h, q]       = sum over k of weights[b, h, q, k] * value[b, h // group, k]

Sizes: query (B, H, Q, D), key (B', H / group, K, D), value (B', H / group, K, E); B' is B or 1.

The backward: what the gradients of query, key and value are computed from. With `raw` the scaled products of queries
and keys, `weights` that softmax, and

    delta[b, h, q]   = sum over e of out * grad_out  -  grad_logsumexp / log(2)
    modified         = weights * (sum over e of grad_out[b, h, q, e] * value[b, h // group, k, e]  -  delta)
    grad_raw         = gradient(raw, modified), where mask; 0 where not

    grad_query[b, h, q] = scale * sum over k of grad_raw * key[b, h // group, k]
    grad_key[b', h', k] = scale * sum over h of the group and q (and b, where b' is one for all) of grad_raw * query
    grad_value          = the same sum of weights * grad_out, without the scale

The weights are computed anew from `logsumexp`, which is to the base of 2: weights = 2 ** (score / log(2) - logsumexp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from math import ceil, inf, prod
from typing import Any, Self

import torch

from litz.cost.contractions import TILE
from litz.ir import Contraction, Loop, Node, Part, Program, Range, Store, Template, TensorRef
from litz.ir.index import Expr, loop_var

SCORE = "score"
"""The buffer that stands, in bodies, for the score of one query and one key, float32. The scores are never in
memory."""
GRADIENT = "gradient"
"""The buffer that stands, in the backward's body, for the gradient of the final score, float32. The gradient is
never in memory."""
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""The dtypes of operands that kernels exist for."""
WIDEST = 256
"""Elements of a head, up to which a tile of queries and its result stay in registers."""
SCORE_BYTES = 64
"""Bytes that eager's flex_attention moves for each score, at least: the product writes it in float32; the scale, the
mask, logsumexp and softmax read and write all scores: 4 + 8 + 9 + 20 + 23. What a score_mod does is not counted."""
SCORE_LAUNCHES = 20
"""Kernels that eager's flex_attention launches, at least: counted likewise."""


@dataclass(frozen=True)
class Blocks(Part):
    """The blocks of keys that each block of queries looks at (torch's BlockMask), and no others.

    queries, keys: elements of a block. counts: int32 (B or 1, H or 1, rows), how many of `indices`, int32 (B or 1, H or
    1, rows, columns), count. In the blocks of `full_indices` the mask is True everywhere. None where there are none.
    """

    queries: Expr
    keys: Expr
    counts: TensorRef
    indices: TensorRef
    full_counts: TensorRef | None = None
    full_indices: TensorRef | None = None

    @property
    def lists(self) -> list[tuple[TensorRef, TensorRef, bool]]:
        """Returns the lists: how many of a row's entries count, the entries, and whether the mask holds in all."""
        found = [(self.counts, self.indices, False)]
        if self.full_counts is not None and self.full_indices is not None:
            found.append((self.full_counts, self.full_indices, True))
        return found

    @property
    def tables(self) -> list[TensorRef]:
        """Returns the tables that there are."""
        return [ref for *refs, _ in self.lists for ref in refs]


@dataclass(frozen=True, kw_only=True)
class Operands(Template):
    """The operands of an attention or of its backward, and the sizes that follow from the operands."""

    query: TensorRef
    key: TensorRef
    value: TensorRef

    @classmethod
    def of(cls, call: Template, **meaning: Any) -> Self:
        """Returns a library call with what kernels need to know."""
        return cls(**{each.name: getattr(call, each.name) for each in fields(call)}, **meaning)

    @property
    def group(self) -> Expr:
        """Returns how many heads of the query share one head of the key."""
        return self.query.layout.size[1] // self.key.layout.size[1]

    @property
    def size(self) -> tuple[Expr, ...]:
        """Returns the extents of the scores: batches, heads of the query, queries, keys."""
        return (*self.query.layout.size[:3], self.key.layout.size[2])


@dataclass(frozen=True)
class Attention(Operands):
    """args: what the library call takes, in which every buffer that a body reads is named. outputs: the result, then
    whatever else the library call returns.

    query, key, value: as in the module's docstring, as strided references. scale: of the scores. score: a Loop whose
    ranges are (b, h, q, k), which loads `SCORE` at them and stores it there again. None: as it is. mask: a Loop of the
    same ranges, which stores a bool. None: True. group: heads of the query that share one of the key. nothing: what a
    row gives that looks at no key: 0, or NaN as a softmax gives that is written out. hidden: what torch added to the
    scores of hidden keys where it made the bias of a mask (-65504 for cuDNN, which takes no -inf); else -inf. doubled:
    weights count as float32 does beside values of a half type: they are multiplied as two numbers of that type.
    """

    scale: Expr | float = 1.0
    score: Loop | None = None
    mask: Loop | None = None
    blocks: Blocks | None = None
    nothing: float = 0.0
    hidden: float = -inf
    doubled: bool = False

    def contraction(self, program: Program) -> Contraction | None:
        """Returns the FLOPs of eager's flex_attention; None for torch's fused kernels, which `litz.cost` knows."""
        return eager_work(self.query, self.value, program) if self.kind == "flex_attention" else None


def body(
    name: str,
    device: torch.device,
    size: Sequence[Expr],
    value: Callable[..., Node],
    origins: tuple[str, ...] = (),
    buffer: str = SCORE,
) -> Loop:
    """Returns a body, of scores of `size`: the Loop that stores `value(b, h, q, k)` to a stand-in."""
    ranges = tuple(Range(loop_var(dim), extent) for dim, extent in enumerate(size))
    at = tuple(r.var for r in ranges)
    return Loop(name, device, ranges, (), (Store(buffer, at, value(*at)),), origins)


def eager_work(query: TensorRef, value: TensorRef, program: Program) -> Contraction:
    """Returns the work of eager's flex_attention: two products, and the scores between them in memory."""
    *batch, queries, width = (program.hint(extent) for extent in query.layout.size)
    keys, value_width = (program.hint(extent) for extent in value.layout.size[-2:])
    scores = float(prod(batch) * queries * keys)
    flops, pieces = 2.0 * scores * (width + value_width), prod(batch) * ceil(queries / TILE)
    dtype = program.buffers[query.buffer].dtype
    return Contraction("attention", flops, dtype, pieces, SCORE_BYTES * scores, SCORE_LAUNCHES)


BACKWARD_SCORE_BYTES = 110
"""As SCORE_BYTES, of the backward: the scores again (25), the weights (24), their gradients from those of the result
(32), the gradients of the scores, scaled, converted and masked (21), and what its five products read and write of
them."""
BACKWARD_SCORE_LAUNCHES = 35


@dataclass(frozen=True)
class AttentionBackward(Operands):
    """args: what the library call takes, in which every buffer that a body reads is named. outputs: the gradients of
    query, key and value, then None for whatever else the library call returns.

    query, key, value, scale, score, mask, blocks: as in `Attention`. out (B, H, Q, E), logsumexp (B, H, Q): what the
    forward returned. grad_out, grad_logsumexp: their gradients, None for 0. gradient: a Loop of the ranges of `score`,
    which loads `SCORE`, the raw score, and `GRADIENT`, of what the score became, at them, and stores the raw score's
    gradient to `GRADIENT` there. None: as it is. transposed: the blocks of queries that look at each block of keys:
    `counts` (B or 1, H or 1, rows of keys), `indices` of blocks of queries. `blocks` and `transposed` say the same.
    """

    out: TensorRef = field(kw_only=True)
    logsumexp: TensorRef = field(kw_only=True)
    grad_out: TensorRef | None = None
    grad_logsumexp: TensorRef | None = None
    scale: Expr | float = 1.0
    score: Loop | None = None
    gradient: Loop | None = None
    mask: Loop | None = None
    blocks: Blocks | None = None
    transposed: Blocks | None = None

    def contraction(self, program: Program) -> Contraction | None:
        """Returns the FLOPs of eager's backward."""
        forward = eager_work(self.query, self.value, program)
        flops, scores = forward.flops * 2.5, forward.between / SCORE_BYTES
        return replace(forward, flops=flops, between=BACKWARD_SCORE_BYTES * scores, launches=BACKWARD_SCORE_LAUNCHES)
