"""Attention that a model writes out: a product, what becomes of the scores, a softmax, and a second product.

    weights = softmax(score(query @ key^T)), out = weights @ value

In: the Template of the first product, where it stands. Out: the same as an `Attention`, and the operations that it
stands for. The softmax is known by what its loops compute, whatever was inlined into which: a maximum and a sum along
the keys, and a quotient. What becomes of the scores is any pointwise body: a scale, a bias, a mask, a soft cap.

A row that a mask leaves no key is NaN, as in eager, or 0 where the softmax says so (torch's own, where it computes
attention in pieces). Scores are not rounded to the operands' type in between. Operands that were widened to float32 and
whose result is rounded to what they were are multiplied as they were, and weights as two numbers of that type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import sympy

from litz.ir import Layout, Loop, Node, Operation, Program, Range, Template, TensorRef
from litz.ir.build import load
from litz.ir.index import ONE, ZERO, Expr, Symbol, flat_index, stride_of
from litz.ir.node import is_number, replaced, rewrite, uncast, walk, with_args
from litz.ir.pattern import STORED, Value, bind, fits, match_loop
from litz.ir.transform import rename_nodes
from litz.schedule.inline import Body

from ..epilogue import stands
from ..module import Unsuitable
from .bodies import AT
from .in_place import behind, narrowed, same_type, unneeded, with_sources
from .masks import evened, masked, opened
from .operation import SCORE, Attention, body

PRODUCTS = ("bmm", "mm")
MOST_LOOPS = 8
"""Between the two products, at most: a softmax is three."""
MOST_NODES = 160
"""The most operations on a score. DeBERTa's positions take 60."""

EXPONENTIAL = Value("exp", (Value("sub", (Value(name="score"), Value(name="maximum"))),), words="uncast")

B, H, Q, K = AT


@dataclass(frozen=True)
class WrittenOut:
    """attention: what is computed; its name, arguments and result are the second product's. out: how the result's
    buffer lies as (batch, head, query, element). loops: names of the operations between the products. absorbs: names of
    all operations that it stands for, but the first product, and that nobody else needs."""

    attention: Attention
    out: Layout
    loops: tuple[str, ...]
    absorbs: tuple[str, ...]


@dataclass(frozen=True)
class Axes:
    """The loop that makes the weights: its ranges are the batch's, the heads', the queries' and the keys', where one
    that it does not have is 1. mapping: of its variables to `AT`."""

    ranges: tuple[Range, ...]
    mapping: Mapping[Symbol, Expr]

    @property
    def extents(self) -> dict[Symbol, Expr]:
        """Returns the extent of each variable."""
        return {r.var: r.size for r in self.ranges}

    @property
    def size(self) -> tuple[Expr, ...]:
        """Returns the extents of the ranges, in order."""
        return tuple(r.size for r in self.ranges)

    @property
    def row(self) -> Expr:
        """Returns the number of the matrix, in a batched product, that the variables B and H mean."""
        batch, head = (ZERO if size == ONE else var for size, var in zip(self.size, (B, H)))
        return self.size[1] * batch + head

    def layout(self, given: Layout, turned: bool = False) -> Layout:
        """Returns the layout of a product's operand, (batch and head, rows, columns) or (rows, columns), as (batch,
        head, rows, columns). turned: columns come before rows."""
        *outer, rows, columns = range(len(given.size))
        if turned:
            rows, columns = columns, rows
        step = given.stride[outer[0]] if outer else ZERO
        size = (*self.size[:2], given.size[rows], given.size[columns])
        return Layout(size, (step * self.size[1], step, given.stride[rows], given.stride[columns]), given.offset)


