"""Regions (`nested_compile_region`) in training, and calls that may return views of operands or of one another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from litz.lower.fallback import OwnResults
from support.compare import litz

Function = Callable[..., torch.Tensor]


def _gradients(f: Function, *inputs: torch.Tensor) -> list[torch.Tensor]:
    given = [value.clone().requires_grad_() for value in inputs]
    result = f(*given)
    return [result.detach(), *torch.autograd.grad(result.square().sum(), given)]


def _check(f: Function, plain: Function, *inputs: torch.Tensor) -> None:
    """Results and gradients of the compiled function are those of the plain one in float64."""
    exact, compiled = _gradients(plain, *(value.double() for value in inputs)), litz(f, fullgraph=True)
    for _ in range(2):
        for ours, theirs in zip(_gradients(compiled, *inputs), exact, strict=True):
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)


def _random(*sizes: int, count: int = 1) -> list[torch.Tensor]:
    return [torch.randn(sizes) / 4 for _ in range(count)]


def _layers(layer: Function) -> Function:
    def f(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = x + layer(weight, x)
        return x

    return f


LAYERS: dict[str, Function] = {
    "product": lambda w, x: torch.tanh(x @ w.t()),
    "view": lambda w, x: (w.t() * 1)[: x.shape[0]] + x.t().t(),
    "linear": lambda w, x: torch.nn.functional.linear(torch.nn.functional.gelu(x), w, w[0]),
    "softmax": lambda w, x: (x @ w).softmax(-1) @ w.t(),
}


@pytest.mark.ci_cases("softmax", "linear")
@pytest.mark.parametrize("layer", LAYERS.values(), ids=list(LAYERS))
def test_equal_layers_train(layer: Function) -> None:
    """The forward of a region gave a permuted weight to the backward, and a sum was written over the weight."""
    region = torch.compiler.nested_compile_region(layer)
    _check(_layers(region), _layers(layer), *_random(16, 16), *_random(16, 16, count=3))


def test_a_region_that_is_left_to_torch_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch has the gradient of a region only while it traces."""
    monkeypatch.setattr("litz.capture.aot.reads_what_it_writes", lambda graph: "copy_")
    region = torch.compiler.nested_compile_region(LAYERS["product"])
    with pytest.warns(UserWarning, match="copy_ reads a part of the memory that it writes"):
        _check(_layers(region), _layers(LAYERS["product"]), *_random(16, 16, count=3))


def test_regions_within_regions() -> None:
    inner = torch.compiler.nested_compile_region(lambda w, x: x + torch.sin(x @ w))
    outer = torch.compiler.nested_compile_region(lambda w, x: inner(w, inner(w.t(), x)) * 0.5)

    def plain(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y = x + torch.sin(x @ w.t())
        return (y + torch.sin(y @ w)) * 0.5

    _check(_layers(outer), _layers(plain), *_random(8, 8, count=3))


@pytest.mark.nightly
def test_a_model_whose_layers_are_regions() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.out = torch.nn.LayerNorm(12), torch.nn.Linear(12, 12)
            self.register_buffer("scale", torch.rand(12))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.dropout(self.out(self.norm(x)) * self.scale, 0.5, False)

    class Regional(Layer):
        forward = torch.compiler.nested_compile_region(Layer.forward)

    model = torch.nn.Sequential(*(Regional() for _ in range(3)))
    exact = torch.nn.Sequential(*(Layer() for _ in range(3))).double()
    exact.load_state_dict(model.state_dict())
    x = torch.randn(5, 12)
    litz(model)(x).square().sum().backward()
    exact(x.double()).square().sum().backward()
    for (name, ours), theirs in zip(model.named_parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-4, atol=1e-5, msg=name)


def test_calls_without_a_schema_return_memory_of_their_own() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    fresh = x + 1

    def call(x: torch.Tensor, more: list[torch.Tensor]) -> tuple[Any, ...]:
        return x, x.t(), {"more": [more[0][1:], fresh, fresh[0]]}, 7, None

    given = [torch.ones(3)]
    same, turned, nested, number, nothing = OwnResults(call)(x, given)
    own = [same, turned, *nested["more"]]
    assert len({value.untyped_storage().data_ptr() for value in [*own, x, given[0]]}) == 7
    assert nested["more"][1] is fresh  # what shares no memory is not copied
    for value, expected in zip(own, [x, x.t(), given[0][1:], fresh, fresh[0]], strict=True):
        assert torch.equal(value, expected) and value.stride() == expected.stride()
    assert (number, nothing) == (7, None)
