"""The figures that NCCL's tuner decides by, as data.

Source: NCCL 2.19 to 2.28, src/graph/tuning.cc (the Blackwell row from 2.24). Latencies are microseconds, bandwidths
GB/s (1e9 bytes per second); every table is indexed by the enums below in their order.
"""

from __future__ import annotations

from enum import IntEnum


class Algorithm(IntEnum):
    """The paths on which data travels. CollNet needs switches that reduce, which litz does not model."""

    TREE = 0
    RING = 1
    NVLS = 2


class Protocol(IntEnum):
    """The ways in which a receiver learns that data is there: a flag per 8 bytes (LL), per 128 bytes (LL128), or a
    fence (Simple)."""

    LL = 0
    LL128 = 1
    SIMPLE = 2


class Link(IntEnum):
    """The kinds of links that a hop goes over."""

    NVLINK = 0
    PCI = 1
    NET = 2


class Generation(IntEnum):
    """The GPU architectures that NCCL tells apart. An architecture between two counts as the older."""

    VOLTA = 0
    AMPERE = 1
    HOPPER = 2
    BLACKWELL = 3


BASE_LATENCY: tuple[tuple[float, ...], ...] = (
    (6.8, 14.0, 8.4),  # tree
    (6.6, 14.0, 8.4),  # ring
    (0.0, 0.0, 0.0),  # NVLS
)
"""µs that any collective takes: [algorithm][protocol]."""

HARDWARE_LATENCY: tuple[tuple[tuple[float, ...], ...], ...] = (
    ((0.6, 1.25, 4.0), (0.6, 1.9, 3.4), (0.0, 0.0, 25.0)),  # NVLink
    ((1.0, 1.9, 4.0), (1.0, 2.5, 5.7), (0.0, 0.0, 0.0)),  # PCI
    ((5.0, 8.5, 14.0), (2.7, 4.0, 14.0), (0.0, 0.0, 18.0)),  # network
)
"""µs of each hop: [link][algorithm][protocol]."""

LL_MAX_BANDWIDTH: tuple[tuple[float, ...], ...] = (
    (39.0, 39.0, 20.4),  # Volta
    (87.7, 22.5, 19.0),  # Ampere
    (141.0, 45.0, 35.0),  # Hopper
    (282.0, 90.0, 70.0),  # Blackwell
)
"""GB/s that LL reaches at most: [generation][one node, two nodes, more]."""

RING_LL128_PER_CHANNEL = (20.0, 20.0, 36.7, 36.7)
TREE_LL128_PER_CHANNEL = ((20.0, 20.0, 20.0), (20.0, 20.0, 20.0), (36.7, 36.7, 29.0), (55.6, 31.67, 20.0))
TREE_PER_CHANNEL = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (70.0, 42.8, 24.0))
"""GB/s per channel: [generation], and for trees [one node, two nodes, more]."""

NVLINK_GB_S = (20.0, 20.0, 20.6, 40.1)
"""GB/s of one NVLink in one direction, as NCCL reckons with it: [generation]. Hopper's 18 make 370.8."""

NVLS_EFFICIENCY = (0.0, 0.0, 0.85, 0.74)
"""Share of the links' bandwidth that the switches' reduction reaches: [generation]; 0 where there is none."""
