"""Problems: equal ones have equal keys wherever they stand; different ones do not."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from litz.ir import Template
from litz.pipeline import make_compiler
from litz.target import target_of
from litz_autotune import contest
from litz_autotune.describing import describe
from litz_autotune.problem import Problem
from litz_autotune.race import make_inputs
from litz_contractions.subprogram import cut
from support.gemm_matrix import CASES
from support.kernel_programs import cpu, randn
from support.no_gpu import gpu_hidden
from support.retarget import cuda_schedules

with gpu_hidden():
    H100 = target_of("cuda")


def problems(fn: Callable[..., Any], *tensors: torch.Tensor, dynamic: bool = False) -> list[Problem]:
    """The problem of each contraction alone."""
    torch._dynamo.reset()
    compiler = make_compiler(None, {"disable_plugins": ("autotune", "contractions")})
    (schedule,) = cuda_schedules(lambda b: torch.compile(fn, backend=b, dynamic=dynamic)(*tensors), compiler)
    program = schedule.program
    templates = [op for op in program.operations if isinstance(op, Template)]
    return [describe(cut(program, [op], op.writes), H100) for op in templates]


def test_equal_problems_are_one() -> None:
    a, b = problems(lambda x, y: (x @ y).softmax(-1) @ y, randn(64, 64), randn(64, 64))
    assert a == b and a.key == b.key and hash(a) == hash(b)


def test_strides_dtypes_sizes_and_devices_tell_problems_apart() -> None:
    x, y = randn(32, 64), randn(64, 48)
    (base,) = problems(torch.mm, x, y)
    others = [
        *problems(torch.mm, x, randn(64, 48, stride=(1, 64))),
        *problems(torch.mm, x.half(), y.half()),
        *problems(torch.mm, randn(33, 64), y),
        *problems(torch.mm, x, y, dynamic=True),
    ]
    assert len({base.key, *(problem.key for problem in others)}) == 5


def test_json_and_back() -> None:
    (problem,) = problems(torch.addmm, randn(48), randn(32, 64), randn(64, 48), dynamic=True)
    assert Problem.from_json(problem.to_json()) == problem
    assert problem.kind == "addmm" and problem.device.startswith("NVIDIA H100") and problem.hints


def test_a_symbolic_problem_has_the_same_key_in_another_graph() -> None:
    (one,) = problems(lambda x, y: x @ y, randn(32, 64), randn(64, 48), dynamic=True)
    *_, two = problems(lambda u, x, y: (u.cos(), x @ y), randn(7), randn(32, 64), randn(64, 48), dynamic=True)
    assert one == two


def test_positions_are_made_up_all_over_the_rows() -> None:
    """Else the rows that are gathered would be one, in the cache."""

    before, _ = CASES["mm-rows-gathered"].programs()
    rows = [value for value in make_inputs(cpu(before)) if value.dtype == torch.int64]
    assert len(rows) == 1 and int(rows[0].min()) >= 0 and int(rows[0].max()) < 24 and len(rows[0].unique()) > 5


def test_all_that_makes_a_kernel_of_a_recipe_is_in_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of other code the same recipe may be another kernel, whose time nobody has measured."""
    read: list[str] = []
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(str(path)) or b"")
    contest.makers.__wrapped__()
    modules = (
        *("litz.ir.index", "litz.schedule.fusion", "litz.codegen.kernel_plan", "litz.tiles.make"),
        *("litz.targets.triton.print", "litz_contractions.products.print", "litz_contractions.attention.print"),
    )
    for module in modules:
        assert str(import_module(module).__file__) in read
