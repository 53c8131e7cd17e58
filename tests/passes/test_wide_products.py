"""Products of half types in float32, on a processor for which torch's library has none: as exact, and as they lay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from litz.report import collect
from litz_passes import plugin
from litz_passes.processor import QUESTIONS, without_kernels

HALVES = tuple(QUESTIONS)
CASES: Mapping[str, tuple[Callable[..., Tensor], Sequence[tuple[int, ...]]]] = {
    "mm": (torch.mm, [(33, 65), (65, 47)]),
    "linear": (F.linear, [(2, 40, 64), (96, 64), (96,)]),
    "addmm with factors": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), [(33, 1), (33, 65), (65, 47)]),
    "bmm": (torch.bmm, [(3, 17, 70), (3, 70, 40)]),
    "baddbmm": (torch.baddbmm, [(17, 40), (3, 17, 70), (3, 70, 40)]),
    "attention": (lambda q, k, v: (q @ k.mT * 0.2).softmax(-1) @ v, [(2, 3, 40, 32)] * 3),
    "conv1d": (lambda x, w: F.conv1d(x, w, padding=2), [(2, 8, 90), (12, 8, 5)]),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, stride=2).relu(), [(2, 8, 15, 17), (12, 8, 3, 3), (12,)]),
    "groups": (lambda x, w: F.conv2d(x, w, padding=1, groups=4), [(2, 8, 15, 17), (12, 2, 3, 3)]),
    "conv3d": (F.conv3d, [(1, 4, 7, 8, 9), (6, 4, 2, 3, 2)]),
    "transposed": (lambda x, w: F.conv_transpose2d(x, w, stride=2), [(2, 8, 9, 11), (8, 6, 3, 3)]),
}


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library has no products of half types, whatever this processor is."""
    monkeypatch.setattr("litz_passes.graph.wide_products.without_kernels", lambda: frozenset(HALVES))
    monkeypatch.setattr("litz_passes.processor.without_kernels", lambda: frozenset(HALVES))


def tensors(sizes: Sequence[tuple[int, ...]], dtype: torch.dtype, last: bool = False) -> list[Tensor]:
    generator = torch.Generator().manual_seed(len(sizes))
    found = [torch.randn(size, generator=generator).to(dtype) for size in sizes]
    if last and found[0].dim() == 4:
        found[0] = found[0].contiguous(memory_format=torch.channels_last)
    return [each.requires_grad_() for each in found]


def step(function: Callable[..., Tensor], given: Sequence[Tensor]) -> list[Tensor]:
    result = function(*given)
    weights = torch.linspace(-1, 1, result.numel()).reshape(result.shape).to(result.dtype)
    return [result.detach(), *torch.autograd.grad(result, given, weights)]


@pytest.mark.ci_cases("linear-last-bfloat16-True", "conv2d-last-float16-False", "bmm-first-bfloat16-False")
@pytest.mark.each_value
@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name: str, last: bool, dtype: torch.dtype, dynamic: bool) -> None:
    function, sizes = CASES[name]
    given = tensors(sizes, dtype, last)
    torch._dynamo.reset()
    found = step(torch.compile(function, backend="litz", dynamic=dynamic), given)
    eager = step(function, given)
    exact = step(function, [each.detach().double().requires_grad_() for each in given])
    for ours, theirs, true in zip(found, eager, exact, strict=True):
        assert ours.dtype == dtype and ours.stride() == theirs.stride()
        error, limit = (ours.double() - true).abs(), torch.finfo(dtype).eps * (true.abs() + true.abs().max())
        assert (error <= torch.maximum(limit, 1.5 * (theirs.double() - true).abs())).all()


def widened(function: Callable[..., Tensor], *given: Tensor, **options: object) -> list[str]:
    """The decisions of the pass for a call without gradients."""
    torch._dynamo.reset()
    with collect() as reports, torch.no_grad():
        torch.compile(function, backend="litz", options=options)(*given)
    decisions = [each for report in reports for each in report.decisions if each.chosen == "in float32"]
    return [each.chosen for each in decisions]


@pytest.mark.usefixtures("elsewhere")
def test_only_what_is_worth_it() -> None:
    wide, square = torch.randn(1, 512).bfloat16(), torch.randn(512, 512).bfloat16()
    assert widened(torch.mm, square, square) == ["in float32"]
    assert widened(torch.mm, wide, square.t()) == []  # reads the matrix once, and half of the bytes
    assert widened(torch.mm, square[:8, :8], square[:8, :8]) == []
    assert widened(torch.mm, square.float(), square.float()) == []


@pytest.mark.usefixtures("elsewhere")
def test_strict_and_invariant_modes_leave_them_to_the_library() -> None:
    square = torch.randn(64, 64).bfloat16()
    for options in ({"numerics.mode": "strict"}, {"numerics.batch_invariant": True}):
        assert widened(torch.mm, square, square, **options) == []


def test_a_library_that_has_them_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("graph.wide_products", "processor"):
        monkeypatch.setattr(f"litz_passes.{module}.without_kernels", frozenset)
    square = torch.randn(64, 64).half()
    assert widened(torch.mm, square, square) == []


def test_the_key_of_a_graph_says_which_types_it_is_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    known = plugin.litz_cache_fingerprint({})
    assert known == (" ".join(sorted(map(str, without_kernels()))) or None)
    monkeypatch.setattr("litz_passes.processor.without_kernels", lambda: frozenset(HALVES))
    assert plugin.litz_cache_fingerprint({}) == "torch.bfloat16 torch.float16"
