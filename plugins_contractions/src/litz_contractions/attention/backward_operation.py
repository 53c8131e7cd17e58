"""The backward of attention as data: what the gradients of query, key and value are computed from.

With `raw` the scaled products of queries and keys, `weights` the softmax that `attention.operation` describes, and

    delta[b, h, q]   = sum over e of out * grad_out  -  grad_logsumexp / log(2)
    modified         = weights * (sum over e of grad_out[b, h, q, e] * value[b, h // group, k, e]  -  delta)
    grad_raw         = gradient(raw, modified), where mask; 0 where not

    grad_query[b, h, q] = scale * sum over k of grad_raw * key[b, h // group, k]
    grad_key[b', h', k] = scale * sum over h of the group and q (and b, where b' is one for all) of grad_raw * query
    grad_value          = the same sum of weights * grad_out, without the scale

The weights are computed anew from `logsumexp`, which is to the base of 2: weights = 2 ** (score / log(2) - logsumexp).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from litz.ir import Contraction, Loop, Program, Template, TensorRef
from litz.ir.index import Expr

from .operation import SCORE_BYTES, Blocks, eager_work

BACKWARD_SCORE_BYTES = 110
"""As SCORE_BYTES, of the backward: the scores again (25), the weights (24), their gradients from those of the result
(32), the gradients of the scores, scaled, converted and masked (21), and what its five products read and write of
them."""
BACKWARD_SCORE_LAUNCHES = 35


@dataclass(frozen=True)
class AttentionBackward(Template):
    """args: what the library call takes, in which every buffer that a body reads is named. outputs: the gradients of
    query, key and value, then None for whatever else the library call returns.

    query, key, value, scale, score, mask, blocks: as in `Attention`. out (B, H, Q, E), logsumexp (B, H, Q): what the
    forward returned. grad_out, grad_logsumexp: their gradients, None for 0. gradient: a Loop of the ranges of `score`,
    which loads `SCORE`, the raw score, and `GRADIENT`, of what the score became, at them, and stores the raw score's
    gradient to `GRADIENT` there. None: as it is. transposed: the blocks of queries that look at each block of keys:
    `counts` (B or 1, H or 1, rows of keys), `indices` of blocks of queries. `blocks` and `transposed` say the same.
    """

    query: TensorRef = None  # type: ignore[assignment]
    key: TensorRef = None  # type: ignore[assignment]
    value: TensorRef = None  # type: ignore[assignment]
    out: TensorRef = None  # type: ignore[assignment]
    logsumexp: TensorRef = None  # type: ignore[assignment]
    grad_out: TensorRef | None = None
    grad_logsumexp: TensorRef | None = None
    scale: Expr | float = 1.0
    score: Loop | None = None
    gradient: Loop | None = None
    mask: Loop | None = None
    blocks: Blocks | None = None
    transposed: Blocks | None = None

    @property
    def group(self) -> Expr:
        """Returns how many heads of the query share one head of the key."""
        return self.query.layout.size[1] // self.key.layout.size[1]

    def contraction(self, program: Program) -> Contraction | None:
        """Returns the FLOPs of eager's backward."""
        forward = eager_work(self.query, self.value, program)
        flops, scores = forward.flops * 2.5, forward.between / SCORE_BYTES
        return replace(forward, flops=flops, between=BACKWARD_SCORE_BYTES * scores, launches=BACKWARD_SCORE_LAUNCHES)


__all__ = ["AttentionBackward"]
