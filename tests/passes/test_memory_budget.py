"""The option `memory.budget`: the planned peak fits, values stay, more bytes are no slower, and a refusal says the
least."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import litz_contractions.plugin
import litz_numerics.plugin
import litz_operators.plugin
import litz_passes.memory.plugin
import litz_passes.plugin
from litz import report as reports
from litz.capture.torch_api import is_random
from litz.driver.builtin import builtin_plugins
from litz.pipeline import compile_backend, make_compiler
from litz_passes.memory.candidates import Search
from litz_passes.memory.choose import fastest, refusal
from litz_passes.memory.cut import saved_names
from litz_passes.memory.notes import ATTACHMENT
from litz_passes.memory.prices import has_the_same_bits, may_run_again
from litz_passes.nodes import AGAIN, policy_of
from litz_plugins import hookimpl
from litz_plugins.manager import Plugins, make_plugins

OWN = [
    ("passes", litz_passes.plugin),
    ("operators", litz_operators.plugin),
    ("contractions", litz_contractions.plugin),
    ("memory", litz_passes.memory.plugin),
]


def plugins(*extra: tuple[str, object]) -> Plugins:
    return make_plugins(builtin_plugins(), extra=[*OWN, *extra], entry_points=())


class Perceptron(nn.Module):
    """Layers, each with several functions of the same size."""

    def __init__(self, layers: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(layers))
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + self.dropout(F.gelu(layer(x).sin()).exp()).tanh()
        return x


class Attention(nn.Module):
    """Two blocks of a transformer."""

    def __init__(self, dropout: float = 0.0, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.into = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        for n, (into, out, up, down) in enumerate(zip(self.into, self.out, self.up, self.down, strict=True)):
            batch, length, width = x.shape
            parts = into(self.norms[2 * n](x)).chunk(3, -1)
            q, k, v = (part.view(batch, length, 2, width // 2).transpose(1, 2) for part in parts)
            mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
            x = x + F.dropout(out(mixed), self.dropout)
            x = x + F.dropout(down(F.gelu(up(self.norms[2 * n + 1](x)))), self.dropout)
        return x


def images() -> nn.Module:
    """Convolutions with batch norms, whose averages the forward writes."""
    layers: list[nn.Module] = []
    for channels in (3, 8, 8, 8):
        layers += [nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU(), nn.Sigmoid()]
    return nn.Sequential(*layers)


def make(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind()


MODELS: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (Perceptron, (256, 32)),
    "transformer": (Attention, (2, 16, 32)),
    "images": (images, (2, 3, 16, 16)),
}


def step(
    model: nn.Module,
    x: Tensor,
    budget: int | str | None,
    *,
    dynamic: bool | None = None,
    given: Plugins | None = None,
    mode: str = "default",
) -> tuple[list[Tensor], list[reports.CompileReport]]:
    """What a training step gives (the loss, gradients, and what the model keeps), and the reports of its graphs."""
    torch._dynamo.reset()
    options: dict[str, Any] = {"graph_cache": False} | ({} if budget is None else {"memory.budget": budget})
    options |= {} if mode == "default" else {"numerics.mode": mode}
    compiled = torch.compile(
        model, backend=partial(compile_backend, options=options, plugins=given or plugins()), dynamic=dynamic
    )
    with reports.collect() as found:
        results = trained(compiled, model, x)
    return results, found


def trained(call: Callable[[Tensor], Tensor], model: nn.Module, x: Tensor) -> list[Tensor]:
    """The loss, gradients, and what the model keeps."""
    torch.manual_seed(1)
    model.zero_grad()
    x = x.detach().requires_grad_()
    loss = call(x).square().sum()
    loss.backward()
    gradients = [x.grad, *(each.grad for each in model.parameters())]
    return [loss.detach(), *(each.clone() for each in gradients if each is not None), *model.buffers()]


def facts(found: list[reports.CompileReport]) -> dict[str, Any]:
    return json.loads(found[0].attachments[ATTACHMENT])


def taken(found: list[reports.CompileReport]) -> dict[str, Any]:
    (row,) = (row for row in facts(found)["candidates"] if row["taken"])
    return row


def peak(model: nn.Module, x: Tensor, found: list[reports.CompileReport]) -> int:
    """The planned peak of what ran: of a model that gives one result of a known size, with float32 alone."""
    forward, backward = found
    inputs = sum(each.numel() * each.itemsize for each in (x, *model.parameters(), *model.buffers()))
    result = 4 * model(x).numel()
    return inputs + max(max(forward.memory_held), 2 * result + max(backward.memory_held))


@cache
def searched(name: str) -> Search:
    """The search of one of the models."""
    kind, size = MODELS[name]
    return search_of(make(kind), torch.randn(size))


def computed_names(modules: Any) -> set[str]:
    return {node.name for node in modules[1].graph.nodes if node.op == "call_function"}


def search_of(model: nn.Module, x: Tensor) -> Search:
    """The search of a model's graph, with its candidates. Nothing is compiled after it."""
    found: list[Search] = []

    class Plugin:
        @hookimpl(tryfirst=True)
        def litz_partition(self, joint: Any, planned: Any, context: Any) -> None:
            search = Search(joint.copy(), planned, context.target_of)
            assert search.candidates
            found.append(search)
            raise RuntimeError("all is searched")

    with pytest.raises(Exception, match="all is searched"):
        step(model, x, None, given=plugins(("searching", Plugin())))
    return found[0]


