"""Sums of gradients that are scattered: all of them are added to one tensor of zeros.

In: a Graph. Out: the Graph with `zeros.index_put(i, a) + zeros.index_put(j, b)` (accumulating) as
`zeros.index_put(i, a).index_put(j, b)`. A table of embeddings that an encoder and a decoder share has two such
gradients, each of the table's size and, for a table of a half type, in float32. With this pass one such tensor is in
memory, filled and read once; and the sum is rounded once, where eager rounds each term and the sum.
"""

from __future__ import annotations

from itertools import pairwise

import torch

from litz.capture.graph import Graph
from litz.capture.passes.rewrite import Call, Changes, rewrite, same_geometry, tensor_of
from litz_passes.escapes import find_escapes
from litz_passes.graph.sums import is_whole_sum, terms_of
from litz_plugins.patterns import CallPattern, Capture
from litz_plugins.records import PassContext

aten = torch.ops.aten

_ZEROS = CallPattern(aten.full.default, Capture(), 0, ..., name="zeros")
_PUT = CallPattern(
    (aten.index_put.default, aten._unsafe_index_put.default), _ZEROS, ..., kwargs={"accumulate": True}, name="put"
)
_SCATTERS = (_PUT, CallPattern(aten._to_copy.default, _PUT, ...))
"""A scatter into zeros, and a conversion of one."""


def sum_scatters(graph: Graph, context: PassContext | None = None) -> Graph:
    """Returns the graph in which scatters that are added up share one tensor; the same object if there are none."""
    escapes = find_escapes(graph)
    place = {node: number for number, node in enumerate(graph.nodes)}
    kept = escapes.outputs | escapes.written
    replace: dict[torch.fx.Node, torch.fx.Node] = {}
    emit: dict[torch.fx.Node, Call] = {}
    for node in graph.nodes:
        if not is_whole_sum(node) or node in escapes.written:
            continue
        terms, partial = terms_of(node)
        scatters = {term: put for term in terms if (put := _scatter(term, kept)) is not None}
        first = next(iter(scatters.values()), None)
        scatters = {term: put for term, put in scatters.items() if first is not None and same_geometry(put, first)}
        if len(scatters) < 2 or len(set(terms)) < len(terms) or any(each in kept for each in partial):
            continue
        if context is not None and not context.allows(node.name):
            continue
        order = sorted(scatters, key=lambda term: place[scatters[term]])
        for before, after in pairwise(scatters[term] for term in order):
            assert callable(after.target)
            emit[after] = Call(after.target, (before, *after.args[1:]), after.kwargs)
        dropped = set(order[:-1])
        total = None if terms[0] in dropped else terms[0]
        for each, term in zip([*partial[::-1], node], terms[1:], strict=True):
            if total is None:
                total = None if term in dropped else term
            elif term not in dropped:
                emit[each] = Call(aten.add.Tensor, (total, term))
                total = each
            if total is not None and total is not each:
                replace[each] = total
        if context is not None:
            context.record(
                node.name, f"{len(scatters)} scatters into one tensor", "a sum of scatters is in memory once"
            )
    return rewrite(graph, Changes(replace=replace, emit=emit))


def _scatter(term: torch.fx.Node, kept: frozenset[torch.fx.Node]) -> torch.fx.Node | None:
    """The scatter into zeros that a term is, or is a conversion of; None if the term is none, or if anything else reads
    it."""
    found = next(filter(None, (pattern.match(term) for pattern in _SCATTERS)), None)
    if found is None or any(each in kept or len(each.users) != 1 for each in (term, found["put"])):
        return None
    put, zeros = found["put"], found["zeros"]
    value = tensor_of(put)
    if value is None or value.dtype.itemsize < 4:
        return None  # a scatter of a half type adds up in float32, in a tensor of its own
    return put if same_geometry(put, zeros) else None
