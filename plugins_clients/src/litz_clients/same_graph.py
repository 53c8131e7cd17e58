"""When two graphs are one: equal layers of a model compile once.

In: a graph that dynamo captured, and its example inputs. Out: a hashable key; graphs of one process with equal keys
compute the same function of inputs of the same kind.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import fx


class _NoKey(Exception):
    """Something in the graph cannot be compared."""


def graph_key(gm: fx.GraphModule, inputs: Sequence[Any]) -> Hashable | None:
    """Returns what tells this graph from others in this process, or None where no key can.

    Functions count by identity, nodes by position, and tensors by size, stride, offset, type, device and by which
    inputs share memory. A graph with attributes of its own (constants, submodules) has no key.
    """
    places: dict[fx.Node, int] = {}
    nodes = []
    try:
        for node in gm.graph.nodes:
            if node.op not in ("placeholder", "call_function", "call_method", "output"):
                return None
            target = None if node.op in ("placeholder", "output") else node.target
            kwargs = sorted(node.kwargs.items())
            nodes.append((node.op, target, _plain(node.args, places), _plain(kwargs, places)))
            places[node] = len(places)
        key = (tuple(nodes), _kinds(inputs))
        hash(key)
    except (_NoKey, TypeError):
        return None
    return key


def _plain(value: Any, places: dict[fx.Node, int]) -> Hashable:
    if isinstance(value, fx.Node):
        return ("node", places[value])
    if isinstance(value, (list, tuple)):
        return (type(value), *(_plain(item, places) for item in value))
    if isinstance(value, slice):
        return (slice, *(_plain(item, places) for item in (value.start, value.stop, value.step)))
    if isinstance(value, dict):
        return (dict, *((name, _plain(item, places)) for name, item in value.items()))
    if isinstance(value, float):
        return (float, value.hex())  # 0.0 and -0.0 differ, and NaN equals itself
    if isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise _NoKey
    return (type(value), value)  # 1, 1.0 and True are equal to Python


def _kinds(inputs: Sequence[Any]) -> Hashable:
    memory: dict[int, int] = {}
    return tuple(_kind(value, memory) for value in inputs)


def _kind(value: Any, memory: dict[int, int]) -> Hashable:
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            raise _NoKey
        storage = memory.setdefault(value.untyped_storage()._cdata, len(memory))
        numbers = (*value.shape, None, *value.stride(), value.storage_offset())
        flags = (value.requires_grad, value.is_conj(), value.is_neg(), isinstance(value, torch.nn.Parameter))
        return (value.dtype, value.device, tuple(map(_number, numbers)), storage, flags)
    if isinstance(value, (int, float, bool, torch.SymInt)) or value is None:
        return (type(value), _number(value))
    raise _NoKey


def _number(value: Any) -> Hashable:
    """A size as it is; of a symbolic size its expression and whose symbols those are, which the key keeps alive."""
    if isinstance(value, torch.SymInt):
        return (value.node.expr, value.node.shape_env)
    return value.hex() if isinstance(value, float) else value
