"""The Programs of docs/tiles.md (`<!-- test: tiles -->`): they are legal, printed as litz prints them, and mean what
the page says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from core.schedule.harness import CPU, GPU, check
from litz.ir import Program
from litz.ir.interpret import interpret
from litz.ir.verify import verify
from litz_testing.parse import parse_program

PAGE = Path(__file__).parents[3] / "docs" / "tiles.md"
BLOCKS = {
    block.split()[1]: block.rstrip()
    for block in re.findall(r"<!-- test: tiles -->\n```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
}


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    bias = h[..., :, None] + w[..., None, :]
    return F.scaled_dot_product_attention(q, k, v, bias.flatten(-2))


def decoding(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("he,hke->hk", q, k[:, : int(length)])
    return torch.einsum("hk,hke->he", scores.softmax(-1), v[:, : int(length)])


MEANINGS: dict[str, Callable[..., torch.Tensor]] = {
    "layer_norm": lambda x, w, b: F.layer_norm(x, (768,), w, b),
    "swiglu": lambda x, gate, up: F.silu(x @ gate) * (x @ up),
    "convolution": lambda x, w, a, b: F.relu(F.conv2d(x, w, padding=1) * a[:, None, None] + b[:, None, None]),
    "attention": attention,
    "decoding": decoding,
}


def inputs(program: Program) -> list[torch.Tensor]:
    generator, found = torch.Generator().manual_seed(3), []
    for name in program.input_buffers:
        buffer = program.buffers[name]
        size = [int(n) for n in buffer.layout.size]
        whole = torch.tensor(61) if buffer.dtype == torch.int64 else torch.randn(size, generator=generator)
        found.append(whole.to(buffer.dtype))
    return found


def test_every_example_is_a_program() -> None:
    assert BLOCKS.keys() == MEANINGS.keys()


@pytest.mark.parametrize("name", MEANINGS)
def test_an_example_means_what_it_is_called(name: str) -> None:
    program = parse_program(BLOCKS[name])
    verify(program)
    assert str(program) == BLOCKS[name]
    given = inputs(program)
    exact = MEANINGS[name](*(x.double() if x.is_floating_point() else x for x in given))
    (found,) = interpret(program, given)
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MEANINGS)
@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "gpu"])
def test_an_example_becomes_kernels(name: str, target: object) -> None:
    program = parse_program(BLOCKS[name])
    plan = check(program, inputs(program), target)  # type: ignore[arg-type]
    assert not any(loop.nested for kernel in plan.kernels for loop in kernel.loops)
