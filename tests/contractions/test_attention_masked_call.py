"""Attention with a mask in the place of the library's call: what the kernel computes, what is left of a mask, and when
the kernel is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import sympy
import torch
from torch._subclasses import FakeTensorMode

pytest.importorskip("triton")

from litz.ir import KernelCall, build
from litz.ir.index import loop_var
from litz.ir.intervals import Intervals
from litz.pipeline import schedule_only
from litz.report.log import Log
from litz_contractions.attention.masked_call import worked_on
from litz_contractions.attention.masks import holds, opened
from litz_contractions.attention.operation import Attention
from litz_contractions.attention.tiles import Tiles
from support.interpreted import interpreted
from support.masked_call_cases import CASES, causal, open_everywhere, padded, positions
from support.split_cases import cudnn
from support.triton_compiled import compile_only


@pytest.fixture(scope="session")
def problems() -> Mapping[str, str]:
    """For each case "" or what went wrong."""
    return interpreted("support.masked_call_cases")


@pytest.mark.parametrize("name", CASES)
def test_gives_what_float64_gives(name: str, problems: Mapping[str, str]) -> None:
    assert problems[name] == ""


@pytest.mark.parametrize("name", CASES)
def test_a_mask_is_a_mask_and_a_bias_a_score(name: str) -> None:
    _, _, _, plan = CASES[name].planned()
    assert (plan.bodies.mask is not None) == CASES[name].masks
    assert (plan.bodies.score is not None) == CASES[name].scores


@pytest.mark.parametrize(
    ("name", "tiles"),
    # Of 70 queries and keys in tiles of 32 x 16: 2 + 4 + 5 of the causal mask's, all 3 x 5, and the window's.
    [("causal", 11), ("padded", 11), ("open", 15), ("bias", 15), ("window", 2 + 3 + 2)],
)
def test_tiles_that_the_mask_closes_are_not_counted(name: str, tiles: int) -> None:
    _, _, _, plan = CASES[name].planned()
    assert worked_on(plan, Tiles(32, 16, 4, 2)) == tiles * 32 * 16 * 4


def decided(fn: Any, *sizes: tuple[int, ...], options: Any = None) -> tuple[int, str]:
    """How many kernels take the place of a library call, and what was decided."""
    torch._dynamo.reset()
    log = Log()
    with FakeTensorMode(), torch.no_grad():
        given = [torch.empty(size, dtype=torch.bfloat16, device="cuda") for size in sizes]
        (schedule,) = schedule_only(fn, given, options, log=log)
    return sum(isinstance(op, KernelCall) for op in schedule.program.operations), str([*map(str, log.decisions)])


HEADS = (8, 12, 512, 64)


def test_the_kernel_is_chosen_where_less_is_left_to_do() -> None:
    chosen, told = decided(causal, HEADS, HEADS, HEADS)
    assert chosen == 1 and "triton attention" in told
    short = (512, 4, 49, 32)  # half of a tile of the library's, either way
    assert decided(open_everywhere, short, short, short)[0] == 1


def test_nobody_has_measured_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "bfloat16", torch.float32)
    chosen, told = decided(causal, HEADS, HEADS, HEADS)
    assert chosen == 0 and "the kernel was not measured for torch.float32" in told


def of_cudnn(q: Any, k: Any, v: Any, own: bool = False) -> Any:
    rows, columns = positions(q, k)
    mask = (columns <= rows).expand(q.shape[0], 1, -1, -1)
    return cudnn(q, k, v, torch.where(mask, 0.0, torch.scalar_tensor(-65504.0, dtype=q.dtype, device=q.device)))


@pytest.mark.parametrize("by_torch", [True, False])
def test_what_torch_puts_in_the_place_of_a_mask_for_cudnn_is_one(
    by_torch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """-65504, which bfloat16 rounds to -65536. Of a caller's own it is a bias: where a query has no other key, those
    that it is added to weigh alike."""
    found: list[Attention] = []

    def keep(attention: Attention) -> Attention:
        found.append(opened(attention))
        return found[-1]

    monkeypatch.setattr("litz_contractions.attention.masked_call.opened", keep)
    monkeypatch.setattr("litz_contractions.lowerings.sdpa._is_of_attention", lambda node: by_torch)
    assert decided(of_cudnn, HEADS, HEADS, HEADS)[0] == 1
    (attention,) = found
    assert (attention.mask is not None) == by_torch and (attention.score is None) == by_torch


def test_few_queries_are_left_to_the_kernel_that_splits_keys() -> None:
    few = (2, 8, 4, 64)
    _, told = decided(causal, few, (2, 8, 4096, 64), (2, 8, 4096, 64))
    assert "works out the mask" not in told and "parts" in told


@pytest.mark.ci_cases("bias", "grouped")
@pytest.mark.parametrize("name", ["causal-half", "padded", "bias", "grouped"])
def test_compiles_for_an_h100(name: str) -> None:
    (call,) = (op for op in CASES[name].compiled().operations if isinstance(op, KernelCall))
    compile_only(call.source)


def test_a_padding_mask_reads_what_it_was_made_of() -> None:
    _, _, found, plan = CASES["padded"].planned()
    assert len(found.absorbs) == 1 and padded is CASES["padded"].fn
    assert {str(plan.program.buffers[name].dtype) for name in plan.bodies.loop.reads} == {"torch.bool"}


@pytest.mark.parametrize(
    ("op", "less", "wanted"),
    [("lt", 0, True), ("le", 1, True), ("lt", 1, False), ("le", 2, False), ("ge", 0, False), ("gt", -1, False)],
)
def test_conditions_on_positions_of_symbolic_sizes(op: str, less: int, wanted: bool) -> None:
    """`position + less < size` for positions below the size, a symbol."""
    position, size = loop_var(0), sympy.Symbol("s0", integer=True, positive=True)
    condition = build.call(op, build.index(position + less), build.index(size))
    assert holds(condition, Intervals({position: size})) == wanted
