"""The templates' kernels in Triton's interpreter against float64, with their users fused into them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from litz.ir import KernelCall
from litz.ir.interpret import interpret
from support.gemm_cases import CASES, cpu

SHARDS = 2
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def problems() -> Mapping[str, str]:
    """For each case "" or what went wrong."""
    paths = [str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)}
    workers = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "support.gemm_cases", str(shard), str(SHARDS)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for shard in range(SHARDS)
    ]
    found: dict[str, str] = {}
    for worker in workers:
        out, err = worker.communicate()
        assert worker.returncode == 0, err[-3000:]
        found.update(json.loads(out.splitlines()[-1]))
    return found


@pytest.mark.parametrize("name", CASES)
def test_gives_what_float64_gives(name: str, problems: Mapping[str, str]) -> None:
    assert problems[name] == ""


@pytest.mark.parametrize("name", ["mm", "mm-three-users", "addmm-view", "bmm-split", "linear-dynamic-gelu"])
def test_the_meaning_of_a_kernel_is_what_it_replaces(name: str) -> None:
    """Without Triton: passes, and the interpreter of the IR, see what the kernel computes."""
    case = CASES[name]
    before, after = case.programs()
    assert any(isinstance(operation, KernelCall) for operation in after.operations)
    tensors = iter(case.make())
    given = [next(tensors) if isinstance(item, str) else 33 for item in before.inputs]
    for symbol, value in before.hints.items():
        given = [value if item == symbol else g for item, g in zip(before.inputs, given)]
    expected = interpret(cpu(before), given)
    for output, wanted in zip(interpret(cpu(after), given), expected, strict=True):
        if isinstance(wanted, torch.Tensor):
            torch.testing.assert_close(output, wanted, atol=1e-4, rtol=1e-4)
