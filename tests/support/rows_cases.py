"""Products of few rows with converted weights: each as a function of what it is called with.

`python -m support.rows_cases SHARD SHARDS` (with TRITON_INTERPRET=1) runs their kernels in Triton's interpreter against
float64 and prints, for each case, "" or what went wrong, as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

from litz.ir import KernelCall, Operation, Program, Template
from litz.ir.verify import verify
from litz.pipeline import make_compiler
from litz.schedule.choices import replacement_of, substituted
from litz_contractions.products import joined
from litz_contractions.products.rows import offer_rows
from litz_plugins import Estimate
from support.interpreted import print_share
from support.kernel_programs import context, randn, run
from support.retarget import cuda_schedules

Tensor = torch.Tensor
HALF = torch.float16


@dataclass(frozen=True)
class Case:
    """fn: of tensors in the order of their first use. kernels: calls of kernels that take the place of its products.
    stored: weights that are multiplied as they are stored have kernels too. halves: norms of float16 are part of their
    products too, as those of bfloat16 are, which Triton's interpreter does not round but cuts off."""

    fn: Callable[..., Any]
    make: Callable[[], tuple[Tensor, ...]]
    kernels: int
    dynamic: bool = False
    stored: bool = False
    halves: bool = False

    def programs(self) -> tuple[Program, Program]:
        """As it was captured, and with the kernels in place."""
        torch._dynamo.reset()
        compiler = make_compiler(None, {"disable_plugins": ("autotune", "contractions")})
        tensors = self.make()
        with torch.no_grad():
            (schedule,) = cuda_schedules(
                lambda backend: torch.compile(self.fn, backend=backend, dynamic=self.dynamic)(*tensors), compiler
            )
        program = before = schedule.program
        for name in [op.name for op in before.operations if isinstance(op, Template)]:
            template = next((op for op in program.operations if op.name == name), None)
            if isinstance(template, Template):
                known = replace(context(program, template), estimate=self._takes)
                with mock.patch.object(joined, "TYPES", (*joined.TYPES, *[HALF] * self.halves)):
                    offered = offer_rows(template, known)
                for choice in offered:
                    program = substituted(program, template, replacement_of(choice))
        return before, program

    def _takes(self, operation: Operation) -> Estimate | None:
        return Estimate(10.0, 9.0, 11.0, "told") if self.stored else None

    def check(self) -> str:
        """ "" or what is wrong with what the kernels compute."""
        torch.manual_seed(0)
        tensors = self.make()
        _, program = self.programs()
        verify(program)
        kernels = sum(isinstance(op, KernelCall) for op in program.operations)
        if kernels != self.kernels:  # products of one activation are one launch
            return f"{kernels} kernels, should be {self.kernels}"
        outputs = run(program, tensors)
        expected = self.fn(*(t.double() if t.is_floating_point() else t for t in tensors))
        expected = expected if isinstance(expected, (tuple, list)) else (expected,)
        for number, (output, wanted) in enumerate(zip(outputs, expected, strict=True)):
            error = (output.double() - wanted.double()).norm() / wanted.double().norm().clamp_min(1e-9)
            if output.shape != wanted.shape or not error < (1e-2 if output.dtype == torch.bfloat16 else 4e-3):
                return f"output {number}: {tuple(output.shape)}, relative error {error:.2e}"
        return ""


def scaled(w: Tensor, x: Tensor, s: Tensor) -> Tensor:
    return F.linear(x, w.to(x.dtype)) * s


def swiglu(w1: Tensor, x: Tensor, s1: Tensor, w2: Tensor, s2: Tensor) -> Tensor:
    return F.silu(scaled(w1, x, s1)) * scaled(w2, x, s2)


def queries_keys_values(
    w1: Tensor, x: Tensor, s1: Tensor, w2: Tensor, s2: Tensor, w3: Tensor, s3: Tensor
) -> tuple[Tensor, ...]:
    """The first is used before the second is there."""
    q = scaled(w1, x, s1).relu().amax(-1, keepdim=True)
    return q, scaled(w2, x, s2), scaled(w3, x, s3)


def gated(x: Tensor, w1: Tensor, w2: Tensor, s: Tensor) -> Tensor:
    """Weights as they are multiplied; the second product is used twice."""
    gate, up = F.linear(x, w1), F.linear(x, w2)
    return F.gelu(gate) * up + up * s


def gate_seen(w1: Tensor, x: Tensor, s1: Tensor, w2: Tensor, s2: Tensor) -> tuple[Tensor, Tensor]:
    """Someone else reads the second product."""
    gate, up = scaled(w1, x, s1), scaled(w2, x, s2)
    return F.silu(gate) * up, up.sum(-1)


