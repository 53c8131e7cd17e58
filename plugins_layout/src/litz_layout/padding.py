"""Padding of matrix products: operands get dimensions that tensor cores take, where that pays.

In: a Graph. Out: the Graph with some `mm`, `addmm` and `bmm` on operands padded with zeros, their results cut back to
size. The padding of an operand that a loop computes is part of that loop; an input is copied. Zeros in the reduced
dimension add nothing, rows and columns that are cut away are never read, so the values stay what they were.

A product is padded where, at worst, copies and product together take less than the product takes now at best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.target import rate_kind
from litz.target.times import alike, matrix, memory, time_of
from litz_plugins import PassContext, Target

aten = torch.ops.aten


@dataclass(frozen=True)
class Alignment:
    """The share of the peak that a product reaches if its sizes are multiples of `multiple` elements."""

    multiple: int
    share: float
    source: str


_GPT2 = "GPT-2's product with 50257 columns in bf16, 8192 by 768, on an H100 (docs/lab/models.md): 6.7 ms as it is, "
ALIGNED: tuple[Alignment, ...] = (
    Alignment(64, 0.70, _GPT2 + "0.9 ms with 50304"),
    Alignment(8, 0.65, "cuBLAS takes 16-byte accesses from 8 elements on; tiles are 64 and more wide"),
)
"""The multiples to round sizes of two-byte dtypes up to, the best first, and the share of the peak that each
reaches."""
UNALIGNED = Alignment(1, 0.095, _GPT2 + "94 TFLOP/s")
SPREAD = 1.5
"""The truth lies within this factor of these shares, for shapes that nobody measured."""
_TYPES = frozenset({torch.float16, torch.bfloat16})
_LEAST = 256
"""A product with a dimension below this is bound by its operands' bytes, and padding adds to them."""


@dataclass(frozen=True)
class _Product:
    """The places of a product's operands among its arguments. bias: of addmm, None if there is none."""

    left: int
    right: int
    bias: int | None = None


_PRODUCTS: Mapping[Any, _Product] = {
    aten.mm.default: _Product(0, 1),
    aten.bmm.default: _Product(0, 1),
    aten.addmm.default: _Product(1, 2, 0),
}


@dataclass(frozen=True)
class Padding:
    """A product's (m, k, n) as they are and padded; µs now, at best, and padded, at worst."""

    sizes: tuple[int, int, int]
    padded: tuple[int, int, int]
    now_us: float
    padded_us: float
    why: str


def pad_contractions(graph: Graph, context: PassContext) -> Graph:
    """Returns the graph with products padded where that pays (`layout.pad` "auto") or is possible ("always")."""
    always = context.options["layout.pad"] == "always"
    chosen: dict[torch.fx.Node, Padding] = {}
    for node in graph.nodes:
        if node.target in _PRODUCTS:
            found = plan_padding(graph, node, context, always)
            if found is None:
                continue
            names = (("as it is", found.now_us), ("padded", found.padded_us))
            text = " by ".join(map(str, found.padded))
            pays = always or found.padded_us < found.now_us
            padded, why = context.weigh(node.name, pays, found.now_us, found.padded_us)
            if padded:
                chosen[node] = found
                context.record(node.name, f"padded to {text}", why or found.why, names, about=node.name)
            else:
                reason = why or f"{text} would take longer: {found.why}"
                context.record(node.name, "not padded", reason, names, about=node.name)
    return _padded(graph, chosen) if chosen else graph


def plan_padding(graph: Graph, node: torch.fx.Node, context: PassContext, always: bool = False) -> Padding | None:
    """Returns the best padding of a product, or None. always: for any device, dtype and size."""
    left, right = _operands(node)
    *batch, m, k = left.shape
    n = right.shape[-1]
    if not all(isinstance(size, int) for size in (*batch, m, k, n)):
        return None  # a product of symbolic size would be padded for every size, aligned ones too
    sizes = (int(m), int(k), int(n))
    target = context.target_of(left.device)
    if 0 in sizes or prod(batch) == 0:
        return None
    if not always:
        if target.capability < 70 or left.dtype not in _TYPES or min(sizes) < _LEAST:
            return None
    if not _misaligned(node, sizes):
        return None
    now_us = _product_us(sizes, prod(batch), UNALIGNED, target, left.dtype) / SPREAD
    best: Padding | None = None
    for alignment in ALIGNED:
        padded = _rounded(node, sizes, alignment.multiple)
        us = _product_us(padded, prod(batch), alignment, target, left.dtype) * SPREAD
        us += _copies_us(node, sizes, padded, prod(batch), target)
        if best is None or us < best.padded_us:
            best = Padding(sizes, padded, now_us, us, f"multiples of {alignment.multiple}; {alignment.source}")
    return best


