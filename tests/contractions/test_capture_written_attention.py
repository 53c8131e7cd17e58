"""Attention that a model writes out: one call of torch's in training, as exact as eager, with less saved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from litz import report as reports
from litz.capture.graph import Graph
from litz.driver.stages import capture
from litz.pipeline import make_compiler
from litz.target import target_of
from litz_contractions.traced.written_attention import is_fused_half
from litz_plugins.vetoes import Vetoes
from support.compare import NO_GPU

HALF = torch.bfloat16


def divided(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = F.dropout(F.softmax(torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(36), dim=-1), 0.0, True)
    return torch.matmul(weights, v).permute(0, 2, 1, 3).contiguous().view(q.shape[0], q.shape[2], -1)


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.softmax((torch.einsum("bhlk,bhtk->bhlt", [q, k]) * 0.2).float(), -1).to(q.dtype)
    return torch.einsum("b h l t, b h t v -> b h l v", [F.dropout(weights, 0.5, False), v])


def scaled_before(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.softmax((q * 0.3) @ k.mT, -1, dtype=torch.float32).to(v.dtype) @ v


def narrow_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Nobody looks at strides between the attention and the sine, which is in eager's order."""
    return (q.matmul(k.transpose(2, 3)).softmax(dim=3) @ v).transpose(1, 2).sin()


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Graph]]:
    """What is for CUDA devices is done on the CPU."""
    monkeypatch.setattr(
        "litz_contractions.traced.written_attention.is_fused_half", lambda target_of, result: result.dtype == HALF
    )
    yield []


def inputs(dtype: torch.dtype = HALF, keys: int = 140, queries: int = 130, width: int = 36) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 3, size, width).to(dtype).requires_grad_() for size in (queries, keys, keys)]


def run(fn: Callable[..., Tensor], values: list[Tensor]) -> list[Tensor]:
    leaves = [value.detach().clone().requires_grad_() for value in values]
    out = fn(*leaves)
    out.to(torch.promote_types(out.dtype, torch.float32)).square().sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def captured(fn: Callable[..., Any], values: list[Tensor], veto: frozenset[str] = frozenset()) -> list[Graph]:
    """The graphs of a forward, and of a backward where one is asked for."""
    found: list[Graph] = []

    def keep(graph: Graph) -> Callable[..., Any]:
        found.append(graph)
        return lambda args: torch.fx.Interpreter(graph.module).run(*args, enable_io_processing=False)

    compiler = make_compiler()
    object.__setattr__(compiler, "vetoes", Vetoes(veto))
    torch._dynamo.reset()
    torch.compile(fn, backend=lambda gm, given: capture(gm, given, keep, compiler), dynamic=False)(*values)
    return found


def decided(graph: Graph) -> dict[str, str]:
    """The reasons for one call, by the softmax."""
    found = graph.earlier.decisions
    return {each.subject: each.reason for each in found if each.chosen.startswith("one call")}


def is_one_call(graph: Graph) -> bool:
    return any("scaled_dot_product" in str(node.target) for node in graph.nodes)


@pytest.mark.parametrize("fn", [divided, by_einsum, scaled_before, narrow_rows])
def test_values_gradients_and_strides(fn: Callable[..., Tensor]) -> None:
    values = inputs()
    exact, eager = run(fn, [value.double() for value in values]), run(fn, values)
    with reports.collect() as collected:
        found = run(torch.compile(fn, backend="litz"), values)
    for one, other, truth in zip(found, eager, exact, strict=True):
        error, usual = ((each.double() - truth).norm() / truth.norm() for each in (one, other))
        assert error < 1.2 * usual and one.stride() == other.stride() and one.dtype == other.dtype
    (decision,) = [each for each in collected[0].decisions if each.chosen.startswith("one call")]
    assert decision.key.startswith(f"{collected[0].name}:fuse_written_attention/softmax")
    assert "each of 130 queries" in decision.reason


def test_the_weights_are_not_saved() -> None:
    (graph,) = captured(divided, inputs())
    assert is_one_call(graph)
    saved = [node.meta["val"].shape for node in graph.outputs if isinstance(node, torch.fx.Node)]
    assert not any(shape[-2:] == (130, 140) for shape in saved)


def test_rows_that_are_not_aligned_are_one_call() -> None:
    (graph,) = captured(divided, inputs(keys=49, queries=49, width=64))
    assert is_one_call(graph) and "rows of 49 weights" in decided(graph)["softmax"]
    (graph,) = captured(divided, inputs(keys=56, queries=49, width=64))
    assert not is_one_call(graph)


def both(q: Tensor, k: Tensor, v: Tensor) -> Any:
    weights = F.softmax(q @ k.mT, -1)
    return weights @ v, weights


