"""What NCCL does with a message: a small re-statement of its tuner. In: a message and a topology. Out: candidates.

Each algorithm and protocol is a candidate with the time that NCCL's tuner expects of it, which is

    base latency + hops * hop latency + bytes / (bandwidth * share of the bytes that a link carries)

and NCCL runs the one with the least. Its expectation is meant for choosing, and is off by half for times on their own;
`model` therefore takes measured curves where there are some.
Source: NCCL 2.19 to 2.28, src/graph/tuning.cc, ncclTopoTuneModel and ncclTopoGetAlgoTime.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from .tables import (
    BASE_LATENCY,
    HARDWARE_LATENCY,
    LL_MAX_BANDWIDTH,
    NVLS_EFFICIENCY,
    RING_LL128_PER_CHANNEL,
    TREE_LL128_PER_CHANNEL,
    TREE_PER_CHANNEL,
    Algorithm,
    Link,
    Protocol,
)
from .topology import Topology

KINDS: Mapping[str, tuple[int, int]] = {
    "all_reduce": (2, -2),
    "all_gather": (1, -1),
    "reduce_scatter": (1, -1),
    "broadcast": (1, 0),
    "all_to_all": (1, -1),
    "permute": (0, 1),
}
"""Kind -> (a, b): its ring takes a * n + b steps on n ranks, and each link carries (a * n + b) / n of the bytes.

A permutation is one hop that carries everything, whatever n."""

CHANNELS = 24
"""Channels that NCCL opens over NVLink on Ampere and later; the per-channel limits bind from there on."""


@dataclass(frozen=True)
class Message:
    """A collective of a kind of `KINDS`, on `world_size` ranks. bytes: as nccl-tests counts: the buffer of an
    all_reduce or broadcast, the whole output of an all_gather, the whole input of a reduce_scatter or all_to_all.
    nodes: on how many the ranks are; 0 for as few as hold them."""

    kind: str
    bytes: int
    world_size: int
    nodes: int = 0


@dataclass(frozen=True)
class Candidate:
    """An algorithm and protocol, and the microseconds that NCCL's tuner expects of it."""

    algorithm: str
    protocol: str
    us: float


def ring_steps(kind: str, world_size: int) -> int:
    """Returns how many hops the last byte makes around the ring."""
    per_rank, rest = KINDS[kind]
    return per_rank * world_size + rest


def wire_share(kind: str, world_size: int) -> float:
    """Returns the share of the message's bytes that each GPU sends."""
    return 1.0 if kind == "permute" else ring_steps(kind, world_size) / world_size


def nodes_of(message: Message, topology: Topology) -> int:
    """Returns on how many nodes a message's ranks are."""
    return message.nodes or math.ceil(message.world_size / topology.gpus_per_node)


def candidates(message: Message, topology: Topology) -> tuple[Candidate, ...]:
    """Returns every way that NCCL may take, the fastest, which NCCL takes, first."""
    if message.kind in ("all_to_all", "permute"):
        return (_point_to_point(message, topology),)
    ways = [_ring(message, topology, protocol) for protocol in Protocol]
    if message.kind == "all_reduce":
        ways += [_tree(message, topology, protocol) for protocol in Protocol]
        ways += _nvls(message, topology)
    if topology.link == "PCI":  # LL128 counts on 128-byte stores arriving whole, which only NVLink promises
        ways = [way for way in ways if way.protocol != "LL128"]
    return tuple(sorted(ways, key=lambda way: way.us))


def _bandwidth(message: Message, topology: Topology) -> float:
    """GB/s of all channels together: a ring enters and leaves each node over the network cards of the group's GPUs. A
    group with one GPU in each node, as FSDP across nodes of tensor parallel ranks has, sends nothing over the links."""
    nodes, local = nodes_of(message, topology), topology.link_gb_s
    if nodes == 1:
        return local
    inside = math.ceil(message.world_size / nodes)
    leaving = topology.leaving_gb_s(inside)
    return leaving if inside == 1 else min(local, leaving)


def _links(topology: Topology) -> Link:
    return Link.PCI if topology.link == "PCI" else Link.NVLINK


