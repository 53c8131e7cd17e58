"""Padding of matrix products: where it pays on an H100, and that it changes no value where it is forced."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from litz import report as reports
from litz.ir import KernelCall, Template
from litz.schedule.lifetimes import held_bytes
from litz_contractions.products.many_rows import Tile
from support.compare import close
from support.figures import set_figures
from support.layout_plans import cuda_plan

ALWAYS = {"layout.pad": "always"}


class Head(nn.Module):
    """The end of a language model: hidden states against the embeddings of all words."""

    def __init__(self, words: int, width: int, loss: bool) -> None:
        super().__init__()
        self.words = nn.Parameter(torch.empty(words, width))
        self.loss = loss

    def forward(self, x: Tensor) -> Tensor:
        logits = x @ self.words.t()
        return torch.logsumexp(logits.float(), -1) if self.loss else logits


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library multiplies, whatever kernels may gain on the device."""
    set_figures(monkeypatch, many_rows__tiles=None, many_rows__unaligned_tiles=None)


def products(schedules: list) -> list[tuple[tuple[int, ...], ...]]:
    """The sizes of the operands of each matrix product."""
    return [
        tuple(tuple(map(int, ref.layout.size)) for ref in op.refs[-2:])
        for schedule in schedules
        for op in schedule.program.operations
        if isinstance(op, Template) and op.kind in ("mm", "addmm", "bmm")
    ]


@pytest.mark.parametrize("loss", [True, False], ids=["loss", "logits"])
def test_gpt2s_vocabulary_is_padded(loss: bool) -> None:
    """50257 columns in bf16: 6.7 ms on an H100, 0.9 ms with 50304."""
    decisions, schedules = cuda_plan(lambda: Head(50257, 768, loss), (8192, 768))
    assert products(schedules) == [((8192, 768), (768, 50304))]
    (decision,) = decisions
    assert decision.chosen == "padded to 8192 by 768 by 50304"
    costs = dict(decision.considered)
    assert costs["padded"] < costs["as it is"]
    (output,) = schedules[0].program.outputs
    assert tuple(map(int, output.layout.stride)) == ((1,) if loss else (50257, 1))


def test_a_kernel_that_is_fast_enough_takes_the_place_of_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory then holds neither the weight nor the result twice, which is 470 MB for GPT-2's 4096 rows."""
    tile = Tile(128, 256, 3, 8, 1.2, apart=True)
    peaks = []
    for table in (None, (tile,)):
        set_figures(monkeypatch, many_rows__unaligned_tiles=table)
        _, (schedule,) = cuda_plan(lambda: Head(50257, 768, False), (4096, 768))
        peaks.append(held_bytes(schedule.program, schedule.steps))
    (call,) = schedule.program.operations
    assert isinstance(call, KernelCall) and call.source is not None and call.source.symbol.endswith("apart8")
    assert peaks == [2 * (50304 * 768 + 4096 * (50304 + 50257)) - 2 * 50304 * 768, 2 * 4096 * 50257]


def test_a_kernel_takes_the_place_of_a_padded_bias_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a masked language model's head: memory holds neither weight, bias nor result twice."""
    set_figures(monkeypatch, many_rows__unaligned_tiles=(Tile(128, 256, 3, 8, 1.05),))
    _, (schedule,) = cuda_plan(lambda: torch.nn.Linear(768, 30522), (4096, 768))
    (call,) = schedule.program.operations
    assert isinstance(call, KernelCall) and len(call.reads) == 3
    assert held_bytes(schedule.program, schedule.steps) == 2 * 4096 * 30522


def test_training_pads_all_three_and_the_gradient_once() -> None:
    decisions, schedules = cuda_plan(lambda: Head(50257, 768, True), (8192, 768), train=True)
    assert sorted(products(schedules)) == [((8192, 768), (768, 50304)), ((50304, 8192), (8192, 768))]
    assert len(decisions) == 2
    backward = schedules[-1].program
    large = [b for b in backward.buffers.values() if tuple(map(int, b.layout.size)) == (8192, 50304)]
    assert len(large) == 1 and large[0].kind == "temporary"


