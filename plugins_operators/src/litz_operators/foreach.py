"""Decompositions of the `_foreach_*` ops, which optimizers use: one ordinary op per tensor of the lists.

Litz fuses the pieces by its own rules. Every functional overload is covered by its schema: arguments that are lists are
taken apart in step, the others go to every call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten

Decomposition = Callable[..., Any]


# Where the per-tensor function has another name, or other overloads, than the op without "_foreach_".
_PER_TENSOR: Mapping[str, Decomposition] = {
    "copy": lambda x, source, non_blocking=False: aten.copy.default(x, source, non_blocking),
    "zero": torch.zeros_like,
    "clone": torch.clone,
    "max": torch.max,
    "mm": torch.mm,
    "norm": lambda x, ord=2, dtype=None: torch.linalg.vector_norm(x, ord, dtype=dtype),
    "powsum": lambda x, ord=2, dtype=None: torch.sum(torch.abs(x.to(dtype) if dtype else x) ** ord),
    "maximum": lambda x, y: torch.maximum(x, y) if isinstance(y, torch.Tensor) else torch.clamp_min(x, y),
    "minimum": lambda x, y: torch.minimum(x, y) if isinstance(y, torch.Tensor) else torch.clamp_max(x, y),
    "addcmul": lambda x, a, b, value=1: _scaled(torch.addcmul, torch.mul, x, a, b, value),
    "addcdiv": lambda x, a, b, value=1: _scaled(torch.addcdiv, torch.div, x, a, b, value),
}


def _scaled(
    fused: Decomposition, combine: Decomposition, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, value: Any
) -> torch.Tensor:
    """Returns the result of addcmul or addcdiv, whose factor may be a number or (in the .Tensor overload) a tensor."""
    return x + value * combine(a, b) if isinstance(value, torch.Tensor) else fused(x, a, b, value=value)


def foreach_decompositions() -> dict[OpOverload, Decomposition]:
    """Returns the decompositions of all functional `_foreach_*` overloads that this version of torch has."""
    return {op: functools.partial(_each, op, function) for op, function in _functional_foreach()}


def _functional_foreach() -> Iterator[tuple[OpOverload, Decomposition]]:
    names = {
        name.split("::")[1].split(".")[0] for name in torch._C._dispatch_get_all_op_names() if "::_foreach_" in name
    }
    for name in sorted(names):
        base = name.removeprefix("_foreach_")
        function = _PER_TENSOR.get(base) or getattr(torch, base, None)
        packet = getattr(aten, name, None)  # some names belong to native kernels that Python cannot call
        if base.endswith("_") or function is None or packet is None:
            continue
        for overload in packet.overloads():
            op = getattr(packet, overload)
            if not op._schema.is_mutable and not any(argument.is_out for argument in op._schema.arguments):
                yield op, function


def _each(op: OpOverload, function: Decomposition, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    """Call `function` once per tensor of the lists in `args`."""
    length = max(len(value) for value in args if isinstance(value, (list, tuple)))
    # addcmul.Tensor and addcdiv.Tensor take one vector of factors; mul.Tensor and others one tensor for all.
    vector = op._overloadname == "Tensor" and op._schema.name in _WITH_FACTORS and len(args) == 4
    results = []
    for index in range(length):
        row = [value[index] if isinstance(value, (list, tuple)) else value for value in args]
        if vector:
            row[3] = args[3][index]
        results.append(function(*row, **kwargs))
    return results


_WITH_FACTORS = frozenset({"aten::_foreach_addcmul", "aten::_foreach_addcdiv"})
