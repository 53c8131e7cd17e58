"""The benchmark of single kernels judges results by float64: eager's own are off where it rounds what it sums."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from support.no_gpu import gpu_hidden

sys.path.insert(0, str(Path(__file__).parents[2]))
with gpu_hidden():
    from benchmarks import gpu_kernels
    from benchmarks.record import read_rows


def gate_gradient() -> tuple[gpu_kernels.Case, torch.Tensor]:
    """A sum of products that eager rounds to bf16, and the sum of exact products."""
    torch.manual_seed(0)
    x, grad = (torch.randn(8192, 64).to(torch.bfloat16) for _ in range(2))
    exact = (x.double() * grad.double()).sum(0).to(torch.bfloat16)
    return gpu_kernels.Case(lambda x, grad: (x * grad).sum(0), (x, grad), 2 * x.nbytes), exact


def test_a_sum_that_is_nearer_than_eagers_passes() -> None:
    case, exact = gate_gradient()
    with pytest.raises(AssertionError):
        torch.testing.assert_close(exact, case.function(*case.args), rtol=2e-2, atol=2e-2)
    gpu_kernels.check(case, [exact])


@pytest.mark.nightly
def test_a_wrong_result_does_not() -> None:
    case, exact = gate_gradient()
    with pytest.raises(AssertionError):
        gpu_kernels.check(case, [exact.roll(1)])


@pytest.mark.gpu
def test_rows_of_a_gpu(tmp_path: Path) -> None:
    """A line of --json for each case, with the GPU's name, and speeds as shares of a copy."""
    gpu_kernels.main(["--only", "softmax 64 bf16", "--json", str(tmp_path / "kernels.jsonl")])
    (row,) = read_rows(tmp_path)
    assert row.case == "softmax 64 bf16" and row.dtype == "bfloat16" and "NVIDIA" in row.device and not row.problems
    assert set(row.peers) == {"eager", "inductor", "litz"}
    assert all(0 < of["copy_share"] < 1.2 and of["kernel_ms"] > 0 for of in row.peers.values())
