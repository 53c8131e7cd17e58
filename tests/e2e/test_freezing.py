"""Freezing: parameters as constants, batch norm inside of convolutions, and other weights refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from litz import report as reports
from litz.errors import FrozenWeightsError
from litz.report import CompileReport
from support.compare import close

FREEZING = {"freezing": True}


def network(**conv: Any) -> nn.Sequential:
    """Convolution and batch norm with statistics of its own, twice, and a linear layer."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, **conv),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 6, 3, bias=False, groups=2),
        nn.BatchNorm2d(6),
        nn.Flatten(),
        nn.Linear(6 * 4 * 4, 5),
    )
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.running_mean, module.weight.data, module.bias.data):
                assert tensor is not None
                tensor.uniform_(-1.0, 1.0)
            assert module.running_var is not None
            module.running_var.uniform_(0.5, 2.0)
    return model.eval()


def compile_frozen(model: Any, *args: Tensor, **options: Any) -> tuple[Any, Tensor, CompileReport]:
    """(compiled, its result, the report)."""
    torch._dynamo.reset()
    run = torch.compile(model, backend="litz", options={**FREEZING, **options})
    with torch.no_grad(), reports.collect() as collected:
        out = run(*args)
    return run, out, collected[0]


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.ci_cases("True-torch.float32", "False-torch.bfloat16")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_batch_norm_becomes_part_of_the_convolution(dtype: torch.dtype, bias: bool) -> None:
    model = network(bias=bias).to(dtype)
    before = copy.deepcopy(model.state_dict())
    _, out, report = compile_frozen(model, X.to(dtype))
    with torch.no_grad():
        expected, exact = model(X.to(dtype)), copy.deepcopy(model).double()(X.double())
    close(out, expected, exact, tolerance=3.0, least_scale=1.0)
    folded = [d for d in report.decisions if d.chosen == "folded"]
    assert len(folded) == 2
    assert report.program is not None and report.loops_before <= 3, "what is left: ReLU and views"
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), f"the model's own {name} is untouched"


def test_inputs_stay_and_constants_take_their_place() -> None:
    model = network()
    _, _, report = compile_frozen(model, X)
    program = report.program
    assert program is not None
    read = {name for operation in program.operations for name in operation.reads}
    assert not read & {name for name in program.static_inputs}, "no parameter is read"
    assert len(program.constants) == 6, "two convolutions' and the linear layer's weight and bias"


class Scaled(nn.Module):
    """A scale that is folded as a number before the rest is computed, and a weight that is read itself, too."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.weight = nn.Parameter(torch.randn(4, 4, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * (self.scale * 3) + self.weight, x + (self.weight.sin() + 1)


def test_what_is_computed_takes_no_place_of_a_weight_that_stays() -> None:
    model, x = Scaled(), X[0, 0, :4, :4]
    _, out, _ = compile_frozen(model, x)
    with torch.no_grad():
        torch.testing.assert_close(out, model(x))


@pytest.mark.ci_cases("in place", "buffer")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m[0].weight.mul_(2), "was written after it was frozen"),
        (lambda m: m.load_state_dict(network().state_dict()), "was written after it was frozen"),
        (lambda m: setattr(m[0].weight, "data", torch.zeros(8, 3, 3, 3)), "is another tensor"),
        (lambda m: m[1].running_mean.add_(1), "was written after it was frozen"),
    ],
    ids=["in place", "load_state_dict", "data", "buffer"],
)
def test_other_weights_are_refused(change: Any, message: str) -> None:
    model = network()
    run, out, _ = compile_frozen(model, X)
    with torch.no_grad():
        assert torch.equal(run(X), out)
        change(model)
        with pytest.raises(FrozenWeightsError, match=message) as caught:
            run(X)
        assert "torch._dynamo.reset()" in str(caught.value) and caught.value.weight
        torch._dynamo.reset()
        torch.testing.assert_close(run(X), model(X), rtol=1e-4, atol=1e-4)


def test_training_is_not_frozen_and_says_so() -> None:
    model = network().train()
    torch._dynamo.reset()
    run = torch.compile(model, backend="litz", options=FREEZING)
    with reports.collect() as collected:
        run(X).sum().backward()
    assert all(any(d.chosen == "parameters not frozen" for d in one.decisions) for one in collected)
    with torch.no_grad():
        model[0].weight.mul_(2)
    run(X)


def test_a_chain_that_is_used_twice_is_left() -> None:
    conv = nn.Conv2d(3, 4, 3)

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = conv(x)
        return y, y * 2.0 + 1.0

    torch._dynamo.reset()
    with torch.no_grad(), reports.collect() as collected:
        out = torch.compile(f, backend="litz", options=FREEZING)(X)
        torch.testing.assert_close(out, f(X))
    assert not any(d.chosen == "folded" for d in collected[0].decisions)


def test_scales_by_pixel_are_no_scales_by_channel() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 6, 3)
            self.by_column = nn.Parameter(torch.randn(6))
            self.by_channel = nn.Parameter(torch.randn(6, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return (3.0 - self.conv(x) * self.by_channel) / 2.0 * self.by_column

    model = Model().eval()
    _, out, report = compile_frozen(model, X)
    with torch.no_grad():
        torch.testing.assert_close(out, model(X), rtol=1e-4, atol=1e-5)
    (folded,) = [d for d in report.decisions if d.chosen == "folded"]
    assert folded.subject.startswith("div into convolution")


def test_symbolic_sizes() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)).eval()
    torch._dynamo.reset()
    run = torch.compile(model, backend="litz", options=FREEZING, dynamic=True)
    with torch.no_grad(), reports.collect() as collected:
        for side in (8, 12, 16):
            x = torch.randn(2, 3, side, side)
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(collected) == 1 and any(d.chosen == "folded" for d in collected[0].decisions)