def gated_int4(w1: Tensor, s1: Tensor, x: Tensor, w2: Tensor, s2: Tensor) -> Tensor:
    return F.silu(F.linear(x, unpacked(w1, s1, 32))) * F.linear(x, unpacked(w2, s2, 32))


def unpacked(w: Tensor, s: Tensor, block: int) -> Tensor:
    values = torch.stack((w & 15, w >> 4), -1).reshape(w.shape[0], -1).to(s.dtype) - 8
    return (values.reshape(w.shape[0], -1, block) * s.unsqueeze(-1)).reshape(w.shape[0], -1)


def two_of_int4(w1: Tensor, s1: Tensor, x: Tensor, w2: Tensor, s2: Tensor) -> tuple[Tensor, Tensor]:
    return F.linear(x, unpacked(w1, s1, 32)) + 1, F.linear(x, unpacked(w2, s2, 32))


def of_two_bits(w: Tensor, s: Tensor, x: Tensor) -> Tensor:
    values = torch.stack([(w >> 2 * n) & 3 for n in range(4)], -1).reshape(w.shape[0], -1).to(s.dtype) - 1
    return F.linear(x, values * s.unsqueeze(-1))


def packed_by_halves(w: Tensor, s: Tensor, x: Tensor) -> Tensor:
    """The low bits are the first half of the depth, the high bits the second."""
    values = torch.cat([w & 15, w >> 4], -1).to(s.dtype) - 8
    return F.linear(x, values * s.unsqueeze(-1))


def experts_of_tokens(w: Tensor, chosen: Tensor, x: Tensor) -> Tensor:
    """The weights of the experts that each token goes to, as gpt-fast has it."""
    return torch.einsum("ti,taoi->tao", x, w[chosen]).relu()


def experts_in_int8(x: Tensor, w: Tensor, chosen: Tensor, s: Tensor) -> Tensor:
    return torch.bmm(x.unsqueeze(1), w[chosen].to(x.dtype).transpose(1, 2)).squeeze(1) * s[chosen]


def elements_gathered(w: Tensor, places: Tensor, x: Tensor) -> Tensor:
    """Along the depth: each element would be looked for by itself."""
    return F.linear(x, torch.gather(w, 1, places))


def chained(w1: Tensor, x: Tensor, s1: Tensor, w2: Tensor) -> tuple[Tensor, Tensor]:
    """The second product's weights are made of the first product."""
    y = scaled(w1, x, s1)
    return y, F.linear(x, w2.to(x.dtype) * y.amax())


