"""Program text in, schedule text out, for the fusions that matter most. A missing file is written anew: delete one to
accept a change, and read the difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.schedule.harness import CPU, GPU, check
from core.schedule.programs import EXAMPLES

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", EXAMPLES)
def test_schedule_text(name):
    make, outputs = EXAMPLES[name]
    writer = make()
    program = writer.program(*outputs, name=name)
    schedule = check(program, writer.args(), CPU, element_wise=name != "large_sum")
    check(program, writer.args(), GPU)
    text = f"{program}\n\n{schedule}\n"
    path = GOLDEN / f"{name}.txt"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        pytest.fail(f"{path.name} was missing and has been written: read it, then run again")
    assert text == path.read_text()


KERNELS = {
    "softmax": 1,
    "layer_norm": 1,
    "bias_gelu": 1,
    "batch_norm": 1,
    "batch_norm_backward": 1,
    "cross_entropy": 2,
    "dropout": 1,
    "cat": 1,
    "transposed": 1,
    "gather": 1,
    "two_reductions": 1,
    "large_sum": 2,
    "scatter": 3,
    "mutation": 2,
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_number_of_kernels(name):
    make, outputs = EXAMPLES[name]
    writer = make()
    schedule = check(writer.program(*outputs), writer.args(), CPU)
    assert len(schedule.kernels) == KERNELS[name], str(schedule)
