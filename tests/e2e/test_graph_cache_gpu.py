"""The graph cache on a GPU: what is loaded computes what was compiled, recorded or not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from support.graph_cache import Runs

pytestmark = pytest.mark.gpu


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield Runs(tmp_path)
    torch._dynamo.reset()


def make() -> torch.nn.Module:
    layers = torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.Flatten()
    return torch.nn.Sequential(*layers, torch.nn.Linear(16 * 64, 10), torch.nn.LayerNorm(10)).cuda()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_training(runs: Runs, dynamic: bool, cuda_graphs: bool) -> None:
    model, inputs = make(), [torch.randn(n, 3, 8, 8, device="cuda") for n in (4, 4, 4, 6)]
    state = {name: value.clone() for name, value in model.state_dict().items()}

    def steps(compiled: Any) -> Any:
        model.load_state_dict(state)
        found = []
        for x in [x.clone() for x in inputs[: 4 if dynamic else 3]]:  # dynamo remembers tensors that it has seen
            model.zero_grad(set_to_none=True)
            loss = compiled(x).square().mean()
            loss.backward()
            found.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
        return found

    once = runs.run(steps, model, dynamic, cuda_graphs=cuda_graphs)
    assert set(runs.said) == {"miss"}
    again = runs.run(steps, model, dynamic, cuda_graphs=cuda_graphs)
    assert set(runs.said) == {"hit"}, [report.graph_cache for report in runs.reports]
    torch.testing.assert_close(again, once, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(again, steps(model), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_equal_layers_share_code_and_no_recording(runs: Runs, cuda_graphs: bool) -> None:
    """Each has weights of its own at addresses of its own."""
    layers = [torch.nn.Linear(64, 64).cuda() for _ in range(3)]

    def call(compiled: Any) -> Any:
        return None

    runs.run(call, lambda x: x)
    x, words = torch.randn(8, 64, device="cuda"), []
    for layer in layers:

        def fn(x: torch.Tensor, layer: torch.nn.Module = layer) -> torch.Tensor:
            return torch.relu(layer(x)).sum(0)

        def three(compiled: Any) -> Any:
            with torch.no_grad():
                return [compiled(x).clone() for _ in range(4)]

        found = runs.again(three, fn, cuda_graphs=cuda_graphs)
        words += runs.said
        torch.testing.assert_close(found, [fn(x)] * 4, rtol=1e-3, atol=1e-4)
    assert words == ["miss", "hit", "hit"]


def test_writes_constants_and_host_numbers(runs: Runs) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor, number: torch.Tensor) -> Any:
        x.add_(y * torch.tensor([0.5, 2.0, -1.0]).to(x.device))
        return x.t(), y[1:], x * number

    def call(compiled: Any) -> Any:
        x = torch.ones(5, 3, device="cuda")
        y = torch.arange(15.0, device="cuda").view(5, 3)
        return compiled(x, y, torch.tensor(1.5)), x

    runs.run(call, fn)
    found = runs.run(call, fn)
    assert runs.said == ["hit"]
    torch.testing.assert_close(found, call(fn))
    assert found[0][0].stride() == call(fn)[0][0].stride()
