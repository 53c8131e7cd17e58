"""Plans that differ between ranks are an error on every rank, before anything hangs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # defines the ops

from litz_collectives.verify import PlanMismatchError, compare
from support.ranks import Ranks

pytestmark = pytest.mark.xdist_group("ranks")

ops = torch.ops._c10d_functional


def test_the_rank_that_differs_from_most_is_named() -> None:
    usual = {"[0, 1, 2]": ["all_reduce sum float32 [4]", "broadcast 0 float32 [4]"], "[0, 1]": ["all_reduce sum"]}
    compare("graph0", {0: usual, 1: usual, 2: {"[0, 1, 2]": usual["[0, 1, 2]"]}})
    odd = {**usual, "[0, 1, 2]": ["all_reduce max float32 [4]", "broadcast 0 float32 [4]"]}
    with pytest.raises(PlanMismatchError, match=r"rank 0 plans other .* rank 1 .*collective 0") as error:
        compare("graph0", {0: odd, 1: usual, 2: {"[0, 1, 2]": usual["[0, 1, 2]"]}})
    assert error.value.rank == 0 and "on rank 0: all_reduce max" in str(error.value)
    short = {"[0, 1, 2]": usual["[0, 1, 2]"][:1]}
    with pytest.raises(PlanMismatchError, match=r"collective 1 .*\n.*on rank 2: none"):
        compare("graph0", {0: usual, 1: usual, 2: short})


def run(rank: int, case: str) -> str:
    """What litz says on this rank; nothing if it compiles and runs as eager."""

    def function(x: torch.Tensor) -> Any:
        if case == "another reduction" and rank == 1:
            return ops.wait_tensor(ops.all_reduce(x + 1, "max", "0"))
        first = ops.wait_tensor(ops.all_reduce(x + 1, "sum", "0"))
        if case == "one more" and rank == 0:
            return first + ops.wait_tensor(ops.all_reduce(first, "max", "0"))
        return first

    x = torch.ones(3 if case == "another size" and rank == 1 else 4)
    options = {"collectives.verify_plan": True, "collectives.verify_seconds": 20.0}
    try:
        out = torch.compile(function, backend="litz", options=options)(x)
    except Exception as error:
        return str(error)
    torch.testing.assert_close(out, function(x))
    return ""


MISMATCHES = {
    "another reduction": ("collective 0", "on rank 1: all_reduce max float32 [4]"),
    "another size": ("collective 0", "on rank 1: all_reduce sum float32 [3]"),
    "one more": ("collective 1", "on rank 0: all_reduce max float32 [4]"),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_every_rank_says_the_same(ranks: Ranks, case: str) -> None:
    for said in ranks.run(__file__, "run", case):
        assert all(part in said for part in ("rank 1 plans other communication than rank 0", *MISMATCHES[case])), said


def test_equal_plans_run_after_that(ranks: Ranks) -> None:
    assert ranks.run(__file__, "run", "equal") == ["", ""]


def run_sizes_of_its_own(rank: int, _: Any) -> None:
    """Each rank sends as much as it likes in an all_to_all."""
    splits = [[1, 2], [3, 4]]

    def function(x: torch.Tensor) -> torch.Tensor:
        received = [row[rank] for row in splits]
        return ops.wait_tensor(ops.all_to_all_single(x * 2, received, splits[rank], "0"))

    x = torch.arange(float(sum(splits[rank]))) + 10 * rank
    compiled = torch.compile(function, backend="litz", options={"collectives.verify_plan": True})
    torch.testing.assert_close(compiled(x), function(x))


def test_sizes_that_may_differ(ranks: Ranks) -> None:
    ranks.run(__file__, "run_sizes_of_its_own")


def run_alone(rank: int, _: Any) -> list[str]:
    """Only rank 0 compiles in time."""
    import warnings

    def function(x: torch.Tensor) -> torch.Tensor:
        return ops.wait_tensor(ops.all_reduce(x * 3, "sum", "0"))

    options = {"collectives.verify_plan": True, "collectives.verify_seconds": 1.0}
    compiled = torch.compile(function, backend="litz", options=options)
    chosen = compiled if rank == 0 else function
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.testing.assert_close(chosen(torch.ones(4)), torch.full((4,), 6.0))
    dist.barrier()
    if rank == 1:  # a plan is compared with the others' of the same turn: without this one, later tests' would be off
        compiled(torch.ones(4, device="meta"))
    return [str(item.message) for item in caught if "has not compiled" in str(item.message)]


def test_a_rank_that_does_not_compile_is_a_warning(ranks: Ranks) -> None:
    alone, other = ranks.run(__file__, "run_alone")
    assert len(alone) == 1 and alone[0].startswith("rank 1 has not compiled") and not other
