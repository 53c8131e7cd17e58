"""What a collective costs. In: a message and a profile. Out: a `Cost`: microseconds, an interval, and the reason.

Within a node the time is read off the profile's own curve where it has one. The built-in curves stand in for it on
nodes joined by NVLink; links of another speed scale the part of the time that is spent on the wire. Everything else
(PCI and NVLS that nobody measured, several nodes) has NCCL's own formula, with a wide interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .fit import Curve
from .nccl import KINDS, Candidate, Message, candidates, nodes_of
from .profile import Profile, builtin_profile
from .topology import Topology, TopologyError

LEAST_ERROR = 0.05
"""Two measurements of one collective differ by this much."""
SCALED = 0.2
"""Added where a curve was measured on another GPU or link."""
FORMULA = (0.6, 2.0)
"""NCCL's formula, as a factor to the best and the worst: it was made for choosing between algorithms."""
PERMUTED = 0.25
"""Added where a permutation is taken for an all_to_all between two ranks, which moves as much."""


@dataclass(frozen=True)
class Cost:
    """A collective's cost in µs, the device's. launch_us: the host's, which a CUDA graph saves (0 if unknown)."""

    us: float
    low_us: float
    high_us: float
    algorithm: str
    protocol: str
    launch_us: float
    why: str
    considered: tuple[Candidate, ...] = ()


def collective_cost(message: Message, profile: Profile) -> Cost:
    """Returns a message's cost. Raises TopologyError for an unknown kind, a negative size or an empty group."""
    if message.kind not in KINDS:
        raise TopologyError(f"there is no collective {message.kind!r}; litz knows {', '.join(KINDS)}")
    if message.bytes < 0 or message.world_size < 1:
        raise TopologyError(f"a message of {message.bytes} bytes between {message.world_size} ranks cannot be")
    if message.world_size == 1:
        return Cost(0.0, 0.0, 0.0, "none", "none", 0.0, "a group of one rank: nothing is sent")
    launch = (profile.launch_us or builtin_profile().launch_us).get(message.kind, 0.0)
    ways = candidates(message, profile.topology)
    best = ways[0]
    measured = _measured(message, profile, best)
    if measured is None:
        low, high = FORMULA
        why = f"NCCL's formula for {best.algorithm}, {best.protocol} over {_links(message, profile.topology)}"
        return Cost(best.us, best.us * low, best.us * high, best.algorithm, best.protocol, launch, why, ways)
    us, error, why = measured
    low, high = us * max(0.0, 1 - error), us * (1 + error)
    return Cost(us, low, high, best.algorithm, best.protocol, launch, why, ways)


def _measured(message: Message, profile: Profile, best: Candidate) -> tuple[float, float, str] | None:
    """(µs, relative error, why) by a measured curve, of the profile or, scaled, the built-in one; None without."""
    here = profile.topology
    if nodes_of(message, here) > 1:
        return None
    kind, size, ranks, extra = _twin(message)
    owner = profile if kind in profile.curves else builtin_profile()
    curve = owner.curves.get(kind)
    if curve is None or (owner is not profile and (here.link == "PCI" or best.algorithm == "nvls")):
        return None
    there = owner.topology
    scale = there.link_gb_s / here.link_gb_s
    seen = ranks in curve.world_sizes
    error = max(LEAST_ERROR, _error(curve, size, ranks)) + extra
    why = f"measured: {owner.source}"
    if (there.generation, there.link_gb_s) != (here.generation, here.link_gb_s):
        error += SCALED
        why += f", scaled from {there.link_gb_s:.4g} to {here.link_gb_s:.4g} GB/s"
    if not seen:
        why += f"; {ranks} ranks were not measured, {_listed(curve.world_sizes)} were"
    return curve.us(size, ranks, scale), error, why


def _error(curve: Curve, size: int, ranks: int) -> float:
    """Returns the share of the curve that 9 of 10 measurements are within. For ranks that were not measured the error
    of the curve meets, as an independent one, what curves were off on ranks between those that they were fitted to;
    beyond the measured ones that grows with each doubling."""
    regime = curve.regime(size)
    if ranks in curve.world_sizes:
        return regime.error
    between = max(builtin_profile().unseen_at(size), math.sqrt(max(0.0, regime.unseen**2 - regime.error**2)))
    least, most = min(curve.world_sizes), max(curve.world_sizes)
    return math.hypot(regime.error, between * (1 + max(0.0, math.log2(ranks / most), math.log2(least / ranks))))


def _listed(numbers: Sequence[int]) -> str:
    """Returns numbers as a list in words, such as "2, 3 and 4"."""
    *others, last = map(str, numbers)
    return f"{', '.join(others)} and {last}" if others else last


def _twin(message: Message) -> tuple[str, int, int, float]:
    """(kind, bytes, ranks, error) of the measured collective that moves what this one does."""
    if message.kind == "permute":
        return "all_to_all", 2 * message.bytes, 2, PERMUTED
    if message.kind == "broadcast":
        return "all_gather", message.bytes, message.world_size, PERMUTED
    return message.kind, message.bytes, message.world_size, 0.0


def _links(message: Message, topology: Topology) -> str:
    nodes = nodes_of(message, topology)
    inside = f"{topology.link} at {topology.link_gb_s:.4g} GB/s"
    gpus = math.ceil(message.world_size / nodes)
    leaving = topology.leaving_gb_s(gpus) / gpus
    return inside if nodes == 1 else f"{inside} and {leaving:.4g} GB/s per GPU between {nodes} nodes"
