"""Concatenations of parts that share what they are made of: the gradients of a gate, of an LSTM's gates, a rotation.

    python -m benchmarks.concatenations [--dtype float32] [--device cuda] [--seconds 3] [CASE ...]

Eager, Inductor and litz in turns in one process. A line for each case: milliseconds of the forward alone, and of the
forward with its backward. On a GPU the host is hidden behind a spin (`benchmarks.device_time`). Sizes are a layer's: of
a large model on a GPU, of a small one on the CPU. On one core of a CPU all cases take two minutes, compiling included.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .device_time import in_turn

PEERS = ("eager", "inductor", "litz")
Make = Callable[[bool], Sequence[tuple[int, ...]]]
"""Sizes of the arguments, on a GPU or else on the CPU. The first needs a gradient, and so has a bias after it."""


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
    """Of queries, and the cosines and sines of positions."""
    return [size, size[-2:], size[-2:]]


CASES: Mapping[str, tuple[Callable[..., Tensor], Make]] = {
    "geglu": (geglu, lambda gpu: [(32768, 6144) if gpu else (4096, 1536)]),
    "swiglu": (swiglu, lambda gpu: [(16384, 16384) if gpu else (4096, 2048)]),
    "geglu of a bias": (biased_geglu, lambda gpu: [(32768, 6144), (6144,)] if gpu else [(4096, 1536), (1536,)]),
    "rotation": (rotation, lambda gpu: _rotated((8, 32, 2048, 128) if gpu else (4, 16, 512, 128))),
    "rotation of 32": (rotation, lambda gpu: _rotated((8, 32, 8192, 32) if gpu else (8, 16, 512, 32))),
    "LSTM": (cell, lambda gpu: [(16384, 8192), (16384, 2048)] if gpu else [(1024, 2048), (1024, 512)]),
}  # fmt: skip


def steps(function: Callable[..., Tensor], args: Sequence[Tensor], backward: bool) -> dict[str, Callable[[], object]]:
    """A step of each peer, which has run before."""
    found: dict[str, Callable[[], object]] = {}
    for peer in PEERS:
        torch._dynamo.reset()
        own = function if peer == "eager" else torch.compile(function, backend=peer, dynamic=False)

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
    options = parser.parse_args(argv)
    unknown = set(options.cases) - CASES.keys()
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}: there are {', '.join(CASES)}")
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    print(f"{'':17}" + "".join(f"{peer:>10}{'':9}" for peer in PEERS) + "\n" + f"{'ms':17}" + 3 * "  forward  with b.")
    for name in options.cases or CASES:
        function, make = CASES[name]
        args = [torch.randn(size, device=device, dtype=dtype) for size in make(device.type == "cuda")]
        for x in args[: 2 if "bias" in name else 1]:
            x.requires_grad_()
        times = [in_turn(steps(function, args, backward), device, options.seconds) for backward in (False, True)]
        cells = (f"{each[peer]:9.2f}" for peer in PEERS for each in times)
        print(f"{name:17}{''.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
