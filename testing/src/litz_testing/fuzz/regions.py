"""The functions that statements of `nesting.py` call: each is one region, or calls one. A script gets their sources.

Eager runs a region as the function that it is; dynamo captures it as a graph of its own (a higher-order operation).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.utils.checkpoint


def region_linear(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A product with weights that lie transposed."""
    return torch.nn.functional.linear(x, w)


def region_sine(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A product that is squeezed, times the operand."""
    return (x @ w).sin() * x


def region_weights(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A product with weights that are computed."""
    return x @ w.softmax(-1).mT + w.sum(0)


def layers(region: Any, x: torch.Tensor, *weights: torch.Tensor) -> Any:
    """Adds a region's result for each of some weights."""
    for w in weights:
        x = x + region(w, x)
    return x


def chain(region: Any, x: torch.Tensor, *weights: torch.Tensor) -> Any:
    """Puts a region's result into the next, for each of some weights."""
    for w in weights:
        x = region(w, x)
    return x


def checkpointed(function: Any, *operands: torch.Tensor) -> Any:
    """Computes again for the backward what a function computes."""
    return torch.utils.checkpoint.checkpoint(function, *operands, use_reentrant=False)


def branch(condition: torch.Tensor, one: Any, other: Any, *operands: torch.Tensor) -> Any:
    """Takes one of two ways; eager's torch.cond would compile both."""
    if torch.compiler.is_compiling():
        return torch.cond(condition, one, other, operands)
    return one(*operands) if condition else other(*operands)


def rows(function: Any, x: torch.Tensor, *others: torch.Tensor) -> Any:
    """Computes each row."""
    if torch.compiler.is_compiling():
        from torch._higher_order_ops.map import map as torch_map

        return torch_map(function, x, *others)  # type: ignore[arg-type]
    return torch.stack([function(row, *others) for row in x])


def turned(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A layer of complex numbers."""
    z = torch.complex(x, 0.5 * torch.ones_like(x)).conj() @ torch.complex(w, w.flip(0))
    return torch.complex(z.real.relu(), z.imag).conj()


def gate(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A product as a gate."""
    return torch.sigmoid(x @ w) * x


def polar(z: torch.Tensor) -> torch.Tensor:
    """Magnitudes and angles."""
    return torch.cat([z.abs(), z.angle()])


_REGIONS = (region_linear, region_sine, region_weights)
_PLAIN = (layers, chain, checkpointed, branch, rows, turned, gate, polar)
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{function.__name__: torch.compiler.nested_compile_region(function) for function in _REGIONS},
    **{function.__name__: function for function in _PLAIN},
}


def source_of(text: str) -> str:
    """Returns the sources of the functions that a program's text calls."""
    parts = [f"@torch.compiler.nested_compile_region\n{inspect.getsource(f)}" for f in _REGIONS if f.__name__ in text]
    parts += [inspect.getsource(f) for f in _PLAIN if f.__name__ + "(" in text or f.__name__ + "," in text]
    return "".join(f"{part}\n\n" for part in parts)
