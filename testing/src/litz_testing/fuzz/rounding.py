"""Rounding errors inside a statement: each op that it calls rounds its result, and later ops may make that larger.

A compiler that makes one instruction of a product and a sum adds the exact product, while another reader of the product
adds the rounded one: with `reads`, each op reads each operand with a rounding of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from litz_testing.tensors import overlaps

EXACT = frozenset(
    ("clone", "_to_copy", "copy", "cat", "stack", "flip", "complex", "relu", "threshold_backward", "neg",
     "_conj_physical", "expand", "zeros_like", "ones_like", "full_like", "new_zeros", "zeros", "full")
)  # fmt: skip
"""Ops that move, choose or make numbers and round none."""


class Rounding(TorchDispatchMode):
    """Each number of each op's result is off by `eps` of it, up or down, as if rounded badly: 0 stays 0. Results
    that lie in an operand's memory stay as they are, and those of the ops `EXACT`. reads: so is each number that an op
    reads, whose result is no view."""

    def __init__(self, eps: float, rng: torch.Generator, reads: bool = False) -> None:
        super().__init__()
        self.eps, self.rng, self.reads = eps, rng, reads

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        written = {at for at, one in enumerate(func._schema.arguments) if one.alias_info and one.alias_info.is_write}
        aliases = any(one.alias_info is not None for one in func._schema.returns)
        if self.reads and (written or not aliases):
            args = self._read(args, written)
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in EXACT or aliases:
            return result
        return tree_map_only(torch.Tensor, self._rounded, result)

    def _read(self, args: Sequence[Any], written: set[int]) -> list[Any]:
        """The operands as an op may read them. Those that it writes are changed where they lie."""
        read = [tree_map_only(torch.Tensor, self._rounded, one) for one in args]
        for at in written & set(range(len(args))):
            if isinstance(args[at], torch.Tensor) and not overlaps(args[at]):
                args[at].copy_(read[at])
            read[at] = args[at]
        return read

    def _rounded(self, value: torch.Tensor) -> torch.Tensor:
        if value.dtype.is_complex:
            return torch.view_as_complex(self._rounded(torch.view_as_real(value.resolve_conj())))
        if not value.dtype.is_floating_point or value._is_zerotensor():  # zeros without memory to read
            return value
        signs = torch.randint(0, 2, value.shape, generator=self.rng) * 2 - 1
        return value * (1 + self.eps * signs.to(value.dtype))
