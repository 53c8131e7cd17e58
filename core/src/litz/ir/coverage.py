"""Where a program's loops read and write: no position outside of its buffer, and nothing read that no loop wrote.

In: a Program. Out: complaints, of faults that are certain. A position is worked out at points of the loop's ranges at
which its mask holds, with the sizes that the program was made for; a complaint tells the point. Positions that are
computed from data are `verify.positions_inside`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod

import torch

from .buffer import Layout, TensorRef
from .index import Expr, Symbol, fits, is_placeholder, symbols_in
from .interpret import evaluate
from .intervals import conditions
from .node import Node, walk
from .operation import Extern, Loop, Store
from .program import Program
from .reductions import evaluate as values_of

MOST_POINTS = 4096
"""The most points of a loop at which one position is worked out; of larger loops a grid of them, all corners in it."""

Values = Mapping[Symbol, int]


def loops_inside(program: Program) -> Iterator[str]:
    """Yields a complaint for each access of a loop that lies outside of its buffer at one of the points that are tried,
    with hints in place of symbolic sizes. Loops with an unknown or an empty extent are not checked."""
    for loop in program.loops:
        extents = _numbers(loop.extents.values(), program.hints)
        if extents is None or 0 in extents:
            continue  # not known, or no point at all
        ranges = dict(zip(loop.extents, extents, strict=True))
        accesses = [("reads", node.buffer, node.index, node.mask) for node in loop.loads]
        accesses += [("writes", store.buffer, store.index, store.mask) for store in loop.stores]
        for verb, name, index, mask in dict.fromkeys(accesses):
            if name not in program.buffers or len(index) != len(program.buffers[name].layout.size):
                continue
            for dim, (position, size) in enumerate(zip(index, program.buffers[name].layout.size, strict=True)):
                found = _outside(position, size, mask, loop, ranges, program.hints)
                if found:
                    of = f" of {', '.join(loop.origins)}" if loop.origins else ""
                    yield f"{loop.name}{of}: {verb} {name} of {size} elements along dimension {dim} at {found}"


def _outside(position: Expr, size: Expr, mask: Node | None, loop: Loop, ranges: Values, hints: Values) -> str:
    """Returns "position i0 + 1 = 5, where i0 = 4", outside of `size`; '' where no such point is found."""
    if (position.is_Symbol and loop.extents.get(position) == size) or fits(position, size, loop.extents):
        return ""
    if any(map(is_placeholder, position.free_symbols)):
        return ""
    holding = tuple(conditions(mask))
    used = symbols_in((position, *(node.attrs[0] for node in walk(*holding) if node.op == "index")))
    points = _points({var: extent for var, extent in ranges.items() if var in used})
    env = {**hints, **points}
    try:
        limit, where = evaluate(size, env), torch.as_tensor(evaluate(position, env))
        wrong = (where < 0) | (where >= limit)
        for condition in holding:
            wrong = wrong & _value(condition, env)
    except (KeyError, NotImplementedError, RuntimeError):
        return ""  # a size that nobody knows, or a mask that depends on data
    if not bool(wrong.any()):
        return ""
    at = int(wrong.reshape(-1).nonzero()[0])
    place = where.expand(wrong.shape).reshape(-1)[at]
    shown = ", ".join(f"{var} = {int(values[at])}" for var, values in points.items())
    text = str(int(place)) if position.is_Integer else f"{position} = {int(place)}"
    return f"position {text}" + (f", where {shown}" if shown else "")


def _points(ranges: Values) -> dict[Symbol, torch.Tensor]:
    """Returns a grid over ranges, as the coordinates of its points: all of them, or the first, the last and some
    between."""
    if not ranges:
        return {}
    most = max(2, int(MOST_POINTS ** (1 / len(ranges)) + 1e-9))
    axes = [
        torch.tensor(sorted({at * (extent - 1) // max(1, count - 1) for at in range(count)}), device="cpu")
        for extent in ranges.values()
        for count in [min(extent, most)]
    ]
    grid = torch.meshgrid(*axes, indexing="ij")
    return dict(zip(ranges, (axis.reshape(-1) for axis in grid), strict=True))


def _value(node: Node, env: Mapping[Symbol, object]) -> torch.Tensor:
    """Returns the values of a condition at all points. KeyError for one that depends on data."""
    positions = [each for each in walk(node) if each.op == "index"]
    known = {each: torch.as_tensor(evaluate(each.attrs[0], env), dtype=each.dtype) for each in positions}
    return values_of((node,), known)[0]


def written_where_read(program: Program) -> Iterator[str]:
    """Yields a complaint for each temporary of which a loop, a call or the caller gets more elements than all loops
    together write."""
    outputs = [ref for ref in program.outputs if isinstance(ref, TensorRef)]
    shared = {name for pair in program.roots.items() if pair[0] != pair[1] for name in pair}
    for name, operations in program.writers.items():
        buffer = program.buffers.get(name)
        loops = [operation for operation in operations if isinstance(operation, Loop)]
        if buffer is None or buffer.kind != "temporary" or name in shared or len(loops) != len(operations) or not loops:
            continue
        stores = [
            _most_written(loop, store, program) for loop in loops for store in loop.stores if store.buffer == name
        ]
        wanted = [_elements(ref.layout, program) for ref in outputs if ref.buffer == name]
        for reader in program.readers[name]:
            if isinstance(reader, Extern):
                wanted += [_elements(ref.layout, program) for ref in reader.refs if ref.buffer == name]
            else:
                wanted += [_least_read(reader, node, program) for node in reader.loads if node.buffer == name]
        needed = max((count for count in wanted if count is not None), default=0)
        written = None if None in stores else sum(count for count in stores if count is not None)
        if written is not None and written < needed:
            loop = loops[-1]
            of = f" of {', '.join(loop.origins)}" if loop.origins else ""
            yield f"{loop.name}{of}: writes {written} elements of {name} at most, of which {needed} are read"


def _most_written(loop: Loop, store: Store, program: Program) -> int | None:
    """Returns how many elements a store writes at most: one for each value of what its position depends on."""
    used = set(symbols_in(store.index)).union(*(loop.variables[node] for node in store.indirect))
    return _product([r.size for r in loop.all_ranges if r.var in used], program)


def _least_read(loop: Loop, node: Node, program: Program) -> int | None:
    """Returns how many elements a load reads, where each of its positions is another one; None for others."""
    variables = [position for position in node.index if position.is_Symbol]
    plain = all(position in loop.extents or position.is_Integer for position in node.index)
    if node.mask is not None or node.indirect or not plain or len(set(variables)) != len(variables):
        return None
    sizes = _numbers(loop.extents.values(), program.hints)
    return None if sizes is None or 0 in sizes else _product([loop.extents[var] for var in variables], program)


def _elements(layout: Layout, program: Program) -> int | None:
    """Returns how many elements a view has at least. A dimension along which elements may be those of another one, as
    windows overlap, does not count."""
    sizes, strides = _numbers(layout.size, program.hints), _numbers(layout.stride, program.hints)
    if sizes is None or strides is None:
        return None
    count = reach = 1
    for step, n in sorted(zip(strides, sizes, strict=True)):
        if n == 0:
            return 0
        if step >= reach:
            count, reach = count * n, reach + step * (n - 1)
    return count


def _product(sizes: Sequence[Expr], program: Program) -> int | None:
    numbers = _numbers(sizes, program.hints)
    return None if numbers is None else prod(numbers)


def _numbers(sizes: Iterable[Expr], hints: Values) -> list[int] | None:
    """Returns sizes as the numbers that they were when the program was made; None where one is not known."""
    try:
        return [int(evaluate(size, hints)) for size in sizes]
    except (KeyError, NotImplementedError):
        return None


__all__ = ["loops_inside", "written_where_read"]
