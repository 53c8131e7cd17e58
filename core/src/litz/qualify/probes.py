"""The probes: small Loops for every construct that the C++ generator writes, with inputs whose results are exact.

In: nothing. Out: `Probe`s. They go through the generator that all kernels go through, so a probe is what is really
emitted. Numbers are small integers and halves, whose sums are exact in any order: the right bits are written down in
`known`. Where a function has no exact result the probe has a tolerance. Sizes are no multiples of a vector's, so that
every loop has a rest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from litz.ir import Node, Store, build
from litz.ir.index import Expr, loop_var, mod, placeholder, reduction_var, to_expr
from litz.ir.operation import StoreMode
from litz.ir.reductions import ROWS as REDUCTION_ROWS

I = [loop_var(n) for n in range(3)]  # noqa: E741
R = [reduction_var(n) for n in range(2)]
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
I64, I32, I8, U8, BOOL = torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool

MOMENTS = next(tuple(row.results) for row in REDUCTION_ROWS if row.several)
"""Reductions that share one state."""
ROWS, LONG, SHARED = 61, 2061, 50_003
"""Sizes: rows of a small table, elements of a long row (two blocks and a rest), elements that threads share."""


@dataclass(frozen=True)
class Probe:
    """One kernel. construct: what is in doubt (a name of `litz.codegen.cpp.constructs`).

    ranges, reduction: sizes of the loop. inputs: tensors by buffer. outputs: (size, dtype) by buffer; one that is an
    input too is written in place. tolerance: the relative error allowed, 0 for the same bits. raises: the kernel is to
    refuse an index.
    """

    construct: str
    ranges: Sequence[int]
    stores: Sequence[Store]
    inputs: Mapping[str, torch.Tensor]
    outputs: Mapping[str, tuple[Sequence[int], torch.dtype]]
    reduction: Sequence[int] = ()
    tolerance: float = 0.0
    raises: bool = False


@dataclass
class _Loop:
    """A probe under construction: buffers get names as they are used."""

    construct: str
    ranges: Sequence[int]
    reduction: Sequence[int] = ()
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    outputs: dict[str, tuple[Sequence[int], torch.dtype]] = field(default_factory=dict)
    stores: list[Store] = field(default_factory=list)

    def read(self, tensor: torch.Tensor, *at: Expr, indirect: tuple[Node, ...] = (), mask: Node | None = None) -> Node:
        """An element of a tensor, by default at the loop's variables."""
        name = next((name for name, known in self.inputs.items() if known is tensor), f"x{len(self.inputs)}")
        self.inputs[name] = tensor
        own = (*I[: len(self.ranges)], *R[: len(self.reduction)])
        return build.load(name, tuple(map(to_expr, at)) or own[: tensor.dim()], tensor.dtype, indirect, mask)

    def write(self, value: Node, *at: Expr, mask: Node | None = None) -> None:
        """Store a value in a new output, by default at the output variables."""
        position = at or tuple(I[: len(self.ranges)])
        sizes = [*self.ranges, *self.reduction][: len(position)]
        name = f"o{len(self.outputs)}"
        self.outputs[name] = (sizes, value.dtype)
        if mask is None:
            self.stores.append(Store(name, position, value))
        else:
            self.inputs[name] = numbers(value.dtype, *sizes)
            self.stores.append(Store(name, position, value, mask=mask))

    def rows(self, value: Node) -> None:
        """Store an element for each step of the reduction."""
        self.write(value, *I[: len(self.ranges)], *R[: len(self.reduction)])

    def done(self, tolerance: float = 0.0, raises: bool = False) -> Probe:
        return Probe(
            self.construct, self.ranges, self.stores, self.inputs, self.outputs, self.reduction, tolerance, raises
        )


