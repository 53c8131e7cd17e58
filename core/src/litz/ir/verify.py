"""Is a Program legal? Each rule is a function from a program to its complaints; `verify` runs them all.

In debug mode the pipeline verifies after lowering and after every program pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from litz.regions import CALLS, Region, operands_of

from . import build
from .arguments import leaves
from .buffer import Buffer
from .build import placeholders_in
from .combined import scan_row
from .coverage import loops_inside, written_where_read
from .dtypes import FLOAT8, STORED
from .index import kind_of, known_nonnegative, may_be_empty, placeholder, symbols_in
from .intervals import Contents, Intervals, conditions
from .node import Node, walk
from .operation import Check, Extern, Loop, expressions, sizes_in
from .ops import OPS
from .program import Opaque, Program
from .reductions import REDUCTIONS

Rule = Callable[[Program], Iterator[str]]
MOVING = ("const", "load", "cast", "bitcast", "where")
"""The kinds of node whose values may be of a dtype that is only stored."""


class Illegal(ValueError):
    """A noun breaks its rules; `complaints` has a line for each."""

    def __init__(self, noun: str, complaints: list[str]) -> None:
        self.complaints = complaints
        super().__init__(f"{noun} is not legal:\n  " + "\n  ".join(complaints))


class IllegalProgram(Illegal):
    """The program breaks rules of the IR."""


def _buffers_exist(program: Program) -> Iterator[str]:
    for operation in program.operations:
        for name in (*operation.reads, *operation.writes):
            if name not in program.buffers:
                yield f"{operation.name}: buffer {name} does not exist"
    for output in program.output_buffers:
        if output not in program.buffers:
            yield f"output {output} does not exist"


def written_before_read(program: Program) -> Iterator[str]:
    """Yields a complaint for each buffer that is read, or returned, before anything has written it."""
    written = {name for name, buffer in program.buffers.items() if buffer.kind != "temporary"}
    for operation in program.operations:
        # A masked or scattered store may leave elements unwritten, so combining modes need a written buffer as well.
        for name in set(operation.reads) - written:
            yield f"{operation.name}: reads {name} before anything writes it"
        written.update(operation.writes)
    for output in program.output_buffers - written:
        yield f"output {output} is never written"


def _unique_names(program: Program) -> Iterator[str]:
    seen: set[str] = set()
    for operation in program.operations:
        if operation.name in seen:
            yield f"two operations are called {operation.name}"
        seen.add(operation.name)


def _constants_kept(program: Program) -> Iterator[str]:
    for operation in program.operations:
        for name in operation.writes:
            if name in program.buffers and program.buffers[name].kind == "constant":
                yield f"{operation.name}: writes the constant {name}"


def _loops_are_sound(program: Program) -> Iterator[str]:
    for loop in program.loops:
        variables = [r.var for r in (*loop.all_ranges, *loop.nested)]
        if len(set(variables)) != len(variables):
            yield f"{loop.name}: a loop variable has two ranges"
        yield from _nesting(loop)
        if not loop.stores:
            yield f"{loop.name}: stores nothing"
        for node in loop.nodes:
            for complaint in _node(node, program):
                yield f"{loop.name}: {node!r}: {complaint}"
            yield from _scopes(loop, node)
        for store in loop.stores:
            buffer = program.buffers.get(store.buffer)
            if buffer is None:
                continue
            if len(store.index) != len(buffer.layout.size):
                dims = len(buffer.layout.size)
                yield f"{loop.name}: stores {buffer.name} at {len(store.index)} indices, it has {dims}"
            if store.value.dtype != buffer.dtype:
                yield f"{loop.name}: stores {store.value.dtype} into {buffer.name}, which is {buffer.dtype}"
            if placeholders_in(store.index) > len(store.indirect):
                yield f"{loop.name}: the index of {store.buffer} has more placeholders than indirect values"
            if store.mask is not None and store.mask.dtype != torch.bool:
                yield f"{loop.name}: the mask of the store into {store.buffer} is {store.mask.dtype}"


def _nesting(loop: Loop) -> Iterator[str]:
    """A variable that a reduction owns is known in its values alone."""
    own = {r.var for r in loop.nested}
    for r in (*loop.all_ranges, *loop.nested) if own else ():
        if not r.size.free_symbols.isdisjoint(loop.extents):
            yield f"{loop.name}: the extent of {r} is no number or size"
    for node in loop.nodes if own else ():
        if node.over and any(each.op == "scan" for each in walk(*node.args)):
            yield f"{loop.name}: {node!r} owns its ranges and takes a scan"
    for store in loop.stores if own else ():
        found = symbols_in(store.index).union(*(loop.variables[root] for root in store.roots)) & own
        for var in sorted(found, key=str):
            yield f"{loop.name}: the store into {store.buffer} uses {var}, which only the values of a reduction know"


def _scopes(loop: Loop, node: Node) -> Iterator[str]:
    if node.op == "reduce":
        if not (loop.reduction_ranges or node.over):
            yield f"{loop.name}: reduces without reduction ranges"
        if len({r.var for r in node.over}) < len(node.over):
            yield f"{loop.name}: {node!r} has two ranges of one variable"
    elif node.op == "scan" and len(loop.reduction_ranges) != 1:
        yield f"{loop.name}: a scan needs one reduction range, there are {len(loop.reduction_ranges)}"
    for expr in expressions(node):
        for symbol in expr.free_symbols:
            if kind_of(symbol) in ("output", "reduction") and symbol not in loop.extents:
                yield f"{loop.name}: {node!r} uses {symbol}, which has no range"


def _node(node: Node, program: Program) -> Iterator[str]:
    if node.dtype not in STORED:
        yield f"dtype {node.dtype} is for Extern only"
    if node.dtype in FLOAT8 and node.op not in MOVING:
        yield f"nothing computes with {node.dtype}: cast it"
    if node.op in OPS:
        try:
            expected = OPS[node.op].rule(tuple(arg.dtype for arg in node.args))
        except TypeError as error:
            yield str(error)
        else:
            if expected != node.dtype:
                yield f"should be {expected}, is {node.dtype}"
    elif node.op == "load":
        buffer = program.buffers.get(node.buffer)
        if buffer is None:
            return
        if buffer.dtype != node.dtype:
            yield f"loads {buffer.dtype} as {node.dtype}"
        if len(node.index) != len(buffer.layout.size):
            yield f"{len(node.index)} indices for {len(buffer.layout.size)} dimensions"
        if placeholders_in(node.index) > len(node.indirect):
            yield "more placeholders than indirect values"
        if node.mask is not None and node.mask.dtype != torch.bool:
            yield f"the mask is {node.mask.dtype}"
    elif node.op in ("reduce", "scan"):
        row = REDUCTIONS.get(node.attrs[0]) if node.op == "reduce" else scan_row(node.attrs[0])
        if row is None:
            yield f"unknown {'reduction' if node.op == 'reduce' else 'scan'} {node.attrs[0]}"
        elif len(node.args) != row.arity:
            yield f"takes {row.arity} values, has {len(node.args)}"
    elif node.op not in ("const", "index", "cast", "bitcast", "bounded"):
        yield "unknown op"


def positions_inside(program: Program) -> Iterator[str]:
    """Yields a complaint for each position that is computed from data and not limited by a `bounded` node, a clamp or a
    mask before it is an address. Where all sizes that take part are numbers, the position is also proved to lie within
    its buffer."""
    contents = Contents()
    for operation in program.operations:
        if isinstance(operation, Loop):
            yield from loose_positions(operation, program.buffers, contents)
        contents.add(operation, program.buffers)


def loose_positions(loop: Loop, buffers: Mapping[str, Buffer], contents: Contents) -> Iterator[str]:
    """Yields a complaint for each position in one loop that is computed from data and that nothing limits. contents: of
    the buffers that the loop reads."""
    accesses = [("reads", node.buffer, node.index, node.indirect, node.mask) for node in loop.loads if node.indirect]
    accesses += [("writes", s.buffer, s.index, s.indirect, s.mask) for s in loop.stores if s.indirect]
    intervals = Intervals(loop.extents, contents)
    for verb, name, index, indirect, mask in accesses:
        if name not in buffers or len(index) != len(buffers[name].layout.size):
            continue
        held = set(conditions(mask))
        if build.const(False, torch.bool) in held:  # no address is ever made
            continue
        for dim, (position, size) in enumerate(zip(index, buffers[name].layout.size, strict=True)):
            used = [node for number, node in enumerate(indirect) if placeholder(number) in position.free_symbols]
            if used and not intervals.inside(position, indirect, mask, size):
                limits = [intervals.where(node, mask) for node in used]
                limited = all(each.known and known_nonnegative(each.low) for each in limits)
                taking_part = [size, position, *(r.size for r in loop.all_ranges)]
                taking_part += [end for each in limits for end in (each.low, each.high) if end is not None]
                own = set(loop.extents) | {placeholder(number) for number in range(len(indirect))}
                symbolic = any(expr.free_symbols - own for expr in taking_part)
                # How two symbols compare may not be known; that each position is limited must be.
                if not (symbolic and limited):
                    origins = f" of {', '.join(loop.origins)}" if loop.origins else ""
                    yield (
                        f"{loop.name}{origins}: {verb} {name} of {size} elements along dimension {dim} at a position "
                        "computed from data, which nothing keeps inside; use build.bounded"
                    )
        for node in build.checks_in(indirect):
            size = node.attrs[0]
            if len(node.args) > 1 and may_be_empty(size) and build.not_empty(size) not in held:
                yield f"{loop.name}: {verb} {name} where {size} may be 0, and a mask takes the check away"


def _devices_agree(program: Program) -> Iterator[str]:
    for loop in program.loops:
        for buffer in filter(None, map(program.buffers.get, (*loop.reads, *loop.writes))):
            if lies_elsewhere(buffer, loop):
                yield f"{loop.name} on {loop.device} uses {buffer.name} on {buffer.device}"


def lies_elsewhere(buffer: Buffer, loop: Loop) -> bool:
    """Returns whether a buffer that a loop uses is where the loop's kernel cannot reach it. A zero-dimensional CPU
    tensor may be read anywhere, as in eager."""
    number = not buffer.layout.size and buffer.device.type == "cpu" and buffer.name not in loop.writes
    return buffer.device != loop.device and not number


def _externs_alias_buffers(program: Program) -> Iterator[str]:
    for operation in program.operations:
        if isinstance(operation, Extern):
            for output, base in operation.aliases.items():
                if output not in program.buffers or base not in program.buffers:
                    yield f"{operation.name}: {output} aliases {base}, but not both exist"


def _checks_know_their_sizes(program: Program) -> Iterator[str]:
    if not any(isinstance(operation, Check) for operation in program.operations):
        return
    known = set(sizes_in([item for item in program.inputs if not isinstance(item, (str, Opaque))]))
    known.update(s for name in program.input_buffers for s in program.buffers[name].layout.free_symbols)
    for operation in program.operations:
        if isinstance(operation, Check):
            for symbol in sorted(sizes_in((operation.condition, operation.shown)) - known, key=str):
                yield f"{operation.name}: checks {symbol} before anything finds it out"
        elif isinstance(operation, Extern):
            known.update(item.symbol for item in operation.unbacked)


def _regions_take_operands(program: Program) -> Iterator[str]:
    for call in program.externs:
        names = [leaf.name for leaf in leaves((call.args, call.kwargs)) if isinstance(leaf, Region)]
        yield from (f"{call.name}: region {name} does not exist" for name in names if name not in program.regions)
        if names and call.target in CALLS.values():
            given = len(operands_of(call.target_name, call.args).values)
            for name in names:
                wanted = len(program.regions[name].inputs) if name in program.regions else given
                if wanted != given:
                    yield f"{call.name}: region {name} takes {wanted} operands, and is given {given}"


RULES: tuple[Rule, ...] = (
    _buffers_exist,
    written_before_read,
    _unique_names,
    _constants_kept,
    _loops_are_sound,
    positions_inside,
    loops_inside,
    written_where_read,
    _devices_agree,
    _externs_alias_buffers,
    _checks_know_their_sizes,
    _regions_take_operands,
)


LOCAL: tuple[Rule, ...] = (
    _buffers_exist,
    _constants_kept,
    _loops_are_sound,
    loops_inside,
    _devices_agree,
    _externs_alias_buffers,
)
"""Rules that hold of a part of a program, too."""


def verify(program: Program, rules: Sequence[Rule] = RULES) -> None:
    """Raises IllegalProgram, with every complaint, if the program breaks a rule."""
    complaints = list(_complaints(program, rules))
    if complaints:
        raise IllegalProgram(f"program {program.name}", complaints)


def _complaints(program: Program, rules: Sequence[Rule]) -> Iterator[str]:
    for rule in rules:
        yield from rule(program)
    for name, region in program.regions.items():
        yield from (f"region {name}: {complaint}" for complaint in _complaints(region, rules))
