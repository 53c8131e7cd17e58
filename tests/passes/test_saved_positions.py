"""Positions that are saved for the backward: in as few bytes as they need, and the same gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from litz.capture.eager import run_eagerly
from litz.capture.graph import Graph
from litz.driver.stages import capture
from litz.pipeline import compile_graph, make_compiler
from support.retarget import cuda_schedules


def graphs_of(
    fn: Callable[..., Any], *args: Tensor, dynamic: bool = False, kernels: bool = True
) -> tuple[list[Graph], Tensor]:
    """The graphs of a function and its backward, which ran; and the gradient of its first argument. kernels: False for
    graphs that run as they were captured, where what is saved is tested, and no kernel."""
    found: list[Graph] = []
    compiler = make_compiler()

    def keep(graph: Graph) -> Callable[[list[Any]], Sequence[Any]]:
        found.append(graph)
        return compile_graph(graph, compiler) if kernels else run_eagerly(graph)

    torch._dynamo.reset()
    compiled = torch.compile(fn, backend=partial(capture, compile_graph=keep, compiler=compiler), dynamic=dynamic)
    x = args[0].detach().requires_grad_()
    loss = compiled(x, *args[1:])
    loss = loss[0] if isinstance(loss, tuple) else loss
    (first,) = torch.autograd.grad(loss.sum(), x, retain_graph=True)
    (again,) = torch.autograd.grad(loss.sum(), x)
    torch.testing.assert_close(first, again)
    return found, first


def integers(graph: Graph) -> list[torch.dtype]:
    """The types of integer tensors among a graph's tensor inputs."""
    values = [node.meta["val"] for node in graph.placeholders]
    return [v.dtype for v in values if isinstance(v, Tensor) and not v.is_floating_point() and v.numel() > 1]


def eager(fn: Callable[..., Any], *args: Tensor) -> Tensor:
    x = args[0].detach().requires_grad_()
    loss = fn(x, *args[1:])
    (found,) = torch.autograd.grad((loss[0] if isinstance(loss, tuple) else loss).sum(), x)
    return found


CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...], torch.dtype]] = {
    "a window of a plane": (lambda x: F.max_pool2d(x, 3, 2, 1), (8, 32, 48, 48), torch.uint8),
    "a small plane": (lambda x: F.max_pool2d(x, 2, 1), (64, 32, 12, 12), torch.uint8),
    "a window of wide rows": (lambda x: F.max_pool2d(x, 2), (1, 3, 512, 512), torch.int16),
    "distances up to 255": (lambda x: F.max_pool2d(x, 2), (3, 9, 256, 254), torch.uint8),
    "distances up to 256": (lambda x: F.max_pool2d(x, 2), (3, 9, 256, 255), torch.int16),
    "a large plane": (lambda x: F.adaptive_max_pool2d(x, 256), (1, 3, 512, 512), torch.int32),
    "exactly 2**15 positions": (lambda x: F.adaptive_max_pool2d(x, (128, 64)), (2, 9, 256, 128), torch.int16),
    "a volume": (lambda x: F.max_pool3d(x, 2), (2, 70, 20, 20, 20), torch.int16),
    "max along a dimension": (lambda x: x.max(1).values * 2, (4096, 3, 40), torch.uint8),
    "the greatest of each row": (lambda x: x.topk(64, 1).values, (3000, 300), torch.int16),
    "sorted": (lambda x: torch.sort(x, 0, descending=True).values * 3, (200, 700), torch.int16),
}


