"""Which ATen ops are broken into smaller ones while a graph is traced.

The base is torch's core ATen set. `_ADD` is broken up as well, since fusing the pieces beats the composite kernel;
`_KEEP` is not, since a lowering or the library does better with the whole. Whatever stays and has no lowering runs as
an Extern, so leaving an op alone is always safe. Norms compute in float32 for half inputs, as eager does: torch's rules
do that.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from litz.capture import torch_api
from litz.capture.eager_layouts import COMPOSITE, is_laid_by_operands, laid_as_in_eager, whole_ops
from litz.capture.eager_types import unless_left_to_eager

aten = torch.ops.aten

Decomposition = Callable[..., Any]
NOT_TRUE = "Expected Tensor with single nonzero value, but got zero"  # eager, of an assertion without a message

# By name and not by attribute: an op that this torch version lacks is passed over.
_ADD: Mapping[str, tuple[str, ...]] = {
    "normalization: the statistics fuse with what comes before, the scaling with what comes after": (
        *("native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward"),
        *("native_batch_norm", "native_batch_norm_backward", "batch_norm_backward", "_native_batch_norm_legit"),
        *("_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training", "_batch_norm_no_update"),
        *("_batch_norm_with_update", "_batch_norm_with_update_functional", "cudnn_batch_norm"),
        *("cudnn_batch_norm_backward", "miopen_batch_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward"),
    ),
    "softmax: reductions and pointwise, recognized again where an online form pays": (
        *("_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data", "_safe_softmax"),
        "logsumexp",
    ),
    "activations and other pointwise composites": (
        *("gelu", "gelu_backward", "elu", "elu_backward", "silu", "silu_backward", "leaky_relu", "hardtanh"),
        *("leaky_relu_backward", "hardtanh_backward", "hardswish", "hardswish_backward", "hardsigmoid", "mish"),
        *("mish_backward", "celu", "selu", "softplus", "softplus_backward", "glu", "glu_backward"),
        "log_sigmoid_forward",
        *("log_sigmoid_backward", "threshold", "threshold_backward", "prelu", "_prelu_kernel_backward"),
        *("rrelu_with_noise_backward", "addcmul", "addcdiv", "lerp", "hypot", "logaddexp", "logit", "nan_to_num"),
        *("masked_fill", "tril", "triu", "isinf", "frac", "sinc", "xlogy", "heaviside", "deg2rad", "rad2deg"),
        *("floor_divide", "addr", "ldexp", "square", "logit_backward", "sgn"),
    ),
    "dropout: the mask is drawn in the kernel that uses it": (*("native_dropout_backward", "_fused_dropout"),),
    "random distributions: all from a uniform or normal draw": (
        *("bernoulli", "uniform", "exponential", "geometric", "cauchy", "log_normal", "normal"),
    ),
    "losses": (
        *("nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward", "mse_loss"),
        *("mse_loss_backward", "huber_loss", "huber_loss_backward", "smooth_l1_loss", "smooth_l1_loss_backward"),
        *("binary_cross_entropy", "binary_cross_entropy_backward", "binary_cross_entropy_with_logits", "kl_div"),
        *("soft_margin_loss", "soft_margin_loss_backward", "multi_margin_loss"),
    ),
    "indexed reads and writes in which a negative index counts from the end, as in index and index_put": (
        *("embedding_dense_backward", "take"),
        *("select_backward", "slice_backward"),
        *("diagonal_backward", "masked_select_backward"),
    ),
    "constants and ranges": (
        *("linspace", "arange", "eye", "ones", "zeros", "ones_like", "zeros_like", "new_zeros"),
        *("new_ones", "new_full", "tril_indices", "triu_indices"),
    ),
    "reductions built from others": ("linalg_vector_norm", "norm", "dist", "std", "nansum", "count_nonzero"),
    "shapes: slices, cats and index arithmetic": (
        *("split_with_sizes", "split", "unbind", "stack", "repeat", "roll", "rot90", "pixel_shuffle"),
        *("pixel_unshuffle", "channel_shuffle", "narrow_copy", "diag_embed", "block_diag", "unsafe_split"),
        *("_chunk_cat", "split_with_sizes_copy", "im2col", "reflection_pad1d", "reflection_pad2d"),
        *("reflection_pad3d", "replication_pad1d", "replication_pad2d", "replication_pad3d"),
    ),
    "resampling, where torch has a rule": (*torch_api.RESAMPLING, "affine_grid_generator"),
}

FUSED_ATTENTION = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_flash_attention_for_cpu",
)
"""The names of torch's ops that are fused kernels of attention."""

