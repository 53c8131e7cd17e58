"""Numbers that are worked out of data may need more than 64 bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch

WIDE_NUMBERS: Mapping[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "halved": lambda x, n: torch.full((3,), (3 - n) // 2),
    "made": lambda x, n: torch.full((3,), n * n),
    "added": lambda x, n: x + n * n,
    "added to floats": lambda x, n: x.float() + n * 3,
    "divided": lambda x, n: x.double() * ((3 - n) / 7),
    "compared": lambda x, n: torch.where(x > 3 - n, x, x * 2),
    "a limit": lambda x, n: x.clamp(max=3 - n),
    "a factor": lambda x, n: torch.add(x, x, alpha=n + n),
    "a remainder": lambda x, n: x.to(torch.int32) + (3 - n) % 4,
    "a filling": lambda x, n: x.masked_fill(x > 0, n + n),
}


@pytest.mark.parametrize("name", WIDE_NUMBERS)
def test_numbers_made_of_an_item_may_leave_64_bits(name: str) -> None:
    """A kernel's 3 - n began again at the other end, as n * n did. Eager refuses numbers that are too large."""

    def f(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return WIDE_NUMBERS[name](x, int(k.item()))

    x = torch.arange(6).reshape(2, 3) - 2
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(f, backend="litz")
        for n in (2**40, -(2**63), 2**62 + 5, 7, 2**63 - 1):
            try:
                expected = f(x, torch.tensor(n))
            except (OverflowError, RuntimeError) as error:
                with pytest.raises(type(error), match=str(error)[:20]):
                    compiled(x, torch.tensor(n))
                continue
            torch.testing.assert_close(compiled(x, torch.tensor(n)), expected, rtol=0, atol=0)
