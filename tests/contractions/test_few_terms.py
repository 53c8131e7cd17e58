"""Products of a few terms for each row: which become loops on a GPU, and that the loops compute the same."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from core.lowering.harness import program_of
from core.schedule.harness import CPU, GPU
from litz.ir import Loop, Program, Template
from litz.ir.interpret import interpret
from litz.ir.verify import verify
from litz_contractions.products.few_terms import write_out_few_terms
from litz_plugins import Decision, Gate, PassContext, Target, Vetoes
from support.figures import set_figures

OPTIONS = SimpleNamespace(fusion=True)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products are worth it."""
    set_figures(monkeypatch, few_terms__least_products=1)


def written_out(program: Program, target: Target = GPU, **more: Any) -> tuple[Program, list[Decision]]:
    decisions: list[Decision] = []
    context = PassContext(
        OPTIONS, "program", "write_out_few_terms", note=decisions.append, target_of=lambda device: target, **more
    )
    result = write_out_few_terms(program, context)
    verify(result)
    return result, decisions


def products(program: Program) -> int:
    return sum(isinstance(operation, Template) for operation in program.operations)


def heads(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """A linear map over the heads, which lie apart."""
    return F.linear(x.permute(0, 2, 3, 1), w, b).permute(0, 3, 1, 2)


def taps(x: Tensor, weights: Tensor) -> Tensor:
    """9 neighbours of each place, with weights for each place and head."""
    around = F.pad(x, (0, 0, 4, 4)).unfold(1, 9, 1)
    around = around.reshape(-1, x.shape[2] // weights.shape[2], 9)
    return torch.bmm(around, weights.reshape(-1, 9, 1)).reshape(x.shape)


def scaled(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.baddbmm(bias, a, b, alpha=3, beta=0.5)


def unread(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """BLAS does not read what it multiplies by 0."""
    return torch.addmm(bias * float("nan"), a, b, alpha=-2, beta=0)


CASES: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "heads": (heads, ((3, 4, 5, 7), (6, 4), (6,))),
    "taps": (taps, ((2, 11, 12), (2, 11, 3, 9))),
    "outer": (torch.mm, ((37, 1), (1, 53))),
    "one column": (torch.mm, ((37, 16), (16, 1))),
    "one row": (lambda a, b: torch.mm(a[2:3, 1:17], b.t()[3:19]), ((5, 20), (40, 20))),
    "one by one": (torch.mm, ((1, 1), (1, 1))),
    "few rows of many columns": (torch.mm, ((4, 8), (8, 90))),
    "batch": (torch.bmm, ((6, 19, 3), (6, 3, 5))),
    "one for all": (lambda a, b: torch.bmm(a, b.expand(6, 3, 5)), ((6, 19, 3), (1, 3, 5))),
    "transposed": (lambda a, b: torch.bmm(a.mT, b.mT), ((6, 3, 19), (6, 5, 3))),
    "scaled": (scaled, ((6, 1, 5), (6, 9, 2), (6, 2, 5))),
    "bias of a row": (lambda c, a, b: torch.addmm(c, a, b), ((5,), (9, 2), (2, 5))),
    "bias of a column": (lambda c, a, b: torch.addmm(c, a, b), ((9, 1), (9, 2), (2, 5))),
    "bias that is not read": (unread, ((5,), (9, 2), (2, 5))),
    "part of a buffer": (lambda a, b: torch.mm(a[3:, ::2], b[1:]), ((9, 8), (5, 6))),
}


@pytest.mark.each_value
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_is_the_same(name: str, dtype: torch.dtype) -> None:
    """Against float64, the error of a rounding of the product, and of one of the bias where a model adds it apart: the
    loop sums in float32 or more."""
    function, sizes = CASES[name]
    torch.manual_seed(0)
    args = [torch.randn(size).to(dtype) for size in sizes]
    program = program_of(function, *args)
    result, _ = written_out(program)
    assert products(program) == 1 and products(result) == 0
    (found,) = interpret(result, args)
    exact = function(*(x.double() for x in args))
    assert found.dtype == dtype and found.shape == exact.shape and found.stride() == exact.stride()
    largest = float(exact.abs().max())
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), exact, rtol=eps, atol=max(eps, 1e-6) * largest)


@pytest.mark.usefixtures("small")
def test_what_makes_an_operand_and_uses_the_result_is_one_kernel_with_it() -> None:
    """The linear map between products and softmax: no tensor of permuted scores."""
    from core.schedule.harness import plan_of

    def function(scores: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return heads(scores * 2, w, b).softmax(-1)

    args = [torch.randn(2, 4, 16, 16), torch.randn(4, 4), torch.randn(4)]
    result, _ = written_out(program_of(function, *args))
    plan = plan_of(result, GPU)
    assert len(plan.kernels) == 1 and not any(isinstance(step, Template) for step in plan.steps)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(100, 17, 1), (100, 16, 5), (5, 16, 100), (100, 8, 9), (0, 4, 4), (4, 0, 4)]
)
def test_products_of_many_terms_stay(rows: int, depth: int, columns: int) -> None:
    program = program_of(torch.mm, torch.randn(rows, depth), torch.randn(depth, columns))
    result, decisions = written_out(program)
    assert result is program and not decisions


