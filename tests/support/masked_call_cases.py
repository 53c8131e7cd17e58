"""Attention of many queries with a mask, for core's kernel in the place of the library call: each as a function of what
it is called with.

`python -m support.masked_call_cases SHARD SHARDS` (with TRITON_INTERPRET=1) runs the kernels in Triton's interpreter
against float64 and prints, for each case, "" or what went wrong, as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from litz.ir import Program
from litz.schedule.choices import substituted
from litz_contractions.attention.in_place import InPlace, read_in_place
from litz_contractions.attention.masked_call import plan_of, replacement
from litz_contractions.attention.masks import opened
from litz_contractions.attention.operation import Attention
from litz_contractions.attention.plan import AttentionPlan
from litz_contractions.attention.tiles import Tiles
from support import split_cases
from support.interpreted import print_share
from support.split_cases import F16, HALF, Tensor, cudnn, efficient, repeated

TILES = Tiles(32, 16, 4, 2)


def positions(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Of queries and keys, to be compared. Fake CUDA tensors cannot be indexed without a GPU."""
    rows, columns = (torch.arange(x.shape[2], device=q.device) for x in (q, k))
    return rows.unsqueeze(1), columns.unsqueeze(0)


def bias_of(mask: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """As torch makes it of a mask."""
    return torch.where(mask, 0.0, float("-inf")).to(q.dtype).expand(q.shape[0], 1, q.shape[2], k.shape[2])


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows, columns = positions(q, k)
    return efficient(q, k, v, bias_of(columns <= rows, q, k))


def open_everywhere(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows, _ = positions(q, k)
    return efficient(q, k, v, bias_of(rows >= 0, q, k))


def window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows, columns = positions(q, k)
    return cudnn(q, k, v, bias_of((columns <= rows) & (rows - columns < 7), q, k))


def padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    rows, columns = positions(q, k)
    return efficient(q, k, v, bias_of(mask.unsqueeze(1).unsqueeze(1) & (columns <= rows), q, k))


def documents(q: Tensor, k: Tensor, v: Tensor, document: Tensor) -> Tensor:
    rows, columns = positions(q, k)
    same = document.unsqueeze(1).unsqueeze(3) == document.unsqueeze(1).unsqueeze(1)
    return efficient(q, k, v, bias_of(same & (columns <= rows), q, k))


def inverted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows, columns = positions(q, k)
    bias = torch.zeros(q.shape[2], k.shape[2], device=q.device, dtype=q.dtype).masked_fill(columns > rows, -torch.inf)
    return efficient(q, k, v, bias.expand(q.shape[0], 1, -1, -1))


def added(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return cudnn(q, k, v, bias)


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows, columns = positions(q, k)
    return efficient(q, repeated(k, 2), repeated(v, 2), bias_of(columns <= rows, q, k))


def exactly_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows, columns = positions(q, k)
    return split_cases.exactly(q, k, v, columns <= rows)


def exactly_window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows, columns = positions(q, k)
    return split_cases.exactly(q, k, v, (columns <= rows) & (rows - columns < 7))


def exactly_padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    rows, columns = positions(q, k)
    return split_cases.exactly(q, k, v, mask.unsqueeze(1).unsqueeze(1) & (columns <= rows))


def exactly_documents(q: Tensor, k: Tensor, v: Tensor, document: Tensor) -> Tensor:
    rows, columns = positions(q, k)
    return split_cases.exactly(
        q, k, v, (document.unsqueeze(1).unsqueeze(3) == document.unsqueeze(1).unsqueeze(1)) & (columns <= rows)
    )


def _padding(q: Tensor, k: Tensor) -> tuple[Tensor]:
    mask = torch.rand(q.shape[0], k.shape[2]) < 0.7
    mask[0, :3] = False  # queries without a key
    return (mask,)


def _lengths(q: Tensor, k: Tensor) -> tuple[Tensor]:
    return (torch.arange(q.shape[2])[None].expand(q.shape[0], -1) // 19,)


@dataclass(frozen=True)
class Case(split_cases.Case):
    """masks, scores: does the kernel have a body of that kind?"""

    absorbs: int | None = None
    masks: bool = True
    scores: bool = False

    def planned(self) -> tuple[Program, Attention, InPlace, AttentionPlan]:
        program, attention = self.capture()
        found = read_in_place(attention, program)
        return program, attention, found, plan_of(opened(found.attention), program, False)

    def replaced(self) -> tuple[Program, Attention, InPlace, Program]:
        program, attention, found, plan = self.planned()
        kernel = replacement(found, plan, TILES, program)
        return program, attention, found, substituted(program, attention, kernel)


BASE: tuple[int, ...] = (2, 2, 2, 70, 70, 16)
CASES: Mapping[str, Case] = {
    "causal": Case(causal, BASE, reference=exactly_causal),
    "causal-half": Case(causal, BASE, dtype=F16, tolerance=HALF, reference=exactly_causal),
    "causal-more-keys": Case(causal, (1, 2, 2, 65, 90, 16), reference=exactly_causal),
    "causal-more-queries": Case(causal, (1, 2, 2, 90, 65, 16, 8), reference=exactly_causal),
    "causal-inverted": Case(inverted, BASE, reference=exactly_causal),
    "causal-transposed": Case(
        causal, BASE, view=lambda x: x.transpose(1, 2).contiguous().transpose(1, 2), reference=exactly_causal
    ),
    "open": Case(open_everywhere, BASE, masks=False),
    "window": Case(window, BASE, reference=exactly_window),
    "padded": Case(padded, BASE, more=_padding, reference=exactly_padded),
    "documents": Case(documents, BASE, more=_lengths, reference=exactly_documents),
    "bias": Case(added, BASE, more=lambda q, k: (torch.randn(2, 2, 70, 70).to(q.dtype),), masks=False, scores=True),
    "grouped": Case(grouped, (2, 4, 2, 70, 70, 16), absorbs=None, reference=exactly_causal),
    "one-key": Case(causal, (1, 1, 1, 66, 1, 16), masks=False, reference=exactly_causal),
}


if __name__ == "__main__":
    print_share(CASES)
