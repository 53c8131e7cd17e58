"""Bodies of higher-order ops are compiled: results and gradients against loops in Python in float64, the text and the
interpreter of Programs with regions, code for a GPU, a second process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._higher_order_ops import while_loop
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from litz import report as reports
from litz.ir.interpret import interpret
from litz.ir.printer import objects_in
from litz.ir.verify import IllegalProgram, verify
from litz.pipeline import generate, make_compiler, plan_schedule, schedule_only
from litz.regions import _own, cond
from litz.regions import while_loop as run_while_loop
from litz.schedule.schedule_program import unscheduled
from litz_testing.parse.programs import parse_program
from litz_testing.parse.schedules import parse_schedule
from support.compare import device_param, litz
from support.warm import run_twice

Function = Callable[..., Any]


def _branch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x, w: (x * w).sin() + w, lambda x, w: (x - w).exp() * 2, (x, w)) * 3


def _plain_branch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return ((x * w).sin() + w if x.sum() > 0 else (x - w).exp() * 2) * 3


def _loop(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    n, y = while_loop(
        lambda n, y: n < 5, lambda n, y: (n + 1, (y * 0.5 + w).sin()), (torch.zeros((), dtype=torch.int64), x * 2)
    )
    return y + n


def _plain_loop(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * 2
    for _ in range(5):
        y = (y * 0.5 + w).sin()
    return y + 5


def _scanned(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    def step(state: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = state * 0.9 + row * w  # torch refuses gradients where a body saves what it returns
        return state, state * 2 - row

    last, each = scan(step, w * 0.5, x * 2, dim=0)
    return last + 1, each.sin()


def _plain_scanned(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    state, each = w * 0.5, []
    for row in x * 2:
        state = state * 0.9 + row * w
        each.append(state * 2 - row)
    return state + 1, torch.stack(each).sin()


def _mapped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch_map(lambda row, w: (row * w).softmax(0) + w.sum(), x, w).cos()


def _plain_mapped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.stack([(row * w).softmax(0) + w.sum() for row in x]).cos()


def _nested(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def turn(n: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return n + 1, torch.cond(y.sum() > 1, lambda y: (y * 0.5).cos(), lambda y: y.exp() + w, (y,))

    return while_loop(lambda n, y: n < 4, turn, (torch.zeros((), dtype=torch.int64), x * 2))[1] * 2


def _plain_nested(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * 2
    for _ in range(4):
        y = (y * 0.5).cos() if y.sum() > 1 else y.exp() + w
    return y * 2


CASES: Mapping[str, tuple[Function, Function, bool]] = {
    "cond": (_branch, _plain_branch, True),
    "while_loop": (_loop, _plain_loop, False),
    "scan": (_scanned, _plain_scanned, True),
    "map": (_mapped, _plain_mapped, True),
    "nested": (_nested, _plain_nested, False),
}
"""The function, the same in Python, and whether torch has gradients of it."""


def _run(f: Function, inputs: Sequence[torch.Tensor], trains: bool) -> list[torch.Tensor]:
    given = [value.clone().requires_grad_(trains) for value in inputs]
    result = f(*given)
    results = [result] if isinstance(result, torch.Tensor) else [*result]
    if not trains:
        return results
    loss = sum(value.square().sum() for value in results)
    return [*(value.detach() for value in results), *torch.autograd.grad(loss, given)]


def _given(rows: int, columns: int, sign: int = 1, device: str = "cpu") -> list[torch.Tensor]:
    x, w = torch.randn(rows, columns).abs() * sign, torch.rand(columns) + 0.5
    return [x.to(device), w.to(device)]


def _wrappers(collected: Any) -> list[str]:
    return [report.wrapper_source for report in collected]


@pytest.mark.ci_cases("cond-True-cpu", "while_loop-False-cpu", "scan-True-cpu", "map-False-cpu", "nested-False-cpu")
@device_param
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_bodies_are_compiled(name: str, dynamic: bool, device: str) -> None:
    """Each body was a GraphModule that ran op by op."""
    function, plain, trains = CASES[name]
    compiled = litz(function, dynamic=dynamic, fullgraph=True)
    with reports.collect() as collected:
        for rows, sign in ((6, 1), (6, -1)):
            inputs = _given(rows, 24, sign, device)
            exact = _run(plain, [value.double() for value in inputs], trains)
            for ours, theirs in zip(_run(compiled, inputs, trains), exact, strict=True):
                torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)
    wrappers = _wrappers(collected)
    assert wrappers and all("def region0(args):" in text and "GraphModule" not in text for text in wrappers)
    assert all("aten" not in text for text in wrappers)


@pytest.mark.ci_cases("1-1-while_loop", "3-0-while_loop", "3-0-scan", "1-7-scan")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rows, columns", [(1, 1), (3, 0), (1, 7)])
def test_sizes_of_nought_and_one(name: str, rows: int, columns: int) -> None:
    function, plain, trains = CASES[name]
    inputs = _given(rows, columns)
    exact = _run(plain, [value.double() for value in inputs], trains)
    for ours, theirs in zip(_run(litz(function), inputs, trains), exact, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)


def test_one_compile_for_several_sizes() -> None:
    compiled = litz(_scanned, dynamic=True)
    with reports.collect() as collected:
        for rows, columns in ((4, 8), (9, 8), (5, 24)):
            inputs = _given(rows, columns)
            exact = _plain_scanned(*(value.double() for value in inputs))
            for ours, theirs in zip(compiled(*inputs), exact, strict=True):
                torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)
    assert len(collected) == 1


def test_what_is_carried_keeps_its_strides() -> None:
    """A body is compiled for the strides of the first values, and may return others."""
    strides = []

    def turn(args: list[Any]) -> tuple[Any, ...]:
        strides.append(args[1].stride())
        return args[0] + 1, args[1].t().contiguous().t() * 2

    x = torch.randn(4, 6)
    _, found = run_while_loop(lambda args: [args[0] < 3], turn, (0, x), ())
    assert strides == [(6, 1)] * 3
    torch.testing.assert_close(found, x * 8)


def test_no_turn_gives_copies_of_what_is_carried() -> None:
    def f(n: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n, y = while_loop(lambda n, y: n > 0, lambda n, y: (n - 1, y * 2), (n, x))
        return y, y + 1

    x = torch.randn(8)
    found, more = litz(f)(torch.tensor(0), x)
    torch.testing.assert_close((found, more), (x, x + 1))
    assert found.data_ptr() != x.data_ptr()


def test_results_have_memory_of_their_own() -> None:
    """What a body returns may be an operand, a view of one, or one tensor twice."""
    x, y = torch.randn(4, 4), torch.randn(4)
    results = cond(True, lambda args: (args[0], args[0].t(), args[1], args[1]), lambda args: (), (x, y))
    assert len({value.data_ptr() for value in (x, y, *results)}) == 6
    torch.testing.assert_close(results, (x, x.t(), y, y))
    made = run_while_loop(lambda args: [args[0] < 2], lambda args: (args[0] + 1, args[1]), (0, x), ())
    assert made[0] == 2 and made[1].data_ptr() != x.data_ptr()
    lazy = torch.randn(3, dtype=torch.complex64).conj()
    (copied,) = _own((lazy,), (lazy,))
    assert copied.is_conj() and copied.data_ptr() != lazy.data_ptr()


def test_equal_bodies_are_one_region() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = torch.cond(x.sum() > 0, lambda x: (x * 2).sin(), lambda x: x.exp(), (x,)).relu() - 0.5
        return x

    with reports.collect() as collected:
        litz(f)(torch.randn(16))
    (text,) = _wrappers(collected)
    assert text.count("def region") == 2 and text.count("cond_0(") == 4


DRAWING: Mapping[str, Function] = {
    "cond": lambda x: torch.cond(x.sum() > 0, lambda x: x + torch.rand_like(x), lambda x: x - torch.rand_like(x), (x,)),
    "while_loop": lambda x: while_loop(
        lambda n, y: n < 3, lambda n, y: (n + 1, y + torch.rand_like(y)), (torch.zeros((), dtype=torch.int64), x * 1)
    )[1],
    "scan": lambda x: scan(lambda s, row: (s + torch.rand_like(row), s * 1), x[0] * 1, x, dim=0)[0],
    "map": lambda x: torch_map(lambda row: row + torch.rand_like(row), x),
}


@pytest.mark.ci_cases("cond", "scan")
@pytest.mark.parametrize("name", DRAWING)
def test_bodies_that_draw(name: str) -> None:
    """They ran eagerly. Each turn draws anew, and a seed repeats a call."""
    x, drawn = torch.zeros(3, 400) + 1, {}
    for mode in (False, True):
        compiled = litz(DRAWING[name], options={"fallback_random": mode}, fullgraph=True)
        with reports.collect() as collected:
            compiled(x)
        assert "def region0(args):" in collected[0].wrapper_source and "GraphModule" not in collected[0].wrapper_source
        torch.manual_seed(3)
        drawn[mode] = compiled(x), compiled(x)
        torch.manual_seed(3)
        assert torch.equal(compiled(x), drawn[mode][0]) and not torch.equal(*drawn[mode])
    torch.manual_seed(3)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(DRAWING[name], backend="aot_eager")(x), drawn[True][0])
    turns = {"while_loop": 3, "scan": 3}.get(name, 1)
    values = drawn[False][0] - 1
    # A sum of that many numbers in [0, 1): the mean, and how far the numbers lie from it, as of independent ones.
    assert abs(float(values.mean()) - turns / 2) < 0.1 and abs(float(values.var()) - turns / 12) < 0.04
    assert not torch.equal(values[0], values[1]) or name == "scan"


def test_bodies_that_write_say_why_they_run_eagerly() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 1
        return y, torch.cond(x.sum() > 0, lambda y: y.add_(1).sum(), lambda y: y.mul_(2).sum(), (y,))

    x = torch.ones(5)
    with torch.no_grad(), reports.collect() as collected:  # dynamo refuses such bodies where gradients are wanted
        found = litz(f, fullgraph=True)(x)
    torch.testing.assert_close(found, (x + 1, torch.tensor(10.0)))
    said = [d.reason for d in collected[0].decisions if d.chosen == "its bodies run eagerly"]
    assert said == ["a body of cond writes what the call is given"]


# ------------------------------------------------------------------------------------------------- text and interpreter


@pytest.mark.parametrize("name", CASES)
def test_text_and_interpreter(name: str) -> None:
    function, plain, _ = CASES[name]
    inputs = _given(5, 8)
    (schedule,) = schedule_only(function, inputs, {"debug": True})
    program = schedule.program
    assert program.regions and "\n  region region0\n    program " in str(program)
    assert schedule.regions.keys() == program.regions.keys()
    again = parse_program(str(program), objects_in(program))
    assert again == program and str(again) == str(program)
    assert str(parse_schedule(str(schedule), program)) == str(schedule)
    expected = plain(*(value.double() for value in inputs))
    of_rank = {value.dim(): value for value in inputs}  # dynamo takes them in the order of their use
    given = [of_rank[len(program.buffers[name].layout.size)] for name in program.input_buffers]
    results = interpret(unscheduled(schedule), given)
    for ours, theirs in zip(results, [expected] if isinstance(expected, torch.Tensor) else expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)


def test_the_verifier_looks_into_regions() -> None:
    (schedule,) = schedule_only(_branch, _given(5, 8))
    program = schedule.program
    with pytest.raises(IllegalProgram, match="region region1 does not exist"):
        verify(replace(program, regions={"region0": program.regions["region0"]}))
    region = program.regions["region0"]
    with pytest.raises(IllegalProgram, match="region region0 takes 1 operands, and is given 2"):
        verify(replace(program, regions={**program.regions, "region0": replace(region, inputs=region.inputs[:1])}))
    broken = replace(region, operations=())
    with pytest.raises(IllegalProgram, match=r"region region0: output .* is never written"):
        verify(replace(program, regions={**program.regions, "region0": broken}))


# ----------------------------------------------------------------------------------------------------------------- GPUs


@pytest.mark.parametrize("name", CASES)
def test_code_for_a_gpu(name: str) -> None:
    with FakeTensorMode(shape_env=ShapeEnv()):
        inputs = [torch.empty(6, 24, device="cuda"), torch.empty(24, device="cuda")]
        (schedule,) = schedule_only(CASES[name][0], inputs)
    compiler = make_compiler(None, None)
    plan = plan_schedule(schedule, compiler)
    sources = generate(plan, compiler)
    made = {source.language for kernel, source in sources.items() if "_region" in kernel}
    assert "triton" in made  # the counter of a loop is on the CPU


# ---------------------------------------------------------------------------------------------------------------- cache

PROGRAM = """
import sys, torch
from litz import report as reports
sys.path[:0] = [sys.argv[1]]
from e2e.test_bodies import CASES, _given, _run
torch.manual_seed(0)
with reports.collect() as collected:
    for function, plain, trains in map(CASES.get, ("while_loop", "map")):
        for ours, theirs in zip(_run(torch.compile(function, backend="litz"), _given(6, 8), trains), (), strict=False):
            pass
    scan = torch.ops.higher_order.associative_scan
    torch.compile(lambda x: scan(lambda a, b: (a * b,), (x,), ())[0], backend="litz")(torch.ones(4, 3))
print(*(report.graph_cache.split()[0] for report in collected), sum(report.cache_hits < len(report.kernel_paths)
      for report in collected))
"""


def test_a_second_process_finds_all(tmp_path: Path) -> None:
    """Graphs with such ops were in no cache, nor were those with a scan's function."""
    said = run_twice(PROGRAM, tmp_path)
    assert {*said[0][:-1]} == {"miss"} and len(said[0]) == 5
    assert said[1] == ["hit"] * 4 + ["0"]
