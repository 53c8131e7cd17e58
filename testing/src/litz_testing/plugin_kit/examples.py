"""Small programs that passes, layouts, cost models and choices are tried on. Out: `Example`s by name.

Between them they have every kind of operation of the IR: pointwise, reductions, scans, scatters, contractions, library
calls, views, writes into inputs, half types, integers, sizes 0 and 1, and a training step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F


@dataclass(frozen=True)
class Example:
    """A function of tensors. shapes, dtypes: of its inputs; `inputs(more)` makes them, with extents above 1 larger by
    ``more`` so that sizes that were equal stay equal. train: with gradients, whose values are compared too."""

    name: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...] = ()
    train: bool = False

    def inputs(self, more: int = 0, seed: int = 0) -> tuple[torch.Tensor, ...]:
        """Returns new inputs. more: how much larger each extent above 1 is than in the table. seed: of their values."""
        generator = torch.Generator().manual_seed(seed)
        dtypes = self.dtypes or (torch.float32,) * len(self.shapes)
        found = []
        for shape, dtype in zip(self.shapes, dtypes, strict=True):
            sizes = tuple(n + more if n > 1 else n for n in shape)
            if dtype.is_floating_point:
                found.append(torch.randn(sizes, generator=generator).to(dtype).requires_grad_(self.train))
            else:
                found.append(torch.randint(0, 4, sizes, generator=generator, dtype=dtype))
        return tuple(found)


def _unary(x: Any) -> Any:
    return x.tanh() + x.sigmoid() * F.gelu(x) - (x.abs() + 1).log() / (x * x + 2).sqrt() + x.erf().exp()


def _reductions(x: Any) -> Any:
    return x.sum(0), x.mean(1), x.amax(-1), x.argmax(1), x.var(1), (x > 0).any(0), x.softmax(-1), x.logsumexp(0)


def _norm(x: Any, weight: Any) -> Any:
    return F.layer_norm(x, x.shape[-1:], weight, weight)


def _views(x: Any, y: Any) -> Any:
    return (
        torch.cat([x.t(), y.t()], 1) + 1,
        x[1:, ::2] * 2,
        x.reshape(-1) - 1,
        torch.stack([x, y]).flip(0),
        F.pad(x, (1, 2)),
    )


def _indices(x: Any, at: Any) -> Any:
    return x[at] * 2, torch.zeros_like(x).index_add(0, at, x[at]), x.gather(0, at[:, None].expand(-1, x.shape[1]))


def _scans(x: Any) -> Any:
    return x.cumsum(1), x.sort(dim=-1)[0], x.topk(2)[0]


def _integers(a: Any, b: Any) -> Any:
    return a + b, a * 3 - b, torch.where(a > b, a, b), a // (b + 1), (a == b).sum(), a.to(torch.float32) / 3, a & b


def _written(x: Any) -> Any:
    y = x + 1
    x.mul_(2)
    y[0] = x[1]
    return y.sum(1)


def _linear(x: Any, weight: Any, bias: Any) -> Any:
    return F.relu(F.linear(x, weight, bias)) + x @ weight.t()


def _products(a: Any, b: Any) -> Any:
    return torch.bmm(a, b.transpose(1, 2)).softmax(-1) @ b


def _convolution(x: Any, weight: Any, bias: Any) -> Any:
    return F.max_pool2d(F.conv2d(x, weight, bias, padding=1).relu(), 2) + 1


def _attention(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v) * 2


EXAMPLES: Mapping[str, Example] = {
    example.name: example
    for example in (
        Example("pointwise", lambda x, y: (x + y) * y - x / 2, ((4, 6), (6,))),
        Example("unary", _unary, ((5, 7),)),
        Example("reductions", _reductions, ((6, 10),)),
        Example("layer norm", _norm, ((4, 12), (12,))),
        Example("views", _views, ((4, 6), (4, 6))),
        Example("indices", _indices, ((6, 5), (3,)), (torch.float32, torch.int64)),
        Example("scans", _scans, ((3, 9),)),
        Example("integers", _integers, ((4, 5), (4, 5)), (torch.int64, torch.int64)),
        Example(
            "bfloat16",
            lambda x, y: ((x * y).exp().sum(-1) + 1).to(torch.float32),
            ((4, 8), (4, 8)),
            (torch.bfloat16,) * 2,
        ),
        Example("written into", _written, ((3, 4),)),
        Example("size 0", lambda x: (x.sum(0) + 1, x * 2), ((0, 5),)),
        Example("size 1", lambda x: (x.sum(0) + 1, x * 2), ((1, 1),)),
        Example("linear", _linear, ((4, 8), (8, 8), (8,))),
        Example("one row", lambda x, weight: (x @ weight).relu(), ((1, 16), (16, 8))),
        Example("products", _products, ((2, 4, 6), (2, 4, 6))),
        Example("convolution", _convolution, ((2, 3, 8, 8), (4, 3, 3, 3), (4,))),
        Example("attention", _attention, ((1, 2, 8, 4),) * 3),
        Example("training", lambda x, w: (x @ w).tanh().square().mean(), ((4, 6), (6, 5)), train=True),
    )
}
FEW = ("pointwise", "reductions", "training")
"""The examples that are built as well: each kernel takes a second of a C++ compiler's time."""
CONTRACTIONS = ("linear", "one row", "products", "convolution", "attention")


def chosen(names: Sequence[str]) -> list[Example]:
    """Returns examples by name. Raises KeyError."""
    return [EXAMPLES[name] for name in names]


__all__ = ["CONTRACTIONS", "EXAMPLES", "FEW", "Example", "chosen"]
