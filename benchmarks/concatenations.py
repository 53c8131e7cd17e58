"""Concatenations whose segments share values: the gradients of a gate, the gradients of an LSTM's gates, a rotation.

    python -m benchmarks.concatenations [--dtype float32] [--device cuda] [--peers eager litz] [CASE ...]

Eager, Inductor and litz in turns in one process. A line for each case: milliseconds of the forward alone, and of the
forward with its backward. On a GPU a spin hides the host (`benchmarks.device_time`). The GPU's cases have the sizes of
a layer of a large model, the CPU's of a small one. On one core of a CPU all cases take two minutes with compiling.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .device_time import in_turn

PEERS = ("eager", "inductor", "litz")
Sizes = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class Case:
    """A function and the sizes of its arguments. differentiated: the number of arguments, from the first on, that
    need a gradient."""

    function: Callable[..., Tensor]
    on_gpu: Sizes
    on_cpu: Sizes
    differentiated: int = 1


def geglu(x: Tensor) -> Tensor:
    h, g = x.chunk(2, -1)
    return h * F.gelu(g)


def swiglu(x: Tensor) -> Tensor:
    h, g = x.chunk(2, -1)
    return h * F.silu(g)


def biased_geglu(x: Tensor, bias: Tensor) -> Tensor:
    return geglu(x + bias)


def rotation(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def cell(x: Tensor, state: Tensor) -> Tensor:
    i, f, z, o = x.chunk(4, -1)
    return o.sigmoid() * (f.sigmoid() * state + i.sigmoid() * z.tanh()).tanh()


def _rotated(size: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Sizes of the queries, and of the cosines and sines of their positions."""
    return [size, size[-2:], size[-2:]]


CASES: Mapping[str, Case] = {
    "geglu": Case(geglu, [(32768, 6144)], [(4096, 1536)]),
    "swiglu": Case(swiglu, [(16384, 16384)], [(4096, 2048)]),
    "geglu of a bias": Case(biased_geglu, [(32768, 6144), (6144,)], [(4096, 1536), (1536,)], differentiated=2),
    "rotation": Case(rotation, _rotated((8, 32, 2048, 128)), _rotated((4, 16, 512, 128))),
    "rotation of 32": Case(rotation, _rotated((8, 32, 8192, 32)), _rotated((8, 16, 512, 32))),
    "LSTM": Case(cell, [(16384, 8192), (16384, 2048)], [(1024, 2048), (1024, 512)]),
}


def steps(case: Case, args: Sequence[Tensor], backward: bool, peers: Sequence[str]) -> dict[str, Callable[[], object]]:
    """A step of each peer, which has run before."""
    found: dict[str, Callable[[], object]] = {}
    for peer in peers:
        torch._dynamo.reset()
        own = case.function if peer == "eager" else torch.compile(case.function, backend=peer, dynamic=False)

        def step(own: Callable[..., Tensor] = own) -> object:
            if not backward:
                with torch.no_grad():
                    return own(*args)
            out = own(*args)
            return torch.autograd.grad(out, [x for x in args if x.requires_grad], torch.ones_like(out))

        for _ in range(3):
            step()
        found[peer] = step
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.concatenations", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=3, help="of measuring, for each pair of figures")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    options = parser.parse_args(argv)
    unknown = set(options.cases) - CASES.keys()
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}: there are {', '.join(CASES)}")
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    print(f"{'':17}" + "".join(f"{peer:>10}{'':9}" for peer in options.peers))
    print(f"{'ms':17}" + len(options.peers) * "  forward  with b.")
    for name in options.cases or CASES:
        case = CASES[name]
        sizes = case.on_gpu if device.type == "cuda" else case.on_cpu
        args = [torch.randn(size, device=device, dtype=dtype) for size in sizes]
        for x in args[: case.differentiated]:
            x.requires_grad_()
        both = (steps(case, args, backward, options.peers) for backward in (False, True))
        times = [in_turn(each, device, options.seconds) for each in both]
        cells = (f"{each[peer]:9.2f}" for peer in options.peers for each in times)
        print(f"{name:17}{''.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