@pytest.fixture
def narrowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions of pools, too, as on a GPU."""
    monkeypatch.setattr("litz_passes.joint.saved_positions.stay_wide", lambda target: False)


def test_positions_of_a_cpus_pools_stay() -> None:
    graphs, _ = graphs_of(lambda x: F.max_pool2d(x, 3, 2, 1), torch.randn(8, 32, 48, 48), kernels=False)
    assert integers(graphs[1]) == [torch.int64]


# kernel, stride, padding, dilation, ceil_mode, the input's size
WINDOWS = [
    (3, 2, 1, 1, False, (4, 16, 57, 61)),
    ((3, 2), (2, 1), (1, 0), 1, True, (4, 16, 48, 31)),
    (2, 3, 1, 1, True, (4, 32, 70, 70)),
    (3, 1, 1, 2, False, (4, 16, 40, 40)),
    (3, 2, 0, (2, 1), False, (4, 64, 41, 45)),
    (5, 1, 2, 1, False, (16, 40, 48)),
    ((6, 7), 1, 3, 1, False, (16, 60, 34)),
    ((2, 3, 2), (1, 2, 1), (1, 1, 0), 1, True, (4, 4, 9, 12, 14)),
]


@pytest.mark.each_value
@pytest.mark.parametrize("fmt", [torch.contiguous_format, torch.channels_last], ids=["first", "last"])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_distances_in_a_window(
    narrowed: None, monkeypatch: pytest.MonkeyPatch, window: tuple[Any, ...], fmt: torch.memory_format
) -> None:
    """With equal values, NaN, and windows of nothing but the least value."""
    monkeypatch.setattr("litz_passes.joint.saved_positions.LEAST_BYTES", 0)
    *arguments, ceil_mode, size = window
    if len(size) != 4 and fmt is not torch.contiguous_format:
        fmt = torch.preserve_format
    x = torch.randint(0, 3, size, generator=torch.Generator().manual_seed(1)).float()
    x.view(-1)[::37] = float("nan")
    x[..., :9] = float("-inf")
    pool = F.max_pool3d if len(size) == 5 else F.max_pool2d

    def fn(x: Tensor) -> Tensor:
        y = pool(x, *arguments, ceil_mode=ceil_mode)
        return y.nan_to_num(0.0, 0.0, 0.0) * torch.arange(y.shape[-1])

    graphs, gradient = graphs_of(fn, x.contiguous(memory_format=fmt) if fmt is not torch.preserve_format else x)
    assert set(integers(graphs[1])) - {torch.bool} == {torch.uint8}
    torch.testing.assert_close(gradient, eager(fn, x))


NO_KERNELS = ("a small plane", "a window of wide rows", "distances up to 255", "exactly 2**15 positions")
"""Cases whose kernels others have: of the same pool, or with positions of the same type."""


@pytest.mark.parametrize("name", list(CASES))
def test_positions_are_saved_narrow(narrowed: None, name: str) -> None:
    fn, size, dtype = CASES[name]
    x = torch.randn(size, generator=torch.Generator().manual_seed(0))
    graphs, gradient = graphs_of(fn, x, kernels=name not in NO_KERNELS)
    assert [graph.kind for graph in graphs] == ["forward", "backward"]
    assert integers(graphs[1]) == [dtype]
    torch.testing.assert_close(gradient, eager(fn, x))


@pytest.mark.parametrize(
    "fn",
    [lambda x: F.max_pool2d(x, 2), lambda x: F.max_pool2d(x, 2, return_indices=True)],
    ids=["small", "returned"],
)
def test_positions_that_stay(fn: Callable[..., Any]) -> None:
    """Few of them; or the user has them anyway."""
    x = torch.randn((2, 3, 16, 16) if not isinstance(fn(torch.zeros(1, 1, 4, 4)), tuple) else (8, 32, 64, 64))
    graphs, gradient = graphs_of(fn, x)
    assert integers(graphs[1]) == [torch.int64]
    torch.testing.assert_close(gradient, eager(fn, x))


def test_sizes_that_vary_bound_nothing() -> None:
    x = torch.randn(8, 32, 48, 48)
    fn = partial(F.max_pool2d, kernel_size=2)
    graphs, gradient = graphs_of(lambda x: fn(x) * 1.0, x, dynamic=True)
    assert torch.int64 in integers(graphs[1])
    torch.testing.assert_close(gradient, eager(fn, x))


def test_ties_and_nan_keep_their_places(narrowed: None) -> None:
    """As eager: the first of equals, the last NaN; the saved tensor goes through hooks as it is."""
    x = torch.randint(0, 3, (8, 32, 48, 48), generator=torch.Generator().manual_seed(1)).float()
    x[0, 0, ::5, ::7] = float("nan")

    def fn(x: Tensor) -> Tensor:
        return torch.nan_to_num(F.max_pool2d(x, 3, 2, 1))

    seen: list[torch.dtype] = []

    def pack(value: Tensor) -> Tensor:
        seen.append(value.dtype)
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        _, gradient = graphs_of(fn, x)
    assert torch.uint8 in seen
    torch.testing.assert_close(gradient, eager(fn, x))


def test_on_cuda_both_casts_are_part_of_the_kernels() -> None:
    """The forward stores 8 bits where it pools, the backward loads them where it looks for its windows."""

    def run(backend: Callable[..., Any]) -> None:
        x = torch.randn(8, 32, 48, 48, requires_grad=True)
        torch.compile(lambda x: F.max_pool2d(x.relu(), 3, 2, 1), backend=backend, dynamic=False)(x).sum().backward()

    torch._dynamo.reset()
    forward, backward = cuda_schedules(run, make_compiler())
    assert len(backward.steps) == 1
    for schedule in (forward, backward):
        types = [schedule.program.buffers[n].dtype for s in schedule.steps for n in (*s.reads, *s.writes)]
        assert torch.uint8 in types and torch.int64 not in types
