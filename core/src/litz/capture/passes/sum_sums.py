"""Sums of many sums over rows: the rows are added up first, and summed once.

In: a Graph. Out: the Graph with `(x1.sum(0) + x2.sum(0)) + ...` as `((x1 + x2) + ...).sum(0)`, where there are many
tensors and they are small. A recurrent network's backward sums the gradient of a bias so: a sum over the batch per step
of the sequence, each of which makes a reduction of the kernel that computes the step's gradients. Added up one by one
they are part of a pointwise kernel, which has more programs to run at a time. The tensors are added in float32 (float64
those of float64), so what eager rounds to a half type, each sum and each partial sum, is rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch

from litz.capture.graph import Graph
from litz.capture.passes.rewrite import Call, Changes, Escapes, call_at, find_escapes, rewrite, same_geometry, tensor_of
from litz.capture.torch_api import same_statically
from litz_plugins.records import PassContext

aten = torch.ops.aten

MANY = 8
"""Tensors in a sum: below that the partial sums are hardly fewer than what they replace."""

LARGEST = 1 << 18
"""Elements of a tensor: their partial sum in float32 is read and written once more per step, 2 MiB at most, which takes
0.5 us on an H200 (1 us is about 4 MB). The reduction that goes takes 1.4 us (64 rows of 1536: 3.2 us with it, where the
pointwise kernel of the same tensors takes 1.8)."""

_TYPES = {torch.bfloat16: torch.float32, torch.float16: torch.float32, torch.float32: torch.float32,
          torch.float64: torch.float64}  # fmt: skip
_RESHAPES = (aten.view.default, aten.squeeze.dim, aten.squeeze.dims)


@dataclass(frozen=True)
class Term:
    """One of the sums. sum: the node that sums `source`. last: what is added, the sum or a view of it without the
    dimensions that were summed."""

    sum: torch.fx.Node
    source: torch.fx.Node
    dims: tuple[int, ...]
    last: torch.fx.Node

    @property
    def nodes(self) -> tuple[torch.fx.Node, ...]:
        """The sum, and the view of it where there is one."""
        return tuple(dict.fromkeys((self.sum, self.last)))


def sum_sums(graph: Graph, context: PassContext | None = None) -> Graph:
    """Returns the graph with long sums (`MANY` or more) of sums of small tensors as one sum of the tensors' sum; the
    same object if there are none."""
    escapes = find_escapes(graph)
    place = {node: number for number, node in enumerate(graph.nodes)}
    emit: dict[torch.fx.Node, Call] = {}
    drop: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if not _is_add(node) or (len(node.users) == 1 and all(_is_add(user) for user in node.users)):
            continue
        last, partial = _added(node)
        if len(last) < MANY or node in escapes.written:
            continue
        terms = [term for each in last if (term := _term(each, escapes)) is not None]
        if len(terms) < len(last) or not _are_alike(terms) or not _is_small(terms[0], graph):
            continue
        if any(place[before.sum] > place[after.sum] for before, after in pairwise(terms)):
            continue  # partial sums in another order would keep tensors in memory for longer
        if context is not None and not context.allows(node.name):
            continue
        emit |= _partial_sums(terms, node)
        drop |= {*partial, *(each for term in terms for each in term.nodes if each not in emit)}
        if context is not None:
            context.record(node.name, f"one sum of {len(terms)} tensors", "each is added by the kernel that makes it")
    return rewrite(graph, Changes(emit=emit, drop=frozenset(drop)))


def _partial_sums(terms: list[Term], node: torch.fx.Node) -> dict[torch.fx.Node, Call]:
    """What the terms' sums and the node that ends the chain are computed by."""
    first, value = terms[0], tensor_of(node)
    assert value is not None
    wide = _TYPES[value.dtype]
    before = call_at(first.sum, aten._to_copy.default, first.source, dtype=wide)
    found = {first.sum: before}
    for term in terms[1:]:
        # The fake result is of the call before; the argument is that node, whose place the call takes.
        meta = call_at(term.sum, aten.add.Tensor, before, term.source).meta
        previous = list(found)[-1]
        before = Call(aten.add.Tensor, (previous, term.source), meta=meta)
        found[term.sum] = before
    keepdim = value.dim() == first.source.meta["val"].dim()
    meta = call_at(node, aten.sum.dim_IntList, before, list(first.dims), keepdim).meta
    total = Call(aten.sum.dim_IntList, (terms[-1].sum, list(first.dims), keepdim), meta=meta)
    found[node] = total if wide == value.dtype else Call(aten._to_copy.default, (total,), {"dtype": value.dtype})
    return found


def _is_add(node: torch.fx.Node) -> bool:
    """Is it the sum of two tensors of its own size and type?"""
    value = tensor_of(node)
    if node.target != aten.add.Tensor or node.kwargs or len(node.args) != 2 or value is None:
        return False
    if value.dtype not in _TYPES:
        return False
    return all(isinstance(item, torch.fx.Node) and same_geometry(item, node) for item in node.args)


def _added(node: torch.fx.Node) -> tuple[list[torch.fx.Node], list[torch.fx.Node]]:
    """(what is added from left to right, the sums before the last): through sums that nothing else reads."""
    found: list[torch.fx.Node] = []
    partial: list[torch.fx.Node] = []
    while True:
        left, right = node.args
        assert isinstance(left, torch.fx.Node) and isinstance(right, torch.fx.Node)
        if _is_add(right):
            left, right = right, left
        found.append(right)
        if not _is_add(left) or len(left.users) != 1:
            return [left, *found[::-1]], partial
        partial.append(left)
        node = left


def _term(last: torch.fx.Node, escapes: Escapes) -> Term | None:
    """Returns the sum over rows that is added; None where another thing is, or where something else reads the sum."""
    node = last
    if last.target in _RESHAPES:
        node = last.args[0]  # type: ignore[assignment]
    source, dims, *_ = (*node.args, None, None)
    value = tensor_of(source)
    if node.target != aten.sum.dim_IntList or node.kwargs or value is None or not isinstance(dims, (list, tuple)):
        return None
    if any(len(each.users) != 1 or each in escapes.outputs or each in escapes.written for each in (node, last)):
        return None
    assert isinstance(source, torch.fx.Node)
    summed = tuple(sorted({int(dim) % max(value.dim(), 1) for dim in dims}))  # type: ignore[arg-type]
    result = tensor_of(last)
    if not summed or value.dim() - 1 in summed or result is None or result.dtype != value.dtype:
        return None  # a sum of rows is over neighbouring values, which a kernel reads together
    if last is not node:
        left = [size for dim, size in enumerate(value.shape) if dim not in summed]
        if len(left) != result.dim() or not all(map(same_statically, left, result.shape)):
            return None
    return Term(node, source, summed, last)


def _are_alike(terms: list[Term]) -> bool:
    """Are the tensors of one size, type and device, summed over the same dimensions?"""
    first = terms[0]
    a = first.source.meta["val"]
    for term in terms[1:]:
        b = term.source.meta["val"]
        if term.dims != first.dims or (term.last is term.sum) != (first.last is first.sum) or a.device != b.device:
            return False
        if a.dtype != b.dtype or a.dim() != b.dim() or not all(map(same_statically, a.shape, b.shape)):
            return False
    return True


def _is_small(term: Term, graph: Graph) -> bool:
    elements = 1
    for size in term.source.meta["val"].shape:
        elements *= graph.hint(size)
    return elements <= LARGEST
