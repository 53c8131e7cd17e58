"""A reduction that is a row and nothing else, as C++: every way to walk, every type, split and whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from core.codegen.test_cpp_loops import reduction_case
from core.schedule.harness import CPU, check
from core.schedule.test_split import reduced
from litz.codegen.kernel_plan import plan_kernel
from litz.ir import Store, build
from litz.ir.index import Expr
from litz.ir.interpret import interpret
from litz.ir.reductions import ROWS
from litz.target import target_of
from litz_plugins import CodegenContext
from support.cpp_kernels import CACHE, CODEGEN, OPTIONS, Case, I, R
from support.new_reductions import registered


@pytest.fixture(autouse=True)
def new_rows() -> Iterator[None]:
    with registered():
        yield


@pytest.mark.each_value
@pytest.mark.parametrize("name", ["row", "long row", "column", "window", "channels last", "empty"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8], ids=str)
def test_a_row_is_enough(name: str, dtype: torch.dtype) -> None:
    if not dtype.is_floating_point:
        reduction_case(name, dtype, ["squares", "parity"]).check()
        return
    kinds = ["squares", "log_sum_exp", "largest"][: 1 if name == "empty" else 3]  # torch has no maximum of nothing
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    reduction_case(name, dtype, kinds).check(rtol=tolerance, atol=tolerance)


@pytest.mark.each_value
@pytest.mark.parametrize("name", ["row", "column", "window"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool], ids=str)
def test_rows_with_forms_by_hand_do_without(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the row says and what the form made by hand says is one thing."""
    monkeypatch.setattr("litz.targets.cpp.forms.FORMS", {})
    monkeypatch.setattr("litz.codegen.dialect.OF_BOOL", {})
    fitting = [row for row in ROWS if row.means(dtype) and not (row.ordered and dtype == torch.bool)]
    kinds = [kind for row in fitting for kind in row.results]
    reduction_case(name, dtype, kinds).check(**({"rtol": 1e-4, "atol": 2e-4} if dtype.is_floating_point else {}))
    if dtype.is_floating_point:
        case = reduction_case(name, dtype, ["max", "min", "argmax", "argmin", "any", "sum"])
        case.inputs["x"].reshape(-1)[5], case.inputs["x"].reshape(-1)[77] = float("nan"), float("inf")
        case.check(rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_of_masked_scores(dtype: torch.dtype) -> None:
    """A score of -inf weighs nothing, in a block of such scores as well; a row of them gives NaN, as softmax does."""
    generator = torch.Generator().manual_seed(5)
    scores, values = (torch.randn(size, generator=generator) for size in ((6, 301), (301, 5)))
    scores[:, ::3], scores[1, :200], scores[3] = -torch.inf, -torch.inf, -torch.inf
    scores[4, 4], scores[5, 7] = torch.nan, torch.inf
    loads = build.load("s", (I[0], R[0]), torch.float32), build.load("v", (R[0], I[1]), dtype)
    store = Store("o", (I[0], I[1]), build.reduce("weighted_softmax", *loads))
    case = Case([6, 5], [store], {"s": scores, "v": values.to(dtype)}, {"o": torch.empty(6, 5)}, [301])
    case.check(rtol=1e-5, atol=1e-5)
    exact = scores.double().softmax(-1) @ values.to(dtype).double()
    torch.testing.assert_close(case.run()["o"].double(), exact, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert exact.isnan().all(-1).tolist() == [False, False, False, True, True, True]


@pytest.mark.parametrize("kind", ["squares", "log_sum_exp", "largest"])
@pytest.mark.parametrize("rows", [12_000, 12_001], ids=["divisible", "prime"])
def test_a_row_is_enough_to_split(kind: str, rows: int) -> None:
    """As a Program in the interpreter, and both kernels built."""
    writer = reduced(kind, rows, 31, over_rows=False)
    program, args = writer.program("y"), writer.args()
    plan = check(program, args, CPU)
    parts, whole = plan.kernels
    assert parts.loop.name == "op0_parts"
    memory = dict(zip(writer.inputs, args, strict=True))
    for kernel in (parts, whole):
        context = CodegenContext(OPTIONS, target_of("cpu"), plan.program, CACHE)
        for name in kernel.writes:
            buffer = plan.program.buffers[name]
            memory[name] = torch.empty([int(extent) for extent in buffer.layout.size], dtype=buffer.dtype)
        source = CODEGEN.generate(plan_kernel(kernel, plan.program), context)
        CODEGEN.load(source, context)(*(memory[str(name)].data_ptr() for name in source.arguments))
    torch.testing.assert_close(memory["y"], interpret(program, args)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("at", [(I[0], R[0]), (R[0], I[0])], ids=["rows", "columns"])
def test_a_row_is_enough_to_scan(at: tuple[Expr, ...]) -> None:
    x = torch.randint(-99, 99, (61, 61), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    value = build.scan("parity", build.load("x", at, torch.int32))
    Case((61,), [Store("o", (I[0], R[0]), value)], {"x": x}, {"o": torch.empty_like(x)}, (61,)).check()


def number_in_rows(x: torch.Tensor, value: torch.Tensor) -> Any:
    x.copy_(value)
    chosen = torch.select_scatter(x, value.double().expand(x.shape).select(1, 0), 1, 0)
    return torch.logsumexp(chosen, (0, 1, 2))


def column_in_rows(x: torch.Tensor, value: torch.Tensor) -> Any:
    x.copy_(value * torch.arange(x.shape[1])[:, None])
    return torch.logsumexp(x * 2 - value, (0, 1, 2)), torch.logsumexp(x.exp(), (1, 2))


@pytest.mark.each_value
@pytest.mark.parametrize("f", [number_in_rows, column_in_rows])
@pytest.mark.parametrize("shape", [(1, 2, 2), (3, 5, 7), (1, 1, 40), (2, 33, 1)])
def test_a_stored_value_that_is_the_same_along_a_range(f: Any, shape: tuple[int, ...]) -> None:
    """s70a:8023: what a later walk made of such a value was computed outside the loop over the range, and read there
    what is stored inside."""
    value, compiled = torch.tensor(0.75), torch.compile(f, backend="litz", fullgraph=True, dynamic=False)
    ours, theirs = torch.zeros(shape).double(), torch.zeros(shape).double()
    torch.testing.assert_close((compiled(ours, value), ours), (f(theirs, value), theirs))
