"""Sums of broadcast products: which become products of matrices, and that they compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from litz.ir import Template
from litz.pipeline import make_compiler
from litz_contractions.products import cover
from litz_plugins import Decision
from support.figures import set_figures
from support.retarget import cuda_schedules

Tensor = torch.Tensor


@pytest.fixture
def few_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of all sizes are faster than loops."""
    monkeypatch.setattr(cover, "LEAST", 1)
    set_figures(monkeypatch, broadcast__least_cpu_terms=0, broadcast__least_cpu_half_terms=0)
    monkeypatch.setattr(cover, "_times", lambda *args: (2.0, 1.0))


def rows_by_rows(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, None] * b[None]).sum(-1)


def rows_by_columns(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, :, None] * b).sum(1)


def batch(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, :, None] * b[:, None]).sum(-1) + 1


def shared_heads(a: Tensor, b: Tensor) -> Tensor:
    """The heads of a group share both operands, which are repeated for them."""
    a, b = (x[:, :, None].expand(-1, -1, 3, -1).reshape(x.shape[0], x.shape[1], 3 * x.shape[2]) for x in (a, b))
    return (a[:, :, None] * b[:, None]).sum(-1)


def chunks(c: Tensor, b: Tensor, decay: Tensor, x: Tensor) -> Tensor:
    """A state space model's chunk: (chunk, place, head, state) by itself, weighed, by (chunk, place, head, width)."""
    scores = (c[:, :, None] * b[:, None]).sum(-1)
    weights = (scores[..., None] * decay.permute(0, 2, 3, 1)[..., None]).sum(-1)
    return (weights[..., None] * x[:, None]).sum(2)


def three_factors(a: Tensor, b: Tensor, s: Tensor) -> Tensor:
    return (a[:, None] * b[None] * s).sum(-1)


def two_axes(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, :, :, None] * b[None]).sum((1, 2))


def half_in_float(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, None].float() * b[None].float()).sum(-1).to(a.dtype)


def transposed(a: Tensor, b: Tensor) -> Tensor:
    return (a.t()[:, None] * b.t()[None]).sum(-1).t()


