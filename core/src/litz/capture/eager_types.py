"""Ops whose eager kernels refuse some types: what they do not take is left to them, so that their error comes through.

Torch's decompositions and litz's lowerings would compute gelu of integers, or end in an error of their own. In: an op
and the types of its tensors. Out: whether the op stays a call. Nothing is decided about who is right: a kernel that
does take the type, in another version or on another device, computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from torch._ops import OpOverload

from . import torch_api

FOR_FLOATS = (
    *("gelu", "silu", "mish", "hardswish", "hardsigmoid", "hardshrink", "softshrink", "softplus", "glu", "elu", "celu"),
    *("selu", "_prelu_kernel", "leaky_relu", "log_sigmoid_forward", "frac", "round.decimals", "lerp", "hypot"),
    *("logaddexp", "logaddexp2", "_softmax", "_log_softmax", "_safe_softmax", "_softmax_backward_data"),
    *("_log_softmax_backward_data", "smooth_l1_loss", "huber_loss", "mse_loss", "binary_cross_entropy"),
    *("multi_margin_loss", "multilabel_margin_loss_forward", "grid_sampler_2d", "grid_sampler_3d"),
    *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "upsample_linear1d", "upsample_bilinear2d"),
    *("upsample_trilinear3d", "upsample_bicubic2d", "max_unpool2d", "max_unpool3d", "im2col"),
    *("max_pool2d_with_indices_backward", "hardtanh_backward", "leaky_relu_backward", "hardshrink_backward"),
    *("softshrink_backward", "elu_backward", "softplus_backward", "hardswish_backward", "hardsigmoid_backward"),
    *("logit_backward", "gelu_backward", "silu_backward", "mish_backward", "sigmoid_backward", "tanh_backward"),
    *("log_sigmoid_backward", "glu_backward", "huber_loss_backward", "_prelu_kernel_backward", "addcdiv"),
    "binary_cross_entropy_backward",
)
"""Ops that eager has for floating point, and complex, alone: integers and bools are left to the op."""

FOR_FLOATS_AND_BYTES = (
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
)
"""Ops that eager has for floating point and, as images may be so, for uint8."""

NOT_FOR_BOOLS = (
    *("abs", "ceil", "floor", "trunc", "round", "clamp", "clamp_min", "clamp_max", "bitwise_left_shift", "addcmul"),
    "gcd",
    *("bitwise_right_shift", "pow", "fmod", "remainder", "floor_divide", "trace", "linalg_cross", "dot"),
    *("vdot", "mv", "addmv", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "div.Tensor_mode", "lcm"),
    "div.Scalar_mode",
)
"""Ops that eager has for numbers alone: bools among bools are left to the op."""

OF_ONE_TYPE = ("mv", "addmv", "dot", "vdot", "_cdist_forward", "_euclidean_dist")
"""Products whose eager kernels take operands of one type: torch's rules promote others, so these are left to the op."""

WITHOUT_BOOLS = ("sub", "rsub", "threshold", "threshold_backward")
"""Ops that eager refuses where a tensor is of bools, whatever numbers are beside it; and `x - True`."""

NOT_MIXED_ON_CPU = ("_softmax_backward_data", "_log_softmax_backward_data")
"""Ops whose kernels for the CPU take tensors of one type, that of the result, alone."""

_Takes = Callable[[torch.dtype], bool]


def _float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


_TAKES: Mapping[str, _Takes] = MappingProxyType(
    {
        **dict.fromkeys(FOR_FLOATS, _float),
        "nextafter": lambda dtype: dtype in (torch.float32, torch.float64),  # half types are computed in float32
        **dict.fromkeys(FOR_FLOATS_AND_BYTES, lambda dtype: _float(dtype) or dtype == torch.uint8),
        **dict.fromkeys(NOT_FOR_BOOLS, lambda dtype: dtype != torch.bool),
        "nan_to_num": lambda dtype: not dtype.is_complex,  # eager's takes it; torch's rule does not
    }
)


def _takes(op: Any) -> _Takes | None:
    """Returns the types that the eager kernels of `op` take; None where they take all that matters."""
    if not isinstance(op, OpOverload) or op.namespace != "aten":
        return None
    name = op.name().removeprefix("aten::")
    return _TAKES.get(name) or _TAKES.get(name.partition(".")[0])


def _is_named(op: Any, names: Collection[str]) -> bool:
    return isinstance(op, OpOverload) and op.namespace == "aten" and op._opname in names


