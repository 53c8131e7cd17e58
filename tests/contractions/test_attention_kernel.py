"""The kernel of attention: in Triton's interpreter against float64, compiled for sm_90, and when it is taken."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from litz.cost import count_work, estimate
from litz.ir import KernelCall, Program
from litz.ir.interpret import interpret
from litz.options import make_options
from litz.pipeline import make_compiler
from litz.target import target_named, target_of
from litz.targets.triton.compile import compile_kernel, make_target
from litz_contractions.attention.offer import choose_tiles, kernel_call, offer_attention, written
from litz_contractions.attention.operation import Attention
from litz_contractions.attention.plan import make_plan
from litz_contractions.attention.tiles import LEAST, LEAST_SECOND, Tiles, fitting, parts, shared_bytes
from litz_contractions.module import Unsuitable
from litz_plugins import ChoiceContext, Decision
from support.attention_matrix import (
    CASES,
    LIKE_ANOTHER,
    Case,
    causal,
    document,
    operands,
    padding,
    prefix,
    relative,
    sliced,
    soft_cap,
    window,
)
from support.interpreted import asked_for, interpreted, mostly
from support.kernel_programs import cpu
from support.retarget import cuda_schedules
from support.triton_compiled import variants_of

pytestmark = [
    pytest.mark.xdist_group("attention interpreter"),  # the cases run once
    pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile.*"),
]
SM_90 = make_target((9, 0))
H100 = target_named("H100")


@pytest.fixture(scope="session")
def problems(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """For each case "" or what went wrong."""
    return interpreted("support.attention_matrix", asked_for(request, __name__))


@pytest.mark.parametrize("name", mostly(CASES, LIKE_ANOTHER))
def test_gives_what_float64_gives(name: str, problems: Mapping[str, str]) -> None:
    assert problems[name] == ""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(), id="plain"),
        pytest.param(Case(mask=causal, score_mod=soft_cap), id="causal-soft-cap"),
        pytest.param(Case(operands(heads=4, shared=2), mask=prefix, score_mod=relative), id="prefix-grouped"),
    ],
)
def test_the_meaning_of_the_kernel_is_what_it_replaces(case: Case) -> None:
    before, after, given = case.programs()
    assert any(isinstance(operation, KernelCall) for operation in after.operations)
    expected = interpret(cpu(before), given)
    for output, wanted in zip(interpret(cpu(after), given), expected, strict=True):
        torch.testing.assert_close(output, wanted)


# ----------------------------------------------------------------------------------------------------------- compiled

COMPILED = {
    "sliced": Case(sliced(operands(queries=50))),
    "odd-widths": Case(operands(width=24, value_width=40), lse=True),
    "causal-odd": Case(mask=causal, lse=True),
    "dynamic-relative": Case(dynamic=True, score_mod=relative, mask=document, block=64),
    "fp16": Case(operands(dtype=torch.float16)),
    "maxima": Case(operands(batch=4), mask=padding, per_batch=True, lse=True, most=True),
    "dynamic": Case(dynamic=True, lse=True),
    "dynamic-causal": Case(dynamic=True, mask=causal, lse=True),
}


@pytest.mark.ci_cases("odd-widths", "maxima", "dynamic-relative")
@pytest.mark.parametrize("name", mostly(COMPILED, ("dynamic", "dynamic-causal")))
def test_kernels_compile(name: str) -> None:
    source = COMPILED[name].kernel().source
    assert all(compile_kernel(source, SM_90, variant).asm["cubin"] for variant in variants_of(source))


@pytest.mark.ci_cases("None-128")
@pytest.mark.parametrize(
    ("mask", "width"),
    [
        (None, 128),
        *((causal, width) for width in (64, 128, 256)),
        *(pytest.param(None, width, marks=pytest.mark.thorough) for width in (64, 256)),
    ],
)
def test_on_hopper_it_multiplies_in_groups_of_warps_and_loads_ahead(mask: Any, width: int) -> None:
    dtype = torch.bfloat16
    tried = list(fitting(dtype, (width, width), H100))
    case = Case(operands(1, 2, 512, 512, width, dtype=dtype), mask=mask, block=128)
    for tiles, call in zip(tried, case.kernels(tried), strict=True):
        compiled = compile_kernel(call.source, SM_90)
        ptx = compiled.asm["ptx"]
        loads = re.findall(r"cp\.async\.\w+\.shared\.global \[[^]]*\], \[[^]]*\], (\w+)", ptx)
        assert "wgmma.mma_async" in ptx and "mma.sync" not in ptx
        assert loads.count("0x10") > len(loads) // 2
        assert compiled.metadata.shared <= H100.shared_bytes, tiles


TRITON = find_spec("triton")
DISASSEMBLER = Path(str(TRITON and TRITON.origin)).parent / "backends/nvidia/bin/nvdisasm"


@pytest.mark.ci_cases("256-True", "128-False")
@pytest.mark.skipif(not DISASSEMBLER.exists(), reason="Triton came without nvdisasm")
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("width", [64, 128, 256])
def test_nothing_waits_after_each_instruction_of_the_tensor_cores(width: int, listed: bool, tmp_path: Path) -> None:
    """As ptxas has it where it does not see through a loop's accumulators."""
    made = operands(1, 2, 512, 512, width, dtype=torch.bfloat16)
    tiles = next(fitting(torch.bfloat16, (width, width), H100))
    case = Case(made, mask=causal, block=128, tiles=tiles, listed=listed)
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(compile_kernel(case.kernel().source, SM_90).asm["cubin"])
    text = subprocess.run([DISASSEMBLER, "-c", cubin], capture_output=True, text=True, check=True).stdout
    assert text.count("HGMMA") >= 16 and text.count("WARPGROUP.DEPBAR") <= text.count("HGMMA") // 4


