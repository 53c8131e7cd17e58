"""A case of `benchmarks.gpu_kernels`: a function of tensors, and what it must move."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from litz.ir import Store


@dataclass
class LoopCase:
    """One kernel by hand: `outputs` are allocated, `inputs` are the function's arguments by name."""

    inputs: Sequence[str]
    outputs: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
    ranges: Sequence[int]
    reduction: Sequence[int]
    stores: Sequence[Store]


@dataclass
class Case:
    """A function of tensors, the bytes that it must move, and the loop that it is, if it is one."""

    function: Callable[..., Any]
    args: tuple[torch.Tensor, ...]
    bytes: int
    loop: LoopCase | None = None
    results: dict[str, float] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
