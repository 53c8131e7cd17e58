"""The option `max_fusion_size`: no kernel does more nodes of the graph, by whatever way these would come into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from litz import report as reports
from litz.pipeline import make_compiler, schedule_only
from support.retarget import cuda_schedules


def side_by_side(x: torch.Tensor) -> Any:
    """Nodes that read one buffer."""
    return x + x, x * x, x**2, x - 1


def chain(x: torch.Tensor) -> torch.Tensor:
    """Nodes that are inlined into their readers."""
    return x.sin().cos().exp().tanh().sigmoid()


def small_and_unrelated(x: torch.Tensor) -> Any:
    """Loops that share a launch and nothing else."""
    y = torch.arange(64, device=x.device)
    return y.sin(), x[:, 0].cos(), x[:, 1].exp()


def normed(x: torch.Tensor) -> torch.Tensor:
    """Reductions and what uses them."""
    return torch.nn.functional.layer_norm(x.relu(), x.shape[-1:]).softmax(-1)


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("fn", [side_by_side, chain, small_and_unrelated, normed])
def test_no_kernel_does_more(fn: Callable[..., Any], most: int) -> None:
    sizes = sizes_of(fn, most)
    assert max(sizes) <= most
    assert most == 1 or max(sizes) == most, "it limits fusion, and does not switch it off"


def test_unset_there_is_no_limit() -> None:
    assert sizes_of(chain, None) == [5]


def sizes_of(fn: Callable[..., Any], most: int | None) -> list[int]:
    """How many nodes of the graph each kernel does."""
    torch._dynamo.reset()
    (schedule,) = schedule_only(fn, (torch.rand(64, 32),), {"max_fusion_size": most, "debug": True})
    return [len(step.origins) for step in schedule.steps]


def test_what_is_fused_less_computes_the_same() -> None:
    def fn(x: torch.Tensor) -> Any:
        return side_by_side(x), chain(x), small_and_unrelated(x), normed(x)

    torch._dynamo.reset()
    x = torch.rand(64, 32)
    with reports.collect() as collected:
        actual = torch.compile(fn, backend="litz", options={"max_fusion_size": 2})(x)
    torch.testing.assert_close(actual, fn(x))
    assert max(len(step.origins) for step in collected[0].steps) == 2


@pytest.mark.parametrize("most", [None, 1, 2])
def test_split_reductions_that_end_in_one_launch_count_as_one_kernel(most: int | None) -> None:
    """On a GPU, from a graph of the CPU: what the last programs of a split reduction do belongs to its kernel."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.sin().sum(0).exp(), y.cos().amax(0).exp()

    torch._dynamo.reset()
    compiler = make_compiler(None, {"max_fusion_size": most})
    tensors = torch.rand(65536, 16), torch.rand(32768, 48)
    (schedule,) = cuda_schedules(lambda backend: torch.compile(fn, backend=backend)(*tensors), compiler)
    assert max(len(kernel.origins) for kernel in schedule.kernels) == (most or 3)
    finished = [kernel for kernel in schedule.kernels if kernel.finish]
    assert len(finished) == (0 if most == 2 else 2)  # one of a single node finishes it, one of two has no room for exp
