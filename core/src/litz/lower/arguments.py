"""Arguments of calls, as lowerings take them: numbers as numbers or tensors, in their places; how complex they are."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch._ops import OpOverload

from litz.capture import torch_api
from litz.ir.complexity import MAX_VIEW, nodes_excess, position_terms
from litz.ir.node import walk

from .elementwise import scalar
from .promotion import is_whole
from .view import Computed, Tensor, View

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def fake_value(argument: Any) -> Any:
    """Returns the fake value of a node's argument, or the argument itself."""
    return argument.meta.get("val") if isinstance(argument, torch.fx.Node) else argument


def positional(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns (args, kwargs) with each keyword argument that the schema of `target` lets be positional among the
    positional ones, up to the first that is not given."""
    named = dict(kwargs)
    if isinstance(target, OpOverload):
        names = [argument.name for argument in target._schema.arguments if not argument.kwarg_only]
        for name in names[len(args) :]:
            if name not in named:
                break
            args = (*args, named.pop(name))
    return args, named


def with_a_tensor(op: Any, args: tuple[Any, ...], result: Any) -> tuple[Any, ...]:
    """The arguments of an op, of which torch takes numbers for tensors where none is a tensor (`aten.add(4, 3.3)`; vmap
    in vmap leaves `_to_copy(2, dtype=torch.float32)` in graphs). Beside a tensor a number stays one: it promotes so.
    result: what the op gives for fake tensors. Floats alone meet in the default dtype, and `_to_copy` keeps float64."""
    if not isinstance(op, OpOverload):
        return args
    wanted = [isinstance(argument.type, torch.TensorType) for argument in op._schema.arguments[: len(args)]]
    if not any(wanted) or any(isinstance(arg, Tensor) for arg in args):
        return args
    own = isinstance(result, torch.Tensor) and result.dtype.is_floating_point
    floats = result.dtype if own else torch.get_default_dtype()
    return tuple(_as_tensor(arg, floats) if tensor else arg for arg, tensor in zip(args, wanted, strict=True))


def _as_tensor(value: Any, floats: torch.dtype) -> Any:
    """A number as torch's tensor of it. floats: the dtype of numbers that are not whole."""
    if not isinstance(value, (bool, int, float, sympy.Expr)):
        return value
    whole = is_whole(value) if isinstance(value, sympy.Expr) else isinstance(value, int)
    dtype = torch.bool if isinstance(value, bool) else torch.int64 if whole else floats
    return Computed(dtype, torch.device("cpu"), (), scalar(value, dtype))


def simple(value: Any) -> Any:
    """Returns a SymInt or sympy expression as an int, bool or float if it is constant, else as sympy; other values as
    they are."""
    if isinstance(value, SYMBOLIC):
        value = torch_api.sympy_of(value)
    if isinstance(value, sympy.Integer):
        return int(value)
    if value is sympy.true or value is sympy.false:
        return bool(value)
    return float(value) if isinstance(value, sympy.Float) else value


def excess_of(value: Any) -> str | None:
    """Returns why an element of a tensor is too complex to be computed wherever it is read; None where it is simple
    enough."""
    if isinstance(value, View):
        return f"a position of more than {MAX_VIEW} terms" if position_terms(value.index) > MAX_VIEW else None
    return nodes_excess(walk(value.value)) if isinstance(value, Computed) else None
