"""Several products in one launch. In: the replacements of products that do not need each other, a kernel call each.
Out: one replacement, whose programs do the first product's tiles, then the second's, and so on.

A launch that is over in a few microseconds spends half of them on getting started and on its last tiles; together the
products of one activation (queries, keys and values; gate and up) keep the device busy from one to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from litz.ir import KernelCall
from litz.schedule.choices import Replacement
from litz.targets.triton.join import join_sources


def together(replacements: Sequence[Replacement], names: Sequence[str]) -> Replacement | None:
    """Returns one replacement for several products; names: of the products, in the same order. None where kernels
    differ in what a launch sets, or sizes are symbols."""
    calls = [replacement.operations[0] for replacement in replacements]
    if any(len(each.operations) != 1 for each in replacements):
        return None
    kernels = [call for call in calls if isinstance(call, KernelCall)]
    source = join_sources([call.source for call in kernels], calls[0].name) if len(kernels) == len(calls) else None
    if source is None:
        return None
    meanings = tuple((call.target, len(call.args), len(call.outputs)) for call in kernels)
    call = replace(
        kernels[0],
        target=Meanings(meanings),
        args=tuple(arg for each in kernels for arg in each.args),
        outputs=tuple(name for each in kernels for name in each.outputs),
        origins=tuple(dict.fromkeys(origin for each in kernels for origin in each.origins)),
        source=source,
    )
    absorbs = (*names[1:], *(name for each in replacements for name in each.absorbs))
    buffers = tuple(buffer for each in replacements for buffer in each.buffers)
    return Replacement((call,), buffers, tuple(dict.fromkeys(absorbs)))


@dataclass(frozen=True)
class Meanings:
    """The function that several kernels compute, one after the other. parts: (meaning, how many arguments it takes, how
    many results it has)."""

    parts: tuple[tuple[Any, int, int], ...]

    @property
    def __name__(self) -> str:
        return " and ".join(meaning.__name__ for meaning, _, _ in self.parts)

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        results: list[Any] = []
        at = 0
        for meaning, taken, _ in self.parts:
            results += meaning(*args[at : at + taken])
            at += taken
        return tuple(results)


__all__ = ["together"]