def is_left_to_eager(op: Any, args: Iterable[Any]) -> bool:
    """Returns whether eager runs a call for the types of its tensors. args: its arguments, tensors among them."""
    args = list(args)
    if _is_named(op, OF_ONE_TYPE) and len({arg.dtype for arg in args if isinstance(arg, torch.Tensor)}) > 1:
        return True
    takes = _takes(op)
    if takes is None:
        bools = (isinstance(arg, bool) or getattr(arg, "dtype", None) == torch.bool for arg in args)
        return _is_named(op, WITHOUT_BOOLS) and any(bools)
    wanted = [arg for arg in args if isinstance(arg, torch.dtype)]
    devices = {arg.device.type for arg in args if isinstance(arg, torch.Tensor)}
    # A number beside a bool makes the bool an integer or a float.
    args = [arg for arg in args if isinstance(arg, (torch.Tensor, bool, int, float, torch.SymInt, torch.SymFloat))]
    dtypes = [arg.dtype for arg in args if isinstance(arg, torch.Tensor)]
    if _is_named(op, NOT_MIXED_ON_CPU) and len({*dtypes, *wanted}) > 1 and "cpu" in devices:
        return True
    if not dtypes or takes(dtypes[0]):
        return False
    if takes(torch.int64) and not dtypes[0].is_complex:
        numbers = [arg for arg in args if not isinstance(arg, (torch.Tensor, bool))]
        return set(dtypes) == {torch.bool} and not numbers
    return True


def holds(dtype: torch.dtype, number: Any) -> bool:
    """Returns whether eager converts a Python number to `dtype` without an error. As in C++, unsigned types take
    negative numbers whose size they hold, infinity and NaN are floats of every type, and anything is a bool."""
    if dtype == torch.bool or isinstance(number, bool) or not isinstance(number, (int, float)):
        return True
    if dtype.is_complex or number in (math.inf, -math.inf) or number != number:
        return dtype.is_floating_point or dtype.is_complex
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    least = -limits.max if isinstance(number, int) and limits.min == 0 else limits.min
    return bool(least <= number <= limits.max)


@cache
def _number_arguments(op: OpOverload) -> tuple[tuple[int, str], ...]:
    """(position, name) of the arguments that the schema of `op` declares as numbers."""
    kinds = ("number", "Optional[number]", "float", "Optional[float]")
    return tuple((at, one.name) for at, one in enumerate(op._schema.arguments) if str(one.type) in kinds)


def is_given_too_much(
    op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype | None, inside: bool = False
) -> bool:
    """Returns whether `op` is called with a number that the type of its result, or a kernel, may not hold. Eager's
    kernels refuse most such calls, so that the op stays a call. dtype: of the result; None where it is not one tensor.
    inside: numbers at the edges of the type are too much as well, as those of a factor `alpha` always are."""
    if not isinstance(op, OpOverload) or dtype is None:
        return False
    given = [(name, args[at] if at < len(args) else kwargs.get(name)) for at, name in _number_arguments(op)]
    beside = (arg for one, arg in zip(op._schema.arguments, args, strict=False) if str(one.type) == "Tensor")
    if any(map(torch_api.may_leave_64_bits, (*beside, *(number for _, number in given)))):
        return True
    if dtype == torch.bool:
        return any(name == "alpha" and isinstance(number, float) for name, number in given)
    symbols = any(isinstance(number, (torch.SymInt, torch.SymFloat)) for _, number in given)
    if symbols and dtype.itemsize <= 2 and not dtype.is_floating_point:
        return True
    return not all(
        _is_inside(dtype, number) if inside or name == "alpha" else holds(dtype, number) for name, number in given
    )


def _is_inside(dtype: torch.dtype, number: Any) -> bool:
    """Returns whether a number and what eager makes of it (its opposite, a difference) fit `dtype`. A bool does not."""
    if isinstance(number, bool):
        return False
    if not isinstance(number, (int, float)) or dtype.is_complex:
        return holds(dtype, number)
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return bool((limits.min < number or number == 0) and number < limits.max)


def _dtype_of_numbers(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.dtype:
    """The type that eager gives to a tensor made of numbers alone."""
    floats = any(isinstance(arg, (float, torch.SymFloat)) for arg in args)
    return kwargs.get("dtype") or (torch.get_default_dtype() if floats else torch.int64)


def unless_left_to_eager(op: OpOverload, rule: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the decomposition `rule` of `op` with NotImplemented as the result of calls that `is_left_to_eager` or
    `is_given_too_much` name; `rule` itself if there are no such calls."""
    if _takes(op) is None and not _number_arguments(op) and not _is_named(op, OF_ONE_TYPE):
        return rule

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        tensor = next((value for value in args if isinstance(value, torch.Tensor)), None)
        # Without a tensor, as in linspace, a rule computes with the numbers in another type than eager does.
        dtype = _dtype_of_numbers(args, kwargs) if tensor is None else tensor.dtype
        if tensor is None and dtype == torch.bool:
            return NotImplemented
        if is_left_to_eager(op, args) or is_given_too_much(op, args, kwargs, dtype, inside=tensor is None):
            return NotImplemented
        return rule(*args, **kwargs)

    return decomposed
