"""Regions of `nested_compile_region` that are compiled once for all their calls: results and gradients against the
plain model in float64, views across the border, random numbers, what is not kept and why, a second process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.functional import dropout, gelu, layer_norm, linear, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from litz import report as reports
from litz.pipeline import generate, make_compiler, plan_schedule, schedule_only
from support.compare import litz
from support.versions import OLD_TORCH
from support.warm import run_twice

pytestmark = pytest.mark.skipif(OLD_TORCH, reason="an older torch pairs regions' halves by their order: none is kept")

Function = Callable[..., Any]
KEEP = {"prefer": [f"keep_region/subgraph_{number}=yes" for number in range(4)]}
"""Keeps the regions of these tests, which are too small to be kept for their estimates."""


def _region(function: Function) -> Function:
    return torch.compiler.nested_compile_region(function)


def _layers(layer: Function) -> Function:
    def f(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = layer(x, weight)
        return x

    return f


def _gradients(f: Function, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    given = [value.clone().requires_grad_() for value in inputs]
    result = f(*given)
    return [result.detach(), *torch.autograd.grad(result.square().sum(), given)]


def _close(ours: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> None:
    for one, other in zip(ours, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=5e-4, atol=1e-4)


def _given(rows: int = 16, columns: int = 16, count: int = 4) -> list[torch.Tensor]:
    return [torch.randn(rows, columns) / 4, *(torch.randn(columns, columns) / 4 for _ in range(count))]


def _chosen(found: Sequence[Any]) -> dict[str, str]:
    decisions = [decision for report in found for decision in report.decisions if decision.stage == "traced"]
    return {decision.subject: f"{decision.chosen}: {decision.reason}" for decision in decisions}


def _kept(found: Sequence[Any]) -> list[int]:
    """How many regions each graph has."""
    return [report.wrapper_source.count("def region") for report in found]


def _attention(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    heads = linear(layer_norm(x, x.shape[-1:]), w).view(1, x.shape[0], 2, -1).transpose(1, 2)
    return x + scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).reshape(x.shape)


LAYERS: dict[str, Function] = {
    "product": lambda x, w: x + torch.tanh(x @ w.t()),
    "view": lambda x, w: x + (w.t() * 1)[: x.shape[0]] + x.t().t(),
    "linear": lambda x, w: x + linear(gelu(x), w, w[0]),
    "softmax": lambda x, w: (x @ w).softmax(-1) @ w.t(),
    "turned": lambda x, w: (w @ x.t()).t().sin(),
    "attention": _attention,
    "pieces": lambda x, w: torch.cat([part.sin() * other for part, other in zip((x @ w).chunk(2), x.chunk(2))]),
}


@pytest.mark.ci_cases("product-False", "view-True", "pieces-False", "turned-False")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("layer", LAYERS.values(), ids=list(LAYERS))
def test_equal_layers_train(layer: Function, dynamic: bool) -> None:
    inputs = _given()
    exact = _gradients(_layers(layer), [value.double() for value in inputs])
    compiled = litz(_layers(_region(layer)), fullgraph=True, dynamic=dynamic, options=KEEP)
    with reports.collect() as found:
        _close(_gradients(compiled, inputs), exact)
    assert all(_kept(found)) and len(found) == 2, _chosen(found)
    _close(_gradients(compiled, inputs), exact)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs).double(), exact[0], rtol=5e-4, atol=1e-4)


def test_a_region_is_kept_for_many_calls_alone() -> None:
    wide = lambda x, w: x + torch.tanh(x @ w.t())
    for calls, chosen in ((3, "written into"), (6, "compiled once")):
        with reports.collect() as found:
            litz(_layers(_region(wide)))(*(torch.randn(256, 256) for _ in range(calls + 1)))
        (reason,) = _chosen(found).values()
        assert chosen in reason and f"{calls} calls" in reason and _kept(found) == [int(calls == 6)]
    with reports.collect() as found:  # a pass over memory more for each call
        litz(_layers(_region(lambda x, w: (x + w).sin())))(*(torch.randn(256, 256) for _ in range(8)))
    assert "written into" in "".join(_chosen(found).values()) and _kept(found) == [0]
    with reports.collect() as found:
        litz(_layers(_region(wide)), options={"veto": ["keep_region"]})(*(torch.randn(256, 256) for _ in range(7)))
    assert "vetoed" in "".join(_chosen(found).values()) and _kept(found) == [0]


def test_no_saved_tensor_is_copied() -> None:
    """A forward region returned the weights that its backward reads, and each call copied them."""
    compiled = litz(_layers(_region(LAYERS["linear"])), options=KEEP)
    with reports.collect() as found:
        _gradients(compiled, _given())
    forward = found[0].wrapper_source
    (returned,) = [line for line in forward.split("def call")[0].splitlines() if line.lstrip().startswith("return")]
    assert "primals" not in returned and "None" in returned


def test_results_that_are_written_later() -> None:
    def layer(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = (x @ w).sin()
        return y.exp(), y.t()[1:] + x[1:]

    def outer(layer: Function) -> Function:
        def f(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
            total = x * 0
            for weight in weights:
                made, rest = layer(x, weight)
                rest.mul_(2)
                total = total + weight.t() * made
                total[1:] += rest
                x = made.sub_(1)
            return total

        return f

    inputs = _given()
    with torch.no_grad(), reports.collect() as found:  # dynamo takes results for leaves, which gradients bar from that
        ours = litz(outer(_region(layer)), options=KEEP)(*inputs)
        exact = outer(layer)(*(value.double() for value in inputs))
    _close([ours], [exact])
    assert _kept(found) == [1]


def test_a_region_that_writes_what_it_is_given_is_not_kept() -> None:
    def layer(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        state.add_(x.sum())
        return x.cos() + state

    def f(layer: Function) -> Function:
        def run(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
            for _ in range(5):
                x = layer(x, state)
            return x

        return run

    x, ours, theirs = torch.randn(8), torch.zeros(8), torch.zeros(8)
    with torch.no_grad(), reports.collect() as found:
        torch.testing.assert_close(litz(f(_region(layer)), options=KEEP)(x, ours), f(layer)(x, theirs))
    torch.testing.assert_close(ours, theirs)
    assert not any(_kept(found))


def test_layers_that_lie_otherwise_or_have_other_types_share_nothing() -> None:
    layer = lambda x, w: (x @ w).sin().to(x.dtype)
    square = torch.randn(16, 16)
    weights = [square, square.t(), square.clone(), square.t().clone().t()]

    def f(layer: Function, *given: torch.Tensor) -> torch.Tensor:
        x, *rest = given
        for weight in rest:
            x = layer(x, weight)
        return layer(x.half(), rest[0].half()).float()

    run = lambda *given: f(_region(layer), *given)
    x = torch.randn(16, 16)
    found = litz(run, options=KEEP)(x, *weights)
    exact = f(layer, x, *weights)
    torch.testing.assert_close(found, exact, rtol=2e-2, atol=2e-2)


def test_regions_within_regions() -> None:
    inner_plain = lambda x, w: x + torch.sin(x @ w)
    inner = _region(inner_plain)
    outer = lambda inner: lambda x, w: inner(inner(x, w.t()), w) * 0.5
    inputs = _given(8, 8, 5)
    exact = _gradients(_layers(outer(inner_plain)), [value.double() for value in inputs])
    for function in (_region(outer(inner)), outer(inner)):
        with reports.collect() as found:
            _close(_gradients(litz(_layers(function), options=KEEP), inputs), exact)
        assert all(_kept(found))


@pytest.mark.ci_cases("around")
@pytest.mark.parametrize("where", ["around", "within"])
def test_checkpoints(where: str) -> None:
    plain = lambda x, w: x + torch.tanh(dropout(x, 0.0) @ w.t()).sin()
    region = _region(plain)
    layers = {
        "around": lambda x, w: checkpoint(region, x, w, use_reentrant=False),
        "within": _region(lambda x, w: checkpoint(plain, x, w, use_reentrant=False)),
    }
    inputs = _given()
    exact = _gradients(_layers(plain), [value.double() for value in inputs])
    _close(_gradients(litz(_layers(layers[where]), options=KEEP), inputs), exact)


def test_dropout_draws_in_each_call_and_its_backward_has_the_mask() -> None:
    region = _region(lambda x, w: dropout(x, 0.5) + w * 0)

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.stack([region(x, w) for _ in range(6)])

    x, w = torch.ones(40, 40, requires_grad=True), torch.ones(40, 40)
    compiled = litz(f, options=KEEP)
    with reports.collect() as found:
        drawn = compiled(x, w)
        drawn.sum().backward()
    assert all(_kept(found)), _chosen(found)
    assert len({tuple(layer.flatten().tolist()) for layer in drawn}) == 6
    assert {*drawn.flatten().tolist()} == {0.0, 2.0} and abs(float(drawn.mean()) - 1) < 0.1
    assert torch.equal(x.grad, drawn.detach().sum(0))
    torch.manual_seed(1)
    first = compiled(x, w)
    torch.manual_seed(1)
    assert torch.equal(compiled(x, w), first) and not torch.equal(compiled(x, w), first)


def test_eagers_random_numbers() -> None:
    layer = lambda x, w: dropout(x, 0.5) @ w
    inputs = _given()
    compiled = litz(_layers(_region(layer)), options={**KEEP, "fallback_random": True})
    torch.manual_seed(1)
    found = compiled(*inputs)
    torch.manual_seed(1)
    torch.testing.assert_close(found, _layers(layer)(*inputs))


def test_a_model_of_many_layers_makes_the_kernels_of_one() -> None:
    layer = lambda x, w: x + linear(gelu(layer_norm(x, x.shape[-1:])), w)
    kernels = []
    for count in (4, 8):
        with reports.collect() as found:
            _gradients(litz(_layers(_region(layer)), options=KEEP), _given(count=count))
        kernels.append([sum("_region" in name for name in report.kernel_sources) for report in found])
    assert kernels[0] == kernels[1] and all(kernels[0])


@pytest.mark.ci_cases("shape1")
@pytest.mark.parametrize("shape", [(1, 1), (0, 4), (1, 7)])
def test_sizes_of_nought_and_one(shape: tuple[int, int]) -> None:
    inputs = _given(*shape)
    exact = _gradients(_layers(LAYERS["softmax"]), [value.double() for value in inputs])
    _close(_gradients(litz(_layers(_region(LAYERS["softmax"])), options=KEEP), inputs), exact)


def test_code_for_a_gpu() -> None:
    with FakeTensorMode(shape_env=ShapeEnv()):
        inputs = [torch.empty(16, 16, device="cuda") for _ in range(5)]
        (schedule,) = schedule_only(_layers(_region(LAYERS["softmax"])), inputs, KEEP)
    assert [*schedule.regions] == ["region0"]
    compiler = make_compiler(None, None)
    sources = generate(plan_schedule(schedule, compiler), compiler)
    assert {source.language for kernel, source in sources.items() if "_region0" in kernel} == {"triton"}


PROGRAM = """
import sys, torch
from litz import report as reports
sys.path[:0] = [sys.argv[1]]
from e2e.test_kept_regions import KEEP, LAYERS, _given, _gradients, _layers, _region
torch.manual_seed(0)
with reports.collect() as found:
    _gradients(torch.compile(_layers(_region(LAYERS["attention"])), backend="litz", options=KEEP), _given())
print(*(report.graph_cache.split()[0] for report in found), all("def region" in r.wrapper_source for r in found))
"""


def test_a_second_process_finds_all(tmp_path: Path) -> None:
    said = run_twice(PROGRAM, tmp_path)
    assert said == [["miss", "miss", "True"], ["hit", "hit", "True"]]
