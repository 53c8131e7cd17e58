"""Attention as data: a contraction, what becomes of its scores, and a second contraction.

    scores[b, h, q, k] = scale * sum over d of query[b, h, q, d] * key[b, h // group, k, d]
    weights            = softmax over k of score(scores), where mask; 0 where not
    out[b, h, q]       = sum over k of weights[b, h, q, k] * value[b, h // group, k]

Sizes: query (B, H, Q, D), key (B', H / group, K, D), value (B', H / group, K, E); B' is B or 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf, prod

from litz.cost.contractions import TILE
from litz.ir import Contraction, Loop, Part, Program, Template, TensorRef
from litz.ir.index import Expr

SCORE = "score"
"""The buffer that stands, in bodies, for the score of one query and one key, float32. The scores are never in
memory."""
GRADIENT = "gradient"
"""The buffer that stands, in the backward's body, for the gradient of the final score, float32. The gradient is
never in memory."""
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


@dataclass(frozen=True)
class Attention(Template):
    """args: what the library call takes, in which every buffer that a body reads is named. outputs: the result, then
    whatever else the library call returns.

    query, key, value: as in the module's docstring, as strided references. scale: of the scores. score: a Loop whose
    ranges are (b, h, q, k), which loads `SCORE` at them and stores it there again. None: as it is. mask: a Loop of the
    same ranges, which stores a bool. None: True. group: heads of the query that share one of the key. nothing: what a
    row gives that looks at no key: 0, or NaN as a softmax gives that is written out. hidden: what torch added to the
    scores of hidden keys where it made the bias of a mask (-65504 for cuDNN, which takes no -inf); else -inf. doubled:
    weights count as float32 does beside values of a half type: they are multiplied as two numbers of that type.
    """

    query: TensorRef = None  # type: ignore[assignment]
    key: TensorRef = None  # type: ignore[assignment]
    value: TensorRef = None  # type: ignore[assignment]
    scale: Expr | float = 1.0
    score: Loop | None = None
    mask: Loop | None = None
    blocks: Blocks | None = None
    nothing: float = 0.0
    hidden: float = -inf
    doubled: bool = False

    @property
    def group(self) -> Expr:
        """Returns how many heads of the query share one head of the key."""
        return self.query.layout.size[1] // self.key.layout.size[1]

    def contraction(self, program: Program) -> Contraction | None:
        """Returns the FLOPs of eager's flex_attention; None for torch's fused kernels, which `litz.cost` knows."""
        return eager_work(self.query, self.value, program) if self.kind == "flex_attention" else None


def eager_work(query: TensorRef, value: TensorRef, program: Program) -> Contraction:
    """Returns the work of eager's flex_attention: two products, and the scores between them in memory."""
    *batch, queries, width = (program.hint(extent) for extent in query.layout.size)
    keys, value_width = (program.hint(extent) for extent in value.layout.size[-2:])
    scores = float(prod(batch) * queries * keys)
    flops, pieces = 2.0 * scores * (width + value_width), prod(batch) * ceil(queries / TILE)
    dtype = program.buffers[query.buffer].dtype
    return Contraction("attention", flops, dtype, pieces, SCORE_BYTES * scores, SCORE_LAUNCHES)


__all__ = ["GRADIENT", "SCORE", "SCORE_BYTES", "Attention", "Blocks", "eager_work"]