def gradients(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
    out = (a[:, :, None] * b[:, None]).sum(-1)
    return torch.autograd.grad(out.square().sum(), (a, b))


def sizes(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Callable[[], list[Tensor]]:
    def make() -> list[Tensor]:
        generator = torch.Generator().manual_seed(len(shapes))
        return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]

    return make


HALF = torch.bfloat16
CASES: dict[str, tuple[Callable[..., Any], Callable[[], list[Tensor]], int]] = {
    "rows by rows": (rows_by_rows, sizes((7, 5), (3, 5)), 1),
    "rows by columns": (rows_by_columns, sizes((7, 5), (5, 3)), 1),
    "one row": (rows_by_rows, sizes((1, 5), (3, 5)), 0),
    "no depth": (rows_by_rows, sizes((4, 0), (3, 0)), 0),
    "no rows": (rows_by_rows, sizes((0, 5), (3, 5)), 0),
    "batch": (batch, sizes((2, 7, 5), (2, 3, 5)), 1),
    "shared heads": (shared_heads, sizes((2, 4, 5), (2, 6, 5)), 1),
    "chunks": (chunks, sizes((2, 9, 4, 5), (2, 9, 4, 5), (2, 4, 9, 9), (2, 9, 4, 3)), 2),
    "three factors": (three_factors, sizes((7, 5), (3, 5), (5,)), 1),
    "two axes": (two_axes, sizes((2, 3, 4), (3, 4, 5)), 1),
    "float64": (rows_by_rows, sizes((7, 5), (3, 5), dtype=torch.float64), 1),
    "half in float": (half_in_float, sizes((7, 5), (3, 5), dtype=HALF), 1),
    "transposed": (transposed, sizes((5, 7), (5, 3)), 1),
    "gradients": (gradients, sizes((2, 7, 5), (2, 3, 5)), 3),
}
IN_CI_DYNAMIC = ("rows by columns", "batch", "shared heads", "three factors", "two axes")
"""The problems that CI runs with symbols for sizes. CI runs the others with numbers."""


@pytest.mark.ci_cases(
    *(f"{name}-{'dynamic' if name in IN_CI_DYNAMIC else 'static'}" for name in CASES),
)
@pytest.mark.parametrize("dynamic", (False, True), ids=("static", "dynamic"))
@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("few_terms")
def test_is_the_same(name: str, dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    function, make, products = CASES[name]
    found: list[str] = []
    covered = cover._covered

    def watched(one: cover.Found, *args: Any) -> cover.Covered:
        found.append(one.loop.name)
        return covered(one, *args)

    monkeypatch.setattr(cover, "_covered", watched)
    inputs = make()
    result = torch.compile(function, backend="litz", dynamic=dynamic)(*inputs)
    assert len(found) == products
    exact = function(*(x.double() for x in inputs))
    eager = function(*inputs)
    for ours, theirs, true in zip(*(x if isinstance(x, tuple) else (x,) for x in (result, eager, exact)), strict=True):
        assert ours.dtype == theirs.dtype and ours.stride() == theirs.stride()
        scale = torch.finfo(ours.dtype).eps * max(1.0, float(true.abs().max()) if true.numel() else 1.0)
        assert true.numel() == 0 or float((ours - true).abs().max()) <= 8 * scale


def decided(function: Callable[..., Any], inputs: list[Tensor], **options: Any) -> tuple[list[Template], str]:
    """The contractions of a function's schedule for CUDA, and the reasons of the pass."""
    decisions: list[Decision] = []
    compiler = make_compiler(options=options)
    (schedule,) = cuda_schedules(lambda backend: torch.compile(function, backend=backend)(*inputs), compiler, decisions)
    said = "\n".join(str(each) for each in decisions if each.subject.startswith("sum "))
    return [step for step in schedule.steps if isinstance(step, Template)], said


def test_operands_are_read_in_place() -> None:
    """On a GPU the estimate chooses the product; heads between places and elements are strides."""
    c, b = torch.randn(128, 8, 64), torch.randn(128, 8, 64)
    (template,), said = decided(lambda c, b: (c[:, None] * b[None]).sum(-1).relu(), [c, b])
    assert [ref.buffer for ref in template.args] == ["arg0_1", "arg1_1"]
    assert [tuple(map(int, ref.layout.stride)) for ref in template.args] == [(64, 512, 1), (64, 1, 512)]
    assert "a product of matrices (each operand's values are loaded once" in said


def test_repeated_operands_are_multiplied_once() -> None:
    a = torch.randn(4, 128, 64)

    def shared(a: Tensor) -> Tensor:
        heads = a[:, None].expand(-1, 6, -1, -1).contiguous()
        return (heads[:, :, :, None] * heads[:, :, None]).sum(-1)

    (template,), _ = decided(shared, [a])
    assert [tuple(map(int, ref.layout.size)) for ref in template.args] == [(4, 128, 64), (4, 64, 128)]


def large() -> list[Tensor]:
    return [torch.randn(128, 64), torch.randn(128, 64)]


def test_not_where_the_library_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.get_float32_matmul_precision", lambda: "high")
    templates, said = decided(rows_by_rows, large())
    assert not templates and "in fewer bits" in said


def test_long_sums_stay() -> None:
    templates, said = decided(rows_by_rows, [torch.randn(32, 8192), torch.randn(32, 8192)])
    assert not templates and "more exact as a loop" in said


def test_few_columns_stay() -> None:
    templates, said = decided(rows_by_rows, [torch.randn(128, 64), torch.randn(4, 64)])
    assert not templates and "columns of 4: a library's tile would be mostly empty" in said


@pytest.mark.parametrize(
    "function",
    (
        lambda a, b: (a * b).sum(-1),
        lambda a, b: (a[:, None] + b[None]).sum(-1),
        lambda a, b: (a[:, None] * b[None]).amax(-1),
        lambda a, b: ((a[:, None] * b[None]).exp()).sum(-1),
    ),
    ids=("by element", "a sum", "a maximum", "a function"),
)
def test_other_reductions_stay(function: Callable[..., Tensor]) -> None:
    assert not decided(function, large())[0]


def test_vetoed() -> None:
    assert not decided(rows_by_rows, large(), veto=("contract_broadcast_products",))[0]


@pytest.mark.usefixtures("few_terms")
def test_operand_that_changes_in_between() -> None:
    """The product's terms are of the values that the operand had when it was multiplied."""

    def function(a: Tensor, b: Tensor) -> Tensor:
        terms = a[:, None] * b[None]
        a.mul_(2)
        return terms.sum(-1)

    a, b = torch.randn(7, 5), torch.randn(3, 5)
    expected = (a.double()[:, None] * b.double()[None]).sum(-1)
    result = torch.compile(function, backend="litz")(a.clone(), b)
    torch.testing.assert_close(result, expected.float())
