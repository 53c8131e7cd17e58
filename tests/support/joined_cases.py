"""Several kernels in one launch: cases of the Triton code generator, joined, each on memory of its own.

`python -m support.joined_cases SHARD OF` runs them in Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from litz.targets.triton.join import join_sources
from litz_plugins import COUNTERS, KernelSource
from support.interpreted import print_share
from support.triton_cases import CASES


@dataclass(frozen=True)
class Joined:
    """Cases by name, whose sizes are known."""

    names: tuple[str, ...]

    @property
    def source(self) -> KernelSource:
        joined = join_sources([CASES[name]().source for name in self.names], "kernel")
        assert joined is not None
        return joined

    def memories(self, device: str = "cpu") -> list[dict[str, torch.Tensor]]:
        return [CASES[name]().tensors(device) for name in self.names]

    def arguments(self, memories: list[dict[str, torch.Tensor]]) -> list[torch.Tensor]:
        """What the joined kernel takes: counters of its own last. The caller keeps them while the kernel runs."""
        sources = [CASES[name]().source for name in self.names]
        found = [m[item] for m, s in zip(memories, sources, strict=True) for item in s.arguments if item != COUNTERS]
        counters = self.source.settings["counters"]
        return [*found, *([torch.zeros(counters, dtype=torch.int32, device=found[0].device)] if counters else [])]

    def compare(self, memories: list[dict[str, torch.Tensor]]) -> None:
        for name, memory in zip(self.names, memories, strict=True):
            CASES[name]().check(memory)

    def check(self) -> str:
        from litz_testing.triton_interpreter import interpret_source

        memories = self.memories()
        interpret_source(self.source, self.arguments(memories))
        self.compare(memories)
        return ""


JOINED: Mapping[str, Joined] = {
    "pointwise": Joined(("contiguous-float32", "bias", "strided-bfloat16")),
    "of other warps": Joined(("softmax", "transposed-float32", "finish-columns", "casts")),
    "an empty one between": Joined(("padded", "empty-float32", "flipped")),
    "twice the same": Joined(("layer-norm", "layer-norm")),
    "a list of few and many": Joined(("bias", *["contiguous-float32"] * 5, "softmax", *["finish-columns"] * 3)),
    "a list in other types": Joined(("contiguous-float32", "contiguous-bfloat16") * 2),
    "finishing ones": Joined(("finish-columns", "finish-twice", "bias", "finish-columns-apart")),
    "reductions and a scatter": Joined(("reduce-row-float64", "scatter-add-float32", "reduce-columns-long", "scan")),
    "assertions and random numbers": Joined(("embedding", "random", "guarded-gather", "inplace")),
}


if __name__ == "__main__":
    print_share(JOINED)
