"""Gradients of convolutions' biases: sums of their own where the library has a kernel for them; the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz.capture.graph import Graph
from litz.driver.stages import capture, schedule_graph
from litz.ir import Extern, Loop
from litz.pipeline import make_compiler
from litz.schedule import Kernel, Schedule
from litz.target import describe
from support.retarget import cuda_schedules

Tensor = torch.Tensor
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "image": ((2, 3, 8, 7), (4, 3, 3, 3), {"padding": 1}),
    "line": ((2, 3, 8), (4, 3, 3), {}),
    "volume": ((1, 2, 4, 5, 6), (3, 2, 2, 2, 2), {}),
    "depthwise": ((2, 4, 8, 7), (4, 1, 3, 3), {"groups": 4}),
    "transposed": ((2, 3, 8, 7), (3, 4, 3, 3), {"stride": 2}),
    "no images": ((0, 3, 8, 7), (4, 3, 3, 3), {}),
}


def loss(x: Tensor, w: Tensor, b: Tensor, transposed: bool, **settings: Any) -> Tensor:
    function = F.conv_transpose2d if transposed else {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[x.dim()]
    return F.gelu(function(x, w, b, **settings)).square().sum()


def gradients(step: Callable[..., Tensor], tensors: Sequence[Tensor], wanted: str, settings: Any) -> list[Tensor]:
    given = [t.detach().requires_grad_(name in wanted) for name, t in zip("xwb", tensors, strict=True)]
    return list(torch.autograd.grad(step(*given, **settings), [t for t in given if t.requires_grad]))


def made(name: str, dtype: torch.dtype = torch.float32) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any]]:
    image, weight, settings = CASES[name]
    generator = torch.Generator().manual_seed(0)
    channels = weight[1] if name == "transposed" else weight[0]
    x, w, b = (torch.randn(size, generator=generator).to(dtype) for size in (image, weight, (channels,)))
    return (x, w, b), {"transposed": name == "transposed", **settings}


@pytest.mark.ci_cases("image-xwb", "transposed-b", "no images-wb")
@pytest.mark.each_value
@pytest.mark.parametrize("wanted", ("xwb", "b", "wb"))
@pytest.mark.parametrize("name", CASES)
def test_are_the_same(name: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = describe.cpu_target
    ability = frozenset({"separate_bias"})
    monkeypatch.setattr(describe, "cpu_target", lambda n: replace(known(n), abilities=known(n).abilities | ability))
    tensors, settings = made(name)
    compiled = torch.compile(loss, backend="litz", options={"debug": True})
    found = gradients(compiled, tensors, wanted, settings)
    exact = gradients(loss, [t.double() for t in tensors], wanted, settings)
    eager = gradients(loss, tensors, wanted, settings)
    for ours, theirs, true in zip(found, eager, exact, strict=True):
        assert ours.dtype == theirs.dtype and ours.stride() == theirs.stride()
        torch.testing.assert_close(ours.double(), true, rtol=1e-4, atol=1e-4)


def backward_of(wanted: str) -> tuple[list[Extern], list[Schedule]]:
    tensors, settings = made("image")
    schedules = cuda_schedules(
        lambda backend: gradients(torch.compile(loss, backend=backend), tensors, wanted, settings)
    )
    calls = [call for schedule in schedules for call in schedule.steps if isinstance(call, Extern)]
    return [call for call in calls if "convolution_backward" in call.target_name], schedules


def test_the_library_is_not_asked_for_them_on_a_gpu() -> None:
    (call,), schedules = backward_of("xwb")
    assert call.args[10] == (True, True, False)
    sums = [
        loop
        for schedule in schedules
        for step in schedule.steps
        if isinstance(step, Kernel)
        for loop in step.loops
        if isinstance(loop, Loop) and loop.is_reduction and [str(r.size) for r in loop.ranges if r.size != 1] == ["4"]
    ]
    assert sums


def test_nothing_is_left_of_a_call_for_the_bias_alone() -> None:
    assert backward_of("b")[0] == []


def test_a_library_that_makes_them_itself_is_asked() -> None:
    """On a CPU the library's kernel of the weights makes the bias's gradient too."""
    tensors, settings = made("image")
    asked: list[Any] = []

    def keep(graph: Graph) -> Callable[[list[Any]], Any]:
        steps = schedule_graph(graph, make_compiler()).steps
        asked.extend(step.args[10] for step in steps if "convolution_backward" in getattr(step, "target_name", ""))
        return lambda args: torch.fx.Interpreter(graph.module).run(*args)

    backend = partial(capture, compile_graph=keep, compiler=make_compiler())
    gradients(torch.compile(loss, backend=backend), tensors, "xwb", settings)
    assert asked == [(True, True, True)]
