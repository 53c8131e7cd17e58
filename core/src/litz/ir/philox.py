"""Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).

A random value is a pure function of a seed and a position, so a loop that draws may be fused, split, reordered or
run twice. Every target draws the same bits and converts them in the same way.
"""

from __future__ import annotations

import math

import torch

_KEY_A, _KEY_B = 0x9E3779B9, 0xBB67AE85
_ROUND_A, _ROUND_B = 0xD2511F53, 0xCD9E8D57
_MASK = 0xFFFFFFFF
UNIFORM_SCALE = 4.6566127342e-10
"""Just under 2**-31, so that the largest 31-bit integer still maps below 1 in float32."""


def _mul_high(a: torch.Tensor, b: int) -> torch.Tensor:
    """Returns the upper 32 bits of a 32 by 32 bit product, in int64 without overflow."""
    low = (a & 0xFFFF) * b
    high = (a >> 16) * b
    return ((high + (low >> 16)) >> 16) & _MASK


def philox(seed: torch.Tensor, offset: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the first two 32-bit words (as int64 in [0, 2**32)) for int64 `seed` and `offset`, which broadcast."""
    seed, offset = torch.broadcast_tensors(seed, offset)
    c0, c1 = offset & _MASK, torch.zeros_like(offset)
    c2, c3 = torch.zeros_like(offset), torch.zeros_like(offset)
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    for _ in range(10):
        old0, old2 = c0, c2
        c0 = _mul_high(old2, _ROUND_B) ^ c1 ^ k0
        c2 = _mul_high(old0, _ROUND_A) ^ c3 ^ k1
        c1 = (old2 * _ROUND_B) & _MASK
        c3 = (old0 * _ROUND_A) & _MASK
        k0, k1 = (k0 + _KEY_A) & _MASK, (k1 + _KEY_B) & _MASK
    return c0, c1


def _uniform(bits: torch.Tensor) -> torch.Tensor:
    signed = torch.where(bits >= 2**31, bits - 2**32, bits)
    folded = torch.where(signed < 0, -signed - 1, signed)
    return folded.to(torch.float32) * UNIFORM_SCALE


def uniform(seed: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """Returns a float32 in [0, 1)."""
    return _uniform(philox(seed, offset)[0])


def normal(seed: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """Returns a float32 from the standard normal distribution, by the method of Box and Muller."""
    first, second = philox(seed, offset)
    u1 = torch.clamp(_uniform(first), min=1.0e-7)
    return torch.sqrt(-2.0 * torch.log(u1)) * torch.cos(2.0 * math.pi * _uniform(second))


def bits(seed: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """Returns an int64 in [0, 2**32)."""
    return philox(seed, offset)[0]