def test_the_table_counts_shared_memory() -> None:
    assert shared_bytes(Tiles(128, 64, 4, 3), (64, 64), 2) == 65536
    few = list(fitting(torch.bfloat16, (256, 256), replace(H100, shared_bytes=100 << 10)))
    assert few == [tiles for tiles in few if shared_bytes(tiles, (256, 256), 2) <= 100 << 10]
    assert not list(fitting(torch.bfloat16, (512, 512), H100))


BIAS = torch.randn(2, 512, 512)


@pytest.mark.ci_cases("dtype0-256")
@pytest.mark.parametrize(
    ("dtype", "width"),
    [
        (torch.float32, 256),
        (torch.bfloat16, 64),
        *(pytest.param(torch.float32, width, marks=pytest.mark.thorough) for width in (64, 128)),
        *(pytest.param(torch.bfloat16, width, marks=pytest.mark.thorough) for width in (128, 256)),
    ],
)
def test_what_bodies_read_for_each_score_fits_into_shared_memory(dtype: torch.dtype, width: int) -> None:
    bias = BIAS.to(dtype)
    score_mod = lambda score, b, h, q, k: score + bias[h, q, k]
    case = Case(operands(1, 2, 512, 512, width, dtype=torch.bfloat16), score_mod=score_mod)
    program, template, _ = case.captured()
    plan = make_plan(template, program, written(template, program), False)
    assert plan.read == (dtype.itemsize, 0)
    for tiles in list(fitting(plan.dtype, plan.held, H100, plan.read))[:2]:
        compiled = compile_kernel(kernel_call(plan, tiles).source, SM_90)
        assert compiled.metadata.shared <= shared_bytes(tiles, plan.held, 2, plan.read) <= H100.shared_bytes


def test_a_width_is_one_part_or_two_of_which_the_second_is_not_small() -> None:
    assert [parts(width) for width in (80, 96, 128, 130, 192, 193)] == [
        (128,), (128,), (128,), (128, 64), (128, 64), (256,)
    ]  # fmt: skip
    for width in range(1, 257):
        first, *rest = parts(width)
        assert sum(parts(width)) >= width and first >= LEAST and first & first - 1 == 0
        assert not rest or (rest == [LEAST_SECOND] and width > first > LEAST_SECOND)


def test_evenly_divided_keys_have_no_masks() -> None:
    text = Case(operands(1, 2, 64, 64, 16), tiles=Tiles(32, 32, 4, 2)).kernel().source.text
    assert "mask" not in text and "where(greatest" in text
    assert "xmask" in Case(operands(1, 2, 64, 50, 16), tiles=Tiles(32, 32, 4, 2)).kernel().source.text


def test_full_blocks_are_walked_without_the_mask() -> None:
    source = Case(operands(1, 2, 64, 64, 16), mask=causal, tiles=Tiles(32, 32, 4, 2)).kernel().source
    partial, full = source.text.split("for step in range")[1:]
    assert 'float("-inf"))\n        greatest' in partial and 'float("-inf"))\n        greatest' not in full


# ----------------------------------------------------------------------------------------------------- when it is taken


def context(program: Program, template: Attention, notes: list[Decision], device: str = "cuda") -> ChoiceContext:
    options = make_options(None, {})
    return ChoiceContext(template, target_of(device, options), options, program, note=notes.append)


def attention(case: Case) -> tuple[Program, Attention]:
    program = case.programs()[0]
    (found,) = (op for op in program.operations if isinstance(op, Attention))
    return program, found


LARGE = Case(operands(2, 8, 1024, 1024, 64, dtype=torch.bfloat16), tiles=Tiles(64, 64, 4, 2))


