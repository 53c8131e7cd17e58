"""One target for all: splitting, inlining, fusion and tiling read the same figures of a device, present or not. And a
plugin's target: the example of docs/targets.md compiles and runs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from core.schedule.harness import OPTIONS
from core.schedule.programs import Writer, call
from litz import report as reports
from litz.builtin import builtin_plugins
from litz.codegen.kernel_plan import plan_kernel
from litz.codegen.triton.codegen import TritonCodegen
from litz.errors import CodegenError
from litz.ir import Program
from litz.pipeline import compile_backend, generate, make_compiler, plan_schedule
from litz.report.report import CompileReport
from litz.schedule import core_program_passes, make_schedule
from litz.target import target_named
from litz_plugins import CodegenContext, PassContext, Target
from litz_plugins.manager import make_plugins
from litz_plugins.testing import check_plugin

CUDA = torch.device("cuda", 0)
GB_S = {"L4": 300, "A100": 1555, "B200": 8000}


class Watched:
    """A target that notes what is read of it."""

    def __init__(self, target: Target, seen: dict[str, Any]) -> None:
        self._target, self._seen = target, seen

    def __getattr__(self, name: str) -> Any:
        value = self._seen[name] = getattr(self._target, name)
        return value


def program() -> Program:
    """A reduction to split, a broadcast to inline, and loops to fuse."""
    w = Writer()
    w.input("x", 4, 1 << 20)
    w.input("scale", 1 << 20)
    w.reduce("total", "sum", (), (4, 1 << 20), lambda i, r: w.load("x", i, r))
    w.pointwise("s", (1 << 20,), lambda j: call("rsqrt", call("mul", w.load("scale", j), 2.0)))
    w.pointwise("y", (4, 1 << 20), lambda i, j: call("mul", w.load("x", i, j), w.load("s", j)))
    w.reduce("z", "max", (4,), (1 << 20,), lambda i, r: call("exp", w.load("y", i, r)))
    return _on(w.program("total", "y", "z"), CUDA)


def _on(made: Program, device: torch.device) -> Program:
    buffers = {name: replace(buffer, device=device) for name, buffer in made.buffers.items()}
    return replace(made, buffers=buffers, operations=tuple(replace(loop, device=device) for loop in made.loops))


def figures_read(target: Target) -> dict[str, dict[str, Any]]:
    """Stage -> the figures that it reads of a target, by name."""
    seen: dict[str, dict[str, Any]] = defaultdict(dict)

    def of(stage: str) -> Any:
        return lambda device: Watched(target, seen[stage])

    made = program()
    for item in core_program_passes():
        made = item.run(made, PassContext(OPTIONS, "program", item.name, target_of=of(item.name)))
    schedule = make_schedule(made, target_of=of("fusion"), options=OPTIONS)
    for kernel in schedule.kernels:
        context = CodegenContext(OPTIONS, of("tiling")(CUDA), schedule.program)
        TritonCodegen().generate(plan_kernel(kernel, schedule.program), context)
    return {stage: figures for stage, figures in seen.items() if figures}


@pytest.mark.parametrize("name", list(GB_S))
def test_all_stages_read_the_same_figures(name: str) -> None:
    target = target_named(name)
    read = figures_read(target)
    figures = sorted({figure for one in read.values() for figure in one})
    print(f"\n{name:18}" + "".join(f"{stage:>20}" for stage in read))
    for figure in figures:
        print(f"{figure:18}" + "".join(f"{str(one.get(figure, ''))[:18]:>20}" for one in read.values()))
    assert {"split_reductions", "inline_pointwise", "fusion", "tiling"} <= set(read)
    for stage, one in read.items():
        assert one == {figure: getattr(target, figure) for figure in one}, stage
    for stage in ("split_reductions", "inline_pointwise", "fusion"):
        assert {"usual_bandwidth", "usual_flops", "launch_us"} <= set(read[stage])
    assert "units" in read["split_reductions"] and "units" in read["tiling"]
    assert target.usual_bandwidth == pytest.approx(0.85e3 * GB_S[name])


def example() -> ModuleType:
    """The plugin of docs/targets.md."""
    text = (Path(__file__).parents[2] / "docs" / "targets.md").read_text()
    (source,) = re.findall(r"<!-- test: target -->\n```python\n(.*?)```", text, re.DOTALL)
    module = ModuleType("interpreted")
    exec(compile(source, "docs/targets.md", "exec"), vars(module))
    return module


def run_with(
    plugin: ModuleType, fn: Callable[..., Any], *args: Any, dynamic: bool = False
) -> tuple[Any, CompileReport]:
    torch._dynamo.reset()
    plugins = make_plugins(builtin_plugins(), extra=[("interpreted", plugin)], entry_points=())
    with reports.collect() as collected:
        options = {"debug": True, "cpp.compiler": "/no/such/compiler"}
        found = torch.compile(
            fn,
            backend=lambda gm, inputs: compile_backend(gm, inputs, options=options, plugins=plugins),
            dynamic=dynamic,
        )(*args)
    return found, collected[0]


def test_the_example_is_well_formed() -> None:
    assert check_plugin(example(), name="interpreted").devices == ("cpu",)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_plugins_target_for_the_cpu_runs_in_place_of_cores(dynamic: bool) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.nn.functional.layer_norm((x @ w).relu(), (12,))
        return y, y.softmax(-1), torch.cat([y, x[:, :12].t().contiguous().t()]), y.argmax(1)

    args = torch.randn(9, 20), torch.randn(20, 12)
    found, report = run_with(example(), f, *args, dynamic=dynamic)
    torch.testing.assert_close(found, f(*args))
    assert report.kernels_after and all(str(path).endswith(".interpreted") for path in report.kernel_paths.values())


def test_a_plugins_target_trains() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))
    x = torch.randn(5, 6)
    model(x).square().sum().backward()
    wanted = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    found, _ = run_with(example(), model, x)
    found.square().sum().backward()
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], wanted)


def test_a_device_that_nobody_describes_is_an_error() -> None:
    compiler = make_compiler(plugins=make_plugins(builtin_plugins(), disable=["meta"], entry_points=()))
    target = compiler.target_of(torch.device("meta"))
    assert target.assumed and not target.abilities
    schedule = make_schedule(_on(program(), torch.device("meta")), target_of=compiler.target_of, options=OPTIONS)
    with pytest.raises(CodegenError, match="no code for devices of type 'meta'") as caught:
        generate(plan_schedule(schedule, compiler), compiler)
    assert "litz_register_targets" in str(caught.value) and "cpu, cuda" in str(caught.value)
