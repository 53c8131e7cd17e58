"""Whatever the plan, values and strides are eager's: every convolution is forced to channels last here."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from litz import report as reports
from support.compare import close
from support.layout_models import MODELS, Residual

FORCED = {"layout.force": True}


def step(model: nn.Module, run: Any, x: Tensor) -> list[Tensor]:
    """Output, gradient of the input, gradients of the parameters."""
    x = x.detach().requires_grad_()
    out = run(x)
    (out * torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype).view(out.shape)).sum().backward()
    return [out.detach(), x.grad, *(p.grad for p in model.parameters())]


def planned(collected: list[Any]) -> list[str]:
    """What was decided about each graph's layouts."""
    return [d.chosen for one in collected for d in one.decisions if d.plugin == "layout" and d.subject == one.name]


@pytest.mark.ci_cases("unet", "mobile", "convnext", "volume")
@pytest.mark.parametrize("name", MODELS)
def test_training(name: str) -> None:
    make, size = MODELS[name]
    model = make().train()
    mine, double = copy.deepcopy(model), copy.deepcopy(model).double()
    x = torch.randn(size)
    expected, exact = step(model, model, x), step(double, double, x.double())
    with reports.collect() as collected:
        actual = step(mine, torch.compile(mine, backend="litz", options=FORCED), x)
    # A bias before a batch norm has a gradient of rounding errors only: the scale is that of the weights.
    close(actual, expected, exact, tolerance=4.0, rounding=1e-5, least_scale=1.0)
    assert [a.stride() for a in actual] == [e.stride() for e in expected]
    assert planned(collected) == ["layouts planned", "layouts planned"]
    for buffer, value in zip(mine.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(buffer, value)


@pytest.mark.ci_cases("from first-residual", "from last-unet")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("channels_last", [False, True], ids=["from first", "from last"])
def test_inference(name: str, channels_last: bool) -> None:
    make, size = MODELS[name]
    model = make().eval()
    x = torch.randn(size)
    if channels_last:
        x = x.to(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    with torch.no_grad():
        expected = model(x)
        exact = copy.deepcopy(model).double()(x.double())
        actual = torch.compile(model, backend="litz", options=FORCED)(x)
    close(actual, expected, exact, tolerance=4.0, rounding=1e-5, least_scale=1.0)
    assert actual.stride() == expected.stride()


def test_dynamic_shapes_train_without_recompiling() -> None:
    model = Residual(8, 1).train()
    mine = copy.deepcopy(model)
    run = torch.compile(mine, backend="litz", options=FORCED, dynamic=True)
    with reports.collect() as collected:
        for batch, side in ((2, 16), (3, 24)):
            x = torch.randn(batch, 3, side, side)
            model.zero_grad(), mine.zero_grad()
            for got, want in zip(step(mine, run, x), step(model, model, x), strict=True):
                torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
                assert got.stride() == want.stride()
    assert len(collected) == 2 and planned(collected) == ["layouts planned"] * 2


def test_an_output_that_is_used_inside_too() -> None:
    conv, more = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = conv(x)
        return y, more(y), y.view(-1)

    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        expected, actual = f(x), torch.compile(f, backend="litz", options=FORCED)(x)
    for got, want in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()
    assert actual[0].data_ptr() == actual[2].data_ptr(), "a view of an output shares its memory, as in eager"


def test_what_as_strided_sees() -> None:
    """An offset in storage means the storage that eager has."""
    conv = nn.Conv2d(3, 4, 3, padding=1)

    def f(x: Tensor) -> Tensor:
        return conv(conv(x)[:, :3].contiguous()).as_strided((2, 5), (7, 3), 11) * 2

    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(f, backend="litz", options=FORCED)(x), f(x))


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "cut": lambda y: y[:, :, 1:],
    "permuted": lambda y: y.permute(0, 2, 3, 1),
    "part": lambda y: y.split(8, 1)[1],
    "chain": lambda y: y[:, :, 1:].transpose(2, 3)[:, 0],
    "as_strided": lambda y: y.relu().as_strided((2, 16), (576, 36), 3),
}


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_that_is_returned_keeps_its_strides(name: str, training: bool) -> None:
    """What it is a view of may be in no other layout: a view in new strides is what the user would see."""
    conv, view, x = nn.Conv2d(3, 16, 3), VIEWS[name], torch.randn(2, 3, 8, 8)
    with torch.set_grad_enabled(training):
        actual, expected = torch.compile(lambda x: view(conv(x)), backend="litz", options=FORCED)(x), view(conv(x))
    torch.testing.assert_close(actual, expected)
    assert actual.stride() == expected.stride()


def test_a_mutated_input_keeps_its_strides() -> None:
    conv = nn.Conv2d(3, 3, 3, padding=1)

    def f(x: Tensor, state: Tensor) -> Tensor:
        y = conv(x)
        state.add_(y)
        return conv(y)

    x = torch.randn(2, 3, 8, 8)
    states = [torch.zeros(2, 3, 8, 8) for _ in range(2)]
    with torch.no_grad():
        expected, actual = f(x, states[0]), torch.compile(f, backend="litz", options=FORCED)(x, states[1])
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(states[1], states[0])
    assert states[1].stride() == states[0].stride()


