"""Attention of few queries: what the kernel reads in place, what it computes, when it is offered and chosen."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

pytest.importorskip("triton")

from litz.codegen.wrapper import generate_wrapper
from litz.ir import Extern, KernelCall, Loop, Store
from litz.ir.build import const
from litz.ir.interpret import interpret
from litz.options import make_options
from litz.pipeline import generate, make_compiler, plan_schedule, schedule_only
from litz.report.log import Log
from litz.target import target_named
from litz_contractions.attention.decode import choose_split, estimate, offer_split
from litz_contractions.attention.in_place import read_in_place
from litz_contractions.attention.operation import Attention
from litz_plugins import ChoiceContext
from support.interpreted import asked_for, interpreted, mostly
from support.kernel_programs import cpu
from support.split_cases import BF16, CASES, F16, F32, KEYS, Case, aten, efficient, expanded, flash, masked, repeated
from support.triton_compiled import compile_only

H100 = target_named("H100")


@pytest.fixture(scope="session")
def problems(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """For each case "" or what went wrong."""
    return interpreted("support.split_cases", asked_for(request, __name__))


LIKE_ANOTHER = (
    "whole-tiles", "many-parts", "few-queries", "flash-causal", "bias-row", "bias-of-heads", "bias-infinite",
    "no-key-one-part", "group-expanded", "group-mask-bf16", "group-one-head", "group-one-batch", "float8-f32-m3fn",
    "float8-f16-e5m2", "group-dynamic",
)  # fmt: skip
"""Of each another case has the same part of the kernel, at odder sizes or beside another part."""


@pytest.mark.parametrize("name", mostly(CASES, LIKE_ANOTHER))
def test_gives_what_float64_gives_and_takes_over_what_nobody_else_needs(name: str, problems: Mapping[str, str]) -> None:
    assert problems[name] == ""


@pytest.mark.parametrize(
    "name", ["plain", "one-part", "no-key", "group-mask", "cudnn-bias", "causal", "group-mask-dynamic"]
)
def test_the_meaning_of_the_kernel_is_what_it_computes(name: str) -> None:
    """Without Triton: passes, and the interpreter of the IR, see what the kernel computes."""
    torch.manual_seed(0)
    case = CASES[name]
    tensors, after = case.tensors(), case.compiled()
    assert any(isinstance(operation, KernelCall) for operation in after.operations)
    given = iter(tensors)
    (output,) = interpret(
        cpu(after), [next(given) if isinstance(item, str) else after.hint(item) for item in after.inputs]
    )
    torch.testing.assert_close(output.double(), case.reference(*tensors), atol=5e-3, rtol=5e-3)


def test_keys_are_read_once_from_where_they_were_before_they_were_repeated() -> None:
    _, attention, found = CASES["cache"].found()
    assert attention.group == 1 and found.attention.group == 4
    # (batch, keys, heads, width), which the copy had been made of
    for ref in (found.attention.key, found.attention.value):
        assert ref.layout.size == (2, 2, 37, 16) and ref.layout.stride == (37 * 2 * 16, 16, 2 * 16, 1)
    assert attention.args == found.attention.args, "the library call is left as it is"


def test_a_slice_of_the_cache_begins_within_it() -> None:
    _, _, found = CASES["cache-slice"].found()
    assert found.attention.key.layout.offset == 5 * 16


def test_a_mask_is_read_as_it_was_given() -> None:
    program, attention, found = CASES["group-mask"].found()
    assert attention.score is not None and found.attention.score is not None
    (load,) = (node for node in found.attention.score.loads if node.buffer != "score")
    assert program.buffers[load.buffer].dtype == torch.bool and program.buffers[load.buffer].kind == "input"


def in_place(fn: Any, *sizes: int, **more: Any) -> Any:
    return Case(fn, sizes or (2, 8, 2, 1, 37, 16), **more).found()


def test_what_others_read_too_stays() -> None:
    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        keys = repeated(k, 4)
        return efficient(q, keys, repeated(v, 4)), keys

    _, _, found = in_place(fn)
    assert found.attention.group == 4 and len(found.absorbs) == 1


def test_what_is_written_in_between_is_not_read_in_place() -> None:
    program, attention, found = in_place(masked(repeated, 4))
    copy = program.operations[0]
    assert isinstance(copy, Loop) and copy.name in found.absorbs
    (source,) = copy.reads
    index = tuple(r.var for r in (*copy.ranges[:2], *copy.ranges[3:]))
    ranges = (*copy.ranges[:2], *copy.ranges[3:])
    write = replace(copy, name="write", ranges=ranges, stores=(Store(source, index, const(0.0, F32)),))
    at = program.positions[attention.name]
    written = replace(program, operations=(*program.operations[:at], write, *program.operations[at:]))
    again = read_in_place(attention, written)
    assert again.attention.key == attention.key and again.absorbs == ()


@pytest.mark.parametrize(
    "fn",
    [
        lambda q, k, v: efficient(q, k.repeat(1, 4, 1, 1), v.repeat(1, 4, 1, 1)),  # heads that share are not neighbours
        lambda q, k, v: efficient(q, repeated(k, 4).cos(), repeated(v, 4).cos()),
        lambda q, k, v: efficient(q, repeated(k, 4), v.repeat(1, 4, 1, 1)),
    ],
    ids=["other heads", "computed", "one of them"],
)
def test_other_makers_of_keys_stay(fn: Any) -> None:
    _, attention, found = in_place(fn)
    assert found.attention.key == attention.key and found.attention.value == attention.value and found.absorbs == ()


def test_a_type_that_was_widened_is_multiplied_as_the_library_does() -> None:
    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return efficient(q.float(), k.float(), v.float())

    program, attention, found = in_place(fn, 1, 2, 2, 1, 37, 16, dtype=F16)
    assert found.attention.key == attention.key and program.buffers[attention.query.buffer].dtype == F32


# What is compiled.


@pytest.mark.ci_cases(
    "(8, 32, 8, 1, 2048, 128)-torch.bfloat16-((1, 2), (2, 2))",
    "(1, 8, 2, 3, 999, 80)-torch.bfloat16-()",
    "(1, 32, 8, 1, 2048, 128)-torch.float32-()",
    "(1, 8, 2, 1, 2048, 512)-torch.bfloat16-()",
)
@pytest.mark.parametrize(
    ("sizes", "dtype", "dynamic"),
    [
        ((1, 32, 8, 1, 2048, 128), BF16, ()),
        ((8, 32, 8, 1, 2048, 128), BF16, KEYS),
        ((1, 32, 32, 1, 2048, 64), F16, ()),
        ((1, 8, 2, 3, 999, 80), BF16, ()),
        ((1, 32, 8, 1, 2048, 128), F32, ()),
        ((1, 8, 2, 1, 2048, 512), BF16, ()),
    ],
    ids=str,
)
def test_the_kernel_compiles_for_hopper(sizes: Any, dtype: torch.dtype, dynamic: Any) -> None:
    """Operands come asynchronously, and nothing is spilled to local memory."""
    after = Case(masked(expanded, sizes[1] // sizes[2]), sizes, None, dtype, dynamic=dynamic).compiled()
    (source,) = (op.source for op in after.operations if isinstance(op, KernelCall))
    ptx = compile_only(source)["ptx"]
    assert "cp.async" in ptx and ".local" not in ptx
    assert ("mma.sync" in ptx) == (dtype != F32)


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ((1, 32, 8, 1, 2048, 128), 16),  # 128 keys each
        ((8, 32, 8, 1, 2048, 128), 4),  # two programs for each of 132 multiprocessors
        ((64, 32, 8, 1, 2048, 128), 1),
        ((1, 32, 8, 1, 100, 128), 1),
        ((1, 8, 1, 1, 100000, 128), 264),
    ],
)
def test_parts_keep_the_device_busy(sizes: tuple[int, ...], parts: int) -> None:
    program, _, found = Case(flash, sizes, dtype=BF16).found()
    assert choose_split(found.attention, program, H100).parts == parts


# When it is offered and chosen.


def decisions(fn: Any, *sizes: int, dtype: torch.dtype = BF16, mask: bool = False) -> tuple[Any, list[str]]:
    """The schedule of attention on an H100, and what was decided about it."""
    torch._dynamo.reset()
    batch, heads, shared, queries, keys, width = sizes
    log = Log()
    with FakeTensorMode(), torch.no_grad():
        q = torch.empty(batch, heads, queries, width, dtype=dtype, device="cuda")
        k, v = (torch.empty(batch, shared, keys, width, dtype=dtype, device="cuda") for _ in range(2))
        more = [torch.empty(batch, 1, queries, keys, dtype=torch.bool, device="cuda")] if mask else []
        (schedule,) = schedule_only(fn, (q, k, v, *more), log=log)
    return schedule, [str(decision) for decision in log.decisions]


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("mask", [False, True])
def test_decoding_needs_no_copies(batch: int, mask: bool) -> None:
    """The cache of a model with 32 heads, which share 8 of the key: without a measurement."""
    schedule, said = decisions(masked(repeated, 4), batch, 32, 8, 1, 2048, 128, mask=mask)
    (kernel,) = schedule.steps
    assert isinstance(kernel, KernelCall)
    assert len(kernel.reads) == 3 + mask
    assert all(schedule.program.buffers[name].kind == "input" for name in kernel.reads)
    assert any("keys and values once" in line and "at worst" in line for line in said)


@pytest.mark.parametrize(
    ("fn", "sizes", "why"),
    [
        (flash, (1, 32, 32, 512, 512, 64), "512 queries for a head of the key; the kernel takes 64 at most"),
        (flash, (1, 4, 4, 1, 0, 64), "there are no elements"),
        (flash, (1, 4, 4, 1, 64, 520), "heads of 520 and 520 elements"),
        (lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v)[:2], (1, 4, 4, 1, 64, 64), "training"),
    ],
)
def test_what_the_kernel_does_not_do_is_said(fn: Any, sizes: tuple[int, ...], why: str) -> None:
    schedule, said = decisions(fn, *sizes)
    assert any(isinstance(step, Attention) for step in schedule.steps)
    assert any("keys are not split" in line and why in line for line in said)


def test_where_little_is_gained_the_library_stays_unless_it_is_measured() -> None:
    """flash attention splits keys itself."""
    schedule, said = decisions(flash, 1, 32, 8, 1, 2048, 128)
    assert isinstance(schedule.steps[0], Attention)
    assert any("triton attention in 16 parts" in line and ">=" in line for line in said)


def test_an_estimate_grows_with_the_keys_and_shrinks_with_the_parts() -> None:
    program, attention, found = Case(flash, (1, 32, 8, 1, 2048, 128), dtype=BF16).found()
    split = choose_split(found.attention, program, H100)
    some = estimate(found.attention, split, program, H100)
    assert some.low_us < some.us < some.high_us < 20
    assert estimate(found.attention, replace(split, parts=1), program, H100).us > some.us
    context = ChoiceContext(attention, H100, make_options(), program)
    (choice,) = offer_split(attention, context)
    assert choice.estimate == some and "16 parts" in choice.name


def test_text_has_no_names_of_the_graph() -> None:
    """Equal kernels of a graph are built once."""
    after = CASES["group-mask"].compiled()
    (source,) = (op.source for op in after.operations if isinstance(op, KernelCall))
    assert not re.search(r"\b(arg|buf|op)\d", source.text)


def test_parts_are_put_together_in_the_same_launch() -> None:
    """The wrapper launches one kernel for each attention, and sets the counters of all to zero at once."""

    def two(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        step = masked(repeated, 4)
        return step(step(q, k, v), k, v)

    schedule, _ = decisions(two, 1, 32, 8, 1, 2048, 128)
    kernels = [step for step in schedule.steps if isinstance(step, KernelCall)]
    assert len(kernels) == len(schedule.steps) == 2
    assert all(kernel.source.settings["counters"] == 8 for kernel in kernels)
    compiler = make_compiler(None, {"debug": True})
    plan = plan_schedule(schedule, compiler)
    text = generate_wrapper(plan, generate(plan, compiler)).text
    assert text.count("_counters_cuda_0 = ") == 1


def test_parts_of_an_unknown_batch_are_put_together_by_a_loop() -> None:
    after = CASES["group-dynamic"].compiled()
    kernel, combine = after.operations
    assert isinstance(kernel, KernelCall) and kernel.source.settings["counters"] == 0
    assert isinstance(combine, Loop) and combine.is_reduction


def grouped_flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return flash(q, repeated(k, 4), expanded(v, 4), is_causal=True)


def test_the_library_takes_keys_in_place_where_its_kernel_can() -> None:
    """Many queries: the same call without copies."""
    schedule, said = decisions(grouped_flash, 1, 32, 8, 512, 512, 128)
    (call,) = schedule.steps
    assert type(call) is Extern and call.target_name == "aten._scaled_dot_product_flash_attention.default"
    assert [ref.layout.size[1] for ref in call.refs] == [32, 8, 8]
    assert call.args[3:] == (0.0, True) or call.args[3:5] == (0.0, True)
    assert any("keys in place" in line for line in said)


def test_the_library_keeps_copies_that_others_read_or_that_it_needs() -> None:
    def two(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        keys, values = repeated(k, 4), repeated(v, 4)
        return flash(q, keys, values), keys, values

    schedule, _ = decisions(two, 1, 32, 8, 512, 512, 128)
    assert isinstance(schedule.steps[-1], Attention)
    schedule, _ = decisions(masked(repeated, 4), 1, 32, 8, 512, 512, 128)  # efficient attention takes all heads
    assert isinstance(schedule.steps[-1], Attention)
