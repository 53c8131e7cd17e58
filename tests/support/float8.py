"""Numbers that show how a conversion to float8 rounds."""

from __future__ import annotations

import math

import torch


def every_byte(dtype: torch.dtype) -> torch.Tensor:
    """All 256 values."""
    return torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)


def rounded_by_torch(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The bytes that eager makes of each element."""
    return x.to(dtype).view(torch.uint8)


def halfway(dtype: torch.dtype) -> torch.Tensor:
    """Every number of a type, the middle between each and the next, what float32 has beside these, and beyond."""
    numbers = every_byte(dtype).float()
    numbers = numbers[numbers.isfinite()].abs().unique()
    step = numbers[-1] - numbers[-2]
    numbers = torch.cat([numbers, (numbers[-1] + torch.arange(1, 9) * step / 2)])
    numbers = numbers[numbers.isfinite()]
    middle = (numbers[1:].double() + numbers[:-1].double()).div(2).float()
    found = torch.cat([numbers, middle])
    beside = [torch.nextafter(found, torch.tensor(end)) for end in (math.inf, -math.inf)]
    found = torch.cat([found, *beside])
    return torch.cat([found, -found])


def sampled(step: int = 8191) -> torch.Tensor:
    """Bits of float32 from the whole range, by default densely, and special values."""
    bits = torch.arange(-(2**31), 2**31, step, dtype=torch.int64).to(torch.int32).view(torch.float32)
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, -math.nan, 1e-45, -1e-45, 1.2e-38, 3.4e38, -3.4e38]
    return torch.cat([bits, torch.tensor(special)])
