"""Attention that a model writes out, as one call of scaled_dot_product_attention where it is trained.

In and out: dynamo's graph. `softmax(q @ k.transpose(-1, -2) * scale, -1) @ v` saves the weights for the backward: a
number for each query and key of each head. torch's fused kernels save a number for each query. In inference the
operations stay as they are: litz has kernels of its own for that (`litz_contractions.attention.written_out`).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import inf, prod
from typing import Any

import torch
import torch.nn.functional as F

from litz.capture import torch_api
from litz.capture.joint import TracedGraph
from litz_plugins import TargetOf
from litz_plugins.records import PassContext

from .fused_attention import has_fused_attention, keep_strides
from .torch_kernels import is_unfused

LEAST = 128
"""Queries and keys from which a call takes the place of the operations: torch's kernels take so many at a time."""
LEAST_RATIO = 2
"""How many times as wide as a head the rows of weights must be: so the weights are more than what a call saves instead,
its result and perhaps padded operands."""
ALIGNMENT = 16
"""Bytes at whose multiples rows of weights must begin for the library's best products with them."""
LEAST_UNALIGNED = 32
"""Queries and keys from which a call takes the place of products whose rows do not begin there: half a tile. Of 49 keys
(pvt_v2_b2) such products take three times as long on an H200 as a call and its backward."""
WIDEST = 256
"""The widest head that torch's kernels take."""

_SOFTMAX = {F.softmax, torch.softmax, "softmax"}
_DROPOUT = {F.dropout}
_MATMUL = {torch.matmul, operator.matmul, "matmul"}
_EINSUM = {torch.einsum, torch.functional.einsum}
_TIMES = {operator.mul, torch.mul, "mul"}
_BY = {operator.truediv, torch.div, torch.true_divide, "div"}
_CASTS = {"to", "float", "half", "bfloat16", "type_as"}
_SCORES, _RESULT = "abcd,abed->abce", "abcd,abde->abce"
"""Both products as einsum has them: of queries with keys, and of weights with values."""


def fuse_written_attention(traced: TracedGraph, context: PassContext) -> TracedGraph:
    """Returns the graph with one call in place of each attention that is written out, where that is better."""
    softmaxes = (node for node in traced.nodes if node.target in _SOFTMAX)
    found = {node.name: why for node in softmaxes if (why := _reason(node, context.target_of))}
    names = [name for name in found if context.allows(name)]
    if not names:
        return traced
    for name in names:
        context.record(name, "one call of scaled_dot_product_attention", found[name], about=name)
    traced = traced.copy()
    for node in traced.nodes:
        if node.name in names:
            _fuse(node)
    return traced


def is_fused_half(target_of: TargetOf, result: torch.Tensor) -> bool:
    """Returns whether torch has its best fused kernels for a tensor: by the abilities of its device, and its type."""
    return result.dtype in (torch.bfloat16, torch.float16) and has_fused_attention(target_of, result)


def _reason(softmax: torch.fx.Node, target_of: TargetOf) -> str:
    """Returns why one call is to take the place of the attention around a softmax; "" where it is not."""
    parts = _Parts.find(softmax)
    if parts is None or torch.are_deterministic_algorithms_enabled():  # torch adds gradients up in any order
        return ""
    query, _, value = named = parts.operands
    scores, result = _example(softmax), _example(parts.result)
    if not scores.requires_grad or not is_fused_half(target_of, result) or scores.shape[-1] != value.shape[-2]:
        return ""
    if any(each.device != result.device for each in named):
        return ""
    gain = _gain(scores, query.shape[-1], result.dtype.itemsize)
    if not gain or not query.shape[-1] == value.shape[-1] <= WIDEST:
        return ""
    if not query.shape[:2] == scores.shape[:2] == value.shape[:2] or is_unfused(*named, scale=parts.scale):
        return ""
    return gain


def _gain(scores: torch.Tensor, width: int, itemsize: int) -> str:
    """Returns what a call is better at. itemsize: bytes of a weight."""
    queries, keys = scores.shape[-2:]
    if min(queries, keys) >= LEAST and keys >= LEAST_RATIO * width:
        mib = prod(scores.shape) * itemsize / 2**20
        return f"the forward saves a number for each of {queries} queries of a head, and not {mib:.1f} MiB of weights"
    if min(queries, keys) >= LEAST_UNALIGNED and keys * itemsize % ALIGNMENT:
        return f"rows of {keys} weights do not begin at multiples of {ALIGNMENT} bytes: their products are slow"
    return ""


