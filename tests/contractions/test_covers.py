"""Covers: which Loops become library calls, what these compute, and which Loops stay, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch

from litz.driver.stages import capture, prepare_graph, schedule_prepared
from litz.ir import Program, Template
from litz.ir.interpret import interpret
from litz.ir.verify import verify
from litz.pipeline import make_compiler
from litz.report.log import Log
from litz.target import target_of
from litz_contractions.products import cover
from litz_plugins import PassContext
from litz_testing.parse import parse_program
from support.figures import set_figures
from support.interpreted import mostly
from support.pairwise import Axes, Row, matrix

Tensor = torch.Tensor
FORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "rows": lambda a, b: (a[..., None, :] * b).sum(-1),
    "columns": lambda a, b: (a[..., None] * b.mT).sum(-2),
    "keepdim": lambda a, b: (a[..., None, :] * b).sum(-1, keepdim=True),
    "mean": lambda a, b: (a[..., None, :] * b).mean(-1),
    "of copies": lambda a, b: (a[..., None, :].expand(*a.shape[:-1], *b.shape).contiguous() * b).sum(-1) + 1,
    "three factors": lambda a, b: (a[..., None, :] * b * b[0]).sum(-1),
    "widened": lambda a, b: (a[..., None, :] * b).sum(-1, dtype=torch.float64),
    "in float32": lambda a, b: (a[..., None, :].float() * b.float()).sum(-1).to(a.dtype),
    "turned": lambda a, b: (a[..., None, :] * b).sum(-1).mT.relu(),
    "of functions": lambda a, b: (a.exp()[..., None, :] * b.sin()).sum(-1),
}
DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "dense": lambda x: x,
    "transposed": lambda x: x.mT.contiguous().mT,
    "strided": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "sliced": lambda x: torch.cat((x, x), -1)[..., : x.shape[-1]],
    "expanded": lambda x: x[..., :1, :].expand(x.shape),
}
SHAPES = {"no batch": (), "batch": (3,), "batches": (2, 3)}
AXES: Axes = {
    "form": tuple(FORMS),
    "type": tuple(DTYPES),
    "left": tuple(f"left {name}" for name in LAYOUTS),
    "right": tuple(f"right {name}" for name in LAYOUTS),
    "batch": tuple(SHAPES),
    "sizes": ("static", "dynamic"),
}
CASES = matrix(AXES)
FIRST = 26
"""How many rows CI runs. These rows have all values, and nearly four of five pairs."""


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of all sizes are faster than loops."""
    monkeypatch.setattr(cover, "LEAST", 1)
    set_figures(monkeypatch, broadcast__least_cpu_terms=0, broadcast__least_cpu_half_terms=0)
    monkeypatch.setattr(cover, "_times", lambda *args: (2.0, 1.0))


def programs(
    function: Callable[..., Any], inputs: Sequence[Tensor], dynamic: bool = False
) -> tuple[list[tuple[Program, list[Tensor]]], str]:
    """The programs that a function's graphs become, each with its outputs by the interpreter; and what was decided."""
    found: list[tuple[Program, list[Tensor]]] = []
    compiler, log = make_compiler(), Log()

    def compiled(graph: Any) -> Callable[[list[Any]], Any]:
        program = schedule_prepared(prepare_graph(graph, compiler, log), compiler, log).program
        verify(program)

        def run(args: list[Any]) -> Any:
            found.append((program, interpret(program, args)))
            return found[-1][1]

        return run

    backend = partial(capture, compile_graph=compiled, compiler=compiler)
    torch._dynamo.reset()
    torch.compile(function, backend=backend, dynamic=dynamic)(*inputs)
    return found, "\n".join(str(each) for each in log.decisions)


def calls(found: Sequence[tuple[Program, Any]]) -> list[Template]:
    return [step for program, _ in found for step in program.operations if isinstance(step, Template)]


