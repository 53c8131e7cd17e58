"""The option `sizes`: code for several sizes, and the choice when it is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch

import litz_aot
from litz import pipeline
from litz import report as reports
from litz.capture.graph import Graph
from litz.driver.builtin import builtin_plugins
from litz.driver.size_cases import MOST_CASES, of_same_communication, other_sizes, size_grid, with_cases
from litz.ir import Collective, Extern, Program, Template
from litz.report.log import Log
from litz.schedule.schedule import Schedule
from litz_aot import plugin as aot_plugin
from litz_plugins import Pass, hookimpl
from litz_plugins.manager import make_plugins

pytestmark = pytest.mark.xdist_group("by_size")

S0 = sympy.Symbol("s0", integer=True, positive=True)
W = torch.randn(3, 3)
TAKEN: list[int] = []
"""The ways of the products that were run."""


def product(x: torch.Tensor, w: torch.Tensor, way: int) -> torch.Tensor:
    """x @ w, and a note of the way."""
    TAKEN.append(way)
    return x @ w


class Ways:
    """A plugin with another way to multiply for likely sizes from each of `starts` on."""

    def __init__(self, *starts: int) -> None:
        self.starts = starts

    @hookimpl
    def litz_register_passes(self) -> Sequence[Pass]:
        return [Pass("ways", "program", self.choose)]

    def choose(self, program: Program, context: Any) -> Program:
        return replace(program, operations=tuple(self._way(op, program, context) for op in program.operations))

    def _way(self, op: Any, program: Program, context: Any) -> Any:
        if not isinstance(op, Template):
            return op
        way = sum(program.hint(op.args[0].layout.size[0]) >= start for start in self.starts)
        context.record(op.name, f"way {way}", "by its size")
        return Extern(op.name, op.device, product, (*op.args, way), outputs=op.outputs)


class Compiled:
    """A function compiled with a plugin; `sizes` and others are options."""

    def __init__(self, folder: Path, fn: Callable[..., Any], plugin: Any, **options: Any) -> None:
        torch._dynamo.reset()
        self.fn = fn
        plugins = make_plugins(builtin_plugins(), extra=[("ways", plugin)], entry_points=())
        given = {"cache_dir": folder, "debug": True, **options}
        self.call = torch.compile(
            fn, backend=lambda gm, inputs: pipeline.compile_backend(gm, inputs, options=given, plugins=plugins)
        )
        self.reports: list[reports.CompileReport] = []

    def __call__(self, *args: Any) -> list[int]:
        """Which ways were taken; the result is compared with eager's."""
        TAKEN.clear()
        with reports.collect() as collected:
            found = self.call(*args)
        self.reports += collected
        taken = list(TAKEN)
        torch.testing.assert_close(found, self.fn(*args))
        return taken

    @property
    def decisions(self) -> list[Any]:
        return [decision for report in self.reports for decision in report.decisions]


def multiply(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).relu()