def _operands(node: torch.fx.Node) -> tuple[torch.Tensor, torch.Tensor]:
    at = _PRODUCTS[node.target]
    left: Any = node.args[at.left]
    right: Any = node.args[at.right]
    return left.meta["val"], right.meta["val"]


def _misaligned(node: torch.fx.Node, sizes: tuple[int, int, int]) -> bool:
    """Returns whether memory is contiguous along a dimension of no multiple of 8 elements: rows start at odd places."""
    return _rounded(node, sizes, 8) != sizes


def _rounded(node: torch.fx.Node, sizes: tuple[int, int, int], multiple: int) -> tuple[int, int, int]:
    """The sizes rounded up where it matters: n, along which the result is contiguous, and what is contiguous of each
    operand (k or m of the left, n or k of the right). A size that is a multiple of 8 already stays."""
    left, right = _operands(node)
    m, k, n = sizes
    wanted = {2, 1 if left.stride(-1) == 1 else 0, 2 if right.stride(-1) == 1 else 1}
    found = [size if at not in wanted or size % 8 == 0 else _up(size, multiple) for at, size in enumerate((m, k, n))]
    return found[0], found[1], found[2]


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _product_us(
    sizes: tuple[int, int, int], batch: int, alignment: Alignment, target: Target, dtype: torch.dtype
) -> float:
    m, k, n = sizes
    bounds = (
        matrix(2.0 * batch * m * k * n, rate_kind(dtype), target, alike(alignment.share)),
        memory(batch * (m * k + k * n + m * n) * dtype.itemsize, target, target.shares["copy"]),
    )
    return time_of(bounds, target).us


def _copies_us(
    node: torch.fx.Node, sizes: tuple[int, int, int], padded: tuple[int, int, int], batch: int, target: Target
) -> float:
    """Returns the most that padding the operands and cutting the result takes: each is a copy of its own, but for a
    result that only loops read, which see through the cut."""
    left, _ = _operands(node)
    moved, copies = 0, 0
    for dims in ((0, 1), (1, 2)):
        if any(sizes[dim] != padded[dim] for dim in dims):
            moved += prod(sizes[dim] for dim in dims) + prod(padded[dim] for dim in dims)
            copies += 1
    if (sizes[0], sizes[2]) != (padded[0], padded[2]):
        moved += 2 * sizes[0] * sizes[2]
        copies += 1
    copied = memory(batch * moved * left.dtype.itemsize, target, alike(target.shares["copy"].worst))
    return time_of((copied,), target, alike(copies)).us


# --------------------------------------------------------------------------------------------------------- rewriting


