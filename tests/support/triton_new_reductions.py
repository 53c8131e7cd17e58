"""Reductions that Triton's code generator knows by their rows alone: those that litz does not have, those that it has
without the texts made by hand, and split ones.

`python -m support.triton_new_reductions SHARD OF [NAME ...]` prints what went wrong in Triton's interpreter, by case,
as JSON.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from unittest.mock import patch

import torch

from core.schedule.harness import plan_of
from core.schedule.test_split import EAGER_GPU, reduced
from litz.codegen.kernel_plan import plan_kernel
from litz.ir import Store, build
from litz.ir.combined import combined_kinds, leaf
from litz.ir.interpret import interpret
from litz.ir.reductions import REDUCTIONS, ROWS
from litz.schedule.schedule import Kernel
from litz.target import target_of
from litz.targets.triton.codegen import TritonCodegen
from litz.tiles.reduce import MADE_BY_HAND
from litz_plugins import CodegenContext, KernelSource

from .new_reductions import registered
from .triton_cases import Case, make, output
from .triton_cases.case import bf16, f32, f64, i0, r0, random

NEW = ("squares", "log_sum_exp", "largest")
OLD = tuple(kind for row in ROWS for kind in row.results)
SIZES = {"row": (5, 19), "long": (2, 16385), "columns": (70, 3), "one": (4, 1)}
Problem = Callable[[], None]


def case_of(kinds: tuple[str, ...], size: tuple[int, int], dtype: torch.dtype) -> Case:
    a = random(*size, dtype=dtype)
    a = a.t() if size == SIZES["columns"] else a
    x = build.load("a", (i0, r0), dtype)
    values = {kind: build.reduce(kind, *[x] * REDUCTIONS[kind].arity) for kind in kinds}
    outputs = [output(f"o_{kind}", a.shape[:1], value.dtype) for kind, value in values.items()]
    stores = [Store(f"o_{kind}", (i0,), value) for kind, value in values.items()]
    return make({"a": a}, outputs, a.shape[:1], a.shape[1:], stores, tolerance=1e-4)


def scan_case(size: tuple[int, int], dtype: torch.dtype) -> Case:
    value = build.scan("parity", build.load("a", (i0, r0), dtype))
    stores = [Store("o", (i0, r0), value)]
    return make({"a": random(*size, dtype=dtype)}, [output("o", size, dtype)], size[:1], size[1:], stores)


def combined_case(size: tuple[int, int]) -> Case:
    """A linear recurrence, by a function of two states that have two parts."""
    a, b = (random(*size, dtype=f32) / 3 for _ in range(2))
    a, b = (a.t(), b.t()) if size == SIZES["columns"] else (a, b)
    (a0, b0), (a1, b1) = ([leaf(side, part, f32) for part in range(2)] for side in "so")
    merge = build.call("mul", a0, a1), build.call("add", build.call("mul", b0, a1), b1)
    values = [build.load(name, (i0, r0), f32) for name in "ab"]
    scans = [build.scan(kind, *values) for kind in combined_kinds(merge, (f32, f32))]
    stores = [Store(f"o{part}", (i0, r0), value) for part, value in enumerate(scans)]
    outputs = [output(f"o{part}", a.shape, f32) for part in range(2)]
    return make({"a": a, "b": b}, outputs, a.shape[:1], a.shape[1:], stores, tolerance=1e-4)


def sources() -> Mapping[str, Callable[[], Case]]:
    """The cases that are one kernel, by name; they want `registered()`."""
    found: dict[str, Callable[[], Case]] = {}
    for name, size in SIZES.items():
        for dtype in (f32, f64, bf16):
            found[f"{name}-{dtype}"] = lambda size=size, dtype=dtype: case_of(NEW, size, dtype)
        for dtype in (torch.int64, torch.int32, torch.int8):
            found[f"{name}-{dtype}"] = lambda size=size, dtype=dtype: case_of(("squares", "parity"), size, dtype)
    for name in ("row", "long"):
        found[f"{name}-scan"] = lambda size=SIZES[name]: scan_case(size, torch.int32)
    for name, size in SIZES.items():
        found[f"{name}-combined"] = lambda size=size: combined_case(size)
        found[f"{name}-by row"] = lambda size=size: case_of(OLD, size, f32)
    return found


def source_of(name: str, case: Case) -> KernelSource:
    kept = () if name.endswith("by row") else (*OLD, "welford")
    with patch.dict(MADE_BY_HAND, {kind: MADE_BY_HAND[kind] for kind in kept if kind in MADE_BY_HAND}, clear=True):
        return case.source


def run_case(name: str, build_case: Callable[[], Case]) -> None:
    from litz_testing.triton_interpreter import interpret_source

    case = build_case()
    memory = case.tensors()
    interpret_source(source_of(name, case), *case.arguments(memory))
    case.check(memory)


def run_split(kind: str, rows: int) -> None:
    """A split reduction: both of its kernels."""
    from litz_testing.triton_interpreter import interpret_source

    writer = reduced(kind, rows, 3, over_rows=True)
    program, (x,) = writer.program("y"), writer.args()
    plan = plan_of(program, EAGER_GPU)
    loops = [loop for kernel in plan.kernels for loop in kernel.loops]
    assert len(loops) == 2, "it is not split"
    memory = {"x": x}
    for loop in loops:
        context = CodegenContext(None, target_of("cuda:0"), plan.program)  # type: ignore[arg-type]
        source = TritonCodegen().generate(plan_kernel(Kernel("kernel", loop), plan.program), context)
        for name in loop.writes:
            buffer = plan.program.buffers[name]
            memory[name] = torch.zeros([int(n) for n in buffer.layout.size], dtype=buffer.dtype)
        interpret_source(source, [memory[str(name)] for name in source.arguments], [])
    torch.testing.assert_close(memory["y"], interpret(program, [x])[0], rtol=1e-4, atol=1e-4)


def problems() -> dict[str, Problem]:
    found: dict[str, Problem] = {
        name: lambda name=name, make_case=make_case: run_case(name, make_case) for name, make_case in sources().items()
    }
    for kind in NEW:
        for rows in (1200, 1201):
            found[f"split-{kind}-{rows}"] = lambda kind=kind, rows=rows: run_split(kind, rows)
    return found


def main(shard: int, shards: int, names: Sequence[str]) -> None:
    torch.set_num_threads(1)
    wrong = {}
    with registered():
        known = problems()
        for name in (names or list(known))[shard::shards]:
            try:
                known[name]()
                wrong[name] = ""
            except Exception:
                wrong[name] = traceback.format_exc()[-3000:]
    print(json.dumps(wrong))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
