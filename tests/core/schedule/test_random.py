"""Random programs: whatever is fused, inlined, split, reordered or placed, the results stay the same."""

from __future__ import annotations

import pytest

from core.schedule.harness import CPU, GPU, check
from core.schedule.random_programs import Maker


@pytest.mark.parametrize("block", range(10))
@pytest.mark.parametrize("machine", [CPU, GPU], ids=["cpu", "gpu"])
def test_random_programs_keep_their_meaning(block, machine):
    for seed in range(20 * block, 20 * block + 20):
        maker = Maker(seed)
        check(maker.program(4 + seed % 9), maker.args(), machine)


@pytest.mark.parametrize("block", range(5))
def test_random_programs_run_element_by_element(block):
    for seed in range(1000 + 6 * block, 1000 + 6 * block + 6):
        maker = Maker(seed)
        check(maker.program(8), maker.args(), CPU, element_wise=True)
