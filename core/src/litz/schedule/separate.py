"""Nested reductions as Loops of their own, for targets generate no others. In and out: a Program.

A reduction that owns its ranges becomes a Loop over the variables that its value depends on, and stores the value. The
Loop that the reduction was part of loads it. Reductions that a Loop makes once for each of its points, over the same
ranges, stay in the Loop, which takes these for its reduction ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from litz.ir import Buffer, Layout, Loop, Node, Operation, Program, Range, Store, build
from litz.ir.dtypes import compute_dtype
from litz.ir.index import ONE, Expr, Symbol, loop_var, reduction_var
from litz.ir.node import intern, rewrite, walk, with_args
from litz.ir.transform import map_stores, rename_loop, rename_nodes
from litz_plugins import PassContext


def separate_reductions(program: Program, context: PassContext) -> Program:
    """Makes Loops of the reductions that own their ranges (a pass)."""
    return separated(program, lambda loop, why: context.record(loop.name, "nested reductions separated", why))


def separated(program: Program, record: Callable[[Loop, str], None] = lambda loop, why: None) -> Program:
    """Returns the program without reductions that own their ranges. record: hears of each Loop that had one."""
    if not any(loop.nested for loop in program.loops):
        return program
    operations, buffers = list[Operation](), dict(program.buffers)
    for operation in program.operations:
        if isinstance(operation, Loop) and operation.nested:
            loops = _loops(operation, program, buffers)
            record(operation, f"{len(loops)} loops; a kernel has one set of reduction ranges")
            operations += loops
        else:
            operations.append(operation)
    return replace(program, operations=tuple(operations), buffers=buffers)


def _loops(loop: Loop, program: Program, buffers: dict[str, Buffer]) -> list[Loop]:
    """The loops that one is cut into, itself as the last. New buffers go into `buffers`."""
    kept, stem = _kept(loop), f"{loop.name}_inner"
    while any(name.startswith(stem) for name in (*buffers, *program.positions)):
        stem += "_"
    groups: dict[tuple[int, tuple[Range, ...], frozenset[Symbol]], list[Node]] = {}
    for node in _apart(loop, kept):
        key = loop.depths[node], node.over or loop.reduction_ranges, loop.variables[node]
        groups.setdefault(key, []).append(node)
    # What is inside of another comes first; reductions of one depth do not need each other.
    ordered = sorted(groups.items(), key=lambda group: group[0][0])
    values: dict[Node, Node] = {}
    found = []
    for number, ((_, over, free), nodes) in enumerate(ordered):
        found.append(_alone(replace(loop, name=f"{stem}{number}"), over, free, nodes, values, buffers))

    def change(node: Node, args: tuple[Node, ...]) -> Node:
        if node in kept:
            return intern("reduce", node.dtype, args, node.attrs[:1])
        return values.get(node) or with_args(node, args)

    last = replace(loop, stores=map_stores(loop.stores, change))
    if kept:
        own = _canonical(kept[0].over, reduction_var)
        return [*found, rename_loop(last, _mapping(kept[0].over, own), loop.ranges, own)]
    needs = any(node.op in ("reduce", "scan") for node in last.nodes) or any(map(last.at_reduction_level, last.stores))
    return [*found, last if needs else replace(last, reduction_ranges=())]


def _alone(
    loop: Loop,
    over: tuple[Range, ...],
    free: frozenset[Symbol],
    nodes: Sequence[Node],
    values: dict[Node, Node],
    buffers: dict[str, Buffer],
) -> Loop:
    """The loop of some reductions, by its new name. What stands for them elsewhere, loads, goes into `values`."""
    outer = tuple(r for r in (*loop.all_ranges, *loop.nested) if r.var in free)
    ranges, inner = _canonical(outer, loop_var), _canonical(over, reduction_var)
    mapping, extents = _mapping((*outer, *over), (*ranges, *inner)), {r.var: r.size for r in (*ranges, *inner)}
    given, stores = dict(values), list[Store]()
    for number, node in enumerate(nodes):
        args = rewrite(node.args, lambda each, new: given.get(each) or with_args(each, new))
        value = build.reduce(node.attrs[0], *rename_nodes(args, mapping, extents))
        name, held = f"{loop.name}_{number}", compute_dtype(node.dtype)
        buffers[name] = Buffer(name, held, loop.device, Layout.contiguous(tuple(r.size for r in outer)))
        stores.append(Store(name, tuple(r.var for r in ranges), build.cast(value, held)))
        values[node] = build.cast(build.load(name, tuple(r.var for r in outer), held), node.dtype)
    return replace(loop, ranges=ranges, reduction_ranges=inner, stores=tuple(stores))


def _canonical(ranges: Sequence[Range], variable: Callable[[int], Symbol]) -> tuple[Range, ...]:
    return tuple(Range(variable(number), r.size) for number, r in enumerate(ranges))


def _mapping(old: Sequence[Range], new: Sequence[Range]) -> Mapping[Symbol, Expr]:
    return {own.var: other.var for own, other in zip(old, new, strict=True)}


def _kept(loop: Loop) -> tuple[Node, ...]:
    """The reductions that stay in a loop: over the same ranges, each made once for each point of the loop, and needed
    by no reduction that does not stay."""
    if loop.reduction_ranges:
        return ()
    points, all_points = ({r.var for r in loop.ranges if r.size != one} for one in (ONE, None))
    whole = [node for node in loop.nodes if node.over and points <= loop.variables[node] <= all_points]
    whole = [node for node in whole if node.over == whole[-1].over]
    others = [node for node in loop.nodes if node.over and node not in whole]
    needed = set(walk(*others))
    return tuple(node for node in whole if node not in needed)


def _apart(loop: Loop, kept: Collection[Node]) -> list[Node]:
    """The reductions that become loops, with what these need of the loop's own reductions."""
    own = [node for node in loop.nodes if node.over and node not in kept]
    needed = set(walk(*own))
    return [node for node in loop.nodes if node.op == "reduce" and node in needed]