def numbers(dtype: torch.dtype, *size: int, salt: int = 0) -> torch.Tensor:
    """Small integers of both signs in no order, halves among those of floats; bools for bool."""
    count = math.prod(size)
    values = (torch.arange(count) * 37 + salt * 11) % 97 - (0 if dtype == U8 else 40)
    if dtype == BOOL:
        return (values % 3 > 0).reshape(size)
    if dtype.is_floating_point:
        return (values / 2).to(dtype).reshape(size)
    return values.to(dtype).reshape(size)


def special(dtype: torch.dtype) -> torch.Tensor:
    """Among numbers: infinities, NaN, -0, the least and the greatest, what is rounded to even."""
    info = torch.finfo(dtype)
    odd = [math.inf, -math.inf, math.nan, -0.0, 0.0, info.max, info.min, info.tiny, -info.tiny, info.tiny / 4]
    values = numbers(dtype, ROWS * 3)
    values[7::11] = torch.tensor((odd * 2)[: len(values[7::11])], dtype=F64).to(dtype)
    return values


def _call(name: str, *args: Node) -> Node:
    return build.call(name, *args)


def _compare(kind: str, left: Expr, right: int) -> Node:
    return _call(kind, build.index(left), build.index(right))


def _within(position: Expr, low: int, high: int) -> Node:
    return _call("bitwise_and", _compare("ge", position, low), _compare("lt", position, high))


# ---------------------------------------------------------------------- the probes, one function to a construct or two


def _vectors() -> Iterator[Probe]:
    for name, count in (("vector loops", LONG), ("threads", SHARED)):
        loop = _Loop(name, [count])
        x, y, z = (loop.read(numbers(F32, count, salt=n) + n / 3) for n in range(3))
        a, b = loop.read(numbers(F64, count)), loop.read(numbers(I32, count))
        loop.write(_call("add", _call("mul", x, y), z))  # rounded twice
        loop.write(_call("div", x, _call("sub", y, build.const(100.0, F32))))
        loop.write(_call("mul", a, build.cast(b, F64)))
        loop.write(build.cast(b, F32))
        loop.write(build.cast(x, I64))
        yield loop.done()


def _halves() -> Iterator[Probe]:
    for name, dtype in (("float16", F16), ("bfloat16", BF16)):
        # Along columns and into rows: no blocks of memory in order.
        loop = _Loop(name, [ROWS, 3])
        table = special(dtype).reshape(3, ROWS)
        loop.write(_call("add", loop.read(table, I[1], I[0]), build.const(0.25, dtype)))
        loop.write(build.cast(build.cast(loop.read(numbers(F32, ROWS, 3) / 3), dtype), F32))
        yield loop.done()
    loop = _Loop("float16 blocks", [LONG])
    x, wide = loop.read(torch.cat([special(F16)] * 12)[:LONG]), loop.read(numbers(F32, LONG) / 3)
    loop.write(_call("mul", x, build.const(0.5, F16)))
    loop.write(build.cast(wide, F16))
    loop.write(build.cast(x, F32))
    yield loop.done()


def _masks() -> Iterator[Probe]:
    """Padding, a shift by data, rows under masks; and what g++ 12 miscompiles (docs/compilers.md)."""
    loop = _Loop("masked loads", [LONG])
    inside, bits = _within(I[0] - 3, 0, LONG - 9), loop.read(numbers(BOOL, LONG))
    for dtype in (F32, F64, U8, I64):
        row = numbers(dtype, LONG)
        loop.write(loop.read(row, I[0] - 3, mask=inside))
        loop.write(loop.read(row, mask=bits))
    yield loop.done()
    for dtype, columns, backwards in ((F16, 5, False), (F32, 2, False), (F64, 2, True)):
        loop = _Loop("masked loads", [35, columns])
        first, second = _compare("lt", I[0], 2), _compare("lt", I[0], 5)
        column = columns - 1 - I[1] if backwards else I[1]
        parts = []
        for number, (rows, start, mask) in enumerate(
            ((2, 0, first), (3, 2, _within(I[0], 2, 5)), (30, 5, _compare("ge", I[0], 5)))
        ):
            parts.append(loop.read(numbers(dtype, rows, columns, salt=number), I[0] - start, column, mask=mask))
        loop.write(_call("where", first, parts[0], _call("where", second, parts[1], parts[2])))
        yield loop.done()
    loop = _Loop("masked stores", [LONG])
    bits = loop.read(numbers(BOOL, LONG))
    for dtype in (F32, I8):
        loop.write(loop.read(numbers(dtype, LONG, salt=2)), mask=bits)
    yield loop.done()
    loop = _Loop("selections", [LONG])
    x, y, bits = loop.read(numbers(F32, LONG)), loop.read(numbers(F32, LONG, salt=3)), loop.read(numbers(BOOL, LONG))
    n, m = loop.read(numbers(I64, LONG)), loop.read(numbers(I64, LONG, salt=3))
    loop.write(_call("where", bits, x, y))
    loop.write(_call("where", _call("lt", x, y), n, m))
    loop.write(_call("where", _call("bitwise_xor", bits, _call("eq", n, m)), y, x))
    yield loop.done()


