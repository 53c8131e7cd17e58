"""Functions that eager, Inductor and litz run in turns in one process, for benchmarks that are tables of cases.

Out: a line for each case: milliseconds of the forward alone, and of the forward with its backward. On a GPU a spin
hides the host (`benchmarks.device_time`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .device_time import in_turn
from .record import add_option, recorder

PEERS = ("eager", "inductor", "litz")
Sizes = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class Case:
    """A function and the sizes of its arguments. differentiated: the number of arguments, from the first on, that
    need a gradient. channels_last: how arguments of four dimensions lie in memory."""

    function: Callable[..., Tensor]
    on_gpu: Sizes
    on_cpu: Sizes
    differentiated: int = 1
    channels_last: bool = False


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


def arguments(case: Case, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """Random numbers, those that are differentiated with a gradient."""
    found = []
    for number, size in enumerate(case.on_gpu if device.type == "cuda" else case.on_cpu):
        x = torch.randn(size, device=device, dtype=dtype)
        if case.channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        found.append(x.requires_grad_(number < case.differentiated))
    return found


def print_table(name: str, about: str, cases: Mapping[str, Case], argv: Sequence[str] | None) -> None:
    """Print the table of a benchmark. name: of its module. about: what it measures, in a line."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(cases)}")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=3, help="of measuring, for each pair of figures")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    add_option(parser)
    options = parser.parse_args(argv)
    unknown = set(options.cases) - cases.keys()
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}: there are {', '.join(cases)}")
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    record = recorder(options.json, name, device, argv)
    width = max(map(len, cases)) + 1
    print(f"{'':{width}}" + "".join(f"{peer:>10}{'':9}" for peer in options.peers))
    print(f"{'ms':{width}}" + len(options.peers) * "  forward  with b.")
    for each in options.cases or cases:
        args = arguments(cases[each], device, dtype)
        both = (steps(cases[each], args, backward, options.peers) for backward in (False, True))
        times = [in_turn(of, device, options.seconds) for of in both]
        cells = (f"{of[peer]:9.2f}" for peer in options.peers for of in times)
        print(f"{each:{width}}{''.join(cells)}", flush=True)
        measure = "kernel_ms" if device.type == "cuda" else "wall_ms"
        for part, of in zip(("forward", "forward and backward"), times, strict=True):
            peers = {peer: {measure: of[peer]} for peer in options.peers}
            record(task="kernels", case=f"{name} {each}, {part}, {options.dtype}", dtype=options.dtype, peers=peers)
