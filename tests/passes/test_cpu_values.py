"""Values on the CPU that depend on no input: each half of a joint graph makes its own, and so knows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.driver.stages import capture, prepare_graph
from litz.pipeline import make_compiler
from litz.report.log import Log
from support.compare import NO_GPU


def buckets(n: int, device: Any) -> Tensor:
    """Positions as MPNet buckets them, on the CPU."""
    apart = torch.arange(n)[None, :] - torch.arange(n)[:, None]
    far = (torch.log(apart.abs().float() + 1) * 4).to(torch.long)
    return torch.where(apart.abs() < 4, apart.abs(), torch.clamp(far, max=15)).to(device)


def masked(n: int, device: Any) -> Tensor:
    """A literal, and a comparison that a gradient reads."""
    return (torch.tensor([0.5] * n).cumsum(0) < 2).to(device).long()


def drawn(n: int, device: Any) -> Tensor:
    return torch.randint(0, 15, (n, n)).to(device)


def halves(positions: Callable[..., Tensor], device: str) -> list[Graph]:
    found: list[Graph] = []

    def keep(graph: Graph) -> Callable[[list[Any]], Sequence[Any]]:
        found.append(graph)

        def run(args: list[Any]) -> Sequence[Any]:
            values = list(args)
            args.clear()
            with torch_api.fake_mode_around(values):
                return torch.fx.Interpreter(graph.module).run(*values, enable_io_processing=False)

        run.output_strides = None  # type: ignore[attr-defined]
        return run

    def function(x: Tensor, table: Tensor) -> Tensor:
        return torch.softmax(x + table[positions(x.size(0), x.device)], -1).square().sum()

    args = [torch.empty(size, device=device, requires_grad=True) for size in ((12, 12), (16,))]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=partial(capture, compile_graph=keep, compiler=make_compiler()))
    compiled(*args).backward()
    return found


def on_the_cpu(graph: Graph) -> list[str]:
    values = ((node.name, node.meta.get("val")) for node in graph.nodes)
    return [name for name, value in values if isinstance(value, Tensor) and value.device.type == "cpu"]


@pytest.mark.parametrize("positions", [buckets, masked])
def test_both_halves_have_constants_on_the_device(positions: Callable[..., Tensor]) -> None:
    forward, backward = halves(positions, "meta")
    assert (forward.kind, backward.kind) == ("forward", "backward")
    for graph in (forward, backward):
        assert not on_the_cpu(prepare_graph(graph, make_compiler(), Log()))


def test_a_draw_is_saved() -> None:
    forward, backward = halves(drawn, "meta")
    assert on_the_cpu(forward) and not on_the_cpu(backward)


def test_a_graph_of_the_cpu_saves_what_it_saved() -> None:
    with_litz = halves(buckets, "cpu")[0].output_node.args[0]
    assert isinstance(with_litz, tuple) and len(with_litz) > 1


@pytest.mark.gpu
@NO_GPU
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("positions", [buckets, masked])
def test_gradients(positions: Callable[..., Tensor], mode: str) -> None:
    def function(x: Tensor, table: Tensor) -> Tensor:
        return torch.softmax(x + table[positions(x.size(0), x.device)], -1).square().sum()

    compiled = torch.compile(function, backend="litz", mode=mode)
    for seed in range(4):
        given = [torch.randn(size, device="cuda", dtype=torch.float64) for size in ((12, 12), (16,))]
        found = []
        for run in (function, compiled):
            torch.manual_seed(seed)
            own = [item.clone().requires_grad_() for item in given]
            run(*own).backward()
            found.append([item.grad for item in own])
        torch.testing.assert_close(found[1], found[0])
