"""Collectives in pieces on two gloo ranks: results as float64 has them, for sizes that pieces do not divide."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from litz.report import collect
from support.ranks import Ranks
from support.sequence_parallel import WORLD, Layer, step

pytestmark = pytest.mark.xdist_group("ranks")

ops = torch.ops._c10d_functional
PIECES = {"collectives.pieces": 3, "debug": True}


def cut_in(reports: Any) -> list[str]:
    """What was cut in each graph, as "3 pieces", in the order of the collectives."""
    return [one.chosen for report in reports for one in report.decisions if one.chosen.endswith("pieces")]


def check(found: list[Tensor], eager: list[Tensor], exact: list[Tensor]) -> None:
    """No further from float64 than eager is, but for what another order of sums makes."""
    for mine, theirs, right in zip(found, eager, exact, strict=True):
        assert mine.dtype == theirs.dtype and mine.stride() == theirs.stride() and mine.shape == theirs.shape
        error, allowed = ((one.double() - right).abs().max() if right.numel() else 0.0 for one in (mine, theirs))
        floor = torch.finfo(mine.dtype).eps * right.abs().max() if right.numel() else 0.0
        assert error <= 2 * allowed + 8 * floor, (error, allowed, floor)


def run_layers(rank: int, given: tuple[int, int, int, str]) -> None:
    rows, width, inner, dtype = given
    kind, layers = getattr(torch, dtype), 2 if rows == 8 else 1
    torch._dynamo.reset()
    x = torch.randn(WORLD, rows, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)[rank]
    exact, model = (
        nn.Sequential(*(Layer(width, inner, rows == 7, rank, one) for _ in range(layers)))
        for one in (torch.float64, kind)
    )
    wanted, eager = step(exact, exact, x), step(model, model, x.to(kind))
    compiled = torch.compile(model, backend="litz", options=PIECES)
    with collect() as reports:
        for _ in range(2):
            found = step(compiled, model, x.to(kind))
    # Of each layer the gather and the scatter, forward and backward.
    assert cut_in(reports) == [f"{min(rows, 3)} pieces"] * (4 * layers if rows > 1 else 0)
    check(found, eager, wanted)


@pytest.mark.ci_cases("8-4-6-float32", "7-5-6-bfloat16", "1-4-4-float32")
@pytest.mark.parametrize(
    ("rows", "width", "inner", "dtype"),
    [
        (8, 4, 6, "float32"),
        (7, 5, 6, "float64"),
        (7, 5, 6, "bfloat16"),
        (3, 5, 2, "float16"),
        (2, 1, 2, "float32"),
        (1, 4, 4, "float32"),
    ],
)
def test_a_tensor_parallel_step_in_pieces(ranks: Ranks, rows: int, width: int, inner: int, dtype: str) -> None:
    ranks.run(__file__, "run_layers", (rows, width, inner, dtype))


def reduced(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """A product whose rows are summed over the ranks."""
    made = torch.mm(x, w) if bias is None else torch.addmm(bias, x, w, beta=0.5)
    return torch.relu(ops.wait_tensor(ops.all_reduce(made, "sum", "0")))


def gathered(x: Tensor, w: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """A product of what is gathered, and the gathered tensor itself."""
    whole = ops.wait_tensor(ops.all_gather_into_tensor(x, WORLD, "0"))
    return torch.mm(whole, w) if bias is None else torch.addmm(bias, whole, w), whole.sum(0)


def scattered(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    made = torch.mm(x, w) if bias is None else torch.addmm(bias, x, w, alpha=2.0)
    return ops.wait_tensor(ops.reduce_scatter_tensor(made, "sum", WORLD, "0")) * 2


FUNCTIONS: dict[str, Callable[..., Any]] = {"reduced": reduced, "gathered": gathered, "scattered": scattered}
LAYOUTS: dict[str, Callable[[int, int], Tensor]] = {
    "dense": lambda rows, width: torch.randn(rows, width),
    "transposed": lambda rows, width: torch.randn(width, rows).t(),
    "rows apart": lambda rows, width: torch.randn(rows, width + 3)[:, 1 : width + 1],
}


def run_function(rank: int, given: tuple[str, str, int, str | None]) -> None:
    name, layout, rows, bias = given
    function = FUNCTIONS[name]
    torch._dynamo.reset()
    torch.manual_seed(rank)
    x, w = LAYOUTS[layout](rows, 6), LAYOUTS[layout](6, 5)
    x = x.contiguous() if name == "gathered" else x
    made = rows * WORLD if name == "gathered" else rows
    shift = {None: None, "row": torch.randn(5), "column": torch.randn(made, 1), "whole": torch.randn(5, made).t()}[bias]
    args = [one if one is None else one.float() for one in (x, w, shift)]
    eager = function(*args)
    exact = function(*(one if one is None else one.double() for one in args))
    with collect() as reports:
        found = torch.compile(function, backend="litz", options=PIECES)(*args)
    parts = rows // WORLD if name == "scattered" else rows
    assert cut_in(reports) == ([f"{min(parts, 3)} pieces"] if parts > 1 else [])
    lists = [list(one) if isinstance(one, tuple) else [one] for one in (found, eager, exact)]
    check(*lists)


@pytest.mark.ci_cases(
    *(f"{given}-{name}" for given in ("dense-10-None", "transposed-14-row") for name in FUNCTIONS),
    *("rows apart-8-column-reduced", "dense-10-whole-gathered", "dense-2-None-scattered", "dense-0-None-gathered"),
)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    ("layout", "rows", "bias"),
    [("dense", 10, None), ("transposed", 14, "row"), ("rows apart", 8, "column"), ("dense", 10, "whole"),
     ("dense", 2, None), ("dense", 0, None)],
)  # fmt: skip
def test_products_of_any_strides(ranks: Ranks, name: str, layout: str, rows: int, bias: str | None) -> None:
    ranks.run(__file__, "run_function", (name, layout, rows, bias))


def run_other_plan(rank: int, _: None) -> None:
    """Rank 0 cuts; on rank 1 nothing that makes or takes the message can be cut, and it follows. Ranks take the plan of
    who is first: rank 1 waits until rank 0 has left its plan."""

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        whole = ops.wait_tensor(ops.all_gather_into_tensor(x, WORLD, "0"))
        made = torch.mm(whole, w)
        return made, ops.wait_tensor(ops.reduce_scatter_tensor(torch.mm(made, w.t()), "sum", WORLD, "0")), whole

    from litz_collectives import overlap_pass, pieces

    def agreed(plan: Any, key: str) -> Any:
        found = first(plan, key)
        if rank == 0:
            torch.distributed.barrier()
        return found

    first = overlap_pass.agreed
    torch._dynamo.reset()
    torch.manual_seed(rank)
    x, w = torch.randn(5, 6), torch.randn(6, 4)
    if rank:
        torch.distributed.barrier()
    cuts = mock.patch.object(pieces, "PRODUCTS", {} if rank else pieces.PRODUCTS)
    with cuts, mock.patch.object(overlap_pass, "agreed", agreed), collect() as reports:
        options = {**PIECES, "collectives.verify_plan": True}
        found = torch.compile(function, backend="litz", options=options)(x, w)
    assert cut_in(reports) == ["3 pieces"] * 2
    reasons = [one.reason for report in reports for one in report.decisions if one.chosen == "3 pieces"]
    assert all(("no product on this rank" in one) == (rank == 1) for one in reasons), reasons
    check(list(found), list(function(x, w)), list(function(x.double(), w.double())))


def test_a_rank_follows_a_plan_that_cuts_what_it_cannot(ranks: Ranks) -> None:
    ranks.run(__file__, "run_other_plan", None)


def run_example(rank: int, folder: str) -> None:
    """The example of sequence parallel, whose collectives are DTensor's."""
    sys.path.insert(0, folder)
    import common
    import sequence_parallel

    torch._dynamo.reset()
    same = common.same_as_eager
    with mock.patch.object(sequence_parallel, "same_as_eager", lambda *args: same(*args, **PIECES)):
        sequence_parallel.run(torch.device("cpu"))


@pytest.mark.nightly
def test_the_example_of_sequence_parallel(ranks: Ranks) -> None:
    ranks.run(__file__, "run_example", str(Path(__file__).parents[2] / "examples/distributed"))
