"""Indices that a test decides (`table[mask.long()]`): g++ 12 and 13 gather from wrong places where one is a bool."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from support.compare import device_param, litz

WAYS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "a bool": lambda table, mask, x, byte: table[mask.long()],
    "a bool of 32 bits": lambda table, mask, x, byte: table[mask.int()],
    "no bool": lambda table, mask, x, byte: table[(~mask).long()],
    "a comparison": lambda table, mask, x, byte: table[(x > 0).long()],
    "one of two numbers": lambda table, mask, x, byte: table[torch.where(x > 0, 1, 0)],
    "a remainder": lambda table, mask, x, byte: torch.index_select(table, 0, mask % 2),
    "both": lambda table, mask, x, byte: table[(mask & (x > 0)).long()],
    "a sum of two": lambda table, mask, x, byte: table[mask.long() + (x > 0)],
    "a sign": lambda table, mask, x, byte: table[torch.sign(byte).long()],
    "a lesser": lambda table, mask, x, byte: table[byte.clamp(max=1).int()],
    "a parity": lambda table, mask, x, byte: table[(byte & 1).long()],
    "a greatest": lambda table, mask, x, byte: table[torch.stack([x, x.roll(1)], 1).argmax(1)],
    "a gather": lambda table, mask, x, byte: torch.gather(table.expand(len(x), 3), 1, mask.long()[:, None]),
    "a scatter": lambda table, mask, x, byte: (
        torch.zeros(3, dtype=table.dtype).to(x.device).index_fill(0, mask.long(), 1)
    ),
    "a sum by positions": lambda table, mask, x, byte: torch.zeros(2, device=x.device).index_add(0, mask.long(), x),
}
"""Each reads the tables its own way; sizes without vectors are the same loops whatever the way: the first has them."""
DTYPES = (torch.bool, torch.uint8, torch.int16, torch.int64, torch.bfloat16, torch.float32, torch.float64)


@device_param
@pytest.mark.parametrize("way", WAYS)
def test_an_index_that_a_test_decides(way: str, device: str) -> None:
    def all_tables(mask: Tensor, x: Tensor, byte: Tensor, *tables: Tensor) -> list[Tensor]:
        return [WAYS[way](table, mask, x, byte) for table in tables]

    tables = [torch.tensor([0, 1, 1], device=device).to(dtype) for dtype in DTYPES]
    for size in (1, 5, 1000) if way == "a bool" else (1000,):
        torch._dynamo.reset()
        x = torch.arange(size, device=device) % 7 - 3.0
        mask = torch.arange(size, device=device) * 37 % 97 % 3 > 0
        byte = (torch.arange(size, device=device) * 37 % 5).to(torch.uint8)
        found = litz(all_tables, dynamic=False)(mask, x, byte, *tables)
        torch.testing.assert_close(found, all_tables(mask, x, byte, *tables), rtol=0, atol=0)
