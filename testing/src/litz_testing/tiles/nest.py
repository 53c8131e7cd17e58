"""Run a Nest, the lines of a kernel for a processor, with plain torch.

A loop whose iterations are lanes is one step, on tensors with an element for each lane; all other loops are walked, and
those that threads share in an order that a number shuffles. An element that one share of the threads stores, and
another stores or reads, is an error, as is an access outside of a buffer or a room. What a room holds before anything
is put there is poison. How a reduction holds its values on the way is the printer's: here it has its row's state, and
whether that of the printer has lost something is by chance.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from litz.codegen.dialect import combining, family
from litz.ir.combined import scan_row
from litz.ir.dtypes import FLOAT8, HALF, compute_dtype
from litz.ir.index import Expr, Symbol, placeholder
from litz.ir.interpret import evaluate
from litz.ir.ops import OPS
from litz.ir.reductions import REDUCTIONS, Reduction
from litz.ir.reductions import evaluate as evaluate_nodes
from litz.tiles import program as tile
from litz.tiles.program import Access, At, Element, Held, Line, Nest, Operand, Value

Lanes = torch.Tensor
"""A value: of one element, or of one for each lane."""


class TileError(AssertionError):
    """A program does what none may: it reads or writes outside of a buffer, or races with another share."""


class TooLong(Exception):
    """The program was not run to its end, for it took too many steps."""


def poison(dtype: torch.dtype) -> torch.Tensor:
    """Returns a value that no result may depend on."""
    if dtype == torch.bool:
        return torch.tensor(True)
    if dtype.is_floating_point:
        return torch.tensor(float("nan"), dtype=dtype)
    return torch.tensor(torch.iinfo(dtype).max // 2, dtype=dtype)


def interpret_nest(
    nest: Nest,
    memory: Mapping[str, torch.Tensor],
    sizes: Mapping[Symbol, int] | None = None,
    order: int = 0,
    most_lines: int = 10**9,
) -> None:
    """Runs a kernel. memory: a tensor for each buffer, with its strides; what is stored is changed. sizes: of the size
    symbols. most_lines: that are run. Errors: TileError; IndexError for a position that a `check` finds outside;
    TooLong."""
    for part in nest.parts or (nest,):
        run = _Run(part, memory, dict(sizes or {}), random.Random(order), most_lines)
        run.lines(part.lines)


class _Left(Exception):
    """The kernel ended early."""


class _Run:
    def __init__(
        self,
        nest: Nest,
        memory: Mapping[str, torch.Tensor],
        sizes: dict[Symbol, int],
        order: random.Random,
        most_lines: int,
    ) -> None:
        self.nest, self.memory, self.sizes, self.order, self.left = nest, memory, sizes, order, most_lines
        self.symbols = {symbol: name for symbol, name in nest.names.variables.items()}
        self.pointers = {short: name for name, short in nest.names.buffers.items()}
        self.env: dict[str, Any] = {"0": 0}
        """The positions of loops, by their names; a tensor for that whose iterations are lanes."""
        self.values: dict[str, Lanes] = {}
        self.rooms: dict[str, torch.Tensor] = {}
        self.states: dict[str, list[Lanes] | None] = {}
        self.count: int | None = None
        """How many lanes there are, within a loop of lanes."""
        self.share: tuple[int, ...] = ()
        """The iteration of the loops that threads share, and below that of each lane."""
        self.lane_shares: list[tuple[int, ...]] = []
        self.owners: dict[int, dict[int, tuple[int, ...]]] = {}

    # Sizes, positions.

    def size(self, expr: Expr) -> int:
        return int(evaluate(expr, self.sizes))

    def position(self, expr: Expr, at: At = (), more: Mapping[Symbol, Any] | None = None) -> Lanes:
        names = {**self.symbols, **dict(at)}
        known = {symbol: self.env[name] for symbol, name in names.items() if name in self.env}
        return torch.as_tensor(evaluate(expr, {**self.sizes, **known, **(more or {})}))

    def flat(self, name: str) -> torch.Tensor:
        """The elements of a buffer, in the order of memory."""
        tensor = self.memory[name]
        span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
        flat = tensor.as_strided([span], [1])
        return flat.view(torch.uint8) if tensor.dtype in FLOAT8 else flat

    # Lines.

    def lines(self, lines: Sequence[Line]) -> None:
        with suppress(_Left):
            self._lines(lines)

    def _lines(self, lines: Sequence[Line]) -> None:
        for line in lines:
            self.left -= 1
            if self.left < 0:
                raise TooLong
            getattr(self, f"_{type(line).__name__.lower()}")(line)

    def _leave(self, leave: tile.Leave) -> None:
        if any(self.size(size) == 0 for size in leave.empty) and all(self.size(size) for size in leave.some):
            if leave.code:
                raise IndexError(f"index out of range for size 0 of {self.nest.checks[leave.code - 1][1]}")
            raise _Left

    def _each(self, each: tile.Each) -> None:
        start, stop = 0, self.size(each.size)
        if each.within:
            start, stop = self.env[each.within], self.env[f"{each.within}_end"]
        if each.flat:
            start, stop = 0, (stop - start) * each.flat
        if each.vector:
            self._vector(each, start, stop)
            return
        positions = list(range(start, stop, each.step or 1))
        shared = bool(each.shared)
        body: Sequence[Line] = each.body
        if shared:
            self.order.shuffle(positions)
        for position in positions:
            self.env[each.axis] = position
            if each.step:
                self.env[f"{each.axis}_end"] = min(stop, position + each.step)
            if shared:
                before, self.share = self.share, (*self.share, position)
                if each.shared > 1:
                    (inner,) = body
                    assert isinstance(inner, tile.Each)
                    self._each(replace(inner, shared=each.shared - 1))
                else:
                    self._lines(body)
                self.share = before
            else:
                self._lines(body)

    def _vector(self, each: tile.Each, start: int, stop: int) -> None:
        if self.count is not None:
            raise TileError(f"the loop over {each.axis} has lanes within lanes")
        if stop <= start:
            return
        self.lane_shares = [(*self.share, n) if each.shared else self.share for n in range(start, stop)]
        self.env[each.axis] = torch.arange(start, stop)
        self.count = stop - start
        self._lines(each.body)
        self.count = None

    def _if(self, branch: tile.If) -> None:
        state = self.states[self._key(branch.odd)]
        assert state is not None
        if bool(state[0]) == branch.lost:
            self._lines(branch.body)

    def _copy(self, copy: tile.Copy) -> None:
        position = self.env[copy.block] + copy.number
        self.env[copy.name] = position if copy.whole else min(position, self.size(copy.size) - 1)

    # Operands.

    def operand(self, operand: Operand) -> Lanes:
        if isinstance(operand, Value):
            return self.values[operand.text]
        if isinstance(operand, tile.Const):
            return torch.tensor(operand.value, dtype=compute_dtype(operand.dtype))
        if isinstance(operand, tile.Position):
            return self.position(operand.expr, operand.at)
        if isinstance(operand, Element):
            found = self.rooms[operand.room][self._place(operand)]
            return found if operand.dtype in FLOAT8 else found.to(compute_dtype(operand.dtype))
        if isinstance(operand, tile.Again):
            return self._read(operand.access, torch.tensor(True)).to(compute_dtype(operand.dtype))
        if isinstance(operand, tile.As):
            return self.operand(operand.of).to(torch.float32)
        if isinstance(operand, tile.Coded):
            return self.operand(operand.of).to(torch.float32).to(operand.as_type).view(torch.uint8)
        if isinstance(operand, tile.Result):
            return self._result(operand)
        raise TileError(f"{type(operand).__name__} is no operand of a nest")

    def _place(self, element: Element) -> torch.Tensor:
        place: Any = 0
        for expr, start, times in element.at:
            place = place + (self.position(expr) - (self.env[start] if start else 0)) * times
        place, room = torch.as_tensor(place), self.rooms[element.room]
        if bool(((place < 0) | (place >= len(room))).any()):
            raise TileError(f"{element.room} has {len(room)} elements, and {place.flatten().tolist()[:4]} are used")
        return place

    def give(self, value: Value, found: Lanes) -> None:
        held = found.dtype if found.dtype == torch.uint8 and value.dtype in FLOAT8 else compute_dtype(value.dtype)
        self.values[value.text] = found.to(held)
        if value.narrow and bool((found.to(torch.int64).abs() > 2**31 - 1).any()):
            raise TileError(f"{value.text} is said to fit in 32 bits")

    def _op(self, op: tile.Op) -> None:
        args, (first, *_), dtype = [self.operand(arg) for arg in op.args], op.args, op.value.dtype
        if op.op in ("same", "opaque", "index"):
            found = args[0]
        elif op.op == "decode":
            found = args[0].contiguous().view(dtype).to(torch.float32)
        elif op.op == "cast":
            found = args[0].to(dtype)
        elif op.op in ("bitcast", "byte"):
            bits = first.dtype in FLOAT8 or isinstance(first, tile.Coded)
            found = (args[0] if bits else args[0].to(first.dtype)).contiguous()
            found = found.reshape(-1).view(torch.uint8 if op.op == "byte" else dtype).reshape(found.shape)
        else:
            found = OPS[op.op].torch(*args)
        self.give(op.value, found)

    # Memory.

    def _offsets(self, access: Access, mask: torch.Tensor) -> torch.Tensor:
        more = {placeholder(n): self.operand(each) for n, each in enumerate(access.indirect)}
        offset = self.position(access.offset, access.at, more) + self.nest.starts.get(access.buffer, 0)
        size = self.flat(access.buffer).numel()
        offset, mask = torch.broadcast_tensors(offset, mask)
        wrong = mask & ((offset < 0) | (offset >= size))
        if bool(wrong.any()):
            raise TileError(f"{access.buffer}[{int(offset[wrong].flatten()[0])}] lies outside of its {size} elements")
        return torch.where(mask, offset, 0)

    def _owner(self, name: str) -> dict[int, tuple[int, ...]]:
        return self.owners.setdefault(self.memory[name].data_ptr(), {})

    def _shares(self, places: torch.Tensor) -> list[tuple[int, ...]]:
        return self.lane_shares if self.count is not None and places.ndim else [self.share] * places.numel()

    def _seen(self, name: str, places: torch.Tensor, mask: torch.Tensor) -> None:
        """Complains of elements that another share of the threads has stored."""
        owner = self._owner(name)
        if owner:
            pairs = zip(places.flatten().tolist(), self._shares(places), mask.flatten().tolist(), strict=True)
            late = [place for place, share, held in pairs if held and owner.get(place, share) != share]
            if late:
                raise TileError(f"{name}[{late[0]}] is read, and share {owner[late[0]]} of the threads stored it")

    def _read(self, access: Access, mask: torch.Tensor) -> Lanes:
        places, flat = self._offsets(access, mask), self.flat(access.buffer)
        mask = mask.expand(places.shape)
        self._seen(access.buffer, places, mask)
        if not flat.numel():
            return torch.zeros(places.shape, dtype=flat.dtype)
        return torch.where(mask, flat[places], torch.zeros((), dtype=flat.dtype))

    def _mask(self, masks: Sequence[Any]) -> torch.Tensor:
        found = torch.tensor(True)
        for mask in masks:
            found = found & self.operand(mask)
        return found

    def _load(self, load: tile.Load) -> None:
        self.give(load.value, self._read(load.access, self._mask(load.masks)))

    def _check(self, check: tile.Check) -> None:
        position, size = self.operand(check.position), self.size(check.size)
        held = (position >= 0) & (position < size)
        if bool((~held & self._mask(check.masks)).any()):
            raise IndexError(f"index out of range for size {size} of {check.what}")
        self.give(check.held, held)
        self.give(check.value, torch.where(held, position, 0))

    def _store(self, store: tile.Store) -> None:
        mask, value = self._mask(store.masks), self.operand(store.value)
        dtype = self.memory[store.access.buffer].dtype
        places = self._offsets(store.access, mask)
        if self.count is not None:  # every lane stores, wherever to
            places = places.expand(self.count)
        mask, value = mask.expand(places.shape), value.expand(places.shape)
        value = value if dtype in FLOAT8 else value.to(dtype)
        self._write(store.access.buffer, places, value, mask, store.mode)

    def _write(
        self, name: str, places: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, mode: str = "set"
    ) -> None:
        flat, dtype, owner = self.flat(name), self.memory[name].dtype, self._owner(name)
        chosen = [share for share, held in zip(self._shares(places), mask.flatten().tolist(), strict=True) if held]
        places, value = places.reshape(-1)[mask.reshape(-1)], value.reshape(-1)[mask.reshape(-1)]
        if mode != "set":
            kind = {"add": "sum", "prod": "prod", "max": "amax", "min": "amin"}[combining(mode, dtype)]
            wide = flat.to(torch.float32 if dtype in HALF else torch.uint8 if dtype == torch.bool else dtype)
            wide.scatter_reduce_(0, places, value.to(wide.dtype), kind)
            flat.copy_(wide.to(dtype))
            return
        for place, share in zip(places.tolist(), chosen, strict=True):
            if owner.setdefault(place, share) != share:
                raise TileError(f"{name}[{place}] is stored by two shares of the threads")
        flat[places] = value

    # Rooms.

    def _room(self, room: tile.Room) -> None:
        count = room.count if isinstance(room.count, int) else self.size(room.count)
        dtype = compute_dtype(room.dtype)
        if room.stored:
            dtype = torch.uint8 if room.dtype in FLOAT8 else room.dtype
        self.rooms[room.name] = poison(dtype).repeat(count)

    def _put(self, put: tile.Put) -> None:
        room, place = self.rooms[put.place.room], self._place(put.place)
        room[place] = self.operand(put.value).to(room.dtype).expand(place.shape)

    def _first(self, access: Access) -> int:
        """Returns where a block begins in its buffer."""
        more = {placeholder(n): self.operand(each) for n, each in enumerate(access.indirect)}
        return int(self.position(access.offset, access.at, more)) + self.nest.starts.get(access.buffer, 0)

    def _span(self, move: tile.Move, block: str) -> int:
        return self.size(move.size) if block == "0" else int(self.env[f"{block}_end"] - self.env[block])

    def _move(self, move: tile.Move) -> None:
        first, room = self._first(move.access), self.rooms[move.room]
        spans = [self._span(move, block) for block in move.blocks]
        if move.step is None:
            there = here = torch.arange(spans[0])
        else:  # along the first block's axis memory is contiguous
            row, column = torch.arange(spans[0])[:, None], torch.arange(spans[1])[None]
            there, here = (row + column * self.size(move.step)).flatten(), (row * move.side + column).flatten()
        there, flat = there + first, self.flat(move.access.buffer)
        if there.numel() and bool(((there < 0) | (there >= flat.numel())).any()):
            raise TileError(f"{move.how} of {move.access.buffer} reaches beyond its {flat.numel()} elements")
        every = torch.ones(there.shape, dtype=torch.bool)
        if move.how in ("widen", "load"):
            self._seen(move.access.buffer, there, every)
            room[here] = flat[there].to(room.dtype)
        else:
            self._write(move.access.buffer, there, room[here].to(flat.dtype), every)

    # Reductions.

    def _row(self, held: Held) -> tuple[Reduction, torch.dtype]:
        own = scan_row(held.kind) if held.scans else None
        kind = family(held.kind, held.dtype) if held.kind in ("sum", "prod", "max", "min") else held.kind
        return own or REDUCTIONS[kind], compute_dtype(held.dtype)

    def _key(self, held: Held) -> str:
        return held.names[0] + held.suffix

    def _nothing(self, held: Held) -> list[Lanes] | None:
        row, dtype = self._row(held)
        if row.begins_with_first:
            return None
        found = [torch.tensor(node.attrs[0], dtype=node.dtype) for node in row.form(dtype).identity]
        lanes = held.lane[2] if held.lane is not None else self.count
        return found if lanes is None else [each.expand(lanes).clone() for each in found]

    def _merged(self, held: Held, one: Sequence[Lanes], other: Sequence[Lanes]) -> list[Lanes]:
        both = [torch.stack(torch.broadcast_tensors(a, b.to(a.dtype)), -1) for a, b in zip(one, other, strict=True)]
        return list(self._row(held)[0].fold(both))

    def _lifted(self, held: Held, args: Sequence[Lanes], position: Lanes) -> list[Lanes]:
        row, dtype = self._row(held)
        form = row.form(dtype)
        given = {node: arg.to(node.dtype) for node, arg in zip(form.values, args, strict=True)}
        shape = torch.broadcast_shapes(position.shape, *(arg.shape for arg in args))
        found = evaluate_nodes(form.lift, {**given, form.position: position})
        return [each.expand(shape).to(node.dtype) for each, node in zip(found, form.identity, strict=True)]

    def _fold(self, fold: tile.Fold) -> None:
        held, key = fold.held, self._key(fold.held)
        if fold.step == "make" or (fold.step == "start" and not fold.shared):
            self.states[key] = self._nothing(held)
        elif fold.step == "join":
            at = torch.tensor(0) if fold.at is None else self.operand(fold.at)
            self._join(held, self._lifted(held, [self.operand(arg) for arg in fold.args], at))
        elif fold.step == "merge":
            assert fold.other is not None
            state, other = self.states[key], self.states[self._key(fold.other)]
            assert state is not None and other is not None
            self.states[key] = self._merged(held, state, other)
        elif fold.step == "lost":
            assert fold.other is not None
            self.states[self._key(fold.other)] = [torch.tensor(self.order.random() < 0.5)]
        elif fold.step == "block":
            self._block(fold)
        elif fold.step == "group":
            self._group(fold)

    def _join(self, held: Held, new: list[Lanes]) -> None:
        key = self._key(held)
        state = self.states[key]
        if state is None:
            self.states[key] = new
            return
        if held.lane is None and (self.count is None or state[0].ndim):
            self.states[key] = self._merged(held, state, new)
            return
        if held.lane is None:  # what lanes hold apart comes together at the end
            assert self.count is not None
            lanes = [each.expand(self.count) for each in new]
            self.states[key] = self._merged(held, state, self._row(held)[0].fold(lanes))
            return
        there = self._lanes(held.lane)
        own = self._merged(held, [each[there] for each in state], new)
        for whole, each in zip(state, own, strict=True):
            whole[there] = each

    def _lanes(self, lane: tile.Lane) -> slice | int:
        """Returns the places of a block's accumulators: of all lanes, or the one that a walk without lanes is at."""
        if self.count is not None:
            return slice(0, self.count)
        axis, block, _ = lane
        return int(self.env[axis] - self.env[block])

    def _block(self, fold: tile.Fold) -> None:
        start = int(self.env[fold.block]) if fold.block else 0
        count = int(self.env[f"{fold.block}_end"]) - start if fold.size is None else self.size(fold.size)
        if isinstance(fold.array, str):
            values = self.rooms[fold.array][:count]
        else:
            first = self._first(fold.array)
            values = self.flat(fold.array.buffer)[first : first + count]
        if len(values) != count:
            raise TileError(f"a block of {count} values has {len(values)}")
        if not count:
            return
        assert fold.at is not None
        state, positions = self.states[self._key(fold.held)], self.operand(fold.at) + torch.arange(count)
        assert state is not None
        lifted = self._lifted(fold.held, [values], positions)
        self.states[self._key(fold.held)] = self._merged(fold.held, state, self._row(fold.held)[0].fold(lifted))

    def _group(self, fold: tile.Fold) -> None:
        """Gives all lanes of a group what the lanes of the group hold together."""
        state, lanes = self.states[self._key(fold.held)], int(self.env[f"{fold.block}_end"] - self.env[fold.block])
        assert state is not None
        if lanes % fold.times:
            raise TileError(f"{lanes} lanes are no groups of {fold.times}")
        merged = self._row(fold.held)[0].fold([each[:lanes].reshape(-1, fold.times) for each in state])
        for whole, each in zip(state, merged, strict=True):
            whole[:lanes] = each.repeat_interleave(fold.times)

    def _result(self, result: tile.Result) -> Lanes:
        row, dtype = self._row(result.held)
        form, state = row.form(dtype), self.states[self._key(result.held)]
        assert state is not None
        if result.held.lane is not None:
            state = [each[self._lanes(result.held.lane)] for each in state]
        kind = result.kind if result.kind in form.finish else next(iter(form.finish))
        (found,) = evaluate_nodes([form.finish[kind]], dict(zip(form.state, state, strict=True)))
        return found.to(compute_dtype(result.dtype))
