"""What a Collective of the IR sends. In: the operation and its program. Out: a `Message`, None if its group is unknown.

Depends on the operation alone, so that every rank makes the same of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

from litz.ir import Collective, Program, TensorRef
from litz.ir.arguments import leaves

from .nccl import Message
from .topology import Topology

Side = Literal["reads", "writes"]

OPS: Mapping[str, tuple[str, Side]] = {
    "all_reduce": ("all_reduce", "reads"),
    "all_gather_into_tensor": ("all_gather", "writes"),
    "reduce_scatter_tensor": ("reduce_scatter", "reads"),
    "all_to_all_single": ("all_to_all", "reads"),
    "broadcast": ("broadcast", "reads"),
}
"""Op -> (kind of message, which of its buffers are the message as nccl-tests counts it)."""

VARIANTS = ("_out", "_", "_coalesced")
"""Endings of an op's name that change where results go or how many tensors one launch takes, not what is sent."""


def op_kind(operation: Collective) -> tuple[str, Side] | None:
    """Returns the row of `OPS` for an operation; None for an op that is not in it."""
    name = operation.target_name.split(".")[1] if "." in operation.target_name else operation.target_name
    for ending in VARIANTS:
        name = name.removesuffix(ending)
    return OPS.get(name)


def message_of(operation: Collective, program: Program) -> Message | None:
    """Returns the message of an operation, or None. A coalesced group is one message, as NCCL launches one kernel."""
    row = op_kind(operation)
    if row is None or not operation.ranks:
        return None
    kind, side = row
    world_size = len(operation.ranks)
    given = [ref for ref in leaves(operation.args) if isinstance(ref, TensorRef)]
    out = [ref for ref in leaves(operation.kwargs) if isinstance(ref, TensorRef)]
    size = _sent(given, program) if side == "reads" else _bytes(operation.writes, program)
    if side == "writes" and operation.target_name.endswith("_out.default"):
        size = _sent(out, program)  # which may be a part of the memory that it writes
    if kind == "all_to_all" and _has_one_peer(operation):
        return Message("permute", max(size, _bytes(operation.writes, program)), world_size)
    return Message(kind, size, world_size)


def placed(message: Message, operation: Collective, topology: Topology) -> Message:
    """Returns the message with the number of nodes that the operation's group lies on."""
    return replace(message, nodes=nodes_under(operation.ranks, topology))


def nodes_under(ranks: Iterable[int], topology: Topology) -> int:
    """Returns the number of nodes that a group lies on, where the job's ranks fill one node after the other, as
    torchrun starts them."""
    return len({rank // topology.gpus_per_node for rank in ranks})


def _has_one_peer(operation: Collective) -> bool:
    """Returns whether each rank sends to one rank at most and hears from one at most, as with `permute_tensor`."""
    peers = [[size for size in part if size != 0] for part in operation.args[1:3] if isinstance(part, (list, tuple))]
    return len(peers) == 2 and all(len(sizes) <= 1 for sizes in peers) and any(peers)


def _sent(refs: Iterable[TensorRef], program: Program) -> int:
    return sum(program.hint(ref.layout.numel) * program.buffers[ref.buffer].dtype.itemsize for ref in refs)


def _bytes(names: Iterable[str], program: Program) -> int:
    buffers = (program.buffers[name] for name in names)
    return sum(program.hint(buffer.layout.numel) * buffer.dtype.itemsize for buffer in buffers)