def _ring(message: Message, topology: Topology, protocol: Protocol) -> Candidate:
    nodes, row = nodes_of(message, topology), topology.row
    bandwidth = _bandwidth(message, topology)
    if protocol is Protocol.LL:
        bandwidth = min(LL_MAX_BANDWIDTH[row][min(nodes, 3) - 1], bandwidth * 0.5)
    elif protocol is Protocol.LL128:
        bandwidth = min(bandwidth * 0.92, CHANNELS * RING_LL128_PER_CHANNEL[row])
    steps = ring_steps(message.kind, message.world_size)
    between = 0 if nodes == 1 else max(1, steps * nodes // message.world_size)
    hop, net = HARDWARE_LATENCY[_links(topology)], HARDWARE_LATENCY[Link.NET]
    latency = BASE_LATENCY[Algorithm.RING][protocol]
    latency += (steps - between) * hop[Algorithm.RING][protocol] + between * net[Algorithm.RING][protocol]
    wire = message.bytes * wire_share(message.kind, message.world_size)
    return Candidate("ring", _name(protocol), latency + wire / (bandwidth * 1e3))


def _tree(message: Message, topology: Topology, protocol: Protocol) -> Candidate:
    nodes, row = nodes_of(message, topology), topology.row
    column, bandwidth = min(nodes, 3) - 1, _bandwidth(message, topology)
    bandwidth = min(bandwidth * 0.92, CHANNELS * TREE_PER_CHANNEL[row][column])
    if protocol is Protocol.LL:
        bandwidth = min(bandwidth / 3.8, LL_MAX_BANDWIDTH[row][column])
    elif protocol is Protocol.LL128:
        bandwidth = min(bandwidth * 7 / 9, CHANNELS * TREE_LL128_PER_CHANNEL[row][column])
    hop, net = HARDWARE_LATENCY[_links(topology)], HARDWARE_LATENCY[Link.NET]
    inside = math.ceil(message.world_size / nodes) - 1
    latency = BASE_LATENCY[Algorithm.TREE][protocol] + 2 * (
        inside * hop[Algorithm.TREE][protocol] + math.log2(nodes) * net[Algorithm.TREE][protocol]
    )
    # Up and down again: every byte passes each link twice.
    return Candidate("tree", _name(protocol), latency + 2 * message.bytes / (bandwidth * 1e3))


def _nvls(message: Message, topology: Topology) -> list[Candidate]:
    efficiency = NVLS_EFFICIENCY[topology.row]
    several = nodes_of(message, topology) > 1
    if not (topology.nvls and efficiency) or several or topology.link == "PCI" or message.world_size < 3:
        return []
    bandwidth = topology.link_gb_s * efficiency * (message.world_size - 1) / message.world_size
    latency = HARDWARE_LATENCY[Link.NVLINK][Algorithm.NVLS][Protocol.SIMPLE]
    return [Candidate("nvls", "Simple", latency + message.bytes / (bandwidth * 1e3))]


def _point_to_point(message: Message, topology: Topology) -> Candidate:
    """Sends and receives, all at a time: what leaves the node and what stays in it go side by side."""
    n, nodes = message.world_size, nodes_of(message, topology)
    local = math.ceil(n / nodes)
    link = Link.NET if nodes > 1 else _links(topology)
    latency = BASE_LATENCY[Algorithm.RING][Protocol.SIMPLE] + HARDWARE_LATENCY[link][Algorithm.RING][Protocol.SIMPLE]
    if message.kind == "permute":
        inside, outside = (message.bytes, 0) if nodes == 1 else (0, message.bytes)
    else:
        inside, outside = message.bytes * (local - 1) // n, message.bytes * (n - local) // n
    alone = topology.leaving_gb_s(local) / local  # a GPU's share of the rails, while its neighbours send too
    transfer = max(inside / topology.link_gb_s, outside / alone) / 1e3
    return Candidate("p2p", "Simple", latency + transfer)


def _name(protocol: Protocol) -> str:
    return {Protocol.LL: "LL", Protocol.LL128: "LL128", Protocol.SIMPLE: "Simple"}[protocol]
