"""What a plugin or a calibration says of a loop's time decides what is fused, split and inlined."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from core.schedule.harness import GPU, OPTIONS
from core.schedule.programs import Writer, call
from litz import pipeline
from litz import report as reports
from litz.driver.builtin import builtin_plugins
from litz.ir import Loop
from litz.ir.structure import structure_of
from litz.pipeline import schedule_only
from litz.report.report import CompileReport
from litz.schedule import make_schedule
from litz.schedule.asked import Asked
from litz.schedule.estimate import CostModel
from litz.schedule.split import split_reductions
from litz.target import DeviceCalibration, save_calibration
from litz_plugins import Decision, Estimate, PassContext, hookimpl
from litz_plugins.manager import Plugins, make_plugins
from support.own_plugins import prepare


class Opinion:
    """A plugin that says what some loops take, and counts how often it is asked."""

    def __init__(self, us: Callable[[Loop], float | None]) -> None:
        self.us = us
        self.loops = 0

    @hookimpl
    def litz_estimate_runtime(self, operation: Any) -> Estimate | None:
        if not isinstance(operation, Loop):
            return None
        self.loops += 1
        us = self.us(operation)
        return None if us is None else Estimate(us, us, us, "an opinion")


def plugins_with(opinion: Opinion) -> Plugins:
    return make_plugins(builtin_plugins(), extra=[("mine", opinion)], entry_points=())


def compiled(fn: Callable[..., Any], *args: torch.Tensor, plugins: Plugins, **options: Any) -> CompileReport:
    torch._dynamo.reset()
    with reports.collect() as collected:
        torch.compile(
            fn, backend=lambda gm, inputs: pipeline.compile_backend(gm, inputs, options=options, plugins=plugins)
        )(*args)
    return collected[0]


def sum_and_values(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.exp()
    return y, y.sum(1)


def dear_together(loop: Loop) -> float | None:
    """Loops that store two things."""
    return 1e6 if len(loop.stores) > 1 else None


def test_a_plugin_keeps_apart_what_core_would_fuse(tmp_path: Path) -> None:
    x = torch.randn(64, 64)
    plain = compiled(sum_and_values, x, plugins=plugins_with(Opinion(lambda loop: None)), cache_dir=tmp_path)
    mine = compiled(sum_and_values, x, plugins=plugins_with(Opinion(dear_together)), cache_dir=tmp_path)
    assert (plain.kernels_after, mine.kernels_after) == (1, 2)
    (decision,) = [d for d in mine.decisions if d.chosen == "kept apart"]
    assert decision.plugin == "mine" and dict(decision.considered)["fused"] == 1e6
    assert all(d.plugin == "core" for d in plain.decisions if d.chosen == "fused")


def test_a_plugin_keeps_what_core_would_inline() -> None:
    def f(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x * scale.exp()

    def dear(loop: Loop) -> float | None:
        return 1e6 if any(node.op == "exp" for node in loop.nodes) and len(loop.ranges) > 1 else None

    torch._dynamo.reset()
    args = torch.randn(64, 64), torch.randn(64)
    (schedule,) = schedule_only(f, args, plugins=plugins_with(Opinion(dear)))
    assert len(schedule.kernels) == 2


def test_a_plugin_decides_what_is_split() -> None:
    w = Writer()
    w.input("x", 1 << 20)
    w.reduce("y", "sum", (), (1 << 20,), lambda r: w.load("x", r))
    program, notes = w.program("y"), list[Decision]()
    base = PassContext(OPTIONS, note=notes.append, target_of=lambda device: GPU)
    assert len(split_reductions(program, base).operations) == 2

    def ask(loop: Loop, target: Any, program: Any) -> tuple[str, Estimate] | None:
        return ("mine", Estimate(1e6, 1e6, 1e6, "slow")) if loop.name.endswith("_parts") else None

    context = PassContext(OPTIONS, note=notes.append, target_of=lambda device: GPU, ask=ask)
    assert split_reductions(program, context) is program
    assert [(note.chosen[:5], note.plugin) for note in notes] == [("split", "core"), ("whole", "mine")]


def test_a_calibration_decides_what_is_fused(tmp_path: Path) -> None:
    """Two loops that share nothing are one kernel where they take little more than their launch."""

    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.exp(), y.exp()

    figures = {"launch_us": 0.001, "bandwidth_gb_s": 1.0}
    save_calibration(tmp_path / "c.json", (DeviceCalibration("cpu", "", figures),))
    kernels = []
    for options in ({}, {"calibration": tmp_path / "c.json"}):
        torch._dynamo.reset()
        (schedule,) = schedule_only(f, (torch.randn(16, 16), torch.randn(16, 16)), options)
        kernels.append(len(schedule.kernels))
    assert kernels == [1, 2]


def test_nobody_is_asked_where_no_plugin_has_the_hook() -> None:
    assert make_plugins(builtin_plugins(), entry_points=()).asker(OPTIONS) is None  # type: ignore[arg-type]
    assert plugins_with(Opinion(lambda loop: None)).asker(OPTIONS) is not None  # type: ignore[arg-type]


def test_loops_that_differ_in_names_are_asked_about_once() -> None:
    w = Writer()
    w.input("x", 32, 32)
    w.input("other", 16, 32)
    for n, op in enumerate(("exp", "exp", "sin")):
        w.pointwise(f"y{n}", (32, 32), lambda i, j, op=op: call(op, w.load("x", i, j)))
    w.pointwise("z", (16, 32), lambda i, j: call("exp", w.load("other", i, j)))
    program = w.program("y0", "y1", "y2", "z")
    keys = [structure_of([loop], program) for loop in program.loops]
    assert keys[0] == keys[1] and len(set(keys)) == 3
    opinion = Opinion(lambda loop: 5.0)
    ask = plugins_with(opinion).asker(OPTIONS)  # type: ignore[arg-type]
    assert ask is not None
    asked = Asked(ask)
    found = [asked(loop, GPU, program) for loop in (*program.loops, *program.loops)]
    assert opinion.loops == 3
    assert {answer and answer[0] for answer in found} == {"mine"}


def test_a_repeated_layer_costs_no_more_questions() -> None:
    def asked_for(layers: int) -> int:
        w = Writer()
        w.input("x", 64, 64)
        last = "x"
        for n in range(layers):
            w.pointwise(f"a{n}", (64, 64), lambda i, j, last=last: call("exp", w.load(last, i, j)))
            w.reduce(f"b{n}", "sum", (64,), (64,), lambda i, r, n=n: w.load(f"a{n}", i, r))
            last = w.call(f"d{n}", torch.ops.aten.cos.default, f"a{n}")
        opinion = Opinion(lambda loop: 3.0)
        ask = Asked(plugins_with(opinion).asker(OPTIONS))  # type: ignore[arg-type]
        make_schedule(prepare(w.program(last), OPTIONS), ask=ask, options=OPTIONS)
        return opinion.loops

    assert asked_for(40) <= asked_for(4) + 4


def test_a_loop_that_is_weighed_again_is_not_asked_about_again() -> None:
    asked: list[Any] = []

    def ask(operation: Any, target: Any, program: Any) -> None:
        asked.append(operation)

    (schedule,) = schedule_only(sum_and_values, [torch.randn(8, 16)], plugins=plugins_with(Opinion(lambda loop: None)))
    loop = next(iter(schedule.program.loops))
    costs = CostModel(schedule.program, ask=ask)
    assert costs.cost(loop) is costs.cost(loop) and asked == [loop]
    CostModel(schedule.program, ask=ask).cost(loop)  # another program may have other sizes
    assert len(asked) == 2
