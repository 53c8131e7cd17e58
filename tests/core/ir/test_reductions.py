"""Rows of reductions: what they mean as nodes is what they mean in torch; a new one needs no more than its row."""

from __future__ import annotations

import itertools

import pytest
import torch

from litz.ir import build
from litz.ir.dtypes import compute_dtype
from litz.ir.reductions import REDUCTIONS, ROWS, Reduction, evaluate

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.int8, torch.bool]
SIZES = [0, 1, 2, 7, 64]
FLOATS_ALONE = ("welford", "welford_double", "weighted_softmax")
SPECIAL = [float("nan"), float("inf"), -float("inf"), 0.0, -1.5]


def tensors(dtype: torch.dtype, size: int) -> list[torch.Tensor]:
    """Rows of values in compute types; of floats, some with NaN and infinities among them."""
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(5, size, generator=generator, dtype=torch.float64)
    x = (x.abs() if dtype == torch.uint8 else x) * 3
    held = (x > 0) if dtype == torch.bool else x.to(dtype).to(compute_dtype(dtype))
    if not dtype.is_floating_point or size == 0:
        return [held]
    odd = held.clone()
    for row, value in enumerate(SPECIAL):
        odd[row, row % size] = value
    return [held, odd, torch.full_like(held, -float("inf"))]


def values(row: Reduction, x: torch.Tensor) -> list[torch.Tensor]:
    """What a row of so many values takes: the given ones, and the same in another order."""
    return [x, x.roll(1, -1)][: row.arity]


def in_order(row: Reduction, x: torch.Tensor) -> list[torch.Tensor]:
    """The state after every value in turn, by `step`."""
    form = row.form(x.dtype)
    state = [torch.full(x.shape[:-1], node.attrs[0], dtype=node.dtype) for node in form.identity]
    for number in range(x.shape[-1]):
        given = dict(zip(form.state, state, strict=True))
        given |= {leaf: each[..., number] for leaf, each in zip(form.values, values(row, x), strict=True)}
        state = evaluate(form.step, {**given, form.position: torch.tensor(number)})
    return state


def merged(row: Reduction, x: torch.Tensor) -> list[torch.Tensor]:
    """The state of all values, from those of each and of none, merged by twos."""
    form = row.form(x.dtype)
    position = torch.arange(x.shape[-1])
    given = dict(zip(form.values, values(row, x), strict=True))
    lifted = evaluate(form.lift, {**given, form.position: position})
    none = [torch.full((5, 1), node.attrs[0], dtype=node.dtype) for node in form.identity]
    return row.fold([torch.cat([n, part.expand(x.shape)], -1) for n, part in zip(none, lifted, strict=True)])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_means_what_torch_does(row: Reduction, dtype: torch.dtype) -> None:
    if not row.means(dtype) or (row.ordered and dtype == torch.bool):
        assert row.name in FLOATS_ALONE or dtype == torch.bool
        return
    for size in SIZES:
        for x in tensors(dtype, size):
            form = row.form(dtype)
            for state in (in_order(row, x), merged(row, x)):
                given = dict(zip(form.state, state, strict=True))
                for kind, result in row.results.items():
                    if size == 0 and kind not in ("sum", "prod", "any", "all", "dot"):
                        continue  # torch refuses, or has no mean
                    (got,) = evaluate([form.finish[kind]], given)
                    want = result.torch(*values(row, x))
                    finite = x.isfinite().all(-1) if row.several else torch.ones(5, dtype=torch.bool)
                    torch.testing.assert_close(got[finite], want[finite].to(got.dtype), equal_nan=True)
                    assert bool(got[~finite].isfinite().logical_not().all())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_state_of_no_values_changes_nothing(row: Reduction) -> None:
    for dtype in filter(row.means, DTYPES):
        form = row.form(dtype)
        x = tensors(dtype, 7)[0]
        state = merged(row, x)
        none = [torch.full((5,), node.attrs[0], dtype=node.dtype) for node in form.identity]
        for both in ((state, none), (none, state)):
            given = dict(zip((*form.state, *form.other), itertools.chain(*both), strict=True))
            torch.testing.assert_close(evaluate(form.merge, given), list(state))
        if row.neutral is not None:
            value = build.const(row.neutral(compute_dtype(dtype)), compute_dtype(dtype))
            lifted = evaluate(form.lift, {form.values[0]: torch.tensor(value.attrs[0], dtype=value.dtype)})
            assert [part.item() for part in lifted] == [node.attrs[0] for node in form.identity]


def test_results_keep_half_types() -> None:
    assert REDUCTIONS["sum"].dtype("sum", torch.bfloat16) == torch.bfloat16
    assert REDUCTIONS["any"].dtype("any", torch.bfloat16) == torch.bool
    assert REDUCTIONS["argmax"].dtype("argmax", torch.bfloat16) == torch.int64
    with pytest.raises(TypeError, match="floating point"):
        build.reduce("welford_mean", build.load("x", (), torch.int64))