class Biased(nn.Module):
    """A masked language model's head and its loss: the gradient of the scores is an operand, and its sum the bias's
    gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Linear(768, 30522)

    def forward(self, x: Tensor) -> Tensor:
        return torch.logsumexp(self.words(x).float(), -1)


def test_what_is_padded_is_summed_in_its_padded_form() -> None:
    _, schedules = cuda_plan(Biased, (4096, 768), train=True)
    backward = schedules[-1]
    (total,) = (kernel for kernel in backward.kernels if kernel.loop.is_reduction and "sum" in str(kernel.loop.origins))
    sizes = [tuple(map(int, backward.program.buffers[name].layout.size)) for name in total.loop.reads]
    assert sizes == [(4096, 30528)]


@pytest.mark.parametrize(
    ("words", "rows", "dtype"),
    [
        (50304, 8192, torch.bfloat16),
        (50257, 8, torch.bfloat16),
        (50257, 8192, torch.float32),
        (257, 512, torch.float16),
    ],
    ids=["aligned", "few rows", "float32", "small"],
)
def test_left_alone(words: int, rows: int, dtype: torch.dtype) -> None:
    _, schedules = cuda_plan(lambda: Head(words, 768, True), (rows, 768), dtype)
    whole = [((rows, 768), (768, words))]
    # A product of few rows is a kernel of core's, which takes it as it is.
    assert products(schedules) == ([] if rows == 8 else whole)


def test_what_does_not_pay_is_on_record() -> None:
    decisions, _ = cuda_plan(lambda: Head(257, 256, False), (512, 256), torch.float16)
    (decision,) = decisions
    assert decision.chosen == "not padded" and "would take longer" in decision.reason


CASES: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "mm": (lambda a, b: a @ b, [(5, 7), (7, 9)]),
    "transposed": (lambda a, b: (a.t() @ b.t()).relu(), [(7, 5), (9, 7)]),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2.0), [(9,), (5, 7), (7, 9)]),
    "addmm matrix": (lambda c, a, b: torch.addmm(c, a, b), [(5, 9), (5, 7), (7, 9)]),
    "addmm row": (lambda c, a, b: torch.addmm(c, a, b), [(1, 9), (5, 7), (7, 9)]),
    "addmm column": (lambda c, a, b: torch.addmm(c, a, b), [(5, 1), (5, 7), (7, 9)]),
    "bmm": (lambda a, b: torch.bmm(a, b) + 1, [(3, 5, 7), (3, 7, 9)]),
    "bmm transposed": (lambda a, b: torch.bmm(a.mT, b.mT), [(3, 7, 5), (3, 9, 7)]),
    "shared": (lambda a, b: (a @ b) @ (a @ b).t() @ a, [(5, 7), (7, 9)]),
    "viewed": (lambda a, b: (a @ b).view(-1)[3:].sin(), [(5, 7), (7, 9)]),
    "aligned": (lambda a, b: a @ b, [(8, 16), (16, 8)]),
}


@pytest.mark.ci_cases(
    "torch.float32-mm",
    "torch.float32-addmm row",
    "torch.float32-bmm",
    "torch.float32-shared",
    "torch.float32-aligned",
    "torch.bfloat16-transposed",
    "torch.bfloat16-addmm matrix",
    "torch.bfloat16-viewed",
)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_values_gradients_and_strides(name: str, dtype: torch.dtype) -> None:
    f, sizes = CASES[name]
    inputs = [torch.randn(size, dtype=dtype) for size in sizes]

    def run(g: Callable[..., Tensor], values: list[Tensor]) -> list[Tensor]:
        leaves = [value.detach().clone().requires_grad_() for value in values]
        out = g(*leaves)
        (out * torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype).view(out.shape)).sum().backward()
        return [out.detach(), *(leaf.grad for leaf in leaves)]

    exact = run(f, [value.double() for value in inputs])
    expected = run(f, inputs)
    with reports.collect() as collected:
        actual = run(torch.compile(f, backend="litz", options=ALWAYS), inputs)
    close(actual, expected, exact, tolerance=3.0, least_scale=1.0)
    assert [a.stride() for a in actual] == [e.stride() for e in expected]
    padded = [d for one in collected for d in one.decisions if d.chosen.startswith("padded to")]
    assert bool(padded) == (name != "aligned")


def test_a_model_with_a_linear_layer_of_odd_size() -> None:
    model = nn.Sequential(nn.Linear(13, 37), nn.GELU(), nn.Linear(37, 11))
    mine = copy.deepcopy(model)
    x = torch.randn(4, 6, 13)
    expected, actual = model(x), torch.compile(mine, backend="litz", options=ALWAYS)(x)
    torch.testing.assert_close(actual, expected)
    expected.sum().backward(), actual.sum().backward()
    for got, want in zip(mine.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad)
        assert got.grad is not None and want.grad is not None and got.grad.stride() == want.grad.stride()


def test_symbolic_sizes_are_left_alone() -> None:
    with reports.collect() as collected:
        f = torch.compile(lambda a, b: a @ b, backend="litz", options=ALWAYS, dynamic=True)
        a, b = torch.randn(5, 7), torch.randn(7, 9)
        torch.testing.assert_close(f(a, b), a @ b)
    assert not [d for d in collected[0].decisions if d.plugin == "layout"]
