"""Long programs: expressions, bodies and work are bounded, whatever the length. Work is counted, not timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from core.lowering.harness import program_of
from core.schedule.harness import check, plan_of
from litz.ir import Loop, Program
from litz.ir import index as index_module
from litz.ir.complexity import MAX_INDEX, excess, position_terms, substituted_terms, terms
from litz.ir.index import loop_var, mod, substitute, to_expr
from litz.target import target_of

X = torch.arange(12 * 10, dtype=torch.float32).reshape(12, 10)
Step = Callable[[Any], Any]


def repeated(step: Step, count: int) -> Step:
    def f(v: Any) -> Any:
        for _ in range(count):
            v = step(v)
        return v

    return f


CHAINS: dict[str, Step] = {
    "flip": lambda v: v.flip(0).t().reshape(v.shape) + 1,
    "roll": lambda v: v.reshape(10, 12).roll(3, 1).t().reshape(v.shape) * 0.5,
    "pad": lambda v: torch.nn.functional.pad(v[1:, :-2], (1, 1, 0, 1)).t().reshape(v.shape) + 1,
    "two reads": lambda v: v + v.t().reshape(v.shape).flip(1),
    "slice_scatter": lambda v: v.slice_scatter(v[:2].flip(0) + 1, 0, 3, 5).t().reshape(v.shape),
    "where": lambda v: torch.where(v.t().reshape(v.shape) > 3, v, v.flip(1) * 0.5),
    "cat": lambda v: torch.cat([v[6:].flip(0), v[:6].t().reshape(6, 10)]) + 1,
    "repeat": lambda v: v.repeat(2, 1)[5:17].t().reshape(v.shape) + 1,
    "unfold": lambda v: v.unfold(1, 3, 1).mean(2).repeat(1, 2)[:, :10].t().reshape(v.shape),
}
SHORTER = {"slice_scatter": 5}
"""Chains of which fewer links are beyond every bound."""


def is_bounded(program: Program) -> None:
    for operation in program.operations:
        if isinstance(operation, Loop):
            assert excess(operation) is None, str(operation)


@pytest.mark.parametrize("name", CHAINS)
def test_a_long_chain_of_views_is_written_to_buffers_on_the_way(name: str) -> None:
    program = program_of(repeated(CHAINS[name], SHORTER.get(name, 8)), X)
    schedule = check(program, [X])
    for kernel in schedule.kernels:
        assert excess(kernel.loop) is None, str(kernel.loop)


@pytest.mark.ci_cases("flip", "two reads")
@pytest.mark.parametrize("name", ["flip", "two reads", "where"])
def test_kernels_and_work_of_a_chain_grow_with_its_length(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both at most 2.5 times for twice the length."""
    calls = 0
    floordiv = index_module.floordiv

    def counted(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        return floordiv(*args)

    monkeypatch.setattr(index_module, "floordiv", counted)
    figures = []
    for count in (10, 20):
        calls = 0
        schedule = plan_of(program_of(repeated(CHAINS[name], count), X))
        figures.append((calls, len(schedule.kernels)))
    (few, kernels), (many, more) = figures
    assert many <= 2.5 * few + 100, figures
    assert more <= 2.5 * kernels + 1, figures


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_chain_of_views_alone_is_written_by_lowering(dynamic: bool) -> None:
    """Nothing but views that are fresh in eager, and of which a position grows."""

    def f(v: torch.Tensor) -> torch.Tensor:
        for k in range(4 if dynamic else 8):
            v = v.roll(k + 1, 0).unflatten(1, (2, 5)).roll(1, 1).flatten(1).roll(2, 1).flip(0)
            v = v.view(10, 12).roll(1, 0).roll(1, 1).view(12, 10)
        return v + 1

    is_bounded(program_of(f, X, dynamic=dynamic))


@pytest.mark.parametrize("dynamic", [False, True])
def test_windows_that_are_shifted_again_and_again(dynamic: bool) -> None:
    """As Swin's: with symbolic sizes one reshape multiplies the terms of a position."""

    def f(v: torch.Tensor) -> torch.Tensor:
        b, h, w, c = v.shape
        for _ in range(2):
            v = torch.roll(v, (-1, -1), (1, 2)).view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5)
            v = torch.flip(v.reshape(-1, 4, c), (1,)).view(b, h // 2, w // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5)
            v = torch.roll(v.reshape(b, h, w, c), (1, 1), (1, 2))
        return v * 2

    x = torch.arange(2 * 6 * 8 * 3, dtype=torch.float32).reshape(2, 6, 8, 3)
    program = program_of(f, x, dynamic=dynamic)
    is_bounded(program)
    if not dynamic:
        check(program, [x])


def test_what_lowering_writes_is_on_record() -> None:
    from core.lowering.harness import capture
    from litz.lower import lower
    from support.own_plugins import operators

    decisions: list[Any] = []
    rolled = repeated(lambda v: v.flip(0).reshape(-1).roll(5, 0).reshape(v.shape).roll(1, 1), 12)
    lower(capture(rolled, X, plugins=operators()), operators().lowerings(), note=decisions.append)
    assert decisions and all("terms" in decision.reason for decision in decisions)
    assert {decision.stage for decision in decisions} == {"lower"}


def test_a_roll_of_a_roll_is_one_roll() -> None:
    i = loop_var(0)
    ranges = {i: to_expr(64)}
    once = mod(i - 3, to_expr(64), ranges)
    assert mod(once - 5, to_expr(64), ranges) == mod(i - 8, to_expr(64), ranges)
    assert mod(2 * mod(i, to_expr(32)) + 1, to_expr(64), {i: to_expr(512)}) == mod(2 * i + 1, to_expr(64))


def test_values_read_at_neighbours_do_not_multiply() -> None:
    """Each step reads the one before at two places: n steps read n + 1 places, not 2**n."""
    program = program_of(repeated(lambda v: (v + v.roll(1, 0)) * 0.5, 6), X)
    schedule = check(program, [X])
    assert max(len(kernel.loop.loads) for kernel in schedule.kernels) <= 8


def test_terms_are_counted_as_they_print() -> None:
    i, j = loop_var(0), loop_var(1)
    assert terms(i) == 1 and terms(i + 3) == 3
    once = mod(48 * i + j, to_expr(64))
    assert terms(once) == 1 + terms(48 * i + j) + 1
    position = (once, once + i)
    mapping = {i: once, j: i + 1}
    after = tuple(substitute(expr, mapping) for expr in position)
    assert position_terms(after) <= substituted_terms(position, mapping)
    assert position_terms(position) < MAX_INDEX


def test_readers_of_one_buffer_are_compared_with_neighbours_only() -> None:
    """Rows of one tensor, each worked on alone: the pairs that fusion tries are in proportion to the rows."""
    rows = torch.randn(120, 4)
    pairs = []
    for count in (30, 60, 120):
        program = program_of(lambda x: [row.sin() for row in x.unbind(0)], rows[:count])
        decisions: list[Any] = []
        plan_of(program, decisions=decisions)
        pairs.append(len(decisions))
    assert pairs[2] <= 2.5 * pairs[1] and pairs[1] <= 3 * pairs[0], pairs


def test_steps_of_a_loop_are_built_once() -> None:
    """Kernels that differ only in which row they read have one text."""
    from litz.codegen.kernel_plan import plan_kernel
    from litz.options import Options
    from litz.targets.cpp.generate import generate
    from litz_plugins.records import CodegenContext

    def f(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        state = x[0]
        for row in x.unbind(0):
            state = (state @ weight + row).tanh()
        return state

    program = program_of(f, torch.randn(20, 3, 4), torch.randn(4, 4))
    schedule = plan_of(program)
    context = CodegenContext(Options(), target_of("cpu"), schedule.program, None)  # type: ignore[arg-type]
    texts = {generate(plan_kernel(kernel, schedule.program), context).text for kernel in schedule.kernels}
    assert len(texts) <= 2 < len(schedule.kernels)