def _short_loops() -> Iterator[Probe]:
    for columns in (2, 5):
        loop = _Loop("unrolled loops", [ROWS, columns])
        bias = loop.read(numbers(F32, columns), I[1])
        for dtype in (F32, U8, BF16):
            x = numbers(dtype, ROWS, columns)
            loop.write(loop.read(x, I[0], columns - 1 - I[1]))
            loop.write(_call("add", build.cast(loop.read(x), F32), bias))
        yield loop.done()
    loop = _Loop("unrolled loops", [ROWS * 2], [3])
    row = loop.read(numbers(F32, ROWS * 2, 3), I[0], R[0])
    loop.write(build.reduce("sum", row))
    loop.rows(_call("sub", row, build.reduce("max", row)))
    yield loop.done()
    loop = _Loop("steps apart", [ROWS, 5])
    loop.write(loop.read(numbers(BF16, ROWS, 5), mask=_compare("ge", I[0], 2)))
    loop.write(loop.read(numbers(BF16, ROWS, 5, salt=1), I[0], 4 - I[1], mask=_compare("eq", mod(I[0], to_expr(3)), 0)))
    yield loop.done()


def _tiles() -> Iterator[Probe]:
    loop = _Loop("tiles", [75, 83])
    for dtype in (F32, U8):
        loop.write(loop.read(numbers(dtype, 83, 75), I[1], I[0]))
    yield loop.done()
    loop = _Loop("tiles", [75, 83])
    for dtype in (F64, BF16):
        loop.write(loop.read(numbers(dtype, 83, 75), I[1], I[0]))
    yield loop.done()


def _rows() -> Iterator[Probe]:
    loop = _Loop("sums", [3], [LONG])
    x, n = loop.read(numbers(F32, 3, LONG)), loop.read(numbers(I64, 3, LONG))
    signs = _call("where", _call("lt", n, build.const(0, I64)), build.const(-1, I64), build.const(1, I64))
    for value in (x, n, build.cast(x, F64)):
        loop.write(build.reduce("sum", value))
    loop.write(build.reduce("prod", signs))
    yield loop.done()
    loop = _Loop("extremes", [3], [LONG])
    for dtype in (F32, F64, I64, I8):
        wide = numbers(dtype, 3, LONG)
        if dtype.is_floating_point:
            wide[1], wide[2] = math.inf, -math.inf
        value = loop.read(wide)
        loop.write(build.reduce("max", value))
        loop.write(build.reduce("min", value))
    yield loop.done()
    loop = _Loop("tests", [3], [LONG])
    bits, y = loop.read(numbers(BOOL, 3, LONG)), numbers(F32, 3, LONG)
    y[1, 1033], y[2] = math.nan, -math.inf
    loop.write(build.reduce("any", bits))
    loop.write(build.reduce("all", _call("bitwise_or", bits, _compare("lt", I[0], 2))))
    loop.write(build.reduce("max", loop.read(y)))
    yield loop.done()
    loop = _Loop("positions", [3], [LONG])
    for dtype in (F32, I64):
        value = loop.read(y if dtype == F32 else numbers(dtype, 3, LONG))
        loop.write(build.reduce("argmax", value))
        loop.write(build.reduce("argmin", value))
    yield loop.done()
    for count in (2048, 16):  # powers of two: the means are exact
        loop = _Loop("moments", [ROWS], [count])
        value = loop.read(numbers(F32, ROWS, count))
        for kind in MOMENTS:
            loop.write(build.reduce(kind, value))
        yield loop.done(4e-5)
    loop = _Loop("kept rows", [5], [LONG])
    x = loop.read(numbers(F32, 5, LONG) / 16)
    power = _call("exp", _call("sub", x, build.reduce("max", x)))
    loop.rows(_call("div", power, build.reduce("sum", power)))
    yield loop.done(4e-6)