def find_written_out(first: Template, program: Program) -> WrittenOut:
    """Returns the attention whose scores a product makes. Errors: Unsuitable where there is none."""
    if first.kind not in PRODUCTS:
        raise Unsuitable("")
    between, second = _between(first, program)
    weights, value = second.args[:2]
    axes = _axes(weights, between, program)
    softmax = _Softmax(first, between, axes, program)
    normal, nothing = softmax.score(weights.buffer)
    score, mask, scale = _bodies(normal, axes, first, program)
    operations: tuple[Operation, ...] = (first, *between, second)
    origins = tuple(dict.fromkeys(name for op in operations for name in op.origins))
    query, key = first.args[:2]

    def body_of(node: Node | None) -> Loop | None:
        return None if node is None else body(SCORE, first.device, axes.size, lambda *at: node, origins)

    attention = Attention(
        second.name,
        first.device,
        second.target,
        (query, key, value),
        outputs=second.outputs,
        origins=origins,
        kind="attention",
        query=TensorRef(query.buffer, axes.layout(query.layout)),
        key=TensorRef(key.buffer, axes.layout(key.layout, turned=True)),
        value=TensorRef(value.buffer, axes.layout(value.layout)),
        scale=scale,
        score=body_of(score),
        mask=body_of(mask),
        nothing=nothing,
    )
    (out,) = (name for name in second.outputs if name is not None)
    layout, own = axes.layout(program.buffers[out].layout), [*(loop.name for loop in between), second.name]
    narrow = narrowed(attention, layout, program)
    if narrow is not None:
        attention, layout, rounding = narrow
        own.append(rounding)
    attention = _in_place(attention, program)
    if nothing == 0:
        attention = opened(attention)
    absorbs = _absorbed(attention, first, tuple(own), program)
    return WrittenOut(attention, layout, tuple(loop.name for loop in between), absorbs)


def _between(first: Template, program: Program) -> tuple[tuple[Loop, ...], Template]:
    """The loops that read what the product makes, directly or not, and the one product that reads what they make."""
    made = [name for name in first.outputs if name is not None]
    loops: list[Loop] = []
    last: list[Operation] = []
    for name in made:
        if not fits("temporary unshared unreturned", name, program):
            raise Unsuitable("")
        for reader in program.readers[name]:
            if isinstance(reader, Loop):
                if reader not in loops:
                    loops.append(reader)
                    made += reader.writes
            elif reader not in last:
                last.append(reader)
        if len(loops) > MOST_LOOPS or len(last) > 1:
            raise Unsuitable("")
    reductions = sum(loop.is_reduction for loop in loops)
    second = last[0] if last else None
    if reductions < 2 or not isinstance(second, Template) or second.kind not in PRODUCTS:
        raise Unsuitable("")
    return tuple(sorted(loops, key=lambda loop: program.positions[loop.name])), second


def _axes(weights: TensorRef, between: tuple[Loop, ...], program: Program) -> Axes:
    """Returns what the variables of the loop that writes the weights mean to the second product."""
    writer = next((loop for loop in between if weights.buffer in loop.writes), None)
    if writer is None or isinstance(match_loop(STORED, writer), str):
        raise Unsuitable("")
    flat = flat_index(writer.stores[0].index, program.buffers[weights.buffer].layout.stride, ZERO)
    *outer, rows, keys = range(len(weights.layout.size))
    left = [r for r in writer.ranges if r.size != ONE]

    def take(size: Expr, step: Expr) -> Range:
        for r in left:
            if _same(r.size, size) and _same(stride_of(flat, r.var), step):
                left.remove(r)
                return r
        raise Unsuitable("the softmax is not over the rows that the second product multiplies")

    size, stride = weights.layout.size, weights.layout.stride
    key, row = take(size[keys], stride[keys]), take(size[rows], stride[rows])
    count, step = (size[outer[0]], stride[outer[0]]) if outer else (ONE, ZERO)
    batch = head = None
    if len(left) == 1:
        head = take(count, step)
    elif len(left) == 2:
        head = next((r for r in left if _same(stride_of(flat, r.var), step)), None)
        if head is None:
            raise Unsuitable("the second product has heads in another order")
        left.remove(head)
        batch = take(sympy.cancel(count / head.size), step * head.size)
    if left or flat.subs(dict.fromkeys(writer.extents, ZERO)) != weights.layout.offset:
        raise Unsuitable("the softmax has more dimensions than batch and head")
    found = (batch, head, row, key)
    mapping: dict[Symbol, Expr] = {r.var: ZERO for r in writer.ranges if r.size == ONE}
    mapping |= {r.var: var for r, var in zip(found, AT, strict=True) if r is not None}
    ranges = tuple(Range(var, ONE if r is None else r.size) for r, var in zip(found, AT, strict=True))
    return Axes(ranges, mapping)


