"""Sums with matrix products in them: the call that makes a product adds it to the rest.

In: a Graph. Out: the Graph with `((a @ b) + (c @ d)) + ...` as `addmm(addmm(a @ b, c, d), ...)`, where there are many.
A recurrent network's backward sums a product per step of the sequence into the gradient of one weight. By loops, all of
the products are in memory at a time, and read once more; so only the sum is, as the library writes it in place
(`litz.execution.in_place`). Each partial sum is rounded once, where eager rounds the product and the sum.

On a CPU `x + a @ b` is `addmm(x, a, b)` too, where no loop would read the sum: the library's own addition replaces a
kernel that reads the product once more. Measured on two cores of an AMD EPYC, against `mm` and an addition: 1.2 for
1.7 µs (4 x 4), 342 for 359 (256 x 256), 2,014 for 3,004 (2048 x 16 x 2048, float32), and within the noise for the
largest.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.capture.passes.rewrite import Call, Changes, rewrite, same_geometry, tensor_of
from litz_passes.escapes import find_escapes
from litz_passes.graph.sums import is_whole_sum, terms_of
from litz_plugins.records import PassContext

aten = torch.ops.aten

MANY = 8
"""Products in a sum: below that a kernel that reads all of them, fused with what follows, is as good."""

LITTLE = 1 << 20
"""FLOPs, some microseconds: a product of fewer hides no communication, and may wait for what it is added to."""

CALLS = frozenset(getattr(aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm", "convolution"))
"""Library calls: what they take and give lies in memory, whatever is fused."""


def sum_products(graph: Graph, context: PassContext | None = None) -> Graph:
    """Returns the graph with long sums of matrix products (`MANY` or more) as chains of `addmm`, and on a CPU one
    product and what it is added to as one; the same object if there are no such sums."""
    escapes = find_escapes(graph)
    place = {node: number for number, node in enumerate(graph.nodes)}
    kept = {*escapes.outputs, *escapes.written}
    replace: dict[torch.fx.Node, torch.fx.Node] = {}
    emit: dict[torch.fx.Node, Call] = {}
    drop: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if not is_whole_sum(node) or node in escapes.written:
            continue
        products, partial = terms_of(node)
        if len(products) < MANY:
            product = _folded(graph, node, kept)
            if product is None or (context is not None and not context.allows(node.name)):
                continue
            (rest,) = (item for item in node.all_input_nodes if item is not product)
            emit[node] = Call(aten.addmm.default, (rest, *product.args))
            drop.add(product)
            if context is not None:
                context.record(node.name, "added by the product", "one call, and nothing reads the product again")
            continue
        if len(set(products)) < len(products):
            continue
        if any(term.target != aten.mm.default or len(term.users) != 1 or term in kept for term in products):
            continue
        if any(not same_geometry(term, node) for term in products):
            continue
        if sorted(products, key=place.__getitem__) != products:
            continue  # summed in another order, the sum would be another number
        if context is not None and not context.allows(node.name):
            continue
        for term, before in zip(products[1:], products, strict=False):
            emit[term] = Call(aten.addmm.default, (before, *term.args))
        replace[node] = products[-1]
        drop.update(partial)
        if context is not None:
            context.record(node.name, f"accumulated by {len(products)} products", "only their sum is in memory")
    return rewrite(graph, Changes(replace=replace, emit=emit, drop=frozenset(drop)))


def _folded(graph: Graph, node: torch.fx.Node, kept: set[torch.fx.Node]) -> torch.fx.Node | None:
    """Returns the product of a sum on a CPU that the library had better add to the other term; None where the sum is
    better off as a loop: where a loop makes the other term, or reads the sum."""
    value = tensor_of(node)
    terms = [item for item in reversed(node.args) if isinstance(item, torch.fx.Node)]
    if value is None or value.device.type != "cpu" or len(set(terms)) != 2 or not _is_in_memory_for(node):
        return None
    for product, rest in (terms, terms[::-1]):
        if product.target != aten.mm.default or len(product.users) != 1 or product in kept:
            continue
        base = _base(rest)
        if not (base.op in ("placeholder", "get_attr") or base.target in CALLS or torch_api.is_collective(base.target)):
            continue
        if torch_api.is_collective(base.target) and _flops(graph, product) > LITTLE:
            continue  # the product runs while communication does
        if not _reads_packed(product):
            return product
    return None


def _is_in_memory_for(node: torch.fx.Node) -> bool:
    """Returns whether every reader of a node, through views, is a caller, a library call or communication."""
    for user in node.users:
        if user.op == "output" or user.target in CALLS or torch_api.is_collective(user.target):
            continue
        if torch_api.aliased_argument(user) is not node or not _is_in_memory_for(user):
            return False
    return True


def _base(node: torch.fx.Node) -> torch.fx.Node:
    """Returns the node that a node is a view of, or the node itself. A wait gives what it waits for: no view here."""
    while node.op == "call_function" and not torch_api.is_collective(node.target):
        base = torch_api.aliased_argument(node)
        if base is None:
            break
        node = base
    return node


def _flops(graph: Graph, product: torch.fx.Node) -> int:
    left, right = (tensor_of(item) for item in product.args)
    assert left is not None and right is not None
    rows, depth, columns = (graph.hint(size) for size in (*left.shape, right.shape[1]))
    return 2 * rows * depth * columns


def _reads_packed(product: torch.fx.Node) -> bool:
    """Returns whether operands are computed from fewer stored bits. A loop may unpack them as it multiplies."""

    def makers(node: torch.fx.Node, depth: int) -> Iterator[torch.fx.Node]:
        for item in node.all_input_nodes if depth and node.target not in CALLS else ():
            yield item
            yield from makers(item, depth - 1)

    value = tensor_of(product)
    assert value is not None
    items = [item for operand in product.all_input_nodes for item in (operand, *makers(operand, 4))]
    return any((one := tensor_of(item)) is not None and one.itemsize < value.itemsize for item in items)


__all__ = ["LITTLE", "MANY", "sum_products"]