@pytest.mark.parametrize("name", mostly(CASES, list(CASES)[FIRST:]))
@pytest.mark.usefixtures("any_size")
def test_values(name: str) -> None:
    """Each form is one product, whose error is at most eager's, or a rounding or two of its result."""
    case: Row = CASES[name]
    form, dtype, left, right, batch, sizes = (case[axis] for axis in AXES)
    generator = torch.Generator().manual_seed(7)
    a = torch.randn((*SHAPES[batch], 17, 9), generator=generator).to(DTYPES[dtype])
    b = torch.randn((5, 9), generator=generator).to(DTYPES[dtype])
    a, b = LAYOUTS[left.removeprefix("left ")](a), LAYOUTS[right.removeprefix("right ")](b)
    found, decided = programs(FORMS[form], (a, b), sizes == "dynamic")
    (template,) = calls(found)
    assert template.kind == "mm" and "a product of matrices" in decided
    exact, eager = FORMS[form](a.double(), b.double()), FORMS[form](a, b)
    (result,) = (item for item in found[0][1] if isinstance(item, Tensor))
    assert result.dtype == eager.dtype and result.shape == eager.shape and result.stride() == eager.stride()
    summed = {"widened": DTYPES[dtype], "in float32": torch.float32}
    coarse = max(torch.finfo(each).eps for each in (eager.dtype, summed.get(form, eager.dtype)))
    rounding = coarse * float(exact.abs().max())
    assert float((result - exact).abs().max()) <= max(2 * float((eager - exact).abs().max()), 2 * rounding)


def one(function: Callable[..., Any], *inputs: Tensor, dynamic: bool = False) -> tuple[list[Template], str]:
    found, decided = programs(function, inputs, dynamic)
    return calls(found), decided


def square(n: int = 128, dtype: torch.dtype = torch.float32, count: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(n)
    return [torch.randn(n, n, generator=generator).to(dtype) for _ in range(count)]


def rows(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, None] * b[None]).sum(-1)


def test_the_call_writes_the_result() -> None:
    """No loop copies the result of a library call to where the sum was stored."""
    found, _ = programs(rows, square())
    (program, (result,)) = found[0]
    (template,) = program.operations
    assert isinstance(template, Template) and set(template.outputs) == program.output_buffers
    a, b = square()
    torch.testing.assert_close(result, a @ b.t())


