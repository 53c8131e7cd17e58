"""One target for all: splitting, inlining, fusion and tiling read the same figures of a device, present or not. And the
page about targets shows what is in the example."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from core.schedule.harness import OPTIONS
from core.schedule.programs import Writer, call
from litz.codegen.kernel_plan import plan_kernel
from litz.driver.builtin import builtin_plugins
from litz.errors import CodegenError
from litz.ir import Program
from litz.pipeline import generate, make_compiler, plan_schedule
from litz.schedule import make_schedule
from litz.target import target_named
from litz.targets.triton.codegen import TritonCodegen
from litz_plugins import CodegenContext, PassContext, Target
from litz_plugins.manager import make_plugins
from support.own_plugins import passes

CUDA = torch.device("cuda", 0)
ROOT = Path(__file__).parents[2]
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
    for item in passes("program"):
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


def excerpts() -> Iterator[tuple[str, str]]:
    """What docs/targets.md shows of an example: the path of the file and the text."""
    text = (ROOT / "docs" / "targets.md").read_text()
    found = re.findall(r"<!-- from: (\S+) -->\n```python\n(.*?)```", text, re.DOTALL)
    assert len(found) == text.count("```python")
    for path, shown in found:
        yield from ((path, part) for part in shown.split("...\n"))


def test_the_walk_through_a_target_shows_its_source() -> None:
    for path, part in excerpts():
        assert part in (ROOT / path).read_text(), f"docs/targets.md shows what is not in {path}:\n{part}"


def test_a_device_that_nobody_describes_is_an_error() -> None:
    compiler = make_compiler(plugins=make_plugins(builtin_plugins(), disable=["meta"], entry_points=()))
    target = compiler.target_of(torch.device("meta"))
    assert target.assumed and not target.abilities
    schedule = make_schedule(_on(program(), torch.device("meta")), target_of=compiler.target_of, options=OPTIONS)
    with pytest.raises(CodegenError, match="no code for devices of type 'meta'") as caught:
        generate(plan_schedule(schedule, compiler), compiler)
    assert "litz_register_targets" in str(caught.value) and "cpu, cuda" in str(caught.value)