def _padded(graph: Graph, chosen: Mapping[torch.fx.Node, Padding]) -> Graph:
    copied = torch.fx.Graph()
    mapping: dict[torch.fx.Node, torch.fx.Node] = {}
    operands: dict[tuple[torch.fx.Node, tuple[int, ...]], torch.fx.Node] = {}

    def emit(target: Callable[..., Any], args: tuple[Any, ...]) -> torch.fx.Node:
        node = copied.call_function(target, args)
        values = torch.fx.node.map_arg(args, lambda argument: argument.meta["val"])
        with torch_api.fake_mode_around(values):
            node.meta = {"val": target(*values)}
        return node

    def pad(source: torch.fx.Node, sizes: tuple[int, ...]) -> torch.fx.Node:
        """`source` with zeros after the end of its last dimensions; the same for everyone who asks."""
        value = source.meta["val"]
        missing = [size - int(has) for size, has in zip(sizes, value.shape[value.dim() - len(sizes) :], strict=True)]
        if not any(missing):
            return mapping[source]
        key = (source, sizes)
        if key not in operands:
            base = _transposed(source)
            if base is None:
                widths = [width for amount in reversed(missing) for width in (0, amount)]
                operands[key] = emit(aten.constant_pad_nd.default, (mapping[source], widths, 0.0))
            else:  # a matrix and its transpose are padded once, and what is contiguous stays so
                operands[key] = emit(aten.permute.default, (pad(base, sizes[::-1]), [1, 0]))
        return operands[key]

    def cut_to(node: torch.fx.Node, sizes: Sequence[int]) -> torch.fx.Node:
        for dim, size in zip(range(-len(sizes), 0), sizes, strict=True):
            if node.meta["val"].shape[dim] != size:
                node = emit(aten.slice.Tensor, (node, node.meta["val"].dim() + dim, 0, size))
        return node

    alone, cut = _read_padded(graph, chosen), dict[torch.fx.Node, torch.fx.Node]()
    for node in graph.nodes:
        padding = chosen.get(node)
        if padding is None:
            own = {**mapping, **cut} if _reads_by_element(node) else mapping
            mapping[node] = copied.node_copy(node, own.__getitem__)
            if node in alone:
                cut[node] = cut_to(pad(node, alone[node]), [int(n) for n in node.meta["val"].shape[-2:]])
            continue
        at, (m, k, n) = _PRODUCTS[node.target], padding.padded
        args: list[Any] = [mapping.get(item, item) if isinstance(item, torch.fx.Node) else item for item in node.args]
        left, right = node.args[at.left], node.args[at.right]
        assert isinstance(left, torch.fx.Node) and isinstance(right, torch.fx.Node)
        args[at.left], args[at.right] = pad(left, (m, k)), pad(right, (k, n))
        if at.bias is not None:
            args[at.bias] = _padded_bias(pad, node.args[at.bias], m, n)
        product = copied.create_node("call_function", node.target, tuple(args), dict(node.kwargs))
        product.meta = {**node.meta, "val": _result(node.meta["val"], m, n)}
        result = cut_to(product, (padding.sizes[0], padding.sizes[2]))
        # What reads it was traced with rows that touch each other.
        fresh = copied.create_node("call_function", aten.clone.default, (result,), name=node.name)
        fresh.meta = dict(node.meta)
        mapping[node] = fresh if result is not product else product
    return replace(graph, module=torch_api.make_graph_module(graph.module, copied, type(graph.module).__name__))


def _read_padded(graph: Graph, chosen: Mapping[torch.fx.Node, Padding]) -> dict[torch.fx.Node, tuple[int, int]]:
    """The operands that need not exist but for their padded form, and the sizes of that: computed tensors that padded
    products read, and loops read element by element (a gradient, whose sum is a bias's gradient)."""
    found: dict[torch.fx.Node, tuple[int, int]] = {}
    for product, padding in chosen.items():
        at, (m, k, n) = _PRODUCTS[product.target], padding.padded
        for argument, sizes in ((product.args[at.left], (m, k)), (product.args[at.right], (k, n))):
            assert isinstance(argument, torch.fx.Node)
            base = _transposed(argument)
            found.setdefault(argument if base is None else base, sizes if base is None else sizes[::-1])

    def is_product(user: torch.fx.Node) -> bool:
        return user in chosen or (_transposed(user) is not None and all(each in chosen for each in user.users))

    def is_alone(node: torch.fx.Node) -> bool:
        others = [user for user in node.users if not is_product(user)]
        return node.op == "call_function" and bool(others) and all(map(_reads_by_element, others))

    return {node: sizes for node, sizes in found.items() if is_alone(node)}


def _reads_by_element(node: torch.fx.Node) -> bool:
    """Returns whether a loop reads the node's arguments wherever their elements lie."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return node.target is aten.sum.dim_IntList or torch.Tag.pointwise in node.target.tags


def _transposed(node: torch.fx.Node) -> torch.fx.Node | None:
    """Returns the matrix that the node is the transpose of."""
    base = node.args[0] if node.args else None
    turned = node.target is aten.permute.default and node.meta["val"].dim() == 2 and node.args[1] == [1, 0]
    return base if turned and isinstance(base, torch.fx.Node) else None


def _padded_bias(pad: Callable[..., torch.fx.Node], bias: Any, m: int, n: int) -> torch.fx.Node:
    """Pads addmm's first argument, which broadcasts: only its dimensions of full size are padded."""
    shape = bias.meta["val"].shape
    wanted = tuple(1 if int(has) == 1 else full for has, full in zip(reversed(shape), (n, m), strict=False))
    return pad(bias, tuple(reversed(wanted)))


def _result(value: torch.Tensor, m: int, n: int) -> torch.Tensor:
    with torch_api.fake_mode_around([value]):
        return torch.empty((*value.shape[:-2], m, n), dtype=value.dtype, device=value.device)
