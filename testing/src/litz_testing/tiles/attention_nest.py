"""Nests of attention (`litz_contractions.attention.nest_lines`), verified and run with torch.

What `nest_rules.py` and `nest.py` say of other nests holds here. Products read and write what their matrices have, and
nothing else. A block of keys is called open where the lines say so; the results show whether that is right.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

import torch

from litz.ir.index import Symbol
from litz.tiles import program as tile
from litz.tiles.program import Nest
from litz_contractions.attention.nest_lines import Keys, Matrix, Product, When

from .nest import TileError, _Run
from .nest_rules import every, verify_nest


def verify_attention(nest: Nest) -> Iterator[str]:
    """Yields a complaint for each rule that an attention's Nest breaks."""
    yield from verify_nest(nest)
    rooms, blocks = dict[str, int](), dict[str, int]()
    for line, around in every(nest.lines):
        if isinstance(line, tile.Room):
            rooms[line.name] = int(line.count)
        elif isinstance(line, tile.Each) and line.step:
            blocks[line.axis] = line.step
        elif isinstance(line, Keys):
            blocks[line.axis] = line.step
            if line.block not in blocks:
                yield f"{line.block} is no block of queries"
        if isinstance(line, (Keys, Product, When)) and any(each.vector for each in around):
            yield f"{type(line).__name__} stands in the lanes of {around[-1].axis}"
        for matrix, sizes in line.matrices if isinstance(line, Product) else ():
            if unknown := [size for size in sizes if isinstance(size, str) and size not in blocks]:
                yield f"{unknown[0]} is no block of a product"
                continue
            rows, columns = (blocks[size] if isinstance(size, str) else size for size in sizes)
            if columns > matrix.step:
                yield f"rows of {columns} elements lie {matrix.step} apart in {_name(matrix)}"
            if isinstance(matrix.of, str) and (rows - 1) * matrix.step + columns > rooms.get(matrix.of, 0):
                yield f"a matrix of {rows} rows does not lie in {matrix.of}"


def _name(matrix: Matrix) -> str:
    return matrix.of if isinstance(matrix.of, str) else matrix.of.buffer


def interpret_attention(
    nest: Nest, memory: Mapping[str, torch.Tensor], sizes: Mapping[Symbol, int] | None = None, order: int = 0
) -> None:
    """Runs the kernel. See `interpret_nest`."""
    _Attention(nest, memory, dict(sizes or {}), random.Random(order), 10**9).lines(nest.lines)


class _Attention(_Run):
    def _when(self, line: When) -> None:
        condition = self.operand(line.of)
        if condition.numel() != 1:
            raise TileError("lanes do not decide alike")
        if bool(condition) != line.otherwise:
            self._lines(line.body)

    def _keys(self, line: Keys) -> None:
        first, last = self.env[line.block], self.env[f"{line.block}_end"] - 1
        ends = [
            [[int(self.position(expr, more={line.query: query})) for query in (first, last)] for expr in exprs]
            for exprs in (line.lower, line.upper)
        ]
        size = self.size(line.size)
        least, most = max([0, *map(min, ends[0])]), min([size, *(max(pair) + 1 for pair in ends[1])])
        inner = max([0, *map(max, ends[0])]), min([size, *(min(pair) + 1 for pair in ends[1])])
        for start, stop, known in self._spans(line, least, most):
            for begin in range(start, stop, line.step):
                end = min(stop, begin + line.step)
                self.env[line.axis], self.env[f"{line.axis}_end"] = begin, end
                inside = known or (line.exact and begin >= inner[0] and end <= inner[1])
                self.values[line.value.text] = torch.tensor(inside)
                self._lines(line.body)

    def _spans(self, line: Keys, least: int, most: int) -> Iterator[tuple[int, int, bool]]:
        """The first key, the one after the last, and whether the mask holds of all: of each block that is listed."""
        always = torch.tensor(True)
        if not line.lists:
            yield least, most, False
        for listed in line.lists:
            for place in range(int(self._read(listed.counts, always))):
                self.env[self.symbols[listed.place]] = place
                start = int(self._read(listed.entries, always)) * listed.length
                yield max(start, least), min(start + listed.length, most), listed.known

    def _product(self, line: Product) -> None:
        into, left, right = line.matrices
        factors = [self._elements(*each) for each in (left, right)]
        if line.turned:
            factors[1] = factors[1].T
        room, places = self._places(*into)
        found = line.scale * (factors[0] @ factors[1])
        room[places] = (found + room[places] if line.adds else found).to(room.dtype)

    def _elements(self, matrix: Matrix, sizes: Sequence[str | int]) -> torch.Tensor:
        flat, places = self._places(matrix, sizes)
        if isinstance(matrix.of, tile.Access):
            self._seen(matrix.of.buffer, places, torch.ones(places.shape, dtype=torch.bool))
        return flat[places].to(torch.float64)

    def _places(self, matrix: Matrix, sizes: Sequence[str | int]) -> tuple[torch.Tensor, torch.Tensor]:
        """The room or the buffer, and where a matrix's elements are in it."""
        env = self.env
        rows, columns = (env[f"{size}_end"] - env[size] if isinstance(size, str) else size for size in sizes)
        room = isinstance(matrix.of, str)
        flat = self.rooms[matrix.of] if isinstance(matrix.of, str) else self.flat(matrix.of.buffer)
        first = 0 if isinstance(matrix.of, str) else self._first(matrix.of)
        places = first + torch.arange(rows)[:, None] * matrix.step + torch.arange(columns)
        if places.numel() and not 0 <= int(places.min()) <= int(places.max()) < len(flat):
            raise TileError(f"a product reaches beyond the {'room' if room else 'buffer'} {_name(matrix)}")
        return flat, places


__all__ = ["interpret_attention", "verify_attention"]
