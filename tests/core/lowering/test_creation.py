"""Tensors from nothing: no memory until something needs it."""

from __future__ import annotations

import pytest
import torch

from core.lowering.harness import check, program_of

CASES = {
    "full": lambda x: torch.full((3, 4), 2.5) + x,
    "full int": lambda x: torch.full((3, 4), 7),
    "full bfloat16": lambda x: torch.full((3, 4), 0.1, dtype=torch.bfloat16).float() + x,
    "full_like": lambda x: torch.full_like(x, 3),
    "zeros": lambda x: torch.zeros(3, 4, dtype=torch.int64),
    "ones_like": lambda x: torch.ones_like(x, dtype=torch.bool),
    "new_zeros": lambda x: x.new_zeros(2, 2),
    "new_full": lambda x: x.new_full((2, 2), 5),
    "scalar_tensor": lambda x: torch.scalar_tensor(3.5) * x,
    "arange": lambda x: torch.arange(7),
    "arange start": lambda x: torch.arange(3, 9, 2, dtype=torch.float32),
    "arange down": lambda x: torch.arange(9, 3, -2),
    "arange floats": lambda x: torch.arange(0.5, 2.0, 0.25),
    "arange used": lambda x: torch.arange(4) * x,
    "linspace": lambda x: torch.linspace(-1, 2, 11),
    "linspace of one": lambda x: torch.linspace(-1, 2, 1),
    "eye": lambda x: torch.eye(4),
    "eye wide": lambda x: torch.eye(3, 5, dtype=torch.int64),
    "triu": lambda x: x.triu(1),
    "tril": lambda x: x.tril(-1),
    "views of computed": lambda x: torch.arange(12).reshape(3, 4).t()[1:].flip(0),
    "expanded": lambda x: torch.arange(4).expand(3, 4),
    "expanded constant": lambda x: torch.ones(1, 4).expand(3, 4),
    "constant": lambda x: x + torch.tensor(2.0),
    "constant list": lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "zeros without memory": lambda x: torch.ops.aten._efficientzerotensor([3, 4]) + x,
    "permuted empty": lambda x: torch.empty_like(x.t()).fill_(1),
}


@pytest.mark.parametrize("name", CASES)
def test_creation(name: str) -> None:
    check(CASES[name], torch.randn(3, 4), native=name != "permuted empty")


def test_symbolic() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n, m = x.shape
        return torch.arange(n), torch.full((n, m), m), torch.zeros(m), torch.eye(n), torch.full((m,), m * 0.5)

    check(function, torch.randn(3, 4), dynamic=True)


def test_what_is_only_read_takes_no_memory() -> None:
    program = program_of(lambda x: x * torch.arange(4) + torch.ones(3, 1) * 2, torch.randn(3, 4))
    assert all("arange" not in loop.origins and "ones" not in loop.origins for loop in program.loops)