def _same(a: Expr | None, b: Expr) -> bool:
    return a is not None and bool(sympy.expand(a - b) == 0)


class _Softmax:
    """The computation of the loops between the products, in terms of `AT`."""

    def __init__(self, first: Template, between: tuple[Loop, ...], axes: Axes, program: Program) -> None:
        self.axes, self.program = axes, program
        (self.scores,) = (name for name in first.outputs if name is not None)
        self.writers = {name: loop for loop in between for name in loop.writes}

    def score(self, weights: str) -> tuple[Node, float]:
        """The score whose softmax the weights are, and what a row without a key has."""
        (store,) = self.writers[weights].stores
        quotient, nothing, hidden = uncast(self.expanded(store.value, self.axes.mapping)), math.nan, None
        if quotient.op == "where" and is_number(quotient.args[1], 0.0):
            hidden, quotient, nothing = quotient.args[0], uncast(quotient.args[2]), 0.0
        if quotient.op != "div":
            raise Unsuitable("")
        score, maximum = self.exponent(quotient.args[0])
        if self.reduced(maximum, "max") is not score:
            raise Unsuitable("the number that is subtracted is not the greatest score")
        summed = self.reduced(quotient.args[1], "sum")
        if self.exponent(summed) != (score, maximum):
            raise Unsuitable("the divisor is not the sum of the exponentials")
        if hidden is not None and not self.hides(hidden, score):
            raise Unsuitable("rows are set to 0 for another reason than that they have no key")
        return score, nothing

    def hides(self, condition: Node, score: Node) -> bool:
        """Returns whether a condition says of a row that all its scores are -inf."""
        each = uncast(self.reduced(condition, "all"))
        return each.op == "eq" and each.args[0] is score and is_number(each.args[1], -math.inf)

    def exponent(self, node: Node) -> tuple[Node, Node]:
        """Returns score and maximum of a node that is exp(score - maximum). Errors: Unsuitable for any other node."""
        found = bind(EXPONENTIAL, node)
        if found is None:
            raise Unsuitable("")
        return found["score"], found["maximum"]

    def reduced(self, node: Node, kind: str) -> Node:
        """Returns what a load of a reduction's result was reduced from, along the keys."""
        node = uncast(node)
        loop = self.writers.get(node.buffer) if node.op == "load" else None
        if loop is None or len(loop.stores) != 1 or len(loop.reduction_ranges) != 1 or node.mask is not None:
            raise Unsuitable("")
        store, (along,) = loop.stores[0], loop.reduction_ranges
        value = uncast(store.value)
        if value.op != "reduce" or value.attrs[0] != kind or along.size != self.axes.size[3]:
            raise Unsuitable("")
        mapping: dict[Symbol, Expr] = {along.var: K}
        mapping |= {r.var: ZERO for r in loop.ranges if r.size == ONE}
        for own, position in zip(store.index, node.index, strict=True):
            if own in loop.extents:
                mapping[own] = position
            elif own != position:
                raise Unsuitable("")
        if not loop.extents.keys() <= mapping.keys():
            raise Unsuitable("")
        return self.expanded(value.args[0], mapping)

    def expanded(self, node: Node, mapping: Mapping[Symbol, Expr]) -> Node:
        """The node in terms of `AT`, with what pointwise loops between the products have stored worked out."""
        extents = self.axes.extents
        (node,) = rename_nodes((node,), mapping, extents)
        for _ in self.writers:
            bodies = {n.buffer: body for n in walk(node) if n.op == "load" and (body := self.body(n.buffer))}
            if not bodies:
                return node

            def value(each: Node, args: tuple[Node, ...], bodies: Mapping[str, Body] = bodies) -> Node:
                new = with_args(each, args)
                return bodies[new.buffer].at(new, extents) if new.op == "load" and new.buffer in bodies else new

            (node,) = rewrite((node,), value)
            if len(list(walk(node))) > MOST_NODES:
                raise Unsuitable("the operations on a score are too many")
        return node

    def body(self, name: str) -> Body | None:
        loop = self.writers.get(name)
        return None if loop is None or name == self.scores else Body.of(loop)


