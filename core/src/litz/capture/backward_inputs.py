"""What a backward graph is called with: dynamo guards the inputs of a forward graph, and nobody those of a backward.

In: a compiled backward and the fake inputs that it was compiled for. Out: a callable that also takes gradients with the
negative bit, as a hook may return them, and, from the first forward under saved-tensor hooks on, whatever those hooks
unpack: the backward gets copies with the traced dtype, device and strides. (`torch.autograd.graph.save_on_cpu` unpacks
contiguous tensors, say.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from litz.capture import torch_api

Compiled = Callable[[list[Any]], Sequence[Any]]


class SavedTensorHooks:
    """Whether a forward was ever called under saved-tensor hooks, so that its backward has to look at each tensor."""

    def __init__(self) -> None:
        self.seen = False

    def watching(self, forward: Compiled) -> Compiled:
        """`forward`, which notes the hooks that it is called under."""

        def call(args: list[Any]) -> Sequence[Any]:
            if torch_api.saved_tensor_hooks_active():
                self.seen = True
            return forward(args)

        return call


def as_traced(
    backward: Compiled,
    nodes: Sequence[torch.fx.Node],
    examples: Sequence[Any],
    hooks: SavedTensorHooks,
    owned: frozenset[int] = frozenset(),
) -> Compiled:
    """`backward`, for tensors like those it was compiled for. nodes, examples: its inputs, in FX and fake. owned: those
    that it may write over, which a hook's author may hold, too."""
    tensors = [at for at, value in enumerate(examples) if isinstance(value, torch.Tensor)]
    gradients = [at for at in tensors if torch_api.is_tangent(nodes[at])]

    def call(args: list[Any]) -> Sequence[Any]:
        for at in gradients:
            if args[at] is not None and args[at].is_neg():  # None: a gradient that nobody computed
                args[at] = _copied(args[at], args[at].stride(), args[at])
        if hooks.seen:
            sizes = _sizes(args, examples)
            for at in tensors:
                if args[at] is not None:
                    unpacked = args[at]
                    args[at] = _like(unpacked, examples[at], sizes, nodes[at].name)
                    if at in owned and args[at] is unpacked:
                        args[at] = unpacked.clone()
        return backward(args)

    return call


def _like(value: torch.Tensor, example: torch.Tensor, sizes: dict[Any, int], name: str) -> torch.Tensor:
    size, stride = ([_number(n, sizes) for n in numbers] for numbers in (example.shape, example.stride()))
    if list(value.shape) != size:
        raise RuntimeError(f"a saved-tensor hook unpacked sizes {list(value.shape)} for {name}, saved with {size}")
    plain = value.is_neg() == example.is_neg() and value.is_conj() == example.is_conj()
    lies = all(n <= 1 or have == wanted for n, have, wanted in zip(size, value.stride(), stride, strict=True))
    if plain and lies and value.dtype == example.dtype and value.device == example.device:
        return value
    return _copied(value, tuple(stride), example)


def _copied(value: torch.Tensor, stride: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """The elements in memory of their own, without any bit that says to read them otherwise: who expects one of a
    tensor resolves that, which changes nothing then."""
    one = [1 if step == 0 and n > 1 else n for n, step in zip(value.shape, stride, strict=True)]
    fresh = torch.empty_strided(one, tuple(stride), dtype=like.dtype, device=like.device)
    return fresh.copy_(value[tuple(slice(n) for n in one)]).as_strided(value.shape, tuple(stride))


def _sizes(args: Sequence[Any], examples: Sequence[Any]) -> dict[Any, int]:
    """Symbol -> value, of those that are inputs."""
    pairs = zip(examples, args, strict=True)
    return {torch_api.sympy_of(example): value for example, value in pairs if isinstance(example, torch.SymInt)}


def _number(value: Any, sizes: dict[Any, int]) -> int:
    return value if isinstance(value, int) else int(torch_api.sympy_of(value).xreplace(sizes))
