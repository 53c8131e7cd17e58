"""Attention's backward: its kernels in Triton's interpreter against float64 autograd, for sm_90, and in a schedule."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from litz.ir import Extern, KernelCall, Program
from litz.ir.interpret import interpret
from litz.pipeline import make_compiler, plan_schedule
from litz.schedule import Schedule
from litz.target import target_named
from litz.targets.triton.compile import compile_kernel, make_target
from litz_contractions.attention.offer import backward_plan, backward_replacement
from litz_contractions.attention.operation import AttentionBackward
from litz_contractions.attention.tiles import fitting_pairs
from litz_plugins import Decision
from support import attention_backward_matrix as cases
from support.attention_backward_matrix import BASE, CASES, Case, alibi, attention_of, backward_allowed, causal, cpu
from support.fake_gpu import FakeGpu
from support.interpreted import asked_for, interpreted, mostly
from support.retarget import cuda_schedules
from support.triton_compiled import variants_of

pytestmark = pytest.mark.xdist_group("attention backward")  # the cases run once
SM_90 = make_target((9, 0))
FIT = [name for name, case in CASES.items() if not case.unfit]


@pytest.fixture(scope="session")
def problems(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """For each case "" or what went wrong."""
    return interpreted("support.attention_backward_matrix", asked_for(request, __name__))


@pytest.mark.parametrize("name", mostly(FIT, [name for name in cases.LIKE_ANOTHER if name in FIT]))
def test_gives_what_float64_gives(name: str, problems: Mapping[str, str]) -> None:
    assert problems[name] == ""


@pytest.mark.ci_cases("alibi-causal", "group", "lse")
@pytest.mark.parametrize("name", ["alibi-causal", "group", "lse", "lse-only", "wants-key"])
def test_the_meaning_of_the_kernels_is_what_they_replace(name: str) -> None:
    case = CASES[name]
    program = case.kernels()
    assert sum(isinstance(operation, KernelCall) for operation in program.operations) == 2
    found = [x for x in interpret(cpu(program), cases.ARGUMENTS) if isinstance(x, torch.Tensor)]
    for output, wanted in zip(found, case.expected(), strict=True):
        torch.testing.assert_close(output.double(), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.unfit])
def test_what_has_no_kernel_stays_the_library_call(name: str) -> None:
    program = CASES[name].program()
    assert attention_of(program) is None
    (call,) = (op for op in program.operations if isinstance(op, Extern) and "backward" in op.target_name)
    assert call.effect
    assert any(CASES[name].unfit in note.reason for note in cases.NOTES)


def test_every_buffer_that_a_body_reads_is_an_argument() -> None:
    operation = attention_of(replace(CASES["alibi-causal"], mask=cases.document).program())
    assert operation is not None and operation.score is not None and operation.mask is not None
    read = {name for loop in (operation.score, operation.mask) for name in loop.reads} - {"score", "gradient"}
    assert len(read) == 2 and read <= set(operation.reads)
    assert operation.gradient is None  # a bias changes no gradient


# The kernels' texts.


def texts(case: Case) -> list[str]:
    program = case.kernels()
    return [op.source.text for op in program.operations if isinstance(op, KernelCall)]


def test_a_value_that_both_bodies_need_is_computed_once() -> None:
    for text in texts(replace(BASE, query=(1, 2, 64, 16), key=(1, 2, 64, 16), score=cases.soft_cap)):
        assert text.count("tanh") == 1


def test_what_does_not_vary_along_the_walk_is_read_before_it() -> None:
    for text in texts(replace(BASE, score=alibi)):
        walk = re.search(r"^    for .*", text, re.MULTILINE)
        assert walk is not None
        (name,) = re.findall(r"tl\.load\((p\d+) \+ head\)", text[: walk.start()])
        assert f"{name} +" not in text[walk.start() :]


def test_full_blocks_are_not_masked() -> None:
    case = replace(BASE, query=(1, 2, 128, 16), key=(1, 2, 128, 16), mask=causal, tiles=cases.SQUARE)
    for text in texts(case):
        partial, full = text.split("for step in")[1:]
        assert ">=" in partial and "tl.where(" in partial
        assert ">=" not in full and "tl.where(" not in full


# Compiled.

COMPILED = [
    "alibi-causal",
    "odd",
    "cut-blocks",
    "group-by-head",
    "one-key-for-all",
    "bf16",
    "dynamic-group",
    "dynamic-one-key-for-all",
    "lse-only",
]


@pytest.mark.ci_cases("alibi-causal", "one-key-for-all")
@pytest.mark.parametrize("name", COMPILED)
def test_kernels_compile(name: str) -> None:
    for operation in CASES[name].kernels().operations:
        if isinstance(operation, KernelCall):
            assert bool(operation.source.settings["sizes"]) == name.startswith("dynamic")
            variants = variants_of(operation.source)
            assert all(compile_kernel(operation.source, SM_90, variant).asm["cubin"] for variant in variants)


ALL_PAIRS = [
    (64, torch.bfloat16, False),
    (64, torch.float32, False),
    pytest.param(64, torch.float32, True, marks=pytest.mark.thorough),
    pytest.param(128, torch.bfloat16, False, marks=pytest.mark.thorough),
    pytest.param(128, torch.float32, False, marks=pytest.mark.thorough),
    (128, torch.float32, True),
    (256, torch.bfloat16, False),
    (256, torch.float32, False),
    pytest.param(256, torch.float32, True, marks=pytest.mark.thorough),
]
"""(width, type, TF32), which bfloat16 has not. Narrow ones, and those that need most memory."""


@pytest.mark.ci_cases("256-dtype6-False-False")
@pytest.mark.slow
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(("width", "dtype", "tf32"), ALL_PAIRS)
def test_every_pair_of_tiles_compiles_and_fits(width: int, dtype: torch.dtype, tf32: bool, every: bool) -> None:
    """In CI the first pair and the last, between which sizes and stages grow."""
    size = (1, 2, 256, width)
    program = replace(BASE, query=size, key=size, dtype=dtype, mask=causal, score=alibi, blocks=128).program()
    operation = attention_of(program)
    assert operation is not None
    most = target_named("H100").shared_bytes
    pairs = list(fitting_pairs(dtype, tf32, (width, width), target_named("H100")))
    assert pairs
    for tiles in pairs if every else (pairs[0], pairs[-1]):
        calls = backward_replacement(backward_plan(operation, program, tf32), tiles).operations
        for call, tile in zip(calls, (tiles.first, tiles.second), strict=True):
            assert isinstance(call, KernelCall)
            compiled = compile_kernel(call.source, SM_90)
            assert compiled.metadata.shared <= tiles.shared_bytes((width, width), dtype.itemsize) <= most
            if dtype == torch.bfloat16 and tiles is pairs[0]:
                assert "wgmma" in compiled.asm["ptx"] and ("cp.async" in compiled.asm["ptx"]) == (tile.stages > 1)


# In a schedule.


def schedules(case: Case, decisions: list[Decision], wanted: Callable[[Schedule], bool]) -> list[Schedule]:
    torch._dynamo.reset()
    compiler = make_compiler(None, {"debug": True, "disable_plugins": ("autotune",)})

    def run(backend: Callable[..., Any]) -> None:
        case.step(case.compiled(backend), case.tensors())

    with backward_allowed():
        return list(filter(wanted, cuda_schedules(run, compiler, decisions)))


def backward(schedule: Schedule) -> bool:
    return schedule.program.name.endswith("backward")


def test_the_estimate_chooses_kernels_and_memory_is_linear_in_length() -> None:
    peaks = []
    for length in (1024, 2048):
        size = (1, 2, length, 64)
        case = replace(BASE, query=size, key=size, mask=causal, score=alibi, blocks=128, dtype=torch.bfloat16)
        decisions: list[Decision] = []
        (schedule,) = schedules(case, decisions, backward)
        assert sum(isinstance(step, KernelCall) for step in schedule.steps) == 2
        assert not any(isinstance(step, AttentionBackward) for step in schedule.steps)
        assert any("µs at worst" in decision.reason for decision in decisions)
        assert all(_numel(schedule.program, name) < length * length for name in schedule.program.buffers)
        peaks.append(plan_schedule(schedule, make_compiler()).memory.peak_bytes)
    assert peaks[1] <= 2 * peaks[0]


def _numel(program: Program, name: str) -> int:
    return program.hint(program.buffers[name].layout.numel)


def test_tiles_are_as_small_as_the_blocks() -> None:
    case = replace(BASE, query=(4, 8, 512, 64), key=(4, 8, 512, 64), mask=causal, dtype=torch.bfloat16)
    for blocks, expected in ((128, "64x64"), ((64, 64), "64x64"), (32, "32x32")):
        (schedule,) = schedules(replace(case, blocks=blocks), [], backward)  # type: ignore[arg-type]
        first, _ = (step.source.symbol for step in schedule.steps if isinstance(step, KernelCall))
        assert expected in first, blocks


def test_tuning_leaves_it_to_the_estimate(tmp_path: Path) -> None:
    case = replace(BASE, query=(2, 4, 512, 64), key=(2, 4, 512, 64), mask=causal, dtype=torch.bfloat16, blocks=128)
    gpu = FakeGpu(tmp_path, lambda name: 1.0)
    with backward_allowed():
        torch._dynamo.reset()
        found = cuda_schedules(lambda backend: case.step(case.compiled(backend), case.tensors()), gpu.compiler)
    (schedule,) = filter(backward, found)
    assert sum(isinstance(step, KernelCall) for step in schedule.steps) == 2


def test_a_gradient_that_nobody_uses_is_not_computed() -> None:
    case = replace(BASE, mask=causal, score=alibi)
    (program,) = (replace(case, wanted=(0,)).kernels(),)
    calls = [op for op in program.operations if isinstance(op, KernelCall)]
    assert len(calls) == 1 and calls[0].source.settings["grid"] > 0
    (program,) = (replace(case, wanted=(2,)).kernels(),)
    first, second = (op.source.text for op in program.operations if isinstance(op, KernelCall))
    assert "tl.dot" not in first and second.count("keytotal") == 0
