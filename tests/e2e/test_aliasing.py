"""Inputs that share memory when a graph is called, and did not when it was traced, or did in another way."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence

import pytest
import torch

from litz.capture.aliasing import meet, respecting

Make = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]


def apart(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[:20].clone(), x[20:40].clone()


def overlap(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[:20], x[5:25]


def elsewhere(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[7:27], x[9:29]


def twice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[:20], x[:20]


def one(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x[:20],) * 2


def halves(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[:20], x[20:40]


def interleaved(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[:40:2], x[1:41:2]


ORDERS: Sequence[Sequence[Make]] = [
    (apart, overlap, elsewhere, one, twice, halves, interleaved, apart),
    (overlap, apart, elsewhere, overlap, twice, halves),
    (twice, apart, elsewhere, overlap, halves),
    (interleaved, apart, elsewhere),
]


def write_one(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.mul_(2)
    return a + b


def write_both(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.copy_(b + 1)
    b.copy_(a * 2)
    return a - b


def as_eager(f: Callable[..., torch.Tensor], order: Sequence[Make], dynamic: bool | None = None) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="litz", dynamic=dynamic)
    for make in order:
        ours, theirs = (torch.arange(100.0) for _ in range(2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = compiled(*make(ours))
        torch.testing.assert_close(found, f(*make(theirs)), msg=lambda text, make=make: f"{make.__name__}: {text}")
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order[0].__name__)
def test_whatever_was_traced_first(order: Sequence[Make]) -> None:
    as_eager(write_one, order)


def test_with_sizes_that_vary_and_both_written() -> None:
    as_eager(write_both, ORDERS[0], dynamic=True)


def test_in_training() -> None:
    weight = torch.ones(20, requires_grad=True)
    as_eager(lambda a, b: write_one(a, b) * weight, ORDERS[1])


def test_parameters_that_are_tied_after_compiling() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (torch.nn.Buffer(torch.arange(6.0)) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.a.add_(x)
            return self.a * self.b

    torch._dynamo.reset()
    ours, theirs = Model(), Model()
    compiled = torch.compile(ours, backend="litz")
    torch.testing.assert_close(compiled(torch.ones(6)), theirs(torch.ones(6)))
    for model in (ours, theirs):
        model.b = model.a.view(6)
    torch.testing.assert_close(compiled(torch.ones(6)), theirs(torch.ones(6)))


def test_one_warning_says_which() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(write_one, backend="litz")
    compiled(*apart(torch.arange(100.0)))
    with pytest.warns(UserWarning, match="l_a_ and l_b_ share memory, one of which it writes") as caught:
        for _ in range(3):
            compiled(*overlap(torch.arange(100.0)))
    assert len([w for w in caught if "share memory" in str(w.message)]) == 1


def test_only_what_can_be_wrong_is_left_to_torch() -> None:
    """Reads may overlap, and views of one memory that have no element in common are no overlap."""
    x = torch.arange(4096.0).view(64, 64)
    calls: list[str] = []
    examples = [torch.empty(64, 8), torch.empty(64, 8), torch.empty(64, 8)]
    run = respecting(
        lambda *a: calls.append("compiled"), lambda *a: calls.append("eager"), examples, frozenset({0}), ()
    )
    for args, expected in [
        ((x[:, :8], x[:, 8:16], x[:, 8:16]), "compiled"),
        ((x[:, :8], x[:, 8:16], x[:, 7:15]), "eager"),
        ((x[:, ::8], x[:, 1::8], x[:, 1::8]), "compiled"),
        ((torch.empty(64, 8), x[:, :8], x[:, 4:12]), "compiled"),
        ((torch.empty(0), torch.empty(0), torch.empty(0)), "compiled"),
    ]:
        calls.clear()
        run(*args)
        assert calls == [expected]


def test_a_graph_that_writes_nothing_has_no_check() -> None:
    examples = [torch.empty(4), torch.empty(4)]
    assert respecting(operator.add, operator.sub, examples, frozenset(), ()) is operator.add
    assert respecting(operator.add, operator.sub, examples[:1], frozenset({0}), ()) is operator.add


def test_an_input_that_overlaps_itself_is_not_compiled_for_writes() -> None:
    example = torch.empty(8).as_strided((4, 5), (1, 1))
    with pytest.warns(UserWarning, match="elements share memory"):
        assert respecting(operator.add, operator.sub, [example], frozenset({0}), ()) is operator.sub


def test_elements_are_compared_exactly() -> None:
    x = torch.arange(64, dtype=torch.int32)
    assert meet(x[:4], x[3:8]) and not meet(x[:4], x[4:8]) and not meet(x[::3], x[1::3])
    assert meet(x[::2], x[2::4]) and meet(x[:4], x.view(torch.int8)[15:20])
    assert not meet(x.as_strided((3, 4), (10, 1)), x.as_strided((3, 4), (10, 1), 5))