class _Parts:
    """The nodes of an attention, the first to the last. scale: of the scores. turned: is `key` a transpose?"""

    def __init__(self, nodes: list[torch.fx.Node], operands: tuple[Any, Any, Any], scale: float, turned: bool) -> None:
        self.nodes, self.scale, self.turned = nodes, scale, turned
        self.query, self.key, self.value = operands
        self.result = nodes[-1]

    @property
    def operands(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the examples of query, key and value as a call gets them: autocast converts them."""
        query, key, value = (
            _example(node).to(_example(self.result).dtype) for node in (self.query, self.key, self.value)
        )
        return query, key.transpose(-1, -2) if self.turned else key, value

    @classmethod
    def find(cls, softmax: torch.fx.Node) -> _Parts | None:
        """Returns the parts around a softmax, None where it is of no attention, or where anyone else has a use for what
        is between."""
        dim = softmax.kwargs.get("dim", softmax.args[1] if len(softmax.args) > 1 else None)
        if not softmax.args or dim not in (-1, 3) or not _is_plain(softmax):
            return None
        before: list[torch.fx.Node] = []
        scale, node = 1.0, softmax.args[0]
        while isinstance(node, torch.fx.Node) and len(node.users) == 1 and node.target not in _MATMUL | _EINSUM:
            factor = _factor(node)
            if factor is None:
                return None
            before, scale, node = [node, *before], scale * factor, node.args[0]
        if not isinstance(node, torch.fx.Node) or not _is_plain(node) or len(node.users) != 1:
            return None
        scores = _product(node, _SCORES)
        after: list[torch.fx.Node] = []
        last = softmax
        while len(last.users) == 1:
            (last,) = last.users
            if not isinstance(last.args[0], (torch.fx.Node, str)) or not (_keeps(last) or _product(last, _RESULT)):
                return None
            after.append(last)
            if not _keeps(last):
                break
        weighed = _product(after[-1], _RESULT) if after else None
        inner = after[-2] if len(after) > 1 else softmax
        if scores is None or weighed is None or weighed[0] is not inner or not _is_plain(after[-1]):
            return None
        nodes = [node, *before, softmax, *after]
        return cls(nodes, (scores[0], scores[1], weighed[1]), scale, node.target in _MATMUL)


def _example(node: torch.fx.Node) -> torch.Tensor:
    value: torch.Tensor = node.meta["example_value"]
    return value


def _is_plain(node: torch.fx.Node) -> bool:
    """Returns whether the node's value is a tensor of four dimensions whose sizes are numbers."""
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.ndim == 4 and all(isinstance(size, int) for size in value.shape)


def _casts(node: torch.fx.Node, dtypes: Sequence[torch.dtype]) -> bool:
    """Returns whether the node is a conversion to one of the types, or to the type that there is already."""
    if node.op != "call_method" or node.target not in _CASTS or not isinstance(node.args[0], torch.fx.Node):
        return False
    before, after = node.args[0].meta.get("example_value"), node.meta.get("example_value")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor) or before.device != after.device:
        return False
    return after.dtype in (before.dtype, *dtypes)


def _factor(node: torch.fx.Node) -> float | None:
    """Returns what a node multiplies its first argument by; None for a node that does anything else. A factor below 0
    stays: torch's kernels subtract the largest score, and not the largest product with the factor."""
    if _casts(node, (torch.float32,)):
        return 1.0
    number = node.args[1] if len(node.args) == 2 and not node.kwargs else None
    if not isinstance(number, (int, float)) or isinstance(number, bool) or not 0 < number < inf:
        return None
    return float(number) if node.target in _TIMES else 1.0 / number if node.target in _BY else None


def _keeps(node: torch.fx.Node) -> bool:
    """Returns whether a node leaves weights as they are, but for their type: a conversion, or a dropout of nothing."""
    if node.target in _DROPOUT:
        given = {**dict(zip(("input", "p", "training"), node.args, strict=False)), **node.kwargs}
        return bool(given.get("p", 0.5) == 0 or given.get("training", True) is False)
    return _casts(node, (torch.float32, torch.bfloat16, torch.float16))


def _product(node: torch.fx.Node, meaning: str) -> tuple[Any, Any] | None:
    """Returns the operands of a product of matrices, None for any other node. meaning: of an einsum."""
    operands: Sequence[Any] = node.args
    if node.target in _EINSUM and len(node.args) > 1 and isinstance(node.args[0], str):
        operands = node.args[1] if isinstance(node.args[1], (list, tuple)) else node.args[1:]
        names = {letter: "abcdefgh"[at] for at, letter in enumerate(dict.fromkeys(filter(str.isalpha, node.args[0])))}
        if len(names) > 5 or "".join(names.get(each, each) for each in node.args[0] if each != " ") != meaning:
            return None
    elif node.target not in _MATMUL or node.kwargs:
        return None
    if len(operands) != 2 or not all(isinstance(each, torch.fx.Node) and _is_plain(each) for each in operands):
        return None
    return operands[0], operands[1]


def _fuse(softmax: torch.fx.Node) -> None:
    parts = _Parts.find(softmax)
    assert parts is not None, "it was found before"
    graph = parts.result.graph
    with graph.inserting_before(parts.result):
        key = parts.key
        if parts.turned:
            key = graph.call_method("transpose", (key, -1, -2))
            key.meta = {**parts.key.meta, "example_value": _example(parts.key).transpose(-1, -2)}
        call = graph.call_function(
            F.scaled_dot_product_attention, (parts.query, key, parts.value), {"scale": parts.scale}
        )
    call.meta = dict(parts.result.meta)
    parts.result.replace_all_uses_with(call)
    with torch_api.fake_mode_around(parts.operands):
        keep_strides(call, F.scaled_dot_product_attention(*parts.operands, scale=parts.scale))
    for node in reversed(parts.nodes):
        graph.erase_node(node)