def _columns() -> Iterator[Probe]:
    loop = _Loop("columns", [70], [1030])
    x, n = loop.read(numbers(F32, 1030, 70), R[0], I[0]), loop.read(numbers(I64, 1030, 70), R[0], I[0])
    for kind in ("sum", "max", "argmax"):
        loop.write(build.reduce(kind, x))
    loop.write(build.reduce("sum", n))
    loop.write(build.reduce("any", _call("gt", x, build.const(23.0, F32))))
    yield loop.done()
    loop = _Loop("columns", [70], [64])
    value = loop.read(numbers(F32, 64, 70), R[0], I[0])
    for kind in MOMENTS:
        loop.write(build.reduce(kind, value))
    yield loop.done(4e-5)
    for at, sizes in (((I[0], R[0]), (ROWS, 41)), ((R[0], I[0]), (41, ROWS))):
        loop = _Loop("scans", [ROWS], [41])
        x, n = loop.read(numbers(F32, *sizes), *at), loop.read(numbers(I64, *sizes), *at)
        for scanned in (build.scan("sum", x), build.scan("max", x), build.scan("sum", n)):
            loop.rows(scanned)
        yield loop.done()


_UNARY_MATH = ("exp", "log", "sin", "tanh", "erf", "log1p", "atan")


def _functions() -> Iterator[Probe]:
    for dtype, tolerance in ((F32, 2e-6), (F64, 1e-13)):
        loop = _Loop("vector math", [203])
        x = loop.read((numbers(dtype, 203) / 16).abs() + 0.25)
        y = loop.read(numbers(dtype, 203, salt=5) / 16)
        for name in _UNARY_MATH:
            loop.write(_call(name, x))
        loop.write(_call("pow", x, y))
        loop.write(_call("atan2", x, y))
        yield loop.done(tolerance)
    loop = _Loop("scalar math", [203])
    x, y = loop.read(numbers(F32, 203)), loop.read(numbers(F32, 203, salt=5) + 0.25)
    for name in ("fmod", "remainder", "floordiv", "nextafter"):
        loop.write(_call(name, x, y))
    yield loop.done()
    loop = _Loop("roundings", [203])
    for dtype in (F32, F64):
        x = loop.read(numbers(dtype, 203) / 2 + 0.25)
        for name in ("floor", "ceil", "trunc", "round"):
            loop.write(_call(name, x))
        loop.write(_call("sqrt", _call("mul", x, x)))
    yield loop.done()
    loop = _Loop("special values", [ROWS * 3])
    for dtype in (F32, F64):
        one, other = special(dtype), special(dtype).flip(0)
        other[::5] = one[::5]
        left, right = loop.read(one), loop.read(other)
        for name in ("maximum", "minimum", "fmax", "fmin", "copysign"):
            loop.write(_call(name, left, right))
        for name in ("isnan", "isinf", "signbit", "abs"):
            loop.write(_call(name, left))
        for name in ("lt", "le", "eq", "ne"):
            loop.write(_call(name, left, right))
        loop.write(_call("add", left, _call("neg", right)))
    yield loop.done()


