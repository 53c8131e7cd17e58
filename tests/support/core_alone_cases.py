"""Functions in which passes of litz-passes find something to do, for core without that dist.

`python -m support.core_alone_cases SHARD OF [CASE ...]` runs them for a GPU that is not there: kernels run in Triton's
interpreter, library calls on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from litz.driver.builtin import builtin_plugins
from litz_plugins import Plugins, make_plugins
from support.interpreted import print_share


def core_alone() -> Plugins:
    """Core's plugins, whatever is installed."""
    return make_plugins(builtin_plugins(), entry_points=())


@dataclass(frozen=True)
class Case:
    """A function, the sizes of its arguments, and the passes of litz-passes that change something in it. A size of one
    number stands for positions below `below`."""

    function: Callable[..., Tensor]
    sizes: tuple[tuple[int, ...], ...]
    passes: tuple[str, ...]
    positions: int = 0
    below: int = 0

    def inputs(self) -> list[Tensor]:
        """The arguments: positions last."""
        generator = torch.Generator().manual_seed(0)
        found = [torch.randn(size, generator=generator).requires_grad_() for size in self.sizes]
        places = torch.randint(0, self.below, (self.positions,), generator=generator) if self.positions else None
        return found if places is None else [*found, places]

    def results(self, function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
        """The function's result, the gradients, and what was written to the arguments."""
        own = [each.detach().clone().requires_grad_(each.requires_grad) for each in inputs]
        result = function(*own)
        asked = [each for each in own if each.requires_grad]
        found = torch.autograd.grad(result.square().sum(), asked, allow_unused=True) if result.requires_grad else ()
        return [result.detach(), *(each for each in found if each is not None), *(each.detach() for each in own)]

    def check(self, backend: Any = None) -> str:
        """ "" or what is further from float64's result than eager's. backend: None for Triton's interpreter."""
        torch._dynamo.reset()
        if backend is None:
            from support.interpreted_graphs import backend as interpreted

            backend = partial(interpreted, plugins=core_alone())
        inputs = self.inputs()
        exact = self.results(self.function, [each.double() if each.is_floating_point() else each for each in inputs])
        eager = self.results(self.function, inputs)
        ours = self.results(torch.compile(self.function, backend=backend, dynamic=False), inputs)
        assert len(ours) == len(eager) == len(exact)
        for at, (own, its, wanted) in enumerate(zip(ours, eager, exact, strict=True)):
            off, allowed = (float((each.double() - wanted).abs().max()) for each in (own, its))
            if not off <= 4 * allowed + 2e-6 * float(wanted.abs().max()):
                return f"result {at} is {off:.1e} off, eager's {allowed:.1e}"
        return ""


def pooled(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A convolution with a bias, normalized, and a max pool: positions, sizes and masks are saved."""
    h = F.batch_norm(F.conv2d(x, weight, bias, padding=1), None, None, training=True).relu()
    return F.max_pool2d(h, 2) + F.avg_pool2d(h, 2)


def steps(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A recurrent network: in the backward a sum over the batch, and a product, for each step."""
    h = torch.zeros_like(x[0])
    for step in x.unbind(0):
        h = torch.tanh(step + h @ weight + bias)
    return h


def cached(cache: Tensor, x: Tensor, places: Tensor) -> Tensor:
    """A write into rows of an input."""
    with torch.no_grad():
        cache.index_copy_(0, places, x * 2)
        return cache.sum(0) + x.sum(0)


def rated(x: Tensor, places: Tensor) -> Tensor:
    return F.cross_entropy(x * 1.5, places)


def looked_up(table: Tensor, places: Tensor) -> Tensor:
    """A table that is read in two places: two scatters in the backward, at few positions."""
    return F.embedding(places, table).tanh() + F.embedding(places.flip(0), table).sin()


def grouped(q: Tensor, k: Tensor) -> Tensor:
    """Keys that four heads share: sums of four values that lie apart."""
    return (q.unflatten(0, (2, 4)) * k[:, None].exp()).sum(1).softmax(-1)


def dropped(x: Tensor, y: Tensor) -> Tensor:
    """A copy of what is saved, and a position that the CPU counts."""
    p = F.dropout(torch.softmax(x, -1), 0.0) @ y
    return p * torch.arange(3.0)[2].to(p.device)


CASES: Mapping[str, Case] = {
    "pooled": Case(
        pooled, ((1, 3, 6, 8), (4, 3, 3, 3), (4,)), ("narrow_positions", "read_sizes_alone", "split_bias_gradients")
    ),
    "steps": Case(steps, ((9, 8, 16), (16, 16), (16,)), ("sum_products", "write_out_few_in_kernels")),
    "cached": Case(cached, ((16, 8), (4, 8)), ("write_in_place",), positions=4, below=1),
    "rated": Case(rated, ((32, 20),), ("pick_elements",), positions=32, below=20),
    "looked up": Case(looked_up, ((8, 16),), ("sum_scatters", "write_in_place"), positions=64, below=8),
    "grouped": Case(grouped, ((8, 16, 32), (2, 16, 32)), ("write_out_few_values",)),
    "dropped": Case(dropped, ((4, 16, 16), (4, 16, 8)), ("remove_redundant_copies",)),
}


if __name__ == "__main__":
    print_share(CASES)