# -------------------------------------------------------------------------------------------------------------- bodies


def _bodies(score: Node, axes: Axes, first: Template, program: Program) -> tuple[Node | None, Node | None, float]:
    """Returns the score's body, the mask and the scale; None for a body or a mask that does nothing. Errors:
    Unsuitable."""
    (scores,) = (name for name in first.outputs if name is not None)
    wanted = (axes.row, Q, K) if first.kind == "bmm" else (Q, K)
    own = [node for node in walk(score) if node.op == "load" and node.buffer == scores]
    if (
        len(own) != 1
        or own[0].args
        or not all(_same(position, at) for position, at in zip(own[0].index, wanted, strict=True))
    ):
        raise Unsuitable("scores are read at other places than their own")
    if len(list(walk(score))) > MOST_NODES:
        raise Unsuitable("the operations on a score are too many")
    # Held as float32, whatever the type is called: nothing rounds it.
    stand_in = load(SCORE, AT, own[0].dtype)
    (score,) = replaced((score,), own[0], stand_in)
    mask, score = masked(score, lambda node: is_number(node, -math.inf)) or (None, score)
    scale, score = _scaled(score, mask, stand_in)
    return (None if uncast(score) is stand_in else score), mask, scale


def _scaled(score: Node, mask: Node | None, stand_in: Node) -> tuple[float, Node]:
    """The number that the scores are multiplied by before all else, and the rest."""
    roots = (score,) if mask is None else (score, mask)
    users = [node for node in walk(*roots) if stand_in in node.args]
    if len(users) != 1 or users[0].op not in ("mul", "div") or users[0].args.count(stand_in) != 1:
        return 1.0, score
    user = users[0]
    other = next(arg for arg in user.args if arg is not stand_in)
    if other.op != "const" or (user.op == "div" and user.args[0] is not stand_in):
        return 1.0, score
    number = float(other.attrs[0])
    if not 1e-30 < abs(number) < 1e30:
        return 1.0, score
    (score,) = replaced((score,), user, stand_in)
    return (number if user.op == "mul" else 1 / number), score


# ------------------------------------------------------------------------------------------------------------ operands


def _in_place(attention: Attention, program: Program) -> Attention:
    """Returns the attention with its operands read where they were copied from, if they have the same dtype there, and
    with the loops that make a bias as part of the body."""
    query = behind(attention.query, attention, program)
    if query.layout.size != attention.query.layout.size or not same_type(query, attention.query, program):
        query = attention.query
    changed = with_sources(attention, program, exact=True)
    if (score := changed.score) is not None:
        (store,) = score.stores
        score = replace(score, stores=(replace(store, value=evened(store.value)),))
    return replace(changed, query=query, score=score)


def _absorbed(attention: Attention, first: Template, own: tuple[str, ...], program: Program) -> tuple[str, ...]:
    """`own`, and the loops that made what nobody reads any more."""
    if not stands(program, first, own):
        raise Unsuitable("an operation in between needs a part of the attention")
    read = [name for each in (first.name, *own) for name in program.operations[program.positions[each]].reads]
    return unneeded(attention, first, own, read, program)