# Packets (all overloads) or "packet.overload".
_KEEP: Mapping[str, tuple[str, ...]] = {
    "contractions: a library or a template computes them whole, in the input's precision": (
        *("mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward", "_addmm_activation", "addmv"),
    ),
    "attention: fused kernels exist, and the decomposed form needs quadratic memory": FUSED_ATTENTION,
    "lowered as they are: one op in the IR, and its own rule is more exact than the pieces": (
        *("sum.dim_IntList", "mean", "amax", "amin", "all", "any", "var_mean.correction", "aminmax", "prod"),
        "std_mean.correction",
        *("sigmoid", "tanh", "cat", "_to_copy", "clone", "constant_pad_nd", "cumsum", "cumprod", "unfold"),
        *("max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d", "flip", "where.self"),
        *("view", "permute", "expand", "diagonal", "empty_strided", "full", "_unsafe_index", "_unsafe_index_put"),
        *("select_scatter", "slice_scatter", "diagonal_scatter", "roll", "unfold_backward", "col2im"),
        *("reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward"),
    ),
    "a negative index is an error, and in the index that torch's rule makes of them counts from the end": (
        *("embedding", "index_select", "index_add", "index_copy", "index_fill", "max_unpool2d", "max_unpool3d"),
    ),
    "dropout: torch's rule draws in the input's type, which in a half type makes a wrong probability": (
        "native_dropout",
    ),
    "torch's rules compute with the ends before they look whether the type holds them, or fail": (
        *("linspace.Tensor_Tensor", "linspace.Tensor_Scalar", "linspace.Scalar_Tensor", "logspace"),
    ),
    "the result is not a tensor of numbers, or depends on the values": ("is_same_size", "bucketize"),
}


def decompositions(extra: Mapping[OpOverload, Decomposition | None] | None = None) -> dict[OpOverload, Decomposition]:
    """The table for AOTAutograd: op to the function that computes it from smaller ops. extra: what plugins register; it
    wins over core's own choice, also for ops that core keeps, and an op that it maps to None is kept whole."""
    table = _core_table().copy()  # `dict` of a proxy would look each op up again
    for op, rule in (extra or {}).items():
        table.pop(op, None)
        if rule is not None:
            table[op] = rule
    return table


def drawn_in_eager(table: Mapping[OpOverload, Decomposition]) -> dict[OpOverload, Decomposition]:
    """Returns a table of decompositions or lowerings without the random ops that draw, which are library calls then."""
    return {op: rule for op, rule in table.items() if not torch_api.is_random_draw(op)}


def fake_rules(table: Mapping[OpOverload, Decomposition]) -> dict[OpOverload, Decomposition]:
    """Returns the rules of a table by which results may lie otherwise than torch's fake results do."""
    ops, laid = _core_ops()  # as sets: a look at each op of a table takes longer than a small lowering
    found = laid.union(filter(_is_laid, table.keys() - ops))
    return {op: torch_api.whole_where_undecided(table[op]) for op in found if op in table}


def _is_laid(op: OpOverload) -> bool:
    return op in _own_rules() or is_laid_by_operands(op) or op.name().removeprefix("aten::") in COMPOSITE


@functools.cache
def _core_ops() -> tuple[frozenset[OpOverload], frozenset[OpOverload]]:
    """The ops of core's table, and those of them that `fake_rules` takes."""
    return frozenset(_core_table()), frozenset(filter(_is_laid, _core_table()))


@functools.cache
def _core_table() -> MappingProxyType[OpOverload, Decomposition]:
    """Core's own choice, built once: it depends on nothing but the torch version."""
    registry = torch_api.decomposition_registry()
    table = torch_api.core_decompositions()
    for names in _ADD.values():
        table.update({op: registry[op] for op in _overloads(names) if op in registry})
    for names in _KEEP.values():
        for op in _overloads(names):
            table.pop(op, None)
    table.update(_own_rules())
    table.update({op: laid_as_in_eager(op, table.get(op)) for op in {*table, *whole_ops()}})
    rules = {op: unless_left_to_eager(op, rule) for op, rule in table.items()}
    return MappingProxyType({op: torch_api.whole_where_undecided(rule) for op, rule in rules.items()})


