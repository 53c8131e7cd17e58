"""Backwards that write over what the forward saved for them: what that saves, and what nobody may notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz import report as reports
from litz.runtime import retained
from litz.runtime.retained import retaining

ROWS, COLUMNS = 128, 2051
"""More than 1 MiB of float32, and rows of an odd size."""


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    yield


def make() -> tuple[torch.nn.Linear, torch.Tensor, torch.Tensor]:
    return torch.nn.Linear(16, COLUMNS), torch.randn(ROWS, 16), torch.randint(0, COLUMNS, (ROWS,))


def gradients(layer: torch.nn.Linear, step: Callable[[], Any], **how: Any) -> list[torch.Tensor]:
    layer.zero_grad(set_to_none=True)
    step().backward(**how)
    return [p.grad.clone() for p in layer.parameters() if p.grad is not None]


def taken_over(step: Callable[[], Any]) -> list[str]:
    """Which saved tensors the backward's kernels write over."""
    with reports.collect() as collected:
        step()
    inputs = {str(name) for one in collected if one.program for name in one.program.owned_inputs}
    notes = [d.subject for one in collected for d in one.decisions if d.chosen == "in place"]
    return [text for text in notes if text.split()[2] in inputs]


def test_the_gradient_of_the_scores_takes_over_their_memory() -> None:
    layer, x, labels = make()
    eager = gradients(layer, lambda: F.cross_entropy(layer(x), labels))
    compiled = torch.compile(lambda: F.cross_entropy(layer(x), labels), backend="litz", options={"debug": True})
    found: list[torch.Tensor] = []
    assert len(taken_over(lambda: found.extend(gradients(layer, compiled)))) == 1
    torch.testing.assert_close(found, eager)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_backward_that_comes_again_finds_what_was_saved(dynamic: bool) -> None:
    layer, x, labels = make()
    step = torch.compile(lambda x, labels: F.cross_entropy(layer(x), labels), backend="litz", dynamic=dynamic)
    once = gradients(layer, lambda: F.cross_entropy(layer(x), labels))
    layer.zero_grad(set_to_none=True)
    loss = step(x, labels)
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)
    loss.backward()
    torch.testing.assert_close([p.grad / 3 for p in layer.parameters() if p.grad is not None], once)


def test_copies_are_what_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them the second backward would be wrong: this is what the test before this one can see."""
    monkeypatch.setattr(retained, "graph_is_kept", lambda: False)
    layer, x, labels = make()
    step = torch.compile(lambda: F.cross_entropy(layer(x), labels), backend="litz")
    loss = step()
    loss.backward(retain_graph=True)
    once = [p.grad.clone() for p in layer.parameters() if p.grad is not None]
    layer.zero_grad(set_to_none=True)
    loss.backward()
    again = [p.grad for p in layer.parameters() if p.grad is not None]
    assert not all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


def test_scores_that_the_user_holds_stay() -> None:
    layer, x, labels = make()

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        scores = layer(x)
        return F.cross_entropy(scores, labels), scores

    loss, scores = torch.compile(step, backend="litz")()
    before = scores.detach().clone()
    assert not taken_over(lambda: loss.backward())
    assert torch.equal(scores, before)


def test_what_two_saved_tensors_share_stays() -> None:
    """Two parts of one product are saved: a gradient of one must not be written where the other lies."""
    layer = torch.nn.Linear(16, 2 * COLUMNS)
    x = torch.randn(2 * ROWS, 16)

    def step() -> torch.Tensor:
        a, b = layer(x).chunk(2, -1)
        return (F.softplus(a) * torch.sin(b) * a).sum()

    eager = gradients(layer, step)
    torch.testing.assert_close(gradients(layer, torch.compile(step, backend="litz")), eager, rtol=1e-4, atol=1e-4)


def test_what_hooks_hold_stays() -> None:
    layer, x, labels = make()
    step = torch.compile(lambda: F.cross_entropy(layer(x), labels), backend="litz")
    held: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        held.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = step()
    before = [tensor.detach().clone() for tensor in held]
    loss.backward()
    assert held and all(torch.equal(a, b) for a, b in zip(before, held, strict=True))


def test_copies_are_made_of_these_inputs_only() -> None:
    seen: list[Any] = []

    def entry(args: list[Any]) -> tuple[Any, ...]:
        seen.extend(args)
        return ()

    given = [torch.ones(3), torch.zeros(3), 7]
    retaining(entry, (1,))(list(given))  # outside of a backward nobody says that the graph is freed
    assert seen[0] is given[0] and seen[1] is not given[1] and torch.equal(seen[1], given[1]) and seen[2] == 7
