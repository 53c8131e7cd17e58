"""Is a Nest legal? Each rule is a function from a nest to its complaints; `litz_testing.tiles.rules` runs them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from litz.ir.dtypes import HALF
from litz.tiles import program as tile
from litz.tiles.program import Access, Element, Held, Line, Nest, Operand, Value

Rule = Callable[[Nest], Iterator[str]]


def verify_nest(nest: Nest) -> Iterator[str]:
    """Yields a complaint for each broken rule, of the nest and of its parts."""
    for rule in RULES:
        yield from rule(nest)
    for part in nest.parts:
        yield from verify_nest(part)


def operands(line: Line) -> Iterator[Operand]:
    """Yields the operands of a line, and what they are made of."""
    found: list[Operand] = []
    if isinstance(line, (tile.Op, tile.Fold)):
        found += line.args
    if isinstance(line, tile.Put):
        found += [line.place, line.value]
    if isinstance(line, tile.Store):
        found.append(line.value)
    if isinstance(line, tile.Check):
        found.append(line.position)
    if isinstance(line, tile.Other) and getattr(line, "of", None) is not None:
        found.append(line.of)  # type: ignore[attr-defined]
    if isinstance(line, (tile.Load, tile.Store, tile.Check)):
        found += line.masks  # type: ignore[arg-type]  # a nest has no masks of axes
    for access in accesses(line):
        found += access.indirect
    while found:
        operand = found.pop()
        yield operand
        if isinstance(operand, (tile.As, tile.Coded)):
            found.append(operand.of)


def accesses(line: Line) -> Iterator[Access]:
    """Yields the accesses of a line to memory."""
    if isinstance(line, (tile.Load, tile.Store, tile.Move)):
        yield line.access
    elif isinstance(line, tile.Fold) and isinstance(line.array, Access):
        yield line.array
    elif isinstance(line, tile.Other):
        yield from getattr(line, "accesses", ())


def made(line: Line) -> tuple[Value, ...]:
    """Returns the values that a line gives names to."""
    if isinstance(line, (tile.Op, tile.Load)):
        return (line.value,)
    return (line.held, line.value) if isinstance(line, tile.Check) else ()


def body_of(line: Line) -> tuple[Line, ...]:
    """Returns the lines within a loop, a branch, or a plugin's line."""
    return getattr(line, "body", ()) if isinstance(line, (tile.Each, tile.If, tile.Other)) else ()


def every(lines: Sequence[Line], around: tuple[tile.Each, ...] = ()) -> Iterator[tuple[Line, tuple[tile.Each, ...]]]:
    """Yields all lines, each with the loops around it."""
    for line in lines:
        yield line, around
        yield from every(body_of(line), (*around, line) if isinstance(line, tile.Each) else around)


def _defined(nest: Nest) -> Iterator[str]:
    """Names are given once, and before they are used, in the loop that uses them or around it; so are rooms and what
    reductions hold. A value varies along loops that are around it."""
    names: set[str] = set()

    def check(lines: Sequence[Line], known: dict[str, object], axes: frozenset[str]) -> Iterator[str]:
        known = dict(known)
        for line in lines:
            held = [line.held, line.other] if isinstance(line, tile.Fold) and line.step != "make" else []
            held += [line.odd] if isinstance(line, tile.If) else []
            for operand in operands(line):
                if isinstance(operand, Value) and not _is_held_as(known.get(operand.text), operand):
                    yield f"{operand.text} is used, and is not there as {operand.dtype}"
                if isinstance(operand, Element) and operand.room not in known:
                    yield f"the room {operand.room} is used, and is not there"
                if isinstance(operand, tile.Result):
                    held.append(operand.held)
                if not operand.axes <= axes:
                    yield f"{operand} varies along {set(operand.axes - axes)}, which no loop around it does"
            yield from (
                f"{name} is used, and holds nothing"
                for each in held
                if isinstance(each, Held) and (name := each.names[0] + each.suffix) not in known
            )
            rooms = (line.room,) if isinstance(line, tile.Move) else getattr(line, "rooms", ())
            yield from (f"the room {room} is used, and is not there" for room in rooms if room not in known)
            new: list[tuple[str, object]] = [(value.text, value) for value in made(line)]
            if isinstance(line, tile.Room):
                new.append((line.name, line))
            if isinstance(line, tile.Fold) and line.step == "make":
                new.append((line.held.names[0] + line.held.suffix, line.held))
            for name, what in new:
                if name in names:
                    yield f"{name} is made twice"
                names.add(name)
                known[name] = what
            if isinstance(line, tile.Copy):
                axes |= {line.name}
            if isinstance(line, tile.Each):
                if line.within and line.within not in axes:
                    yield f"the loop over {line.axis} is within {line.within}, which no loop around it is"
                yield from check(line.body, known, axes | {line.axis})
            elif isinstance(line, tile.Other):  # whose axis and value are there in its body
                value, axis = getattr(line, "value", None), getattr(line, "axis", None)
                own = {} if value is None else {value.text: value}
                yield from (f"{name} is made twice" for name in own if name in names)
                names.update(own)
                yield from check(body_of(line), known | own, axes if axis is None else axes | {axis})
            elif isinstance(line, tile.If):
                yield from check(line.body, known, axes)

    yield from check(nest.lines, {}, frozenset({"0"}))


