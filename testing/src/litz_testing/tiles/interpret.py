"""Run a TileProgram with plain torch, program after program, as its lines' meaning says.

What masks leave out is poison: not a number, or a great integer. So a result that depends on a lane outside of a row or
a buffer shows. An access outside of a buffer, and an element that two programs store, or that a program reads after it
was stored, is an error. Half types and float8 compute in float32, as kernels do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from litz.codegen.dialect import combining, family
from litz.ir.combined import scan_row
from litz.ir.dtypes import FLOAT8, HALF, compute_dtype
from litz.ir.index import Expr, Symbol, placeholder
from litz.ir.interpret import evaluate
from litz.ir.ops import OPS
from litz.ir.reductions import REDUCTIONS
from litz.tiles import program as tile
from litz.tiles.program import Access, Axes, Const, Line, Mask, Nest, Operand, TileProgram
from litz.tiles.shape import Axis

from .nest import TileError, interpret_nest, poison

Memory = Mapping[str, torch.Tensor]


def interpret_tiles(
    program: TileProgram | Nest,
    memory: Memory,
    sizes: Mapping[Symbol, int] | None = None,
    order: int = 0,
    most_lines: int = 10**9,
) -> None:
    """Runs all programs of a kernel, or its loops, in an order that `order` shuffles. memory: a tensor for each buffer,
    with its strides; what is stored is changed. sizes: of the size symbols. most_lines: that a nest runs. Errors:
    TileError; IndexError for a position that a `check` finds outside; TooLong."""
    if isinstance(program, Nest):
        interpret_nest(program, memory, sizes, order, most_lines)
        return
    run = _Kernel(program, memory, dict(sizes or {}))
    numbers = list(range(run.columns * run.pieces))
    random.Random(order).shuffle(numbers)
    counts: dict[int, int] = {}
    for number in numbers:
        column, piece = number % run.columns, number // run.columns
        _Program(run, program, column, piece, number).run()
        counts[column] = counts.get(column, 0) + 1
        if counts[column] == run.pieces:
            for last in program.finish:
                run.owners = {}  # all that others have stored is seen
                _Program(run, last, column, 0, number).run()


class _Kernel:
    """The state that the programs of a kernel share. owners: who stored an element, by its address."""

    def __init__(self, program: TileProgram, memory: Memory, sizes: dict[Symbol, int]) -> None:
        self.memory, self.sizes = memory, sizes
        self.owners: dict[int, dict[int, int]] = {}
        self.columns = self.pieces = 1
        for axis in program.tiling.grid_axes:
            self.columns *= -(-self.size(axis.size) // (axis.block * axis.step)) * axis.step
        for piece in program.tiling.pieces:
            self.pieces *= self.size(piece.size)

    def size(self, expr: Expr) -> int:
        return int(evaluate(expr, self.sizes))

    def flat(self, name: str) -> torch.Tensor:
        """The elements of a buffer, in the order of memory."""
        tensor = self.memory[name]
        span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
        flat = tensor.as_strided([span], [1])
        return flat.view(torch.uint8) if tensor.dtype in FLOAT8 else flat


class _Program:
    """One program: its number along the grid, and the values so far."""

    def __init__(self, kernel: _Kernel, program: TileProgram, column: int, piece: int, number: int) -> None:
        self.kernel, self.program, self.tiling, self.number = kernel, program, program.tiling, number
        self.dims = {axis.name: dim for dim, axis in enumerate(self.tiling.axes)}
        self.env: dict[Symbol, Any] = dict(kernel.sizes)
        self.index: dict[str, torch.Tensor] = {}
        self.masks: dict[str, torch.Tensor] = {}
        self.values: dict[str, torch.Tensor] = {}
        self.blocks = 0
        """How many blocks of the row have been walked before this one."""
        self.column, self.piece = column, piece

    def run(self) -> None:
        self._unravel(torch.tensor(self.piece), self.tiling.pieces)
        number = self.column
        for axis in reversed(self.tiling.grid_axes):
            count = -(-self.kernel.size(axis.size) // (axis.block * axis.step)) * axis.step
            own, number = number % count, number // count
            first = own * axis.block
            if axis.step > 1:
                first = own // axis.step * (axis.step * axis.block) + own % axis.step
            self._position(axis, first + self._along(axis) * axis.step)
        row = self.tiling.axis("r")
        if row is not None:
            self._frame(row)
            if self.tiling.persistent:
                self._row(row, 0)
        self.lines(self.program.lines)

    # Positions.

    def _along(self, axis: Axis) -> torch.Tensor:
        shape = [1] * len(self.dims)
        shape[self.dims[axis.name]] = axis.block
        return torch.arange(axis.block).reshape(shape)

    def _position(self, axis: Axis, index: torch.Tensor) -> None:
        self.index[axis.name] = index
        self.masks[axis.name] = (index >= 0) & (index < self.kernel.size(axis.size))
        self._unravel(index, axis.ranges)

    def _unravel(self, index: torch.Tensor, ranges: Sequence[Any]) -> None:
        for position, r in reversed(list(enumerate(ranges))):
            size = max(1, self.kernel.size(r.size))
            self.env[r.var] = index % size if position else index
            index = index // size

    def _frame(self, row: Axis) -> None:
        frame = self.tiling.frame
        if frame is None:
            return
        first = torch.as_tensor(evaluate(frame.start, self.env))
        self.start = first // frame.lanes * frame.lanes
        self.lead = first.reshape([1] * (len(self.dims) - first.ndim) + [*first.shape]) % frame.lanes
        if self.tiling.begins_alike:
            inside = self.lead[self.masks["x"].expand(self.lead.shape)]
            if inside.numel() and bool((inside != inside[0]).any()):
                raise TileError("rows that are said to begin alike do not")
            self.lead = self.lead.flatten()[0].reshape([1] * len(self.dims))
        length = self.kernel.size(row.size)
        self.end = (self.lead + length + frame.lanes - 1) // frame.lanes * frame.lanes

    def _row(self, row: Axis, offset: int) -> None:
        lanes = offset + self._along(row)
        self.lanes = lanes
        if self.tiling.frame is None:
            self._position(row, lanes)
            return
        self.masks["rload"] = lanes < self.end
        self._position(row, lanes - self.lead)

    # Operands: tensors of the tiling's rank.

    def shape(self, axes: Axes) -> list[int]:
        blocks = {axis.name: axis.block for axis in self.tiling.axes}
        if "g" in axes:
            blocks["r"] = blocks["r"] // self.tiling.together
        return [blocks[name] if name in axes or (name == "r" and "g" in axes) else 1 for name in self.dims]

    def scalar(self, value: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.full([1] * len(self.dims), value, dtype=compute_dtype(dtype))

    def operand(self, operand: Operand) -> torch.Tensor:
        if isinstance(operand, tile.Value):
            return self.values[operand.text]
        if isinstance(operand, Const):
            return self.scalar(operand.value, operand.dtype).expand(self.shape(operand.axes))
        if isinstance(operand, tile.Position):
            return self.position(operand.expr)
        if isinstance(operand, tile.Places):
            return self.index["r"].expand(self.shape(operand.axes)).to(operand.dtype)
        if isinstance(operand, tile.Counts):
            return self._counts(operand)
        assert isinstance(operand, (tile.Spread, tile.Filled, tile.Coded, tile.As))
        inner = self.operand(operand.of)
        if isinstance(operand, tile.Spread):
            return inner.expand(self.shape(operand.axes))
        if isinstance(operand, tile.Filled):
            outside = self.operand(operand.outside)
            return torch.where(self.masks["r"], inner, outside.to(inner.dtype))
        if isinstance(operand, tile.Coded):
            return inner.to(operand.as_type).view(torch.uint8)
        return inner != 0 if operand.dtype == torch.bool else inner.to(operand.dtype)

    def position(self, expr: Expr) -> torch.Tensor:
        found = evaluate(expr, self.env)
        return found if isinstance(found, torch.Tensor) else self.scalar(found, torch.int64)

    def _counts(self, counts: tile.Counts) -> torch.Tensor:
        row = self.tiling.axis("r")
        assert row is not None
        length, groups = self.kernel.size(row.size), 1 if "r" in counts.axes else self.tiling.together
        first = torch.arange(row.block // groups) * groups
        seen = (length - first + row.block - 1) // row.block * groups
        return seen.to(counts.dtype).reshape(1, -1).expand(self.shape(counts.axes))

    def mask(self, masks: Sequence[Mask]) -> torch.Tensor:
        found = self.scalar(True, torch.bool)
        for mask in masks:
            if isinstance(mask, tile.Inside):
                found = found & self.masks[mask.axis]
            elif isinstance(mask, tile.Positive):
                found = found & (self.kernel.size(mask.size) > 0)
            elif isinstance(mask, tile.Below):
                found = found & (self.start + self.lanes + self.position(mask.rest) < mask.end)
            else:
                assert not isinstance(mask, tile.Other), "what runs the plugin's lines knows it"
                found = found & self.operand(mask)
        return found

    # Lines.

    def lines(self, lines: Sequence[Line]) -> None:
        for line in lines:
            getattr(self, f"_{type(line).__name__.lower()}")(line)

    def give(self, value: tile.Value, found: torch.Tensor) -> None:
        wanted = self.shape(value.axes)
        if list(found.shape) != wanted:
            raise TileError(f"{value.text} has the shape {list(found.shape)}, where its axes say {wanted}")
        held = value.dtype if value.dtype == torch.uint8 else compute_dtype(value.dtype)
        self.values[value.text] = found.to(held)

    def _op(self, line: tile.Op) -> None:
        args, (first, *_), dtype = [self.operand(arg) for arg in line.args], line.args, line.value.dtype
        if line.near:
            found = NEAR[line.near](args, line.op)
        elif line.op in ("same", "index"):
            found = args[0]
        elif line.op == "cast":
            found = args[0].to(dtype)
        elif line.op == "bitcast":
            stored = args[0] if args[0].dtype == torch.uint8 else args[0].to(first.dtype)
            found = stored.contiguous().view(dtype)
        elif line.op == "decode":
            found = args[0].contiguous().view(dtype).to(torch.float32)
        elif line.op == "byte":
            found = args[0].to(first.dtype).contiguous().view(torch.uint8)
        elif line.op == "softmax_total":
            found = torch.where(args[0].isinf(), float("nan"), args[1])
        else:
            found = OPS[line.op].torch(*args)
        self.give(line.value, found.expand(torch.broadcast_shapes(found.shape, *(arg.shape for arg in args))))

    def _places(self, access: Access, mask: torch.Tensor, reads: bool) -> torch.Tensor:
        """The offsets of an access, 0 outside of the mask; checked to lie in the buffer."""
        if access.framed:
            offset = self.start + self.lanes + self.position(access.offset)
        else:
            indirect = {placeholder(n): self.operand(each) for n, each in enumerate(access.indirect)}
            found = evaluate(access.offset, {**self.env, **indirect})
            offset = found if isinstance(found, torch.Tensor) else self.scalar(found, torch.int64)
        shape = self.shape(access.axes)
        offset, size = offset.expand(shape), self.kernel.flat(access.buffer).numel()
        mask = mask.expand(shape)
        wrong = mask & ((offset < 0) | (offset >= size))
        if access.framed and reads and self.tiling.frame is not None:
            beyond = -(-size // self.tiling.frame.lanes) * self.tiling.frame.lanes
            wrong = mask & ((offset < 0) | (offset >= beyond))  # what is left of 16 bytes is read with them
        if bool(wrong.any()):
            raise TileError(f"{access.buffer}[{int(offset[wrong][0])}] lies outside of its {size} elements")
        return torch.where(mask & (offset < size), offset, 0)

    def _owner(self, access: Access) -> dict[int, int]:
        return self.kernel.owners.setdefault(self.kernel.memory[access.buffer].data_ptr(), {})

    def _load(self, line: tile.Load) -> None:
        if line.value.dtype in FLOAT8:
            self._load(replace(line, value=replace(line.value, dtype=torch.uint8)))
            bits = self.values[line.value.text]
            self.values[line.value.text] = bits.contiguous().view(line.value.dtype).to(torch.float32)
            return
        access, mask = line.access, self.mask(line.masks)
        places, flat = self._places(access, mask, reads=True), self.kernel.flat(access.buffer)
        mask = mask.expand(places.shape)
        if access.framed:
            mask = mask & self.masks["r"]  # the lanes of other rows are read, and not used
        owner = self._owner(access)
        if owner:
            late = [place for place in places[mask].flatten().tolist() if place in owner]
            if late:
                raise TileError(f"{access.buffer}[{late[0]}] is read after program {owner[late[0]]} stored it")
        held = flat.dtype if line.value.dtype == torch.uint8 else compute_dtype(line.value.dtype)
        outside = torch.zeros((), dtype=held) if line.zero else poison(held)
        found = flat[places].to(held) if flat.numel() else outside.expand(places.shape)
        self.give(line.value, torch.where(mask, found, outside))

    def _check(self, line: tile.Check) -> None:
        position, size = self.operand(line.position), self.kernel.size(line.size)
        held = (position >= 0) & (position < size)
        if bool((~held & self.mask(line.masks)).any()):
            raise IndexError(f"index out of range for size {size} of {line.what}")
        self.give(line.held, held)
        self.give(line.value, torch.where(held, position, 0))

    def _store(self, line: tile.Store) -> None:
        access, mask = line.access, self.mask(line.masks).expand(self.shape(line.axes))
        if access.framed:
            mask = mask & self.masks["r"]
        places = self._places(access, mask, reads=False).expand(mask.shape)[mask]
        flat, value = self.kernel.flat(access.buffer), self.operand(line.value)
        dtype = self.kernel.memory[access.buffer].dtype
        value = value.expand(mask.shape)[mask]
        value = value if dtype in FLOAT8 else value.to(dtype)
        owner = self._owner(access)
        if line.mode == "set":
            if not access.indirect:
                # Elements of an input may share memory (x.unfold): what is stored in one place is the same then.
                same = torch.isclose(flat[places], value, rtol=0, atol=0, equal_nan=True)
                others = zip(places.tolist(), same.tolist(), strict=True)
                twice = [at for at, equal in others if not equal and owner.get(at, self.number) != self.number]
                if twice:
                    raise TileError(f"{access.buffer}[{twice[0]}] is stored by two programs")
            flat[places] = value
            owner.update(dict.fromkeys(places.tolist(), self.number))
            return
        mode = {"add": "sum", "prod": "prod", "max": "amax", "min": "amin"}[combining(line.mode, dtype)]
        wide = (
            flat.to(torch.float32) if dtype in HALF else flat.to(torch.uint8) if dtype == torch.bool else flat.clone()
        )
        wide.scatter_reduce_(0, places, value.to(wide.dtype), mode)
        flat.copy_(wide.to(dtype))

    def _dot(self, line: tile.Dot) -> None:
        held = torch.int64 if line.into.dtype == torch.int32 else torch.float64
        found = self.values[line.left.text].to(held) @ self.values[line.right.text].to(held)
        self.give(line.into, found if line.new else self.values[line.into.text].to(held) + found)

    # Reductions.

    def _walk(self, line: tile.Walk) -> None:
        row = self.tiling.axis("r")
        assert row is not None
        length = self.kernel.size(row.size)
        if self.tiling.frame is not None:
            length += self.tiling.frame.lanes - 1
        offsets = list(range(0, length, row.block))
        for offset in reversed(offsets) if line.back else offsets:
            self.blocks = offset // row.block
            self._row(row, offset)
            self.lines(line.body)

    def _whole(self, line: tile.Whole) -> None:
        self.lines(line.inside if self.number < line.blocks else line.others)

    def _last(self, value: torch.Tensor, together: int = 0) -> torch.Tensor:
        """The row's dimension as the last one; with `together`, neighbours."""
        dim = self.dims["r"]
        found = value.movedim(dim, -1)
        return found.reshape(*found.shape[:-1], found.shape[-1] // together, together) if together else found

    def _merged(self, kind: str, form: str, states: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """States along the last dimension, merged."""
        if form == "online":
            tops, totals = states
            top = tops.amax(-1, keepdim=True)
            ratio = torch.where(tops == top, 1.0, (-(top - tops).abs()).exp())
            # A state without values, whose total is 0, adds nothing.
            return [top[..., 0], (totals * ratio).sum(-1)]
        if form == "plain":
            kind = family(kind, states[0].dtype)
        held = [state.to(torch.float64) if form == "plain" and state.is_floating_point() else state for state in states]
        found = REDUCTIONS[kind].fold(held)
        return [each.to(state.dtype) for each, state in zip(found, states, strict=True)]

    def _reduce(self, line: tile.Reduce) -> None:
        states = [self._last(self.operand(arg)) for arg in line.args]
        merged = self._merged(line.kind, line.form, states)
        for value, found in zip(line.values, merged, strict=True):
            self.give(value, found.unsqueeze(self.dims["r"]))

    def _join(self, line: tile.Join) -> None:
        state = [self._last(self.values[value.text]) for value in line.state]
        args = [self._last(self.operand(arg), line.groups if line.groups > 1 else 0) for arg in line.args]
        mask = self._last(self.masks["r"].expand(self.shape(self._full)), line.groups if line.groups > 1 else 0)
        neighbours = args if line.groups > 1 else [arg.unsqueeze(-1) for arg in args]
        if line.form == "welford":
            before = torch.full_like(state[0], float(self.blocks * line.groups))
            (values,) = neighbours
            ones, zeros = torch.ones_like(values), torch.zeros_like(values)
            own = [torch.cat([s.unsqueeze(-1), new], -1) for s, new in zip((*state, before), (values, zeros, ones))]
            merged = self._merged("welford_mean", "row", own)[:2]
        else:
            lifted = neighbours if line.form != "online" else [neighbours[0], torch.ones_like(neighbours[0])]
            own = [torch.cat([s.unsqueeze(-1), new.to(s.dtype)], -1) for s, new in zip(state, lifted, strict=True)]
            merged = self._merged(line.kind, line.form, own)
        if line.masked:
            inside = mask[..., 0] if line.groups > 1 else mask
            merged = [torch.where(inside, new, old) for new, old in zip(merged, state, strict=True)]
        for value, found in zip(line.state, merged, strict=True):
            self.give(value, found.movedim(-1, self.dims["r"]))

    @property
    def _full(self) -> Axes:
        return frozenset(self.dims)

    def _moments(self, line: tile.Moments) -> None:
        value, row, dim = self.operand(line.arg), self.tiling.axis("r"), self.dims["r"]
        assert row is not None
        if line.masked:
            value = torch.where(self.masks["r"], value, 0.0)
        mean = value.sum(dim, keepdim=True) / self.kernel.size(row.size)
        apart = value - mean
        if line.masked:
            apart = torch.where(self.masks["r"], apart, 0.0)
        self.give(line.mean, mean)
        self.give(line.apart, apart)
        if line.m2 is not None:
            self.give(line.m2, (apart * apart).sum(dim, keepdim=True))

    def _scan(self, line: tile.Scan) -> None:
        if line.form == "function":
            return self._scan_by_function(line)
        arg = self._last(self.operand(line.args[0]))
        carry = [self._last(self.values[value.text]) for value in line.carry]
        states = torch.cat([*carry, arg], -1)
        found, parts = [states[..., 0]], states.unbind(-1)
        for part in parts[1:]:
            found += self._merged(line.kind, "scan", [torch.stack([found[-1], part], -1)])
        scanned = torch.stack(found, -1)[..., -arg.shape[-1] :]
        self.give(line.values[0], scanned.movedim(-1, self.dims["r"]))
        if line.carry:
            inside = self._last(self.masks["r"].expand(self.shape(self._full)))
            row = torch.where(inside, arg, line.outside.value) if line.outside is not None else arg
            (total,) = self._merged(line.kind, "scan", [torch.cat([*carry, row.to(arg.dtype)], -1)])
            self.give(replace(line.carry[0]), total.unsqueeze(self.dims["r"]))

    def _scan_by_function(self, line: tile.Scan) -> None:
        row, dim = scan_row(line.kind), self.dims["r"]
        assert row is not None
        parts = [self._last(self.operand(arg).expand(self.shape(self._full))) for arg in line.args]
        if line.carry and self.blocks:
            parts = [torch.cat([self._last(self.values[c.text]), part], -1) for c, part in zip(line.carry, parts)]
        length = self.shape(self._full)[dim]
        for number, (value, result) in enumerate(zip(line.values, row.results.values(), strict=True)):
            assert result.scan is not None
            scanned = result.scan(*parts)[..., -length:]
            self.give(value, scanned.movedim(-1, dim))
            if line.carry:
                self.give(replace(line.carry[number]), scanned[..., -1:].movedim(-1, dim))


_One = Callable[[Sequence[torch.Tensor], str], torch.Tensor]
NEAR: Mapping[str, _One] = {
    "same": lambda args, op: args[0],
    "times_reciprocal": lambda args, op: args[0] / args[1],
    "times_reciprocal_near": lambda args, op: args[0] / args[1],
    "erf_plus_one": lambda args, op: 1 + args[0].erf(),
    "tanh_plus_one": lambda args, op: 1 + args[0].tanh(),
    "tanh_slope": lambda args, op: 1 - args[1].tanh().square(),
    "tanh_near": lambda args, op: args[0].tanh(),
    "exact": lambda args, op: args[0].to(torch.float32) + args[1].to(torch.float32),
    **dict.fromkeys(("exp", "div", "sigmoid", "quotient", "product"), lambda args, op: OPS[op].torch(*args)),
}
"""What the less exact forms of ops are near to."""
