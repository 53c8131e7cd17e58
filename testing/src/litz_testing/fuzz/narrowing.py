"""Statements that go through float8, which torch moves and converts but does not compute with."""

from __future__ import annotations

from .operations import Draft, Draw, operation_on, some

FLOAT8 = ("float8_e4m3fn", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
BACK = ("torch.float32", "torch.bfloat16", "torch.float16", "torch.float64")

# {0}: a tensor; {1}: a type of 8 bits; {2}: what it becomes in the end.
THROUGH = (
    "{0}.to({1}).to({2})", "({0} * 3).to({1}).to({2})", "({0} + 1).to({1}).mT.contiguous().to({2})",
    "torch.cat([{0}.to({1}), ({0} * 2).to({1})], -1).to({2})", "{0}.to({1}).view(torch.uint8)",
    "torch.where({0} > 0, {0}.to({1}), ({0} - 1).to({1})).to({2})", "torch.stack([{0}.to({1})] * 2).to({2})",
    "torch.nn.functional.pad({0}.to({1}), (1, 2)).to({2})", "{0}.to({1})[..., ::2].to({2})",
    "{0}.to({1}).flatten().repeat(2).to({2})", "{0}.to({1}).unsqueeze(0).expand(2, *{0}.shape).to({2})",
    "({0}.to({1}).view(torch.uint8) & 127).view({1}).to({2})", "{0}.to({1}).roll(1, 0).to({2})",
    "torch.full_like({0}, 0.3, dtype={1}).to({2})", "{0}.to({1}).to(torch.float16).to({1}).to({2})",
)  # fmt: skip

_number = some(lambda t: not t.dtype.is_complex and t.dtype.itemsize > 1 and t.dim() >= 2 and t.numel() < 5000, True)


@operation_on(_number, 1.0)
def through_float8(draw: Draw, name: str) -> Draft | None:
    """Moves and converts an operand that is free of rounding errors, as float8 has few numbers."""
    text, dtype = draw.rng.choice(THROUGH), f"torch.{draw.rng.choice(FLOAT8)}"
    return Draft(text.format(name, dtype, draw.rng.choice(BACK)), exact=True)


__all__ = ["through_float8"]
