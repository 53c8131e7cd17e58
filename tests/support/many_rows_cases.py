"""Products of many rows with their users, and those that were padded: each as a function of what it is called with.

`python -m support.many_rows_cases SHARD SHARDS` (with TRITON_INTERPRET=1) runs their kernels in Triton's interpreter
against float64 and prints, for each case, "" or what went wrong, as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from litz.ir import KernelCall, Program, Template
from litz.pipeline import make_compiler
from litz.schedule.choices import replacement_of, substituted
from litz_contractions.products import many_rows
from litz_plugins import Estimate
from support.figures import figures_set
from support.interpreted import print_share
from support.kernel_programs import context, randn, run
from support.retarget import cuda_schedules

Tensor = torch.Tensor
HALF = torch.float16


@dataclass(frozen=True)
class Case:
    """fn: of tensors in the order of their first use. offers: are there kernels for it? apart: how many rows apart the
    rows of a tile are. Products are padded wherever litz-layout can."""

    fn: Callable[..., Any]
    make: Callable[[], tuple[Tensor, ...]]
    offers: bool = True
    apart: int = 1

    def programs(self, number: int = 0) -> tuple[Program, Program]:
        """As it was captured, and with one of the kernels in place."""
        torch._dynamo.reset()
        compiler = make_compiler(None, {"disable_plugins": ("autotune", "contractions"), "layout.pad": "always"})
        tensors = self.make()
        with torch.no_grad():
            run = lambda backend: torch.compile(self.fn, backend=backend, dynamic=False)(*tensors)
            (schedule,) = cuda_schedules(run, compiler)
        before = schedule.program
        (template,) = (op for op in before.operations if isinstance(op, Template))
        offers = many_rows.offer_many_rows(template, known(before, template))
        if not offers:
            return before, before
        return before, substituted(before, template, replacement_of(offers[number]))

    def check(self) -> str:
        """ "" or what is wrong with what the kernels compute."""
        torch.manual_seed(0)
        tensors = self.make()
        before, program = self.programs()
        if (program is before) == self.offers:
            return "kernels are offered" if not self.offers else "no kernel is offered"
        if self.offers and self.apart != rows_apart(program):
            return f"rows are {rows_apart(program)} apart"
        (output,) = run(program, tensors)
        wanted = self.fn(*(t.double() for t in tensors))
        error = float((output.double() - wanted).norm() / wanted.norm().clamp_min(1e-9))
        return "" if output.shape == wanted.shape and error < 1e-2 else f"{tuple(output.shape)}, error {error:.2e}"


def rows_apart(program: Program) -> int:
    """How many rows apart those of a tile are, by the name of the one kernel of the program."""
    (call,) = program.operations
    assert isinstance(call, KernelCall) and call.source is not None
    found = re.search(r"_apart(\d+)", call.source.symbol)
    return int(found[1]) if found else 1


def known(program: Program, template: Template) -> Any:
    """Where the product is asked for choices, with something that knows what operations take."""
    return replace(context(program, template), estimate=lambda operation: Estimate(100.0, 90.0, 110.0, "told"))


def padded(x: Tensor, w: Tensor) -> Tensor:
    """Columns that are no multiple of 8, as a linear layer has them: the layout plugin pads them."""
    return F.linear(x, w)


def padded_with_bias(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, w, b)


def _plain(m: int, k: int, n: int, dtype: torch.dtype = HALF) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (randn(m, k, dtype=dtype), randn(k, n, dtype=dtype) / k**0.5)


def _three(m: int, k: int, n: int, *last: int, dtype: torch.dtype = HALF) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (randn(m, k, dtype=dtype), randn(k, n, dtype=dtype) / k**0.5, randn(*last, dtype=dtype))


def _linear(m: int, k: int, n: int, dtype: torch.dtype = HALF) -> tuple[Tensor, ...]:
    return randn(m, k, dtype=dtype), randn(n, k, dtype=dtype) / 8, randn(n, dtype=dtype)


BF16 = torch.bfloat16
SMALL = many_rows.Tile(32, 32, 2, 4, 1.0)
UNALIGNED = (replace(SMALL, apart=True), SMALL)
"""Tiles that small products fill."""

CASES: Mapping[str, Case] = {
    "relu": Case(lambda a, b: F.relu(a @ b), _plain(40, 64, 72)),
    "relu-bf16": Case(lambda a, b: F.relu(a @ b), _plain(64, 40, 128, BF16)),
    "bias-gelu": Case(lambda a, b, c: F.gelu(a @ b + c), _three(100, 64, 64, 64)),
    "residual": Case(lambda a, b, c: a @ b + c, _three(33, 96, 40, 33, 40)),
    "residual-of-a-transpose": Case(lambda a, b, c: a @ b + c.t(), _three(48, 64, 40, 40, 48)),
    "sum-of-rows-too": Case(lambda a, b: (a @ b).sum(-1), _plain(40, 64, 72), offers=False),
    "alone": Case(lambda a, b: a @ b, _plain(40, 64, 72), offers=False),
    "few-rows": Case(lambda a, b: F.relu(a @ b), _plain(16, 64, 72), offers=False),
    "no-depth": Case(lambda a, b: F.relu(a @ b), _plain(40, 0, 72), offers=False),
    "odd-depth": Case(lambda a, b: F.relu(a[:, 1:] @ b[1:]), _plain(40, 65, 72), offers=False),
    "float32": Case(lambda a, b: F.relu(a @ b), _plain(40, 64, 72, torch.float32), offers=False),
    "padded": Case(padded, lambda: (randn(70, 64, dtype=HALF), randn(67, 64, dtype=HALF) / 8)),
    "padded-bf16": Case(padded, lambda: (randn(33, 40, dtype=BF16), randn(129, 40, dtype=BF16) / 8)),
    "padded-of-a-batch": Case(padded, lambda: (randn(2, 20, 64, dtype=HALF), randn(67, 64, dtype=HALF) / 8)),
    "apart": Case(padded, lambda: (randn(136, 64, dtype=HALF), randn(67, 64, dtype=HALF) / 8), apart=8),
    "apart-bf16": Case(padded, lambda: (randn(256, 40, dtype=BF16), randn(129, 40, dtype=BF16) / 8), apart=8),
    "four-apart": Case(padded, lambda: (randn(132, 64, dtype=HALF), randn(70, 64, dtype=HALF) / 8), apart=4),
    "two-apart": Case(padded, lambda: (randn(70, 64, dtype=HALF), randn(92, 64, dtype=HALF) / 8), apart=2),
    "apart-of-a-batch": Case(padded, lambda: (randn(2, 160, 64, dtype=HALF), randn(31, 64, dtype=HALF) / 8), apart=8),
    "apart-of-a-slice": Case(
        lambda x, w: F.linear(x[:, 8:72], w),
        lambda: (randn(136, 80, dtype=HALF), randn(33, 64, dtype=HALF) / 8),
        apart=8,
    ),
    "padded-bias": Case(padded_with_bias, lambda: _linear(70, 64, 67)),
    "padded-bias-bf16": Case(padded_with_bias, lambda: _linear(256, 40, 129, BF16)),
    "padded-bias-of-a-batch": Case(
        padded_with_bias,
        lambda: (randn(2, 20, 64, dtype=HALF), randn(67, 64, dtype=HALF) / 8, randn(67, dtype=HALF)),
    ),
    "bias-that-was-shorter": Case(
        lambda w, b, x: F.linear(x, F.pad(w, (0, 0, 0, 5)), F.pad(b, (0, 12)))[:, :67].contiguous(),
        lambda: (randn(67, 64, dtype=HALF) / 8, randn(60, dtype=HALF), randn(70, 64, dtype=HALF)),
        offers=False,
    ),
    "padded-depth": Case(padded, lambda: (randn(70, 61, dtype=HALF), randn(67, 61, dtype=HALF) / 8), offers=False),
}


if __name__ == "__main__":
    tiles = {"many_rows__tiles": (SMALL,), "many_rows__unaligned_tiles": UNALIGNED}
    with figures_set(**tiles, many_rows__least_filled_share=0.0):
        print_share(CASES)
