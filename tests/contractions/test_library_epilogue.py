"""The library's own relu and gelu on an addmm's way out: what is recognised as one, and when it is chosen."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.support import retarget
from torch import Tensor

from litz.ir import Extern, Template
from litz.pipeline import make_compiler
from litz.schedule.implementations import ContractionRecord
from litz_contractions.products import library
from support.figures import set_figures

BF16 = torch.bfloat16


def compiled(
    fn: Callable[..., Tensor],
    dtype: torch.dtype = BF16,
    rows: tuple[int, ...] = (512,),
    dynamic: bool = False,
    columns: int = 768,
    depth: int = 256,
) -> tuple[list[str], ContractionRecord]:
    """The steps on CUDA of `fn(x, weight, bias)`, and what is said of its contraction."""
    torch._dynamo.reset()
    records: list[ContractionRecord] = []
    args = [torch.empty(size, dtype=dtype) for size in ((*rows, depth), (columns, depth), (columns,))]
    run = lambda backend: torch.compile(fn, backend=backend, dynamic=dynamic)(*args)
    (schedule,) = retarget.cuda_schedules(run, make_compiler(), contractions=records)
    calls = [step for step in schedule.steps if isinstance(step, (Extern, Template))]
    names = [f"{call.target_name} {dict(call.kwargs)}" for call in calls]
    return [*names, *["kernel"] * (len(schedule.steps) - len(calls))], records[0]


def written_out(x: Tensor) -> Tensor:
    """As models write it, rounded at each step."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


GELU = "aten._addmm_activation.default {'use_gelu': True}"


@pytest.mark.parametrize(
    ("activation", "call"),
    [
        (torch.relu, "aten._addmm_activation.default {}"),
        (lambda x: F.gelu(x, approximate="tanh"), GELU),
        (written_out, GELU),
        (lambda x: x.clamp(min=0), "aten._addmm_activation.default {}"),
    ],
)
def test_an_activation_is_known_by_its_values(activation: Callable[[Tensor], Tensor], call: str) -> None:
    steps, record = compiled(lambda x, w, b: activation(F.linear(x, w, b)))
    assert steps == [call] and record.users and record.chosen.name.startswith("cublaslt addmm")


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w, b: F.gelu(F.linear(x, w, b)),  # by erf
        lambda x, w, b: F.silu(F.linear(x, w, b)),
        lambda x, w, b: F.linear(x, w, b).clamp(0, 100),
        lambda x, w, b: F.linear(x, w, b).clamp(0, 60000),
        lambda x, w, b: 0.5 * F.linear(x, w, b).relu(),
        lambda x, w, b: F.linear(x, w, b).relu() + b,
        lambda x, w, b: (y := F.linear(x, w, b)).relu() + y.sum(),
        lambda x, w, b: F.linear(x, w, b).relu().float(),
        lambda x, w, b: F.linear(x, w, b).t().contiguous().relu(),
        lambda x, w, b: torch.addmm(b, x, w.t(), beta=2).relu(),
        lambda x, w, b: (x @ w.t()).relu(),
    ],
)
def test_what_is_neither_stays(fn: Callable[..., Tensor]) -> None:
    steps, record = compiled(fn)
    assert not any("activation" in step for step in steps)
    assert record.op == "aten.mm.default" or any(way.name == library.NAME for way in record.rejected), record


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_batch_of_rows_is_a_view_of_the_matrix(dynamic: bool) -> None:
    fn = lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh")
    steps, _ = compiled(fn, rows=(4, 96), dynamic=dynamic)
    assert steps == [GELU, "aten.view.default {}"]