def _overloads(names: Iterable[str]) -> Iterable[OpOverload]:
    """The overloads that the names stand for, without out= ones, which functionalization removes. Ops that write a
    statistic (`_native_batch_norm_legit`) count: their rules write it with copy_, which it can see."""
    for name in names:
        packet_name, _, overload = name.partition(".")
        packet = getattr(aten, packet_name, None)
        if not isinstance(packet, OpOverloadPacket):
            continue
        for each in [overload] if overload else packet.overloads():
            op = getattr(packet, each, None)
            if op is not None and not any(argument.is_out for argument in op._schema.arguments):
                yield op


# torch's rules give few channels contiguous on a GPU.
_RESAMPLING = tuple(getattr(aten, name).default for name in torch_api.RESAMPLING if name != "upsample_bicubic2d")
_PADS = ("reflection_pad2d", "reflection_pad3d", "replication_pad2d", "replication_pad3d")


@functools.cache
def _own_rules() -> dict[OpOverload, Decomposition]:
    """Rules that torch lacks, or where litz wants others."""
    return {
        # By the reduction that var_mean has, too: Welford's, which is exact for large means.
        aten.var.correction: lambda *args, **options: aten.var_mean.correction(*args, **options)[0],
        aten.std.correction: lambda *args, **options: aten.std_mean.correction(*args, **options)[0],
        aten.copy.default: _copy,
        aten.addcmul.default: _addcmul,
        aten.native_dropout_backward.default: lambda gradient, mask, scale: gradient * mask * scale,  # in this order
        aten.ldexp.Tensor: lambda x, y: aten.mul.Tensor(x, aten.pow.Scalar(2.0, y)),  # as eager has it for floats
        aten.threshold.default: lambda x, most, value: torch.where(x <= x.new_full((), most), x.new_full((), value), x),
        aten.split_with_sizes.default: _split_with_sizes,
        aten.repeat.default: _repeat,
        **{op: functools.partial(in_format_of_input, op) for op in (*_RESAMPLING, aten.channel_shuffle.default)},
        aten.native_channel_shuffle.default: functools.partial(in_format_of_input, aten.channel_shuffle.default),
        aten.max_unpool2d.default: functools.partial(_in_format_of, 0, ("cpu", "cuda"), aten.max_unpool2d.default),
        **{op: functools.partial(_in_format_of, 1, ("cpu",), op) for op in _overloads(f"{n}_backward" for n in _PADS)},
        aten.roll.default: _roll,
        # With eager's message: FX takes an assertion without one for a call that may be dropped.
        aten._assert_async.default: lambda x: aten._assert_async.msg(x, NOT_TRUE),
        **{op: functools.partial(_of_contiguous, op) for op in torch_api.elementwise_collectives()},
        # One overload for tensor and number operands, so that a lowering has one row per op.
        aten.add.Scalar: lambda x, y, alpha=1: aten.add.Tensor(x, y, alpha=alpha),
        aten.sub.Scalar: lambda x, y, alpha=1: aten.sub.Tensor(x, y, alpha=alpha),
        aten.mul.Scalar: aten.mul.Tensor,
        aten.div.Scalar: aten.div.Tensor,
        aten.div.Scalar_mode: aten.div.Tensor_mode,
    }


def _in_format_of(at: int, devices: Sequence[str], op: OpOverload, *args: Any) -> Any:
    """On these devices eager's result has the memory format of argument `at`; the op's fake result is contiguous."""
    wanted = torch_api.suggested_format(args[at])
    if args[at].device.type not in devices or args[at].is_contiguous() or wanted == torch.contiguous_format:
        return NotImplemented
    return op(*(x.contiguous() if isinstance(x, torch.Tensor) else x for x in args)).contiguous(memory_format=wanted)