def norm(x: Tensor, g: Tensor) -> Tensor:
    wide = x.double() if x.dtype == torch.float64 else x.float()
    return g * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def normed(x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    return F.linear(norm(x, g), w) + 1


def normed_pair(x: Tensor, g: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    y = norm(x, g)
    return F.silu(F.linear(y, w1)) * F.linear(y, w2)


def normed_int8(x: Tensor, g: Tensor, w1: Tensor, s1: Tensor, w2: Tensor, s2: Tensor) -> tuple[Tensor, Tensor]:
    y = norm(x, g)
    return scaled(w1, y, s1), scaled(w2, y, s2).relu()


def normed_int4(x: Tensor, g: Tensor, w1: Tensor, s1: Tensor, w2: Tensor, s2: Tensor) -> Tensor:
    y = norm(x, g)
    return F.silu(F.linear(y, unpacked(w1, s1, 32))) * F.linear(y, unpacked(w2, s2, 32))


def norm_seen(x: Tensor, g: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Someone else reads what the norm makes."""
    y = norm(x, g)
    return F.linear(y, w), y


def _normed(n: int, k: int, m: int = 1, dtype: torch.dtype = HALF) -> tuple[Tensor, Tensor, Tensor]:
    return randn(m, k, dtype=dtype) * 3, randn(k, dtype=dtype), randn(n, k, dtype=dtype)


def _int8(*size: int) -> Tensor:
    return randn(*size, dtype=torch.int8)


def _linear(n: int, k: int) -> tuple[Tensor, Tensor]:
    return _int8(n, k), randn(n, dtype=HALF)


def _gated(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (*(randn(*size, dtype=dtype) for size in ((m, k), (n, k), (n, k))), randn(n, dtype=dtype))


def _three(m: int) -> tuple[Tensor, ...]:
    (w1, s1), (w2, s2), (w3, s3) = _linear(130, 96), _linear(40, 96), _linear(40, 96)
    return w1, randn(m, 96, dtype=HALF), s1, w2, s2, w3, s3


def _int4(n: int, k: int) -> tuple[Tensor, Tensor]:
    return torch.randint(0, 255, (n, k // 2), dtype=torch.uint8), randn(n, k // 32, dtype=HALF)


def float8_scaled(w: Tensor, x: Tensor, s: Tensor) -> Tensor:
    """As a weight of float8 with a scale for each row of it is dequantised."""
    return F.linear(x, w.to(x.dtype) * s[:, None])


def float8_blocks(s: Tensor, w: Tensor, x: Tensor) -> Tensor:
    """A scale for each 32 x 32 block."""
    wide = s.repeat_interleave(32, 0).repeat_interleave(32, 1)
    return F.linear(x, (w.to(s.dtype) * wide).to(x.dtype))


def float8_turned(w: Tensor, x: Tensor) -> Tensor:
    """Neighbours in memory are columns."""
    return x @ w.to(x.dtype)


def float8_microscaled(w: Tensor, x: Tensor, s: Tensor) -> Tensor:
    """A power of two for each 32 values of a row."""
    values = w.to(x.dtype).unflatten(1, (-1, 32)) * s.to(x.dtype).unsqueeze(-1)
    return F.linear(x, values.flatten(1))


def _float8(m: int, dtype: torch.dtype, n: int = 70, k: int = 200, half: torch.dtype = HALF) -> tuple[Tensor, ...]:
    return randn(n, k).to(dtype), randn(m, k, dtype=half), randn(n, dtype=half)


CASES: Mapping[str, Case] = {
    "float8": Case(scaled, lambda: _float8(1, torch.float8_e4m3fn), 1),
    "float8-bf16": Case(scaled, lambda: _float8(3, torch.float8_e4m3fn, half=torch.bfloat16), 1),
    "float8-e5m2": Case(scaled, lambda: _float8(2, torch.float8_e5m2), 1),
    "float8-e5m2-bf16": Case(scaled, lambda: _float8(2, torch.float8_e5m2, half=torch.bfloat16), 1),
    "float8-fnuz": Case(scaled, lambda: _float8(2, torch.float8_e4m3fnuz), 1),
    "float8-e5m2fnuz": Case(scaled, lambda: _float8(2, torch.float8_e5m2fnuz), 1),
    "float8-odd-depth": Case(scaled, lambda: _float8(2, torch.float8_e4m3fn, k=99), 1),
    "float8-turned": Case(
        float8_turned, lambda: (randn(96, 70).to(torch.float8_e5m2), randn(3, 96, dtype=torch.bfloat16)), 1
    ),
    "float8-microscaled": Case(
        float8_microscaled,
        lambda: (
            randn(70, 128).to(torch.float8_e4m3fn),
            randn(2, 128, dtype=torch.bfloat16),
            (randn(70, 4).abs() + 0.1).to(torch.float8_e8m0fnu),
        ),
        1,
    ),
    "float8-scaled-first": Case(float8_scaled, lambda: _float8(4, torch.float8_e4m3fn), 1),
    "float8-split": Case(scaled, lambda: _float8(1, torch.float8_e4m3fn, n=64, k=4096), 1),
    "float8-swiglu": Case(
        swiglu,
        lambda: (*_float8(3, torch.float8_e4m3fn, n=64, k=96), *_float8(3, torch.float8_e4m3fn, n=64, k=96)[::2]),
        1,
    ),
    "float8-blocks": Case(
        float8_blocks,
        lambda: (randn(2, 3).abs() + 0.1, randn(64, 96).to(torch.float8_e4m3fn), randn(2, 96, dtype=HALF)),
        1,
    ),
    "one": Case(scaled, lambda: (_int8(70, 200), randn(1, 200, dtype=HALF), randn(70, dtype=HALF)), 1),
    "sixteen": Case(scaled, lambda: (_int8(70, 200), randn(16, 200, dtype=HALF), randn(70, dtype=HALF)), 1),
    "seventeen": Case(scaled, lambda: (_int8(70, 200), randn(17, 200, dtype=HALF), randn(70, dtype=HALF)), 0),
    "one-column": Case(scaled, lambda: (_int8(1, 64), randn(3, 64, dtype=HALF), randn(1, dtype=HALF)), 1),
    "unsigned": Case(
        scaled,
        lambda: (torch.randint(0, 255, (40, 96), dtype=torch.uint8), randn(2, 96, dtype=HALF), randn(40, dtype=HALF)),
        1,
    ),
    "batch": Case(scaled, lambda: (_int8(70, 96), randn(2, 3, 96, dtype=HALF), randn(70, dtype=HALF)), 1),
    "swiglu": Case(
        swiglu, lambda: (_int8(70, 96), randn(2, 96, dtype=HALF), *_linear(70, 96)[1:], *_linear(70, 96)), 1
    ),
    "gated-bf16": Case(gated, lambda: _gated(2, 70, 200, torch.bfloat16), 1, stored=True),
    "gated-half": Case(gated, lambda: _gated(16, 64, 256, HALF), 1, stored=True),
    "gated-of-a-batch": Case(
        swiglu, lambda: (_int8(33, 130), randn(2, 4, 130, dtype=HALF), *_linear(33, 130)[1:], *_linear(33, 130)), 1
    ),
    "normed": Case(normed, lambda: _normed(70, 200), 1, stored=True, halves=True),
    "normed-split": Case(normed, lambda: _normed(64, 2048), 1, stored=True, halves=True),
    "normed-bf16": Case(normed, lambda: _normed(70, 200, dtype=torch.bfloat16), 1, stored=True),
    "normed-half": Case(normed, lambda: _normed(70, 200), 1, stored=True),
    "normed-two-rows": Case(normed, lambda: _normed(70, 200, m=2), 1, stored=True, halves=True),
    "norm-seen": Case(norm_seen, lambda: _normed(70, 200), 1, stored=True, halves=True),
    "normed-pair": Case(
        normed_pair, lambda: (*_normed(70, 200), randn(70, 200, dtype=HALF)), 1, stored=True, halves=True
    ),
    "normed-int8": Case(
        normed_int8, lambda: (*_normed(1, 200)[:2], *_linear(70, 200), *_linear(33, 200)), 1, halves=True
    ),
    "normed-int8-split": Case(
        normed_int8, lambda: (*_normed(1, 2048)[:2], *_linear(70, 2048), *_linear(33, 2048)), 1, halves=True
    ),
    "normed-int4": Case(normed_int4, lambda: (*_normed(1, 128)[:2], *_int4(70, 128), *_int4(70, 128)), 1, halves=True),
    "gate-seen": Case(
        gate_seen, lambda: (_int8(70, 96), randn(2, 96, dtype=HALF), *_linear(70, 96)[1:], *_linear(70, 96)), 1
    ),
    "gated-int4": Case(gated_int4, lambda: (*_int4(70, 128), randn(3, 128, dtype=HALF), *_int4(70, 128)), 1),
    "gated-int4-blocks": Case(gated_int4, lambda: (*_int4(48, 256), randn(1, 256, dtype=HALF), *_int4(48, 256)), 1),
    "three-of-one-row": Case(queries_keys_values, lambda: _three(1), 1),
    "three-of-eight-rows": Case(queries_keys_values, lambda: _three(8), 1),
    "two-of-int4": Case(two_of_int4, lambda: (*_int4(70, 128), randn(3, 128, dtype=HALF), *_int4(33, 128)), 1),
    "two-bits": Case(
        of_two_bits,
        lambda: (torch.randint(0, 255, (40, 32), dtype=torch.uint8), randn(40, dtype=HALF), randn(5, 128, dtype=HALF)),
        1,
    ),
    "packed-by-halves": Case(
        packed_by_halves,
        lambda: (torch.randint(0, 255, (40, 64), dtype=torch.uint8), randn(40, dtype=HALF), randn(5, 128, dtype=HALF)),
        1,
    ),
    "experts-of-tokens": Case(
        experts_of_tokens,
        lambda: (randn(5, 40, 64, dtype=HALF), torch.tensor([[0, 4], [2, 2], [-1, 3]]), randn(3, 64, dtype=HALF)),
        1,
    ),
    "experts-of-one-token": Case(
        experts_of_tokens, lambda: (randn(5, 40, 64, dtype=HALF), torch.tensor([[3, 1]]), randn(1, 64, dtype=HALF)), 1
    ),
    "experts-in-int8": Case(
        experts_in_int8,
        lambda: (randn(3, 70, dtype=HALF), _int8(5, 40, 70), torch.tensor([4, 0, 2]), randn(5, 40, dtype=HALF)),
        1,
    ),
    "elements-gathered": Case(
        elements_gathered,
        lambda: (randn(40, 64, dtype=HALF), torch.randint(0, 64, (40, 64)), randn(3, 64, dtype=HALF)),
        0,
    ),
    "chained": Case(
        chained, lambda: (_int8(40, 64), randn(2, 64, dtype=HALF), randn(40, dtype=HALF), _int8(24, 64)), 1
    ),
}


if __name__ == "__main__":
    print_share(CASES)
