"""Where results of elementwise ops lie: as eager's kernels lay them out, by all operands together.

Broken up, addcmul is two ops of two operands each, and the first decides; so are some fake kernels of torch. In: an op,
and its decomposition if any. Out: a decomposition whose result lies as eager's, or that leaves the op whole.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map_only

from litz.capture import torch_api

Rule = Callable[..., Any]

WHOLE = (
    *("clamp.Tensor", "clamp_min.Tensor", "clamp_max.Tensor", "pow.Scalar", "special_xlog1py", "logaddexp2"),
    *("logical_and", "logical_or", "logical_xor", "polar", "complex", "div.Tensor_mode", "copysign.Tensor"),
    *("angle", "poisson", "_standard_gamma"),
)
"""Ops that stay whole, and whose fake results lie otherwise than eager's."""
UNTAGGED = (
    *("smooth_l1_loss", "mse_loss", "floor_divide", "elu_backward", "gelu_backward", "hardsigmoid_backward"),
    *("hardswish_backward", "hardtanh_backward", "mish_backward", "softplus_backward"),
)
"""Elementwise ops that torch does not tag as pointwise; losses are, where nothing is reduced. See `_DECIDING`."""
_BATCH_NORMS = (
    *("native_batch_norm", "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training"),
    *("_native_batch_norm_legit.no_stats", "_batch_norm_no_update", "_batch_norm_with_update_functional"),
)
_LOSSES = ("mse_loss_backward", "huber_loss_backward", "smooth_l1_loss_backward")


def _of_batch_norm(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    in_rows = torch_api.suggested_format(tensors[0]) == torch.contiguous_format
    return () if in_rows and tensors[0].device.type == "cpu" else tensors[:1]


_DECIDING: Mapping[str, Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]] = MappingProxyType(
    {
        **dict.fromkeys(_BATCH_NORMS, _of_batch_norm),
        "native_batch_norm_backward": lambda tensors: _of_batch_norm(tensors[1:]),
        **dict.fromkeys(("pow.Scalar", "masked_fill.Scalar", "masked_fill.Tensor"), lambda tensors: ()),
        **dict.fromkeys(("poisson", "_standard_gamma", "normal.float_Tensor", "normal.Tensor_Tensor"), lambda _: ()),
        **dict.fromkeys(("_log_softmax_backward_data", "native_layer_norm_backward", *_LOSSES), lambda tensors: ()),
        "angle": lambda tensors: () if tensors[0].is_complex() else tensors,
        "log_sigmoid_forward": lambda tensors: () if tensors[0].device.type == "cpu" else tensors,
        **dict.fromkeys(("binary_cross_entropy", "huber_loss"), operator.itemgetter(slice(1))),
        **dict.fromkeys(
            ("rsub.Tensor", "threshold_backward", "leaky_relu_backward"), operator.itemgetter(slice(None, None, -1))
        ),
    }
)
"""The operands that decide where a result lies, the first one first, if these are not all operands in their order;
without any, the result is contiguous."""
COMPOSITE = ("ldexp.Tensor", "index_fill.int_Scalar", "index_fill.int_Tensor")
"""Ops that are several in eager as well, each of which lays its result out; torch's fake results lie otherwise."""


def whole_ops() -> Iterable[OpOverload]:
    """Returns the ops of `WHOLE`."""
    for name in WHOLE:
        packet, _, overload = name.partition(".")
        yield getattr(getattr(torch.ops.aten, packet), overload or "default")


@functools.cache
def is_laid_by_operands(op: OpOverload) -> bool:
    """Returns whether several operands decide together where a result of the op lies, or none does."""
    name = op.name().removeprefix("aten::")
    tensors = sum("Tensor" in str(argument.type) for argument in op._schema.arguments)
    elementwise = op.namespace == "aten" and (torch.Tag.pointwise in op.tags or name in {*UNTAGGED, *_DECIDING})
    elementwise = elementwise and name not in COMPOSITE and not op._schema.is_mutable
    return elementwise and (tensors >= 2 or name in _DECIDING)


def laid_as_in_eager(op: OpOverload, rule: Rule | None) -> Rule:
    """Returns the decomposition `rule` of `op` with the results where eager has them; `rule` itself where one operand
    decides anyway. rule: None for an op that stays whole."""
    if rule is not None and not is_laid_by_operands(op):
        return rule
    deciding = _DECIDING.get(op.name().removeprefix("aten::"), tuple)

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        result = NotImplemented if rule is None else rule(*args, **kwargs)
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
        if all(value.layout != torch.strided or value.is_contiguous() for value in given):
            return result
        made = torch_api.fake_result(op, args, kwargs) if result is NotImplemented else result
        first = made[0] if isinstance(made, (tuple, list)) else made
        if not isinstance(first, torch.Tensor) or first.layout != torch.strided or first.dim() < 2:
            return result
        order = torch_api.elementwise_order(deciding(given), first)
        if order is None:
            return result
        back = [order.index(dim) for dim in range(len(order))]
        if result is not NotImplemented:
            laid = first.permute(order).clone(memory_format=torch.contiguous_format).permute(back)
            return (laid, *made[1:]) if isinstance(made, (tuple, list)) else laid

        def moved(value: torch.Tensor) -> torch.Tensor:
            # A tensor without dimensions has no say about the type, and would have with some.
            return value.expand(first.shape).permute(order).contiguous() if value.dim() else value

        args, kwargs = tree_map_only(torch.Tensor, moved, (args, kwargs))
        return op(*args, **kwargs).permute(back)

    return decomposed