def _roll(x: torch.Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Any:
    """On a CPU eager's result has the memory format of the input, unless it is rolled all the way around a dimension;
    the op's fake kernel gives a contiguous result. Of sizes that vary, whether it is makes a guard."""
    wanted = torch_api.suggested_format(x)
    if x.device.type != "cpu" or wanted == torch.contiguous_format or not dims:
        return NotImplemented
    moves = [(shift, x.shape[dim]) for shift, dim in zip(shifts, dims, strict=True)]
    if None in map(torch_api.hint_or_none, sum(moves, ())) or any(n == 0 or k % n == 0 for k, n in moves):
        return NotImplemented
    return aten.roll(x.clone(memory_format=torch.contiguous_format), shifts, dims).clone(memory_format=wanted)


def in_format_of_input(op: OpOverload, x: torch.Tensor, *args: Any) -> Any:
    """Applies torch's rule, and lays the result out as eager does: channels last where x is, else contiguous."""
    shuffle = op == aten.channel_shuffle.default  # contiguous on a GPU; of one group, torch's rule gives a view of x
    wanted = torch.contiguous_format if shuffle and x.device.type != "cpu" else torch_api.suggested_format(x)
    result = torch_api.decomposition_registry()[op](x, *args)
    return result.clone(memory_format=wanted) if shuffle else result.contiguous(memory_format=wanted)


def _split_with_sizes(x: torch.Tensor, split_sizes: Sequence[Any], dim: int = 0) -> Any:
    """Slices, where sizes are known, else the op stays: torch's rule makes as_strided views, for which x has to lie as
    it was traced."""
    if not all(isinstance(size, int) for size in (*split_sizes, x.shape[dim])):
        return NotImplemented
    if sum(split_sizes) != x.shape[dim]:
        return torch_api.decomposition_registry()[aten.split_with_sizes.default](x, split_sizes, dim)  # its error
    ends = itertools.accumulate(split_sizes)
    return [aten.slice.Tensor(x, dim, end - size, end) for size, end in zip(split_sizes, ends, strict=True)]


def _repeat(x: torch.Tensor, repeats: Sequence[Any]) -> Any:
    """A new contiguous tensor, as in eager; what torch's rule makes lies as the strides of x say."""
    ahead = len(repeats) - x.dim()
    if ahead < 0:
        return NotImplemented  # the op raises
    size = [1] * ahead + list(x.shape)
    for dim in reversed(range(x.dim())):
        x = x.unsqueeze(dim)
    copies = x.expand([part for pair in zip(repeats, size, strict=True) for part in pair])
    target = [repeat * n for repeat, n in zip(repeats, size, strict=True)]
    return copies.clone(memory_format=torch.contiguous_format).view(target)


def _copy(x: Any, source: Any, non_blocking: bool = False) -> Any:
    """Returns what `x.copy_(source)` leaves in x, where that is a pointwise op; else the op stays (NotImplemented)."""
    if not isinstance(x, torch.Tensor) or not isinstance(source, torch.Tensor):
        return NotImplemented  # torch takes numbers for tensors here
    if x.device != source.device or not x.is_contiguous() or x.layout != torch.strided:
        return NotImplemented
    converted = torch.ops.prims.convert_element_type(source, x.dtype) if source.dtype != x.dtype else source
    return converted.expand(x.shape).clone(memory_format=torch.contiguous_format)


def _addcmul(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, value: Any = 1) -> Any:
    """Applies torch's rule, which refuses a factor that is no integer where x holds integers; eager takes the whole
    part of such a factor, so that the op stays (NotImplemented)."""
    if isinstance(value, (float, torch.SymFloat)) and not (x.is_floating_point() or x.is_complex()):
        return NotImplemented
    return torch_api.decomposition_registry()[aten.addcmul.default](x, a, b, value=value)


def _of_contiguous(op: OpOverload, given: Any, *args: Any, **kwargs: Any) -> Any:
    """A reduction or broadcast of contiguous copies, as the op itself makes them. Its fake result lies as the argument
    does, its real one is contiguous, and nobody may copy that to where it should lie while it is being written."""
    tensors = given if isinstance(given, (list, tuple)) else [given]
    if all(tensor.is_contiguous() for tensor in tensors):
        return NotImplemented
    copies = [tensor.contiguous() for tensor in tensors]
    return op(copies if isinstance(given, (list, tuple)) else copies[0], *args, **kwargs)
