"""Random ops as eager draws them: which ops they are, and a trace that keeps each of them, once, where eager has it.

torch's own tools take liberties with random ops while they trace: dropout is another op than in eager, a draw that
nobody reads is dropped, one of the backward may move to the forward, and recomputed ones draw from generators of their
own. `random_as_in_eager` takes these liberties back.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator, OpOverload

from .rules import Rules, traced_by
from .settings import functorch_settings


def is_random(target: Any) -> bool:
    """Returns whether two calls of `target` with the same arguments may differ."""
    return isinstance(target, OpOverload) and (
        torch.Tag.nondeterministic_seeded in target.tags or target.name().startswith("rngprims::")
    )


def is_random_draw(target: Any) -> bool:
    """Returns whether `target` is random and draws by itself, where others are made of ops that draw."""
    return is_random(target) and not target.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd)


@contextlib.contextmanager
def random_as_in_eager() -> Iterator[None]:
    """Makes tracing keep the random ops that eager calls, while the context is entered."""
    import torch.fx.node

    # Recomputed ops draw from the state that the generator had in the forward, not from a generator of their own.
    shared = functorch_settings(graphsafe_rng_functionalization=False)
    kept = _AndRandom(torch.fx.node._side_effectful_functions)
    with shared, mock.patch.object(torch.fx.node, "_side_effectful_functions", kept), traced_by(_RULES):
        yield


class _AndRandom:
    """The ops that FX may not drop: `torchs` and, in this thread, every random op. Torch keeps what is added later."""

    def __init__(self, torchs: set[Any]) -> None:
        self._torchs, self._thread = torchs, threading.get_ident()

    def __contains__(self, target: object) -> bool:
        return target in self._torchs or (threading.get_ident() == self._thread and is_random(target))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torchs, name)


def _bernoulli_in_place(x: torch.Tensor, p: float = 0.5, *, generator: torch.Generator | None = None) -> torch.Tensor:
    """`x.bernoulli_(p)` in functional ops. The op draws in the order of memory, and `torch.bernoulli(x, p)`, which
    tracing makes of the op, row by row whatever the strides."""
    dims = list(range(x.dim()))
    order = sorted(dims, key=x.stride, reverse=True)
    if order == dims:
        return x.copy_(torch.ops.aten.bernoulli.p(x, p, generator=generator))
    drawn = torch.ops.aten.bernoulli.p(x.permute(order), p, generator=generator)
    return x.copy_(drawn.permute([order.index(dim) for dim in dims]))


_RULES: Rules = (
    # torch traces dropout as `native_dropout` on every device. Eager calls that on CUDA only, and multiplies with noise
    # on the CPU: without a rule of Python's, tracing does what eager does.
    (torch.ops.aten.dropout.default, None),
    (torch.ops.aten.bernoulli_.float, _bernoulli_in_place),
)
"""How ops are traced: by this function, or by torch's own C++."""


def partition_with_draws(partition: Any) -> Any:
    """`partition`, a function that splits a joint graph into forward and backward, with each random op in the one that
    it was traced in, used or not. An op that is to be recomputed stays in both."""

    def split(joint: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        nodes = [node for node in joint.graph.nodes if node.op == "call_function"]
        for node in nodes[_forward_count(nodes) :]:
            if is_random(node.target):
                node.meta["partitioner_tag"] = "must_be_in_backward"
        forward, backward = partition(joint, *args, **kwargs)
        drawn = {node.name for node in forward.graph.nodes if is_random(node.target)}
        for node in reversed(backward.graph.nodes):
            # Both get every op whose operands both have.
            if not node.users and (node.name in drawn or _redraws(node)):
                backward.graph.erase_node(node)
        backward.recompile()
        return forward, backward

    return split


def _forward_count(nodes: Sequence[torch.fx.Node]) -> int:
    """Returns how many of a joint graph's calls are the forward's: they were traced first. torch 2.13 tags all of
    these, and 2.11 only calls of the backward; what a custom autograd function does there has no tag in either."""
    tags = [node.meta.get("partitioner_tag") for node in nodes]
    if "is_forward" in tags:
        return len(tags) - tags[::-1].index("is_forward")
    return tags.index("is_backward") if "is_backward" in tags else len(tags)


def _redraws(node: torch.fx.Node) -> bool:
    name = getattr(node.target, "__name__", "")
    return isinstance(node.target, HigherOrderOperator) and name == "run_with_rng_state"