def test_outputs_may_be_left_as_they_are() -> None:
    conv = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad(), reports.collect() as collected:
        run = torch.compile(conv, backend="litz", options={**FORCED, "layout.keep_output_strides": False})
        out = run(x)
        torch.testing.assert_close(out, conv(x))
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert not any("for output" in d.subject for one in collected for d in one.decisions)


def test_a_custom_op_gets_the_strides_of_the_trace() -> None:
    """An op that nobody knows is not handed another layout than it was traced with."""
    seen: list[tuple[int, ...]] = []

    @torch.library.custom_op("litz_layout_test::look", mutates_args=())
    def look(x: Tensor) -> Tensor:
        seen.append(x.stride())
        return x.clone()

    look.register_fake(lambda x: torch.empty_like(x))
    conv = nn.Conv2d(3, 8, 3, padding=1)
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad(), reports.collect() as collected:
        f = lambda x: look(conv(x).relu()) + 1
        torch.testing.assert_close(torch.compile(f, backend="litz", options=FORCED)(x), f(x))
    assert seen[0] == seen[1] == (512, 64, 8, 1)
    assert planned(collected) == ["layouts planned"]


def test_a_backward_by_itself() -> None:
    """A graph of gradients that no forward of litz's saved anything for."""
    aten = torch.ops.aten
    rest = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])
    first, second = torch.randn(8, 3, 3, 3), torch.randn(8, 8, 3, 3)

    def f(gradient: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        gradient, of_second, _ = aten.convolution_backward(gradient * 2, y, second, *rest)
        of_x, of_first, _ = aten.convolution_backward(gradient * (y > 0), x, first, *rest)
        return of_x, of_first, of_second

    inputs = torch.randn(2, 8, 9, 7), torch.randn(2, 3, 9, 7), torch.randn(2, 8, 9, 7)
    with torch.no_grad(), reports.collect() as collected:
        actual = torch.compile(f, backend="litz", options=FORCED)(*inputs)
    for got, want in zip(actual, f(*inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)
        assert got.stride() == want.stride()
    assert planned(collected) == ["layouts planned"]


def test_switched_off() -> None:
    with torch.no_grad(), reports.collect() as collected:
        torch.compile(Residual().eval(), backend="litz", options={"layout.enable": False})(torch.randn(2, 3, 16, 16))
    assert not [d for one in collected for d in one.decisions if d.plugin == "layout"]


class Viewed(nn.Module):
    """Views of convolutions' results, each saved for the backward: cut, permuted, and one of other dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(5, 4, 3, padding=1)
        self.mix = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.first(x))
        cut = torch.exp(self.second(y[:, 2:7]))
        flat = (y.view(2, -1) * y.flatten(1).cos()).sum(1).view(2, 1, 1, 1)
        return self.mix(y.permute(0, 2, 3, 1)).sum() * cut + flat


def test_saved_views() -> None:
    model = Viewed()
    mine, double = copy.deepcopy(model), copy.deepcopy(model).double()
    x = torch.randn(2, 3, 9, 7)
    expected, exact = step(model, model, x), step(double, double, x.double())
    with reports.collect() as collected:
        actual = step(mine, torch.compile(mine, backend="litz", options=FORCED), x)
    close(actual, expected, exact, tolerance=4.0, rounding=1e-5)
    assert planned(collected) == ["layouts planned"] * 2


class NormedBetween(nn.Module):
    """ConvNeXt between its stages: what a layer norm over the channels gives is permuted, and a convolution's input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 8, 4, 4), nn.LayerNorm(8), nn.Conv2d(8, 12, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.second(x).mean((-2, -1))


def test_a_saved_view_of_a_tensor_with_a_planned_layout() -> None:
    """By cost. ConvNeXt permutes what a layer norm gives and saves that for the backward of a convolution."""
    model = NormedBetween()
    mine, double = copy.deepcopy(model), copy.deepcopy(model).double()
    x = torch.randn(2, 3, 32, 32)
    expected, exact = step(model, model, x), step(double, double, x.double())
    with reports.collect() as collected:
        actual = step(mine, torch.compile(mine, backend="litz"), x)
    close(actual, expected, exact, tolerance=4.0, rounding=1e-5)
    assert [a.stride() for a in actual] == [e.stride() for e in expected]
    assert planned(collected) == ["layouts planned"] * 2


class Wave(nn.Module):
    """Convolutions along a line, whose norm torch computes on a view of rank 4; with `image`, of images as well."""

    def __init__(self, image: bool) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv1d(8, 16, 5, 2), nn.GroupNorm(16, 16), nn.Conv1d(16, 8, 3, 2)
        self.pixels = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3)) if image else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.second(self.norm(self.first(x)))
        return self.pixels(h.unflatten(2, (7, 7)))


@pytest.mark.each_value
@pytest.mark.parametrize("image", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_convolutions_along_a_line(image: bool, training: bool) -> None:
    """They have no layouts to choose from; a plan used to fail on their neighbours of rank 4."""
    model, x = Wave(image).train(training), torch.randn(2, 8, 203)
    mine, double = copy.deepcopy(model), copy.deepcopy(model).double()
    compiled = torch.compile(mine, backend="litz", options=FORCED)
    if training:
        close(step(mine, compiled, x), step(model, model, x), step(double, double, x.double()), tolerance=4.0)
        return
    with torch.no_grad():
        close([compiled(x)], [model(x)], [double(x.double())], tolerance=4.0)
