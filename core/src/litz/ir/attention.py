"""Attention as data: a contraction, what becomes of its scores, and a second contraction.

    scores[b, h, q, k] = scale * sum over d of query[b, h, q, d] * key[b, h // group, k, d]
    weights            = softmax over k of score(scores), where mask; 0 where not
    out[b, h, q]       = sum over k of weights[b, h, q, k] * value[b, h // group, k]

Sizes: query (B, H, Q, D), key (B', H / group, K, D), value (B', H / group, K, E); B' is B or 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .buffer import TensorRef
from .index import Expr
from .operation import Loop, Template

SCORE = "score"
"""The buffer that stands, in bodies, for the score of one query and one key, float32. The scores are never in
memory."""
GRADIENT = "gradient"
"""The buffer that stands, in the backward's body, for the gradient of the final score, float32. It is never in
memory."""


@dataclass(frozen=True)
class Blocks:
    """Which blocks of keys each block of queries looks at (torch's BlockMask); others are not looked at.

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
    hidden: float = -math.inf
    doubled: bool = False

    @property
    def group(self) -> Expr:
        """Returns how many heads of the query share one head of the key."""
        return self.query.layout.size[1] // self.key.layout.size[1]


__all__ = ["GRADIENT", "SCORE", "Attention", "Blocks"]
