"""A function whose forward and backward are recorded without a GPU, and what tests ask of its recordings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from litz_cudagraphs.recordings import replayed
from litz_plugins import EntryFacts
from support.fake_recordings import Machine

SIZE = 8
FACTS = EntryFacts()


class Layers:
    """depth times `x = sin(x) * w`, in which each sine is saved, and each product, and a tanh, of which the result is
    saved: a function with a forward and a backward that are recorded."""

    def __init__(self, machine: Machine, depth: int = 3, cedes: bool = True) -> None:
        self.machine, self.depth = machine, depth
        saved = frozenset(range(1, 2 * depth + 2)) if cedes else frozenset()
        self.ran = 0
        forward = replace(FACTS, returned_inputs=(None,) * (2 * depth + 2))
        backward = replace(FACTS, made=saved, returned_inputs=(None,) * 2)
        self.forward, self.backward = replayed(self._forward, forward), replayed(self._backward, backward)
        self.function = _autograd(self)

    def __call__(self, x: Tensor, w: Tensor) -> Tensor:
        found: Tensor = self.function.apply(x, w)
        return found

    def _forward(self, args: list[Any]) -> tuple[Any, ...]:
        x, w = args
        args.clear()
        saved: list[Tensor] = []
        for _ in range(self.depth):
            before, sine, product = x, self.machine.empty(SIZE), self.machine.empty(SIZE)
            saved.append(self.machine.empty(SIZE))
            self.machine.launch(lambda to, a: to.copy_(a), saved[-1], before)
            self.machine.launch(lambda to, a: torch.sin(a, out=to), sine, before)
            self.machine.launch(lambda to, a, b: torch.mul(a, b, out=to), product, sine, w)
            saved.append(sine)
            x = product
        out = self.machine.empty(SIZE)
        self.machine.launch(lambda to, a: torch.tanh(a, out=to), out, x)
        return (out, *saved, out)

    def _backward(self, args: list[Any]) -> tuple[Any, ...]:
        self.ran += 1
        w, *saved, grad = args
        args.clear()
        of_w = self.machine.empty(SIZE)
        self.machine.launch(lambda to: to.zero_(), of_w)
        new, out = self.machine.empty(SIZE), saved.pop()
        self.machine.launch(lambda to, a, b: to.copy_(b).pow_(2).neg_().add_(1).mul_(a), new, grad, out)
        grad = new
        del new, out
        for _ in range(self.depth):
            sine, before = saved.pop(), saved.pop()
            term = self.machine.empty(SIZE)
            self.machine.launch(lambda to, a, b: torch.mul(a, b, out=to), term, grad, sine)
            del sine
            total = self.machine.empty(SIZE)
            self.machine.launch(lambda to, a, b: torch.add(a, b, out=to), total, of_w, term)
            of_w = total
            del term, total
            cosine = self.machine.empty(SIZE)
            self.machine.launch(lambda to, a: torch.cos(a, out=to), cosine, before)
            del before
            new = self.machine.empty(SIZE)
            self.machine.launch(lambda to, a, b, c: torch.mul(a, b, out=to).mul_(c), new, grad, cosine, w)
            grad = new
            del new, cosine
        return grad, of_w


def _autograd(layers: Layers) -> Any:
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Any:
            out, *saved = layers.forward([x.detach(), w.detach()])
            ctx.save_for_backward(w, *saved)
            return out

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            args = [
                *(tensor.detach() if n == 0 else tensor for n, tensor in enumerate(ctx.saved_tensors)),
                grad.contiguous(),
            ]
            ctx.maybe_clear_saved_tensors()
            return layers.backward(args)

    return Function


def eagerly(depth: int, x: Tensor, w: Tensor) -> Tensor:
    for _ in range(depth):
        x = x.sin() * w
    return x.tanh()


GRADIENT = torch.linspace(-1, 1, SIZE)


def step(run: Any, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(run(x, w), [x, w], GRADIENT)


def weight() -> Tensor:
    return torch.rand(SIZE).requires_grad_()


def ceded(layers: Layers) -> list[bool]:
    """Of each of the backward's recordings, whether it was ceded memory."""
    return [bool(made.memory.ceded) for made in layers.backward.recordings.values()]


def pools(machine: Machine) -> list[Any]:
    return [arena for arena in machine.arenas.values() if arena.graphs]


def trained(layers: Layers, w: Tensor) -> None:
    for _ in range(3):
        step(layers, torch.rand(SIZE), w)


def kernel(machine: Machine, function: Any, x: Tensor) -> Tensor:
    to = machine.empty(*x.shape)
    machine.launch(lambda to, a: function(a, out=to), to, x)
    return to