@pytest.mark.parametrize(
    ("fn", "call"),
    [
        (lambda x, w, b: x @ w.t() + b, "aten.addmm.default {}"),
        (lambda x, w, b: F.relu(b + x @ w.t()), "aten._addmm_activation.default {}"),
        (lambda x, w, b: F.gelu(x @ w.t() + b[None, :], approximate="tanh"), GELU),
        (lambda x, w, b: x @ w.t() + x[0, 0], ""),
        (lambda x, w, b: x @ w.t() + b * 2, ""),
        (lambda x, w, b: x @ w.t() - b, ""),
        (lambda x, w, b: x @ w.t() * b, ""),
        (lambda x, w, b: x @ w.t() + b.float(), ""),
        (lambda x, w, b: x[:, :32] @ w.t()[:32] + x[:, :1], ""),
        (lambda x, w, b: (x @ w.t()).relu() + b, ""),
        (lambda x, w, b: (y := x @ w.t()) + b + y.sum(), ""),
        (lambda x, w, b: (x @ w.t() + b, x @ w.t())[0] + w[:, 0], ""),
    ],
)
def test_a_bias_that_is_added_to_a_product(fn: Callable[..., Tensor], call: str) -> None:
    steps, _ = compiled(fn)
    assert (steps == [call]) if call else not any("addmm" in step for step in steps), steps


def test_a_bias_of_a_square_is_along_the_columns() -> None:
    """Along the rows, which are as many, it is no bias."""
    fn = lambda x, w, b: x @ w.t() + b[:, None]
    steps, _ = compiled(fn, rows=(768,))
    assert not any("addmm" in step for step in steps)


def test_a_part_of_a_result_stays() -> None:
    fn = lambda x, w, b: torch.cat((F.linear(x, w, b).relu(), x), -1)
    steps, _ = compiled(fn)
    assert not any("activation" in step for step in steps)


def test_what_was_not_measured_stays() -> None:
    for changes in ({"dtype": torch.float32}, {"rows": (16,)}):
        steps, record = compiled(lambda x, w, b: F.relu(F.linear(x, w, b)), **changes)  # type: ignore[arg-type]
        assert not any("activation" in step for step in steps)
        assert "the call is for 32 rows and more, of bfloat16 or float16" in {way.verdict for way in record.rejected}


@pytest.mark.parametrize("sizes", [{"columns": 777}, {"depth": 259}, {"columns": 777, "depth": 777}])
def test_rows_that_are_not_aligned(sizes: dict[str, int]) -> None:
    """With such rows the library's product with a gelu took 2.3 times eager's time, with a relu less than eager's."""
    steps, record = compiled(lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"), **sizes)  # type: ignore[arg-type]
    assert not any("activation" in step for step in steps)
    assert any("multiples of 16 bytes" in way.verdict for way in record.rejected)
    steps, _ = compiled(lambda x, w, b: F.relu(F.linear(x, w, b)), **sizes)  # type: ignore[arg-type]
    assert steps == ["aten._addmm_activation.default {}"]


def test_without_a_measurement_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    set_figures(monkeypatch, library_epilogue__relu_us=None)
    steps, record = compiled(lambda x, w, b: torch.relu(F.linear(x, w, b)))
    assert len(steps) == 2
    assert "the call was not measured on this device" in {way.verdict for way in record.rejected}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_call_is_no_further_from_the_exact_result_than_eager(dtype: torch.dtype) -> None:
    """(On the CPU torch's call takes the gelu by erf.)"""
    torch.manual_seed(0)
    sizes = (512, 256), (256, 768), (768,)
    x, w, b = (torch.randn(size, device="cuda").to(dtype) for size in sizes)
    for activation in library.ACTIVATIONS:
        exact = activation.meaning(torch.addmm(b.double(), x.double(), w.double() / 16))
        found = torch.ops.aten._addmm_activation.default(b, x, w / 16, **activation.arguments).double()
        eager = activation.meaning(torch.addmm(b, x, w / 16)).double()
        assert (found - exact).norm() <= 1.05 * (eager - exact).norm(), activation


@pytest.mark.gpu
def test_a_compiled_mlp_is_as_exact_as_eager() -> None:
    torch.manual_seed(0)
    sizes = (4, 96, 256), (1024, 256), (1024,), (256, 1024)
    x, w, b, down = (torch.randn(size, device="cuda") / size[-1] ** 0.5 for size in sizes)
    given = [each.bfloat16() for each in (x * 16, w, b, down)]
    fn = lambda x, w, b, down: F.linear(F.gelu(F.linear(x, w, b), approximate="tanh"), down)
    exact = fn(*(each.double() for each in given))
    found = torch.compile(fn, backend="litz", dynamic=False)(*given)
    assert found.shape == exact.shape
    assert (found - exact).norm() <= 1.05 * (fn(*given) - exact).norm()
