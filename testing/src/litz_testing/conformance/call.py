"""A sample as a function of its tensors. In: a SampleInput. Out: a `Call`.

What is not a tensor is written into the function's text, as it would be in a user's program, so that a case's source
is a script to reproduce it with.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Call:
    """`function(*tensors)` calls the operator. text: the function's source. tensors: the sample's own."""

    function: Callable[..., Any]
    text: str
    tensors: tuple[torch.Tensor, ...]


def make_call(operator: Callable[..., Any], sample: Any) -> Call:
    """Returns the call that a SampleInput stands for."""
    writer = _Writer()
    arguments = [writer.write(value) for value in (sample.input, *sample.args)]
    arguments += [f"**{{{key!r}: {writer.write(value)}}}" for key, value in sample.kwargs.items()]
    names = ", ".join(f"t{n}" for n in range(len(writer.tensors)))
    text = f"def call({names}):\n    return op({', '.join(arguments)})\n"
    scope: dict[str, Any] = {"op": operator, "torch": torch, **writer.constants}
    exec(compile(text, "<sample>", "exec"), scope)
    return Call(scope["call"], text, tuple(writer.tensors))


class _Writer:
    """Values as source text; tensors become parameters, and what cannot be spelt becomes a global."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.constants: dict[str, Any] = {}

    def write(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            for position, known in enumerate(self.tensors):
                if known is value:
                    return f"t{position}"
            self.tensors.append(value)
            return f"t{len(self.tensors) - 1}"
        if value is None or value is Ellipsis or type(value) in (bool, int, str):
            return repr(value)
        if isinstance(value, torch.dtype) or (type(value) is float and math.isfinite(value)):
            return repr(value)
        if type(value) in (tuple, torch.Size):
            return "(" + "".join(f"{self.write(item)}, " for item in value) + ")"
        if type(value) is list:
            return "[" + ", ".join(self.write(item) for item in value) + "]"
        if type(value) is dict and all(isinstance(key, str) for key in value):
            return "{" + ", ".join(f"{key!r}: {self.write(item)}" for key, item in value.items()) + "}"
        if type(value) is slice:
            return f"slice({self.write(value.start)}, {self.write(value.stop)}, {self.write(value.step)})"
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name


def clones(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Returns copies that lie in memory as the tensors do and share memory alike, with gradients wanted alike."""
    plain = [tensor.detach() for tensor in tensors]
    found = copy.deepcopy(plain)
    return tuple(new.requires_grad_(old.requires_grad) for new, old in zip(found, tensors, strict=True))


def doubled(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Returns copies with every real floating-point tensor as float64: what the judge computes with."""
    return tuple(
        new.detach().double().requires_grad_(new.requires_grad) if new.dtype.is_floating_point else new
        for new in clones(tensors)
    )


def describe(tensors: Sequence[torch.Tensor]) -> str:
    """Returns the tensors' geometry as text, for a failure's record."""
    return ", ".join(
        f"t{n}: {str(t.dtype).removeprefix('torch.')}{list(t.shape)}"
        + (f" strides {list(t.stride())}" if t.layout == torch.strided and not t.is_contiguous() else "")
        for n, t in enumerate(tensors)
    )
