"""One target for all: splitting, inlining, fusion and tiling read the same figures of a device, present or not."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
import torch

from core.schedule.harness import OPTIONS
from core.schedule.programs import Writer, call
from litz.codegen.triton.codegen import TritonCodegen
from litz.ir import Program
from litz.schedule import core_program_passes, make_schedule
from litz.target import target_named
from litz_plugins import CodegenContext, PassContext, Target

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
    made = w.program("total", "y", "z")
    buffers = {name: replace(buffer, device=CUDA) for name, buffer in made.buffers.items()}
    return replace(made, buffers=buffers, operations=tuple(replace(loop, device=CUDA) for loop in made.loops))


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
        TritonCodegen().generate(kernel, CodegenContext(OPTIONS, of("tiling")(CUDA), schedule.program))
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