def _is_held_as(found: object, used: Value) -> bool:
    """Returns whether a value may be used as one of another type. That of a half type is a float32 number."""
    return isinstance(found, Value) and (
        found.dtype == used.dtype or {found.dtype, used.dtype} <= HALF | {torch.float32}
    )


def _types(nest: Nest) -> Iterator[str]:
    """A value that is loaded or stored has the type of its buffer, and masks are bool. A table holds an int64 that fits
    as an int32."""
    for line, _ in every(nest.lines):
        if isinstance(line, (tile.Load, tile.Store)):
            dtype, value = nest.buffers[line.access.buffer].dtype, line.value
            coded = isinstance(value, tile.Coded) and value.as_type == dtype
            tabled = isinstance(value, Element) and (value.dtype, dtype) == (torch.int32, torch.int64)
            if value.dtype != dtype and not coded and not tabled:
                yield f"{line.access.buffer} is {dtype}, and {value.dtype} is loaded or stored"
            yield from (f"{mask} is no mask" for mask in line.masks if getattr(mask, "dtype", None) != torch.bool)


def _loops(nest: Nest) -> Iterator[str]:
    """Loops of lanes do not nest, and nothing stands between loops that threads share together."""
    for line, around in every(nest.lines):
        if not isinstance(line, tile.Each):
            continue
        if line.vector and any(each.vector for each in around):
            yield f"the loop over {line.axis} has lanes within lanes"
        if line.shared and any(each.shared for each in around):
            yield f"the loop over {line.axis} is shared within a share"
        if line.shared > 1:
            inner = line.body[0] if len(line.body) == 1 else None
            if not isinstance(inner, tile.Each):
                yield f"something stands between the loops that are shared with {line.axis}"
            elif inner.shared:
                yield f"the loop over {inner.axis} is shared twice"


def _losses(nest: Nest) -> Iterator[str]:
    """A loss in lanes is noted where the lanes are merged, and decided about outside of lanes: the lines after it would
    be for one lane."""
    for line, around in every(nest.lines):
        lanes = [each for each in around if each.vector]
        if isinstance(line, tile.If) and lanes:
            yield f"{line.odd.names[0]} is decided about within the lanes of {lanes[-1].axis}"
        if isinstance(line, tile.Fold) and line.step == "lost":
            if line.other is None or not any(line.other in each.merged for each in lanes):
                yield f"no loop of lanes merges what {line.held.names[0]} has lost"


def _races(nest: Nest) -> Iterator[str]:
    """Shares of the threads store at different places, or combine in one step of memory."""
    for line, around in every(nest.lines):
        if not isinstance(line, tile.Store) or line.access.indirect:
            continue
        first = next((n for n, each in enumerate(around) if each.shared), None)
        if first is None:
            continue
        at = dict(line.access.at)
        used = {at.get(symbol, nest.names.variables.get(symbol, "")) for symbol in line.access.offset.free_symbols}
        for each in around[first : first + around[first].shared]:
            own = {each.axis, *(inner.axis for inner in around if inner.within == each.axis)}
            own |= {name for name in used if name.startswith(f"{each.axis.removesuffix('_g')}_")}  # copies of a block
            if used & own or (each.size.is_Integer and int(each.size) <= (each.step or 1)):
                continue
            if line.mode == "set" or not nest.atomic:
                yield f"shares that differ in {each.axis} store {line.access.buffer} at one place"


def _arguments(nest: Nest) -> Iterator[str]:
    """Every buffer is an argument, and every symbol of an offset stands for something."""
    known = {*nest.names.index_names, *nest.extents}
    for line, _ in every(nest.lines):
        for access in accesses(line):
            if access.buffer not in nest.names.buffers:
                yield f"{access.buffer} is no argument"
            own = {symbol for symbol in access.offset.free_symbols if symbol not in known}
            if len(own) > len(access.indirect):
                yield f"an offset in {access.buffer} has symbols that nothing stands for: {own}"


RULES: tuple[Rule, ...] = (_defined, _types, _loops, _losses, _races, _arguments)
