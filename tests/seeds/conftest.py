"""Two ranks for the seeds' distributed tests: over gloo on the CPU, and over NCCL where there are two GPUs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from support.ranks import Ranks

NCCL = [
    pytest.mark.gpu2,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL between two ranks needs two GPUs"),
]


@pytest.fixture(scope="session")
def nccl_ranks() -> Iterator[Ranks]:
    """Two processes with a GPU each and an NCCL group."""
    with Ranks(2, "nccl") as found:
        yield found


@pytest.fixture(params=["gloo", pytest.param("nccl", marks=NCCL)])
def pair(request: pytest.FixtureRequest) -> Ranks:
    """Two ranks, over each of the backends that this machine has."""
    found: Ranks = request.getfixturevalue({"gloo": "ranks", "nccl": "nccl_ranks"}[request.param])
    return found
