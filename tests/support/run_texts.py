"""The generated texts of a schedule, run in Triton's interpreter on given inputs: nothing of a GPU, all of the text.

`python -m support.run_texts FILE` runs what `run_texts` has written to FILE, and writes the results there.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from litz.ir import KernelCall
from litz.schedule import Schedule
from litz.schedule.schedule_program import unscheduled
from litz_autotune.pool import dumps
from support.warm import run_warm


def run_texts(schedule: Schedule, inputs: Sequence[torch.Tensor], folder: Path) -> list[torch.Tensor]:
    """Returns the results of a schedule of kernels that came with their texts; loops between them, which the IR's
    interpreter runs, may convert."""
    assert any(isinstance(step, KernelCall) for step in schedule.steps)
    file = folder / "texts"
    file.write_bytes(dumps((unscheduled(schedule), list(inputs))))
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    environ = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    done = run_warm(["-m", "support.run_texts", str(file)], environ, imported=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[torch.Tensor] = torch.load(file)
    return found


if __name__ == "__main__":
    from support.kernel_programs import run

    program, tensors = pickle.loads(Path(sys.argv[1]).read_bytes())
    torch.save(run(program, tensors), sys.argv[1])