def _integers() -> Iterator[Probe]:
    loop = _Loop("integers", [ROWS * 3])
    for dtype in (I8, U8, I32, I64):
        least, greatest = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        x, y = numbers(dtype, ROWS * 3), numbers(dtype, ROWS * 3, salt=4)
        x[::7], x[3::7], y[::5] = greatest, least, greatest
        for name in ("add", "sub", "mul", "bitwise_xor"):
            loop.write(_call(name, loop.read(x), loop.read(y)))
        loop.write(_call("abs" if dtype.is_signed else "bitwise_not", loop.read(x)))
        loop.write(build.cast(loop.read(x), I8))
    yield loop.done()
    loop = _Loop("divisions", [ROWS * 3])
    for dtype in (I8, U8, I32, I64):
        x, y = numbers(dtype, ROWS * 3), numbers(dtype, ROWS * 3, salt=4)
        y = torch.where(y == 0, 3, y)
        for name in ("truncdiv", "floordiv", "remainder", "fmod"):
            loop.write(_call(name, loop.read(x), loop.read(y)))
    loop.write(build.index(mod(I[0] * 7 + 5, to_expr(11))))
    yield loop.done()
    loop = _Loop("shifts", [ROWS * 3])
    for dtype in (I8, U8, I32, I64):
        by = (torch.arange(ROWS * 3) % (8 * dtype.itemsize)).to(dtype)
        for name in ("shift_left", "shift_right"):
            loop.write(_call(name, loop.read(numbers(dtype, ROWS * 3)), loop.read(by)))
    yield loop.done()
    loop = _Loop("bits", [ROWS * 3])
    for source, target in ((F32, I32), (I64, F64), (F16, torch.int16), (torch.int16, BF16)):
        loop.write(build.bitcast(loop.read(numbers(source, ROWS * 3)), target))
    yield loop.done()


def _changes() -> Iterator[Probe]:
    for name, count in (("atomics", SHARED), ("combinations", ROWS * 3)):
        loop = _Loop(name, [count])
        at = loop.read((torch.arange(count) * 7) % 40)
        changes: tuple[tuple[torch.dtype, StoreMode], ...] = ((I64, "add"), (I32, "max"), (F32, "add"), (F16, "max"))
        for dtype, mode in changes:
            value = loop.read(numbers(dtype, count))
            table = f"t{len(loop.outputs)}"
            loop.inputs[table], loop.outputs[table] = numbers(dtype, 40), ([40], dtype)
            loop.stores.append(Store(table, (placeholder(0),), value, (at,), mode))
        yield loop.done()
    for bad in (False, True):
        positions = (torch.arange(LONG) * 7) % 40
        if bad:
            positions[1031] = 40
        loop = _Loop("bounds", [LONG])
        row = build.bounded(loop.read(positions), 40)
        loop.write(loop.read(numbers(F32, 40), placeholder(0), indirect=(row,)))
        yield loop.done(raises=bad)
    loop = _Loop("random numbers", [LONG])
    seed = loop.read(torch.tensor([12345]), to_expr(0))
    loop.write(_call("random_uniform", seed, build.index(I[0])))
    loop.write(_call("random_bits", seed, build.index(I[0] + 5)))
    yield loop.done()


_MAKERS: tuple[Callable[[], Iterator[Probe]], ...] = (
    _vectors, _halves, _masks, _short_loops, _tiles, _rows, _columns, _functions, _integers, _changes,
)  # fmt: skip


def make_probes() -> dict[str, Probe]:
    """All probes by label: the construct and a number."""
    found: dict[str, Probe] = {}
    numbers_of: Counter[str] = Counter()
    for make in _MAKERS:
        for probe in make():
            numbers_of[probe.construct] += 1
            found[f"{probe.construct} {numbers_of[probe.construct]}"] = probe
    return found
