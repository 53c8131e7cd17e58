"""Core without litz-passes: right results, by C++ and by Triton, judged by float64; and the same with the passes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from litz.pipeline import compile_backend, make_compiler
from litz_plugins import Pass, hookimpl
from litz_testing.fuzz.check import Checker, reference_of
from litz_testing.fuzz.execute import FuzzCompiler
from litz_testing.fuzz.generate import generate
from litz_testing.fuzz.reference import Rejected
from support.core_alone_cases import CASES, core_alone
from support.graph_cache import Runs, called_with
from support.interpreted import asked_for, interpreted, mostly
from support.own_plugins import OPERATORS, with_passes
from support.retarget import cuda_schedules
from support.zoo import ZOO
from support.zoo_check import check


@pytest.mark.parametrize("name", CASES)
def test_on_the_cpu(name: str, tmp_path: Path) -> None:
    options = {"cache_dir": str(tmp_path), "cpp.qualify": False}
    assert CASES[name].check(partial(compile_backend, options=options, plugins=core_alone())) == ""


@pytest.fixture(scope="module")
def on_gpu(request: pytest.FixtureRequest) -> Mapping[str, str]:
    pytest.importorskip("triton")
    return interpreted("support.core_alone_cases", asked_for(request, __name__))


@pytest.mark.parametrize("name", mostly(CASES, ("grouped", "pooled")))
def test_in_tritons_interpreter(name: str, on_gpu: Mapping[str, str]) -> None:
    assert on_gpu[name] == ""


class Seen:
    """The names of the passes that changed something."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    @hookimpl
    def litz_pass_finished(self, pass_: Pass, before: Any, after: Any) -> None:
        if after is not before:
            self.names.add(pass_.name)


@pytest.mark.parametrize("name", CASES)
def test_the_passes_find_something_to_do(name: str) -> None:
    """Else the tests above would say nothing of core without them."""
    case, seen = CASES[name], Seen()
    torch._dynamo.reset()
    small = (
        mock.patch(f"litz_passes.joint.{each}.LEAST_BYTES", 0)
        for each in ("saved_positions", "saved_memory", "saved_views")
    )
    with contextlib.ExitStack() as stack:
        for patch in small:
            stack.enter_context(patch)
        run = lambda backend: case.results(torch.compile(case.function, backend=backend, dynamic=False), case.inputs())
        cuda_schedules(run, make_compiler(plugins=with_passes(OPERATORS, ("seen", seen))))
    assert set(case.passes) <= seen.names, seen.names


@pytest.mark.parametrize(
    "model", ["dlrm", *(pytest.param(each, marks=pytest.mark.thorough) for each in ("resnet", "t5"))]
)
def test_a_models_training_step(model: str, tmp_path: Path) -> None:
    (entry,) = (entry for entry in ZOO if str(entry) == model)
    options = {"cache_dir": str(tmp_path), "cpp.qualify": False}
    backend = partial(compile_backend, options=options, plugins=core_alone())
    # Loops with litz-operators.
    operators = (
        *("aten.max_pool2d_with_indices", "aten.scatter", "aten.index_put", "aten._unsafe_index_put"),
        *("aten.select_scatter", "aten.cat"),
    )
    check(entry, "cpu", training=True, dynamic=False, backend=backend, externs=operators)


@pytest.mark.parametrize(
    ("first", "count"),
    [(0, 2), *(pytest.param(first, 25, marks=pytest.mark.nightly) for first in range(0, 200, 25))],
)
def test_programs_of_the_fuzzer(first: int, count: int) -> None:
    """In parts: torch takes 10 s on a busy machine to capture one flex_attention, and a test has 10 minutes."""
    checker, programs = Checker(FuzzCompiler(compiled=False, plugins=False)), []
    for number in range(first, first + count):
        program, _ = generate(f"core alone:{number}")
        with contextlib.suppress(Rejected):
            programs.append((program, reference_of(program)))
    assert not [failure.message for failure in checker.check_all(programs)] and len(programs) > count // 2


def test_graphs_have_keys_of_their_own(tmp_path: Path) -> None:
    """What one made is found by the next of its kind, and not by the other kind."""
    said = []
    for alone in (False, False, True, True, False):
        runs = Runs(tmp_path, core_alone() if alone else with_passes())
        runs.run(called_with(torch.randn(4, 8)), lambda x: torch.relu(x) * 2)
        said += runs.said
    assert said == ["miss", "hit", "miss", "hit", "hit"]
