"""The report of a graph of one kernel and one product, made from a plan without a compile."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from litz import report as reports
from litz.execution import ExecutionPlan, MemoryPlan
from litz.ir import Buffer, Layout, Loop, Program, Range, Store, Template, TensorRef
from litz.ir.build import call, load
from litz.ir.index import loop_var, to_expr
from litz.report.make import make_report
from litz.schedule.schedule import Kernel
from litz_plugins import Decision, Estimate

CPU = torch.device("cpu")
F32 = torch.float32


def program() -> Program:
    buffers = [
        Buffer(name, F32, CPU, Layout.contiguous((8, 8)), kind)
        for name, kind in [("x", "input"), ("w", "input"), ("y", "temporary"), ("z", "temporary")]
    ]
    index = (loop_var(0), loop_var(1))
    ranges = tuple(Range(var, to_expr(8)) for var in index)
    value = call("exp", load("x", index, F32))
    loop = Loop("loop0", CPU, ranges, (), (Store("y", index, value),), ("exp", "<mul>"))
    y, w = (TensorRef(name, Layout.contiguous((8, 8))) for name in "yw")
    mm = Template("mm0", CPU, torch.ops.aten.mm.default, (y, w), {}, ("z",), kind="mm")
    table = {buffer.name: buffer for buffer in buffers}
    return Program("graph0", ("x", "w"), table, (loop, mm), (TensorRef("z", Layout.contiguous((8, 8))),))


DECISIONS = (
    Decision("schedule", "a and b", "fused", "saves a launch and 1.5 MiB of traffic", (("apart", 2.0), ("fused", 1.0))),
    Decision("schedule", "c and d", "fused", "saves a launch and 20 B of traffic", (("apart", 2.0), ("fused", None))),
    Decision("schedule", "e and f", "kept apart", "different [ranges]"),
    Decision("schedule", "mm0", "mm_tile", "measured", (), "autotune"),
)


def plan(**changes: Any) -> ExecutionPlan:
    graph = program()
    loop, mm = graph.operations
    assert isinstance(loop, Loop) and isinstance(mm, Template)
    return replace(
        ExecutionPlan(
            graph,
            (Kernel("kernel0", loop, ("loop0",)), mm),
            {
                "kernel0": Estimate(2.0, 1.0, 4.0, "memory-bound: 512 B"),
                "mm0": Estimate(3.0, 1.0, 9.0, "compute-bound"),
            },
            MemoryPlan((("y",), ("z",)), ((), ("y",)), {}, 512, 1024, held=(512, 512)),
        ),
        **changes,
    )


@dataclass
class Compiled:
    """What `make_report` reads off a CompiledGraph."""

    path: Path = Path("/tmp/wrapper.py")
    text: str = "def call(args):\n    return args  # <generated>\n"
    kernels: dict[str, str] = field(default_factory=lambda: {"kernel0": "/tmp/kernel0.cpp"})


@dataclass
class Source:
    text: str


def report(**changes: Any) -> reports.CompileReport:
    made = make_report(
        None,
        plan(),
        Compiled(),
        {"kernel0": Source("for (;;) { a < b && c; }")},
        DECISIONS,
        stage_seconds={"lower": 0.25, "build": 1.0},
        plugins=("core", "roofline"),
    )
    return replace(made, **changes)
