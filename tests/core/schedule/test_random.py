"""Random programs: whatever is fused, inlined, split, reordered or placed, the results stay the same."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from core.schedule.harness import CPU, GPU, check, plan_prepared, run_in_planned_memory
from core.schedule.random_programs import Maker
from litz.ir.interpret import interpret


@pytest.mark.ci_cases("cpu-0", "cpu-1", "cpu-2", "gpu-5", "gpu-6", "gpu-7")
@pytest.mark.parametrize("block", range(10))
@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "gpu"])
def test_random_programs_keep_their_meaning(block, target):
    for seed in range(20 * block, 20 * block + 20):
        maker = Maker(seed)
        check(maker.program(4 + seed % 9), maker.args(), target)


@pytest.mark.parametrize("block", range(5))
def test_random_programs_run_element_by_element(block):
    for seed in range(1000 + 6 * block, 1000 + 6 * block + 6):
        maker = Maker(seed)
        check(maker.program(8), maker.args(), CPU, element_wise=True)


def test_random_programs_share_an_arena():
    """Not fused, so that there are many temporaries; in place of each other, and of what is dead."""
    options = SimpleNamespace(fusion=False, memory_planning=True)
    in_place = shared = 0
    for seed in range(2000, 2030):
        maker = Maker(seed)
        program = maker.program(20)
        schedule = plan_prepared(program, GPU, options)
        arena = schedule.memory.arena
        pairs = [new for kernel in schedule.kernels for new in kernel.inplace if new in arena]
        in_place += len(pairs)
        shared += len(arena) - len(pairs) - len(set(arena.values()))
        found = run_in_planned_memory(schedule, maker.args())
        for actual, wanted in zip(found, interpret(program, maker.args()), strict=True):
            torch.testing.assert_close(actual, wanted, equal_nan=True, check_stride=False, msg=f"seed {seed}")
    assert in_place > 50 and shared > 50
