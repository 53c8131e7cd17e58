"""What is known of a graph's entry: which of a backward's inputs a recording may take the memory of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from litz.driver import code as building
from litz_plugins import EntryFacts

Facts = list[tuple[Any, EntryFacts]]


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Facts]:
    """The programs that are compiled, and what is known of their entries."""
    found: Facts = []
    real = building.entry_facts

    def noting(plan: Any) -> EntryFacts:
        found.append((plan.program, real(plan)))
        return found[-1][1]

    monkeypatch.setattr(building, "entry_facts", noting)
    torch._dynamo.reset()
    with torch.library._scoped_library("litz_facts", "FRAGMENT") as library:
        library.define("halved(Tensor x) -> Tensor")
        library.define("halved_backward(Tensor grad, Tensor x) -> Tensor")
        library.impl("halved", lambda x: x * 0.5, "CPU")
        library.impl("halved_backward", lambda grad, x: grad * 0.5 + x * 0, "CPU")
        torch.library.register_fake("litz_facts::halved", torch.empty_like, lib=library)
        torch.library.register_fake("litz_facts::halved_backward", lambda grad, x: torch.empty_like(x), lib=library)
        torch.library.register_autograd(
            "litz_facts::halved",
            lambda ctx, grad: torch.ops.litz_facts.halved_backward(grad, *ctx.saved_tensors),
            setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
            lib=library,
        )
        yield found
    torch._dynamo.reset()


def compiled(function: Any, x: Tensor, w: Tensor) -> None:
    options = {"graph_cache": False}
    out = torch.compile(function, backend="litz", options=options)(x, w)
    (out[0] if isinstance(out, tuple) else out).sum().backward()


def made_in_backward(facts: Facts) -> tuple[list[str], list[str]]:
    """The names of the inputs whose memory the backward may take, and of the others."""
    program, known = facts[-1]
    names = [item if isinstance(item, str) else "" for item in program.inputs]
    taken = [name for at, name in enumerate(names) if at in known.made]
    return taken, [name for name in names if name and name not in taken]


def test_what_the_forward_made_is_the_backwards(facts: Facts) -> None:
    """Results that the user sees among it; no input of the forward or view of one, and no gradient."""

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        scores = x @ w
        return scores.softmax(-1).mul(scores).sum(), scores

    compiled(function, torch.randn(64, 64), torch.randn(64, 64, requires_grad=True))
    taken, others = made_in_backward(facts)
    assert "mm" in taken and all(name.startswith(("primals", "permute", "tangents")) for name in others)
    assert len(facts) == 2 and not facts[0][1].made, "a forward has none"


def test_what_an_op_from_outside_reads_is_not(facts: Facts) -> None:
    """It may read on a stream of its own."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        return torch.ops.litz_facts.halved(x @ w).tanh()

    compiled(function, torch.randn(64, 64), torch.randn(64, 64, requires_grad=True))
    taken, others = made_in_backward(facts)
    assert len(taken) == 1, "the result of tanh"
    assert "mm" in others


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_sizes_that_may_vary_are_known(facts: Facts, dynamic: bool) -> None:
    options = {"graph_cache": False}
    scaled = torch.compile(lambda x, w: x * w, backend="litz", dynamic=dynamic, options=options)
    scaled(torch.randn(4, 6), torch.nn.Parameter(torch.randn(()))).sum().backward()
    for program, known in facts:
        symbols = [item for item in program.inputs if not isinstance(item, str)]
        sized = [item for item in program.inputs if isinstance(item, str) and program.buffers[item].layout.free_symbols]
        assert bool(symbols) == bool(sized) == dynamic
        assert len(known.varying) == len(symbols) + len(sized)
        assert not known.varying & known.static