def of_scores(q: Tensor, k: Tensor, v: Tensor) -> Any:
    scores = q @ k.mT
    return F.softmax(scores, -1) @ v, scores.sum()


STAY: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "weights are returned": (both, {}),
    "scores are used": (of_scores, {}),
    "dropout": (lambda q, k, v: F.dropout(F.softmax(q @ k.mT, -1), 0.1) @ v, {}),
    "along queries": (lambda q, k, v: F.softmax(q @ k.mT, -2) @ v, {}),
    "masked": (lambda q, k, v: F.softmax((q @ k.mT) + (q[..., :1] > 0).to(HALF), -1) @ v, {}),
    "a factor below 0": (lambda q, k, v: F.softmax((q @ k.mT) * -0.2, -1) @ v, {}),
    "a factor of each row": (lambda q, k, v: F.softmax((q @ k.mT) * q[..., :1], -1) @ v, {}),
    "in float64": (lambda q, k, v: F.softmax((q @ k.mT).double(), -1).to(HALF) @ v, {}),
    "weights on the right": (lambda q, k, v: v.mT @ F.softmax(q @ k.mT, -1), {"keys": 140, "queries": 140}),
    "other product": (lambda q, k, v: torch.einsum("bhlt,bhtv->bhvl", F.softmax(q @ k.mT, -1), v), {}),
    "few keys": (divided, {"keys": 104}),
    "few queries": (divided, {"queries": 100, "keys": 144}),
    "wide heads": (divided, {"width": 96, "keys": 144}),
    "fewer keys than half a tile": (divided, {"keys": 31}),
    "fewer queries than half a tile": (divided, {"queries": 31}),
    "float32": (divided, {"dtype": torch.float32}),
}


@pytest.mark.parametrize("name", STAY)
def test_what_it_is_not_for_stays(name: str) -> None:
    fn, settings = STAY[name]
    graphs = captured(fn, inputs(**settings))
    assert graphs[0].kind == "forward" and not is_one_call(graphs[0]) and not decided(graphs[0])


def test_inference_stays() -> None:
    with torch.no_grad():
        (graph,) = captured(divided, inputs())
    assert graph.kind == "inference" and not is_one_call(graph)


def test_sizes_that_vary_stay() -> None:
    values = inputs()
    for value in values:
        torch._dynamo.mark_dynamic(value, 0)
    torch.testing.assert_close(torch.compile(divided, backend="litz")(*values), divided(*values), atol=2e-2, rtol=0.1)


def test_torch_adds_in_one_order_where_the_user_asks_for_that() -> None:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        (graph,) = captured(divided, inputs())
    finally:
        torch.use_deterministic_algorithms(before)
    assert not is_one_call(graph)


@pytest.mark.parametrize("key", ["fuse_written_attention", "graph0_forward:fuse_written_attention/softmax", "*"])
def test_a_veto_leaves_it_as_it_is(key: str) -> None:
    (graph,) = captured(divided, inputs(), frozenset({key}))
    assert graph.name == "graph0_forward" and not is_one_call(graph) and not decided(graph)
    assert any("fuse_written_attention" in left_out for left_out in graph.earlier.gate.left_out)


def test_on_a_cpu_nothing_is_wanted() -> None:
    assert not any(is_fused_half(target_of, value) for value in inputs())
    able = replace(target_of("cpu"), abilities=frozenset({"fused_attention"}))
    assert all(is_fused_half(lambda device: able, value) for value in inputs())


@pytest.mark.gpu
@NO_GPU
@pytest.mark.parametrize(("width", "keys"), [(36, 256), (64, 256), (64, 49), (128, 33)])
def test_on_a_gpu(width: int, keys: int) -> None:
    """Widths of no multiple of 8 are padded for torch's kernel."""

    def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(width), -1) @ v

    sizes = (256, keys, keys, 256)
    given = [torch.randn(3, 4, size, width, device="cuda", dtype=torch.bfloat16) for size in sizes]
    torch._dynamo.reset()
    found = []
    for run, dtype in ((attended, torch.float64), (attended, None), (torch.compile(attended, backend="litz"), None)):
        own = [each.to(dtype or each.dtype, copy=True).requires_grad_() for each in given[:3]]
        with reports.collect() as made:
            out = run(*own)
        out.backward(given[3].to(out.dtype))
        found.append([out.detach(), *(each.grad for each in own)])
    assert any(":fuse_written_attention/" in decision.key for report in made for decision in report.decisions)
    for exact, eager, ours in zip(*found, strict=True):
        eagers, own_error = ((each.double() - exact).norm() / exact.norm() for each in (eager, ours))
        assert own_error <= 1.5 * eagers + 1e-3
