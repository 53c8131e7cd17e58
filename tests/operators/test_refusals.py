"""What eager refuses when it sees numbers or values is refused, with eager's words; what eager takes is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from support.compare import litz

NAN = float("nan")
HALVES = [0.5, 0.5]
VALUES: dict[str, tuple[Callable[..., Tensor], list[Sequence[float]]]] = {
    "the input of a binary cross entropy": (lambda x: functional.binary_cross_entropy(x, x * 0), [[0.5, 1.5]]),
    "its target": (lambda t: functional.binary_cross_entropy(t * 0 + 0.5, t), [[0.5, -0.5], [NAN, 0.5]]),
    "probabilities": (lambda p: torch.bernoulli(p) * 0, [[0.5, 1.5], [NAN, 0.5]]),
    "probabilities in place": (lambda p: torch.zeros(2).bernoulli_(p) * 0, [[-0.5, 0.5]]),
    "deviations": (lambda std: torch.normal(0.0, std) * 0, [[1.0, -1.0]]),
    "deviations around means": (lambda std: torch.normal(std, std) * 0, [[1.0, -1.0]]),
}
"""By what is given: a function, and values that eager refuses."""
NUMBERS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "beta": (lambda x: functional.smooth_l1_loss(x, x * 2, beta=-1.0), "beta"),
    "p": (lambda x: torch.bernoulli(x, 1.5) * 0, "to be in"),
    "p in place": (lambda x: x.clone().bernoulli_(-0.5) * 0, "to be in"),
    "p of dropout": (lambda x: functional.dropout(x, NAN) * 0, "to be"),
    "p of native_dropout": (lambda x: torch.native_dropout(x, 1.5, True)[0] * 0, "to be in"),
    "a number as a slice": (lambda x: x.index_add(0, torch.tensor(1), torch.tensor(2.0)), "must match self"),
    "bounds": (lambda x: x.clone().uniform_(1, 0) * 0, "range"),
}


@pytest.mark.parametrize("name", VALUES)
def test_values(name: str) -> None:
    f, refused = VALUES[name]
    compiled = litz(f)
    torch.testing.assert_close(compiled(torch.tensor(HALVES)), f(torch.tensor(HALVES)))
    for values in refused:
        with pytest.raises(RuntimeError) as theirs:
            f(torch.tensor(values))
        said = str(theirs.value).partition(".")[0]
        with pytest.raises(RuntimeError) as ours:
            compiled(torch.tensor(values))
        assert said in str(ours.value)


def test_values_while_training() -> None:
    f = lambda x, t: functional.binary_cross_entropy(x, t).exp()
    compiled, target = litz(f), torch.tensor([0.0, 1.0, 0.25])
    grads = []
    for function in (compiled, f):
        x = torch.tensor([0.25, 0.5, 0.75], requires_grad=True)
        function(x, target).backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)
    with pytest.raises(RuntimeError, match="all elements of target"):
        compiled(x, target * 2)


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name: str) -> None:
    f, message = NUMBERS[name]
    for function in (f, litz(f)):
        with pytest.raises(RuntimeError, match=message):
            function(torch.rand(3))


def test_a_draw_by_a_tensor_of_probabilities() -> None:
    f = lambda x, p: x.clone().bernoulli_(p)
    drawn = litz(f)(torch.zeros(4000, 2), torch.tensor([0.0, 0.25]))
    assert drawn[:, 0].sum() == 0 and abs(drawn[:, 1].mean() - 0.25) < 0.05


WRITES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "index_add": lambda x, index, source: x.index_add(0, index, source),
    "index_copy": lambda x, index, source: x.index_copy(0, index, source),
    "index_put": lambda x, index, source: x.index_put((index,), source),
    "index_put, added": lambda x, index, source: x.index_put((index,), source, accumulate=True),
    "scatter": lambda x, index, source: x.scatter(0, index, source),
    "scatter into zeros": lambda x, index, source: torch.zeros_like(x).scatter(0, index, source),
    "scatter_add": lambda x, index, source: x.scatter_add(0, index, source),
    "scatter_reduce": lambda x, index, source: x.scatter_reduce(0, index, source, "amax"),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_into_a_tensor_without_elements(name: str) -> None:
    """Values have no place there; no values need none."""
    f = WRITES[name]
    for function in (f, litz(f)):
        assert function(torch.zeros(0), torch.zeros(0, dtype=torch.int64), torch.zeros(0)).shape == (0,)
        with pytest.raises((RuntimeError, IndexError)):
            function(torch.zeros(0), torch.zeros(1, dtype=torch.int64), torch.zeros(1))


POSITIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "embedding": lambda table, index: functional.embedding(index, table),
    "index_select": lambda table, index: table.index_select(0, index),
    "index_select of columns": lambda table, index: table.mT.index_select(1, index),
    "index": lambda table, index: table[index],
    "index of columns": lambda table, index: table.mT[:, index],
    "index_put": lambda table, index: table.index_put((index,), table.new_ones(())),
    "index_fill": lambda table, index: table.index_fill(0, index, 2.0),
    "index_add": lambda table, index: table.index_add(0, index, table.new_ones(len(index), 0)),
    "gather": lambda table, index: table.gather(0, index[:, None].expand(-1, 0)),
}


@pytest.mark.each_value
@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("name", POSITIONS)
def test_positions_in_a_table_without_columns(name: str, rows: int) -> None:
    """Eager looks at the positions, or not, by the op; so do compiled calls."""
    f, table = POSITIONS[name], torch.ones(rows, 0)
    for values in ([], [9], [-1]):
        index = torch.tensor(values, dtype=torch.int64)
        try:
            expected = f(table, index)
        except (IndexError, RuntimeError) as error:
            with pytest.raises(type(error)):
                litz(f)(table, index)
        else:
            assert litz(f)(table, index).shape == expected.shape