def test_a_product_that_takes_no_more_than_a_launch_stays() -> None:
    for rows, loops in ((254, 0), (256, 1)):
        result, _ = written_out(program_of(torch.mm, torch.randn(rows, 4), torch.randn(4, 4)))
        assert products(result) == 1 - loops


@pytest.mark.parametrize(("turned", "loops"), [(False, 1), (True, 0)], ids=["columns", "terms"])
def test_neighbours_among_an_operand_s_terms_stay(turned: bool, loops: int) -> None:
    """Each column's 16 terms side by side: a warp's loads lie in 8 lines of the cache, for each term anew."""
    right = torch.randn(512, 96, 16).mT if turned else torch.randn(512, 16, 96)
    result, (decision,) = written_out(program_of(torch.bmm, torch.randn(512, 4, 16), right))
    assert products(result) == 1 - loops
    assert decision.chosen == ("a loop" if loops else "a product of matrices")


@pytest.mark.usefixtures("small")
def test_products_of_other_types_stay() -> None:
    program = program_of(torch.mm, torch.ones(9, 2, dtype=torch.complex64), torch.ones(2, 3, dtype=torch.complex64))
    assert products(written_out(program)[0]) == products(program)


@pytest.mark.usefixtures("small")
def test_a_processor_keeps_its_library() -> None:
    program = program_of(torch.mm, torch.randn(9, 2), torch.randn(2, 3))
    assert written_out(program, CPU)[0] is program


@pytest.mark.usefixtures("small")
def test_the_decision_is_on_record_and_may_be_vetoed() -> None:
    program = program_of(torch.mm, torch.randn(90, 4), torch.randn(4, 4))
    result, (decision,) = written_out(program)
    (loop,) = (operation for operation in result.operations if isinstance(operation, Loop))
    assert decision.chosen == "a loop" and dict(decision.considered)["a loop"] > 0 and not loop.reduction_ranges
    kept, (other,) = written_out(program, gate=Gate("g", Vetoes(frozenset({f"write_out_few_terms/{loop.name}"}))))
    assert products(kept) == 1 and other.chosen == "a product of matrices"


@pytest.mark.usefixtures("small")
def test_any_batch() -> None:
    """The number of rows is a symbol."""
    from support.retarget import cuda_schedules

    torch._dynamo.reset()
    args = [torch.randn(6, 4, 5, 7), torch.randn(6, 4), torch.randn(6)]
    torch._dynamo.mark_dynamic(args[0], 0)
    (schedule,) = cuda_schedules(lambda backend: torch.compile(heads, backend=backend)(*args))
    assert not any(isinstance(step, Template) for step in schedule.steps)
