"""The functions that statements of `nesting.py` call: each is one region, or calls one. A script gets their sources.

Eager runs a region as the function that it is; dynamo captures it as a graph of its own (a higher-order operation).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.utils.checkpoint


def region_linear(w, x):
    return torch.nn.functional.linear(x, w)


def region_sine(w, x):
    return (x @ w).sin() * x


def region_weights(w, x):
    return x @ w.softmax(-1).mT + w.sum(0)


def layers(region, x, *weights):
    for w in weights:
        x = x + region(w, x)
    return x


def chain(region, x, *weights):
    for w in weights:
        x = region(w, x)
    return x


def checkpointed(function, *operands):
    return torch.utils.checkpoint.checkpoint(function, *operands, use_reentrant=False)


def branch(condition, one, other, *operands):
    if torch.compiler.is_compiling():
        return torch.cond(condition, one, other, operands)
    return one(*operands) if condition else other(*operands)


def turned(x, w):
    z = torch.complex(x, 0.5 * torch.ones_like(x)).conj() @ torch.complex(w, w.flip(0))
    return torch.complex(z.real.relu(), z.imag).conj()


def gate(x, w):
    return torch.sigmoid(x @ w) * x


def polar(z):
    return torch.cat([z.abs(), z.angle()])


_REGIONS = (region_linear, region_sine, region_weights)
_PLAIN = (layers, chain, checkpointed, branch, turned, gate, polar)
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{function.__name__: torch.compiler.nested_compile_region(function) for function in _REGIONS},
    **{function.__name__: function for function in _PLAIN},
}


def source_of(text: str) -> str:
    """Returns the sources of the functions that a program's text calls."""
    parts = [f"@torch.compiler.nested_compile_region\n{inspect.getsource(f)}" for f in _REGIONS if f.__name__ in text]
    parts += [inspect.getsource(f) for f in _PLAIN if f.__name__ + "(" in text or f.__name__ + "," in text]
    return "".join(f"{part}\n\n" for part in parts)