def test_readers_find_a_result_that_the_call_writes() -> None:
    """Two axes are one dimension of the call's result; its readers load, and the program returns, what they did."""

    def function(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        y = (a[:, :, None] * b).sum(-1)
        return y, y.transpose(0, 1).softmax(-1)

    a, b = torch.randn(4, 64, 64), torch.randn(80, 64)
    found, _ = programs(function, (a, b))
    assert [tuple(map(int, ref.layout.size)) for ref in calls(found)[0].args] == [(256, 64), (64, 80)]
    for ours, exact in zip(found[0][1], function(a.double(), b.double()), strict=True):
        torch.testing.assert_close(ours, exact.float(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_halves_on_a_processor_are_multiplied_in_float32(dtype: torch.dtype) -> None:
    a, b = (x * 100 for x in square(dtype=dtype))  # whose squares are too large for float16
    found, decided = programs(lambda a, b: (a[:, None] * b[None]).sum(-1) / 2**16, (a, b))
    (template,) = calls(found)
    types = {found[0][0].buffers[ref.buffer].dtype for ref in template.args}
    assert types == {torch.float32} and "a product of matrices (each operand's values are loaded once" in decided


REASONS = {
    "few rows": (rows, lambda: [torch.randn(4, 4096), torch.randn(64, 4096)], "rows of 4: a library's tile"),
    "few products": (rows, lambda: square(32), "so few terms take no longer as a loop"),
    "few products of halves": (rows, lambda: square(64, torch.bfloat16), "so few terms take no longer as a loop"),
    "long sums": (rows, lambda: [torch.randn(16, 8192) for _ in range(2)], "more exact as a loop"),
    "terms that are returned": (
        lambda a, b: ((t := a[:, None] * b[None]), t.sum(-1)),
        square,
        "its terms are computed in any case",
    ),
    "terms that are read": (
        lambda a, b: (t := a[:, None] * b[None]).sum(-1) + t.amax(-1),
        square,
        "its terms are computed in any case",
    ),
    "rounded terms": (
        lambda a, b: (a[:, None] * b[None]).bfloat16().sum(-1),
        square,
        "the program rounds its terms before it adds them up",
    ),
}


@pytest.mark.parametrize("name", REASONS)
def test_stays_a_loop(name: str) -> None:
    function, inputs, reason = REASONS[name]
    templates, decided = one(function, *inputs())
    assert not templates and reason in decided


@pytest.mark.parametrize("dtype", (torch.int64, torch.int8, torch.bool))
def test_integers_stay_loops(dtype: torch.dtype) -> None:
    assert not one(rows, *((x > 0).to(dtype) for x in square()))[0]


def test_fewer_bits_stay_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch may multiply float32 in bfloat16 then, on some processors, in products of matrices alone."""
    monkeypatch.setattr("torch.get_float32_matmul_precision", lambda: "medium")
    templates, decided = one(rows, *square())
    assert not templates and "in fewer bits" in decided


def test_a_loop_that_is_faster_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cover, "_times", lambda *args: (1.0, 2.0))
    templates, decided = one(rows, *square())
    assert not templates and "a loop (a product of matrices takes longer)" in decided


def test_not_a_number_and_infinity() -> None:
    """The library's call multiplies all terms, as the loop does: 0 * inf is not left out."""
    a, b = square()
    a[0, 0], a[1], b[0, 1], b[3] = float("inf"), 0.0, float("nan"), float("inf")
    found, _ = programs(rows, (a, b))
    assert calls(found)
    torch.testing.assert_close(
        found[0][1][0], rows(a.double(), b.double()).float(), equal_nan=True, atol=1e-3, rtol=1e-4
    )


@pytest.mark.parametrize("shape", ((0, 9, 5), (6, 0, 5), (6, 9, 0), (1, 9, 5), (6, 1, 5), (6, 9, 1)))
@pytest.mark.usefixtures("any_size")
def test_sizes_zero_and_one(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    a, b = torch.randn(m, k), torch.randn(n, k)
    found, _ = programs(rows, (a, b), dynamic=True)
    torch.testing.assert_close(found[0][1][0], a @ b.t())


@pytest.mark.usefixtures("any_size")
def test_gradients() -> None:
    """The gradients of a broadcast product are such sums as well: three products."""

    def function(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
        return torch.autograd.grad((a[:, None] * b[None]).sum(-1).square().sum(), (a, b))

    a, b = torch.randn(7, 9), torch.randn(5, 9)
    found, _ = programs(function, (a, b))
    assert len(calls(found)) == 3
    for ours, exact in zip(found[-1][1], function(a.double(), b.double()), strict=True):
        torch.testing.assert_close(ours, exact.float())


DOT = """
program product
  input x: f32 [128, 96] cpu
  input w: f32 [96, 128] cpu
  loop op0 [i0<128, i1<128 | r0<96] cpu
    v0: f32 = load x[i0, r0]
    v1: f32 = load w[r0, i1]
    v2: f32 = reduce dot v0, v1
    store out[i0, i1] = v2  # f32 [128, 128]
  return out[128, 128]
"""


def test_a_dot_is_covered() -> None:
    """A product as docs/tiles.md writes it, which no op made."""
    program = parse_program(DOT)
    said: list[str] = []
    context = PassContext(
        make_compiler().options, target_of=target_of, note=lambda decision: said.append(str(decision))
    )
    covered = cover.contract_broadcast_products(program, context)
    (template,) = covered.operations
    assert isinstance(template, Template) and template.kind == "mm" and "a product of matrices" in said[0]
    inputs = [torch.randn(128, 96), torch.randn(96, 128)]
    torch.testing.assert_close(interpret(covered, inputs)[0], interpret(program, inputs)[0], atol=1e-4, rtol=1e-4)


def test_each_row_has_known_conditions() -> None:
    for row in cover.COVERS:
        assert set(row.conditions.split()) <= set(cover.CONDITIONS)
        assert row.kind in ("mm", "bmm") and len({len(side) for side in row.axes}) == 1
