"""Products of matrices that a model writes out, `(a[:, None] * b[None]).sum(-1)`: eager, `@`, Inductor and litz.

    python -m benchmarks.written_products [--forms rows ...] [--sizes 16 64 256] [--dtypes f32 bf16] [--threads 1]
                                          [--dynamic] [--json FILE]

Every peer has the same operands and runs in turn; the figure is the best of all turns, in microseconds: of the process
where there is one thread, so that what else runs on the machine counts for less, else on the clock. `library` is the
same product as `@`, in eager. `loop` is litz without the pass that makes products of sums. Sizes are the rows, the
columns and the terms. Eager is left out where it would write more than `MOST_WRITTEN` values. Errors are the largest
difference from float64, relative to the largest result: of eager's `@`, of the loop and of litz.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.record import add_option, recorder

DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}
MOST_WRITTEN = 1 << 25
BATCH = 8
VETO: Mapping[str, Any] = {"veto": ("contract_broadcast_products",)}


@dataclass(frozen=True)
class Form:
    """A way to write a product out. written: of the operands. product: the same with `@`. shapes: of the operands, for
    a size; `b` is a batch, `n` the size, a number itself."""

    written: Callable[..., Tensor]
    product: Callable[..., Tensor]
    shapes: tuple[str, str] = ("n n", "n n")

    def operands(self, size: int, dtype: torch.dtype) -> list[Tensor]:
        """Returns the operands, the same in each run."""
        generator = torch.Generator().manual_seed(size)
        known = {"n": size, "b": BATCH}
        shapes = [[known.get(word) or int(word) for word in text.split()] for text in self.shapes]
        return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def gradients(a: Tensor, b: Tensor) -> Tensor:
    """The gradient of the left operand, which is a sum of broadcast products too."""
    a = a.detach().requires_grad_()
    out = (a[:, None] * b[None]).sum(-1)
    return torch.autograd.grad(out.square().sum(), a)[0]


def product_gradients(a: Tensor, b: Tensor) -> Tensor:
    """The same, with `@`."""
    a = a.detach().requires_grad_()
    return torch.autograd.grad((a @ b.t()).square().sum(), a)[0]


FORMS: Mapping[str, Form] = {
    "rows": Form(lambda a, b: (a[:, None] * b[None]).sum(-1), lambda a, b: a @ b.t()),
    "columns": Form(lambda a, b: (a[:, :, None] * b[None]).sum(1), lambda a, b: a @ b),
    "transposed": Form(lambda a, b: (a.t()[:, None] * b.t()[None]).sum(-1), lambda a, b: a.t() @ b),
    "strided": Form(
        lambda a, b: (a[:, None, ::2] * b[None]).sum(-1), lambda a, b: a[:, ::2] @ b.t(), ("n 2048", "n 1024")
    ),
    "batch": Form(lambda a, b: (a[:, :, None] * b[:, None]).sum(-1), lambda a, b: a @ b.mT, ("b n n", "b n n")),
    "shared": Form(lambda a, b: (a[:, :, None] * b).sum(-1), lambda a, b: a @ b.t(), ("b n n", "n n")),
    "in float32": Form(lambda a, b: (a[:, None].float() * b[None].float()).sum(-1).to(a.dtype), lambda a, b: a @ b.t()),
    "vector": Form(lambda a, b: (a * b).sum(-1), lambda a, b: a @ b, ("n n", "n")),
    "few rows": Form(lambda a, b: (a[:, None] * b[None]).sum(-1), lambda a, b: a @ b.t(), ("4 n", "n n")),
    "few columns": Form(lambda a, b: (a[:, None] * b[None]).sum(-1), lambda a, b: a @ b.t(), ("n n", "4 n")),
    "few terms": Form(lambda a, b: (a[:, None] * b[None]).sum(-1), lambda a, b: a @ b.t(), ("n 4", "n 4")),
    "gradients": Form(gradients, product_gradients),
}


def measure(
    form: Form, size: int, dtype: torch.dtype, dynamic: bool, peers: Sequence[str]
) -> tuple[dict[str, float], dict[str, float]]:
    """Returns each peer's microseconds, and its error."""
    given = form.operands(size, dtype)
    exact = form.product(*(one.double() for one in given))
    torch._dynamo.reset()
    kinds: dict[str, Any] = {"dynamic": dynamic}
    calls: dict[str, Callable[..., Tensor]] = {"library": form.product}
    written = exact.numel() * given[0].shape[-1]
    if written <= MOST_WRITTEN:
        calls["eager"] = form.written
    calls["inductor"] = torch.compile(fresh(form.written), **kinds)
    calls["loop"] = torch.compile(fresh(form.written), backend="litz", options=dict(VETO), **kinds)
    calls["litz"] = torch.compile(fresh(form.written), backend="litz", **kinds)
    calls = {name: call for name, call in calls.items() if name in peers}
    errors = {name: _error(call(*given), exact) for name, call in calls.items()}
    return turns({name: partial(call, *given) for name, call in calls.items()}), errors


def fresh(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a function that compiles apart from others of the same code."""

    def called(*given: Tensor) -> Tensor:
        return function(*given)

    called.__code__ = called.__code__.replace(co_name=f"called_{next(_numbers)}")
    return called


_numbers = iter(range(10**9))


def turns(calls: Mapping[str, Callable[[], Tensor]], seconds: float = 1.0) -> dict[str, float]:
    """Returns the best microseconds of a call, of all turns of each peer."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    repeat = {}
    for name, call in calls.items():
        start = time.perf_counter()
        call()
        repeat[name] = max(1, int(2e-3 / (time.perf_counter() - start)))
    best = dict.fromkeys(calls, math.inf)
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < 3 or time.perf_counter() < end:
        rounds += 1
        for name, call in calls.items():
            start = clock()
            for _ in range(repeat[name]):
                call()
            best[name] = min(best[name], (clock() - start) / repeat[name])
    return {name: one * 1e6 for name, one in best.items()}


def _error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).abs().max() / exact.abs().max())


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table; append rows to --json."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.written_products", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--forms", nargs="+", choices=list(FORMS), default=list(FORMS))
    parser.add_argument("--sizes", nargs="+", type=int, default=[16, 32, 64, 128, 256, 512, 1024])
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=["f32"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dynamic", action="store_true")
    names = ["library", "eager", "inductor", "loop", "litz"]
    parser.add_argument("--peers", nargs="+", choices=names, default=names)
    add_option(parser)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    write = recorder(args.json, "written_products", "cpu", argv)
    print(f"{'us':34}" + "".join(f"{name:>11}" for name in args.peers) + "   errors")
    for dtype in args.dtypes:
        for form in args.forms:
            for size in args.sizes:
                us, errors = measure(FORMS[form], size, DTYPES[dtype], args.dynamic, args.peers)
                case = f"{form}, {size}, {dtype}, {args.threads} threads" + ", dynamic" * args.dynamic
                figures = "".join(f"{us.get(name, math.nan):11.1f}" for name in args.peers)
                shown = " ".join(f"{name} {errors[name]:.1e}" for name in ("library", "loop", "litz") if name in errors)
                print(f"{case:34}{figures}   {shown}", flush=True)
                peers = {name: {"wall_ms": us[name] / 1e3, "error": errors[name]} for name in us}
                write(task="products", case=case, dtype=str(DTYPES[dtype])[6:], peers=peers)


if __name__ == "__main__":
    main()
