"""The order of computation and communication. The cases are those of the seed document test_compute_comm_reordering."""

from __future__ import annotations

from litz_collectives.tables import (
    BASE_LATENCY,
    HARDWARE_LATENCY,
    LL_MAX_BANDWIDTH,
    Algorithm,
    Generation,
    Link,
    Protocol,
)


def test_nccl_heuristics() -> None:
    assert len(BASE_LATENCY) == len(Algorithm)
    assert all(len(row) == len(Protocol) for row in BASE_LATENCY)

    assert len(HARDWARE_LATENCY) == len(Link)
    assert all(len(link) == len(Algorithm) for link in HARDWARE_LATENCY)
    assert all(len(row) == len(Protocol) for link in HARDWARE_LATENCY for row in link)

    assert len(LL_MAX_BANDWIDTH) == len(Generation)
    assert all(sorted(row, reverse=True) == list(row) for row in LL_MAX_BANDWIDTH), "more nodes are never faster"