def test_one_choice_with_an_estimate() -> None:
    program, template = attention(LARGE)
    notes: list[Decision] = []
    (choice,) = offer_attention(template, context(program, template, notes))
    assert choice.name.startswith("triton attention 64x64") and choice.estimate is not None
    library = estimate(template, H100, program)
    assert library is not None and choice.estimate.high_us < library.low_us
    assert not notes


def test_what_eager_does_is_counted() -> None:
    program, template = attention(LARGE)
    work = count_work(template, program)
    scores = 2 * 8 * 1024 * 1024
    assert work.kind == "attention" and work.total_flops == 4 * 64 * scores
    assert work.total_bytes >= 64 * scores and work.launches == 20


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("dtype", "queries"),
    [(torch.bfloat16, 1), (torch.bfloat16, 16), (torch.bfloat16, 512), (torch.float32, 1), (torch.float32, 512)],
)
def test_it_is_taken_without_a_measurement(dtype: torch.dtype, queries: int) -> None:
    case = Case(operands(2, 8, queries, 512, 64, dtype=dtype), mask=window if queries == 512 else None, block=128)
    decisions: list[Decision] = []
    tensors, fn = case.make(), case.function()
    (schedule,) = cuda_schedules(
        lambda backend: torch.compile(fn, backend=backend)(*tensors), make_compiler(None, {}), decisions
    )
    (call,) = (op for op in schedule.program.operations if isinstance(op, KernelCall))
    results = [name for name in call.outputs if not name.endswith(("_parts", "_sums"))]  # few queries: in two steps
    assert len(results) == 1
    chosen = [d for d in decisions if "triton attention" in d.chosen]
    assert any("at worst" in d.reason for d in chosen)


def test_a_test_can_have_the_kernel_at_any_size(kernels_win: None) -> None:
    """As the tests on a GPU do."""
    case = Case(operands(1, 2, 3, 1, 96))
    tensors, fn = case.make(), case.function()
    torch._dynamo.reset()
    (schedule,) = cuda_schedules(lambda backend: torch.compile(fn, backend=backend)(*tensors), make_compiler(None, {}))
    (call,) = (op for op in schedule.program.operations if isinstance(op, KernelCall))
    assert call.source.symbol.startswith("litz_attention_f32_96")


def test_blocks_that_no_tile_divides_have_the_least_tiles() -> None:
    program, template = attention(Case(operands(queries=64, keys=64), mask=window, block=24))
    (choice,) = offer_attention(template, context(program, template, []))
    assert choice.name.split()[2] == "16x16"


@pytest.mark.ci_cases("128-most0", "block3-most3")
@pytest.mark.parametrize(("block", "most"), [(128, (128, 128)), (96, (32, 32)), (48, (16, 16)), ((64, 16), (64, 16))])
def test_a_tile_lies_in_one_block(block: Any, most: tuple[int, int]) -> None:
    program, template = attention(replace(LARGE, mask=window, block=block, tiles=Tiles(16, 16, 4, 2)))
    notes: list[Decision] = []
    (choice,) = offer_attention(template, context(program, template, notes))
    rows, keys = map(int, choice.name.split()[2].split("x"))
    assert rows <= most[0] and keys <= most[1] and min(rows, keys) >= 16
    first, second = (block, block) if isinstance(block, int) else block
    assert first % rows == 0 and second % keys == 0


def test_small_blocks_have_small_tiles() -> None:
    program, template = attention(replace(LARGE, mask=window, block=64))
    plan = make_plan(template, program, written(template, program), False)
    tiles = choose_tiles(plan, H100)
    assert 64 % tiles.rows == 0 and 64 % tiles.keys == 0


def test_a_scale_that_only_a_run_knows_is_unsuitable() -> None:
    program, template = attention(COMPILED["dynamic-relative"])
    later = replace(template, scale=template.query.layout.size[2] * 0.5)
    with pytest.raises(Unsuitable, match="scale"):
        make_plan(later, program, written(later, program), False)


def test_a_division_by_a_number_is_a_multiplication() -> None:
    text = Case(score_mod=soft_cap).kernel().source.text
    assert "_div(" not in text and "* 0.0125" in text  # 1/20, and the scale of 1/4


def test_a_soft_cap_is_in_the_profile_s_name() -> None:
    assert "tanh" in Case(score_mod=soft_cap).kernel().source.symbol


def test_the_kernel_costs_its_flops_and_no_scores() -> None:
    case = replace(LARGE, tiles=Tiles(64, 64, 4, 2))
    program = case.programs()[1]
    (call,) = (op for op in program.operations if isinstance(op, KernelCall))
    work = count_work(call, program)
    assert (work.kind, work.launches) == ("attention", 1)
    assert work.total_flops == 4 * 64 * 2 * 8 * 1024 * 1024
    assert work.total_bytes == pytest.approx(4 * 2 * 2 * 8 * 1024 * 64, rel=1e-4)  # and the mask's one block