@pytest.mark.ci_cases("perceptron")
@pytest.mark.parametrize("name", MODELS)
def test_the_peak_fits_and_values_stay(name: str) -> None:
    """Of the same kernels bit for bit; a kernel that computes again is another, and rounds as finely."""
    kind, size = MODELS[name]
    x = torch.randn(size)
    without, before = step(make(kind), x, None)
    model = make(kind)
    candidates = searched(name).candidates
    budget = (min(each.peak for each in candidates) + candidates[0].peak) // 2
    found, after = step(model, x, budget)
    row = taken(after)
    assert row["bytes"] <= budget < candidates[0].peak
    assert max(after[1].memory_held) < max(before[1].memory_held)
    double = make(kind).double()
    exact = trained(double, double, x.double())
    for mine, theirs, truth in zip(found, without, map(torch.Tensor.double, exact), strict=True):
        far = (theirs.double() - truth).abs().max()
        torch.testing.assert_close(mine.double(), truth, rtol=1e-5, atol=float(2 * far + 1e-6 * truth.abs().max()))


def test_without_a_budget_nothing_changes() -> None:
    """Kernels and bits are those that there are without the plugin, and nothing was planned twice."""
    x, alone = torch.randn(256, 32), make_plugins(builtin_plugins(), extra=OWN[:-1], entry_points=())
    (without, before), (found, after) = (step(make(Perceptron), x, None, given=each) for each in (alone, plugins()))
    assert all(torch.equal(a, b) for a, b in zip(without, found, strict=True))
    assert [one.kernel_sources for one in before] == [one.kernel_sources for one in after]
    assert facts(after)["candidates"] == [] and ATTACHMENT not in before[0].attachments


@pytest.mark.ci_cases("perceptron")
@pytest.mark.parametrize("name", MODELS)
def test_more_bytes_are_never_slower_and_fewer_never_larger(name: str) -> None:
    """Over 30 budgets, from less than the least to more than the most."""
    candidates = searched(name).candidates
    peaks = sorted(each.peak for each in candidates)
    budgets = [peaks[0] + (peaks[-1] - peaks[0]) * n // 27 for n in range(-1, 29)]
    chosen = [fastest(candidates, budget) for budget in budgets]
    assert len(budgets) == 30 and chosen[0] is None and chosen[1] is not None
    known = [(budget, each) for budget, each in zip(budgets, chosen, strict=True) if each is not None]
    assert all(each.peak <= budget for budget, each in known)
    assert [each.us for _, each in known] == sorted((each.us for _, each in known), reverse=True)
    assert [each.peak for _, each in known] == sorted(each.peak for _, each in known)
    assert len({each.name for _, each in known}) > 1


@pytest.mark.nightly
def test_a_repair_is_smaller_and_no_faster() -> None:
    search = searched("transformer")
    least = min(search.candidates, key=lambda each: each.peak)
    slowest = max(each.us for each in search.candidates)
    before = least.peak, slowest
    for other in search.repaired(least, slowest):
        assert other.peak < before[0] and other.us >= before[1]
        before = other.peak, other.us


def test_a_budget_that_cannot_be_met_says_the_least_and_what_holds_it() -> None:
    """And with the least it runs, with the planned peak."""
    kind, x = partial(Perceptron, 3), torch.randn(256, 32)
    with pytest.raises(Exception, match="cannot be met") as caught:
        step(make(kind), x, "64KiB")
    text = str(caught.value)
    assert "65536 bytes" in text and "saved for the backward" in text
    assert re.search(r"KiB  \w+, saved for the backward, .*test_memory_budget\.py:\d+", text)
    assert re.search(r"layers\.\d \(test_memory_budget\.py:\d+\)", text)
    least = int(text.partition("give memory.budget=")[2].split()[0])
    model = make(kind)
    _, found = step(model, x, least)
    assert taken(found)["name"] != "as without a budget" and taken(found)["bytes"] <= least
    assert peak(model, x, found) == taken(found)["bytes"]


def test_the_refusal_adds_up() -> None:
    search = searched("perceptron")
    least = min(search.candidates, key=lambda each: each.peak)
    assert sum(each.nbytes for each in least.held()) == least.peak
    assert f"({least.peak} bytes)" in refusal(least, 1, "graph0").what


def test_masks_of_dropout_are_those_of_the_forward() -> None:
    """A gradient is zero where the mask was: so the mask is not drawn again."""

    def function(x: Tensor) -> Tensor:
        y = x
        for _ in range(3):
            y = F.dropout(y.sin().exp().tanh(), 0.5) + 1
        return y * 1

    x = torch.randn(64, 64)
    torch._dynamo.reset()
    for budget in (None, "50%"):
        options = {"graph_cache": False} | ({} if budget is None else {"memory.budget": budget})
        compiled = torch.compile(function, backend=partial(compile_backend, options=options, plugins=plugins()))
        leaf = x.detach().requires_grad_()
        out = compiled(leaf)
        (gradient,) = torch.autograd.grad(out.sum(), leaf)
        dropped = out.detach() == 1
        assert 0.4 < float(dropped.float().mean()) < 0.6 and not gradient[dropped].any()
        torch._dynamo.reset()


@pytest.mark.nightly
def test_a_model_with_dropout_has_the_same_masks_at_each_budget() -> None:
    kind, x = partial(Attention, dropout=0.3), torch.randn(2, 16, 32)
    results = [step(make(kind), x, budget)[0] for budget in (None, "90%")]
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.nightly
def test_dynamic_sizes() -> None:
    """The plan is for the first sizes, and values are right for others."""
    options = {"graph_cache": False, "memory.budget": "70%"}
    model, twin = make(Perceptron), make(Perceptron).double()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=partial(compile_backend, options=options, plugins=plugins()), dynamic=True)
    for rows in (128, 40, 2):
        x = torch.randn(rows, 32)
        model.zero_grad()
        twin.zero_grad()
        compiled(x).square().sum().backward()
        twin(x.double()).square().sum().backward()
        for mine, truth in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, truth.grad.float(), rtol=1e-3, atol=1e-3)  # type: ignore[union-attr]