def multiply_and_add_up(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = (x @ w).relu()
    return y, y.sum(1)


def rows(count: int, **bounds: int) -> torch.Tensor:
    x = torch.randn(count, 3)
    torch._dynamo.mark_dynamic(x, 0, **bounds)
    return x


def test_a_call_takes_the_code_for_its_size(tmp_path: Path) -> None:
    compiled = Compiled(tmp_path, multiply, Ways(100), sizes=(8, 500))
    assert [compiled(rows(count), W) for count in (20, 2, 100, 101, 9999)] == [[0], [0], [0], [1], [1]]
    (report,) = compiled.reports
    reasons = [d.reason for d in compiled.decisions if "by size" in d.chosen]
    assert len(reasons) == 2 and "<= 100: 1 kernel and 1 call" in reasons[0] and "made for s" in reasons[0]
    assert "100 < s" in reasons[1] and "= 500" in reasons[1]
    ways = {d.subject.partition(" = ")[2]: d.chosen for d in compiled.decisions if d.chosen.startswith("way")}
    assert ways == {"": "way 0", "8": "way 0", "500": "way 1"}
    assert report.wrapper_source.count("def call") == 3


def test_what_is_fused_for_other_sizes_is_on_record(tmp_path: Path) -> None:
    compiled = Compiled(tmp_path, multiply_and_add_up, Ways(100), sizes=(500,))
    compiled(rows(20), W)
    fused = [d.subject for d in compiled.decisions if d.chosen == "fused"]
    assert any(" at s" in subject and "= 500" in subject for subject in fused)
    assert any(" at s" not in subject for subject in fused)
    assert len(fused) == len(set(fused)), "each once"


def test_without_the_option_there_is_one_code(tmp_path: Path) -> None:
    compiled = Compiled(tmp_path, multiply, Ways(100))
    assert [compiled(rows(count), W) for count in (20, 9999)] == [[0], [0]]
    assert "_cases" not in compiled.reports[0].wrapper_source


def test_what_comes_out_equal_is_one_code(tmp_path: Path) -> None:
    compiled = Compiled(tmp_path, multiply, Ways(10_000), sizes=(8, 30))
    assert compiled(rows(20), W) == [0]
    assert "_cases" not in compiled.reports[0].wrapper_source
    assert any(d.chosen == "one code for all sizes" and "the same for" in d.reason for d in compiled.decisions)


def test_two_dynamic_sizes_make_a_grid(tmp_path: Path) -> None:
    def batches(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x.flatten(0, 1) @ w).relu()

    def given(a: int, b: int) -> torch.Tensor:
        x = torch.randn(a, b, 3)
        torch._dynamo.mark_dynamic(x, (0, 1))
        return x

    compiled = Compiled(tmp_path, batches, Ways(100, 1000), sizes=(40,))
    for a, b, way in ((3, 3, 0), (3, 60, 1), (60, 3, 1), (60, 60, 2)):
        TAKEN.clear()
        x = given(a, b)
        torch.testing.assert_close(compiled.call(x, W), batches(x, W))
        assert list(TAKEN) == [way]


def test_forward_and_backward_choose_each(tmp_path: Path) -> None:
    compiled = Compiled(tmp_path, multiply, Ways(100), sizes=(500,))
    for count, way in ((20, 0), (300, 1)):
        x, w = rows(count).requires_grad_(), W.clone().requires_grad_()
        TAKEN.clear()
        found = torch.autograd.grad(compiled.call(x, w).sum(), (x, w))
        torch.testing.assert_close(found, torch.autograd.grad(multiply(x, w).sum(), (x, w)))
        assert TAKEN[0] == way and len(TAKEN) == 3


def test_sizes_that_cannot_be_are_left_out(tmp_path: Path) -> None:
    compiled = Compiled(tmp_path, multiply, Ways(100), sizes=(500, 1000))
    compiled(rows(20, min=2, max=200), W)
    (decision,) = [d for d in compiled.decisions if d.chosen == "one code for all sizes"]
    assert "may be 500 or 1000" in decision.reason
    even = Compiled(tmp_path, lambda x, w: multiply(x.reshape(-1, 2, 3).flatten(0, 1), w), Ways(100), sizes=(501, 502))
    even(rows(20), W)
    made_for = " ".join(d.reason for d in even.decisions if "by size" in d.chosen)
    assert "= 502" in made_for and "501" not in made_for


def test_a_grid_that_is_too_large_is_not_used(tmp_path: Path) -> None:
    compiled = Compiled(tmp_path, multiply, Ways(100), sizes=tuple(range(100, 100 + MOST_CASES)))
    assert [compiled(rows(count), W) for count in (20, 9999)] == [[0], [0]]
    (decision,) = [d for d in compiled.decisions if d.chosen == "one code for all sizes"]
    assert "17 cases, more than 16" in decision.reason


@pytest.mark.nightly
def test_a_package_chooses_too(tmp_path: Path) -> None:
    extra = [("ways", Ways(100)), ("aot", aot_plugin)]
    plugins = make_plugins(builtin_plugins(), extra=extra, entry_points=())
    args, dims = (torch.randn(20, 3), W), ({0: torch.export.Dim("rows", min=2, max=4000)}, None)
    options = {"sizes": (500,), "cache_dir": tmp_path / "cache"}
    litz_aot.compile(multiply, args, tmp_path / "p", options=options, dynamic_shapes=dims, plugins=plugins)
    call = litz_aot.load(tmp_path / "p")
    for count, way in ((20, 0), (99, 0), (101, 1), (3000, 1)):
        TAKEN.clear()
        x = torch.randn(count, 3)
        torch.testing.assert_close(call(x, W), multiply(x, W))
        assert list(TAKEN) == [way]


@pytest.mark.parametrize("alike", [True, False])
def test_ranks_of_different_sizes_communicate_in_one_order(alike: bool) -> None:
    """What a plugin orders by size could differ from rank to rank: then one order is kept for all sizes."""
    program = Program("p", (S0,), {}, (), (), hints={S0: 20})
    graph = Graph("g", torch.fx.GraphModule({}, torch.fx.Graph()), "inference")
    target = torch.ops.aten.clone.default
    first, second = (Collective(name, torch.device("cpu"), target, (), group="0") for name in ("one", "two"))

    log = Log()
    grid = size_grid(graph, program, (500,), log)
    assert grid is not None
    home = Schedule(program, (first, second))
    others = {
        number: of_same_communication(
            home, Schedule(resized, (first, second) if alike else (second, first)), grid.at(number), log
        )
        for number, resized in other_sizes(grid, graph, program).items()
    }
    assert len(others) == 1
    schedule = with_cases(home, grid, others)
    assert (schedule.cases is not None) is alike
    assert any("another order" in decision.reason for decision in log.decisions) is not alike
