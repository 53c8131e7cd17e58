"""Ranks for the seeds' distributed tests: over gloo on the CPU, and over NCCL where each has a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from support.ranks import WORLD, Ranks

NCCL = [
    pytest.mark.gpu2,
    pytest.mark.skipif(torch.cuda.device_count() < WORLD, reason=f"NCCL between {WORLD} ranks needs a GPU for each"),
]


@pytest.fixture(scope="session")
def nccl_ranks() -> Iterator[Ranks]:
    """Processes with a GPU each and an NCCL group."""
    with Ranks(WORLD, "nccl") as found:
        yield found


@pytest.fixture(params=["gloo", pytest.param("nccl", marks=NCCL)])
def group(request: pytest.FixtureRequest) -> Ranks:
    """WORLD ranks, over each of the backends that this machine has."""
    found: Ranks = request.getfixturevalue({"gloo": "ranks", "nccl": "nccl_ranks"}[request.param])
    return found