POLICIES = {
    "saved": ({torch.ops.aten.mm.default: CheckpointPolicy.MUST_SAVE}, CheckpointPolicy.PREFER_RECOMPUTE),
    "again": ({}, CheckpointPolicy.MUST_RECOMPUTE),
}


def policy_of_ops(name: str, ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    ops, default = POLICIES[name]
    return ops.get(op, default)


@pytest.mark.parametrize("policy", POLICIES)
def test_regions_of_a_checkpoint_keep_their_policy(policy: str) -> None:
    """Of a region each candidate saves and computes again what there is without a budget."""
    w = torch.randn(32, 32) / 6
    contexts = partial(create_selective_checkpoint_contexts, partial(policy_of_ops, policy))

    def inside(x: Tensor) -> Tensor:
        return torch.tanh(torch.sin(x @ w) @ w)

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = checkpoint(inside, x, use_reentrant=False, context_fn=contexts)
            return torch.tanh(torch.sin(y @ w).exp() @ w).exp() @ w

    search = search_of(Model(), torch.randn(64, 32))
    told = {node.name: policy_of(node) for node in search.joint.nodes if policy_of(node) is not None}
    assert told and len(search.candidates) > 2
    for each in search.candidates:
        saved, computed = saved_names(each.modules, search.joint.forward_outputs), computed_names(each.modules)
        assert not [name for name in saved if told.get(name) in AGAIN]
        assert not [name for name in computed if name in told and told[name] not in AGAIN]


def test_a_view_that_a_region_saves_leaves_a_budget_its_choice() -> None:
    """What one region gives the next is a view, which is saved; there are cuts that keep less of the rest."""
    w = torch.randn(32, 32) / 6

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(2):
                x = checkpoint(lambda x: torch.tanh(torch.sin(x @ w) @ w).t(), x, use_reentrant=False)
                x = torch.tanh(torch.sin(x.t().exp() @ w).exp() @ w).exp() @ w
            return checkpoint(lambda x: x.sin().t(), x.sin().t(), use_reentrant=False)

    assert len(search_of(Model(), torch.randn(64, 32)).candidates) > 2


def test_what_draws_is_never_drawn_again() -> None:
    """In no candidate: the mask is saved, or computed from numbers that are."""
    search = search_of(make(partial(Perceptron, dropout=0.3)), torch.randn(64, 32))
    assert any(is_random(node.target) for node in search.joint.nodes)
    least = min(search.candidates, key=lambda each: each.peak)
    for each in (*search.candidates, *search.repaired(least, 0.0)):
        assert not any(is_random(node.target) for node in each.modules[1].graph.nodes)


def test_custom_operators_and_writes_run_once() -> None:
    """An operator of the user's may count its calls, and a buffer is written once."""
    calls = []

    @torch.library.custom_op("memory_budget::counted", mutates_args=())
    def counted(x: Tensor) -> Tensor:
        calls.append(1)
        return x.sin()

    counted.register_fake(torch.empty_like)
    counted.register_autograd(
        lambda ctx, gradient: gradient * ctx.saved_tensors[0].cos(),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.seen += 1  # type: ignore[operator]
            for _ in range(3):
                x = counted(x.tanh().exp()).exp() * self.seen
            return x

    model = Model()
    step(model, torch.randn(64, 32), "80%")
    assert len(calls) == 3 and model.seen == 1


@pytest.mark.nightly
def test_shares_are_of_eagers_planned_peak() -> None:
    x = torch.randn(256, 32)
    _, found = step(make(Perceptron), x, "95%")
    assert facts(found)["budget_bytes"] == int(0.95 * facts(found)["eager_bytes"])
    assert taken(found)["bytes"] <= facts(found)["budget_bytes"]
    (decision,) = (each for each in found[0].decisions if each.plugin == "memory" and each.considered)
    assert len(decision.considered) == len(facts(found)["candidates"]) > 3


@pytest.mark.parametrize("value", ["", "much", "-1", "0", "0%", "12 parsecs"])
def test_what_is_no_budget_is_refused_before_a_compile(value: str) -> None:
    with pytest.raises(Exception, match=r"memory\.budget"):
        make_compiler(None, {"memory.budget": value}, plugins())


@pytest.mark.ci_cases("transformer")
@pytest.mark.parametrize("name", MODELS)
def test_strict_numbers_within_a_budget_are_eagers_bit_for_bit(name: str) -> None:
    """What the backward computes again are the calls of the forward, by the same kernels; a dropout draws once."""
    kind, size = MODELS[name]
    kind = partial(Attention, 0.25, layers=1) if kind is Attention else kind
    x, given = torch.randn(size), plugins(("numerics", litz_numerics.plugin))
    model = make(kind)
    theirs = trained(model, model, x)
    whole, first = step(make(kind), x, "100GiB", given=given, mode="strict")
    least = min(row["bytes"] for row in facts(first)["candidates"])
    found, second = step(make(kind), x, least, given=given, mode="strict")
    assert taken(second)["bytes"] <= least < facts(first)["candidates"][0]["bytes"]
    assert max(second[1].memory_held) < max(first[1].memory_held)
    for each in (whole, found):
        assert all(torch.equal(mine, its) for mine, its in zip(each, theirs, strict=True))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_budget_holds_in_strict_mode_whichever_plugin_is_loaded_first(reverse: bool) -> None:
    """Both plugins have a partitioner; of the strict one's halves none would fit."""
    both = [("memory", litz_passes.memory.plugin), ("numerics", litz_numerics.plugin)]
    extra = [*OWN[:-1], *(reversed(both) if reverse else both)]
    given, model = make_plugins(builtin_plugins(), extra=extra, entry_points=()), make(partial(Perceptron, 3))
    x = torch.randn(256, 32)
    theirs = trained(model, model, x)
    found, made = step(make(partial(Perceptron, 3)), x, "66%", given=given, mode="strict")
    assert peak(model, x, made) == taken(made)["bytes"] <= facts(made)["budget_bytes"]
    assert facts(made)["candidates"][0]["bytes"] > facts(made)["budget_bytes"]
    assert all(torch.equal(mine, its) for mine, its in zip(found, theirs, strict=True))


def test_strict_numbers_compute_again_what_repeats_alone() -> None:
    """On a GPU nobody knows whether a library's second call has the bits of the first; "meta" stands for a GPU."""
    graph = torch.fx.Graph()
    for device in ("cpu", "meta"):
        node = graph.call_function(torch.ops.aten.sin.default, (graph.placeholder(device),))
        node.meta["val"] = torch.empty(3, device=device)
        assert may_run_again(node) and has_the_same_bits(node) is (device == "cpu")


@pytest.mark.nightly
def test_each_budget_has_entries_of_its_own_in_the_caches(tmp_path: Path) -> None:
    """With a store AOTAutograd's cache is asked before anything is partitioned."""
    peaks, least = [], min(each.peak for each in searched("perceptron").candidates)
    for budget in (None, least, None, least):
        torch._dynamo.reset()
        options = {"graph_cache": True, "cache_dir": str(tmp_path), "memory.budget": budget}
        compiled = torch.compile(make(Perceptron), backend=partial(compile_backend, options=options, plugins=plugins()))
        with reports.collect() as found:
            compiled(torch.randn(256, 32)).sum().backward()
        peaks.append([max(one.memory_held) for one in found])
    assert peaks[0] == peaks[2] != peaks[1] == peaks[3]
