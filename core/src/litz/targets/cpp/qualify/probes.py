"""The probes: small Loops for every construct that the C++ generator writes, with inputs whose results are exact.

In: nothing. Out: `Probe`s. Probes go through the generator that all kernels go through, so a probe is what is really
emitted. Numbers are small integers and halves, whose sums are exact in any order: the right bits are written down in
`known`. Where a function has no exact result the probe has a tolerance. Sizes are no multiples of a vector's, so that
every loop has a rest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from litz.ir import Node, Store, build
from litz.ir.index import Expr, loop_var, mod, placeholder, reduction_var, to_expr
from litz.ir.operation import StoreMode
from litz.ir.reductions import ROWS as REDUCTION_ROWS
from litz.ir.scalars import call

I = [loop_var(n) for n in range(3)]  # noqa: E741
R = [reduction_var(n) for n in range(2)]
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
I64, I32, I8, U8, BOOL = torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool

MOMENTS = next(tuple(row.results) for row in REDUCTION_ROWS if row.several)
"""Reductions that share one state."""
ROWS, LONG, SHARED = 61, 2061, 50_003
"""Sizes: rows of a small table, elements of a long row (two blocks and a rest), elements that threads share."""


@dataclass
class Probe:
    """One kernel. construct: what is in doubt (a name of `litz.targets.cpp.constructs`).

    ranges, reduction: sizes of the loop. tolerance: the relative error allowed, 0 for the same bits. raises: the kernel
    is to refuse an index. inputs: tensors by buffer. outputs: (size, dtype) by buffer; one that is an input too is
    written in place. Buffers get names as they are used.
    """

    construct: str
    ranges: Sequence[int]
    reduction: Sequence[int] = ()
    tolerance: float = 0.0
    raises: bool = False
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    outputs: dict[str, tuple[Sequence[int], torch.dtype]] = field(default_factory=dict)
    stores: list[Store] = field(default_factory=list)

    def read(self, tensor: torch.Tensor, *at: Expr, indirect: tuple[Node, ...] = (), mask: Node | None = None) -> Node:
        """Returns the node that loads an element of a tensor, by default at the loop's variables."""
        name = next((name for name, known in self.inputs.items() if known is tensor), f"x{len(self.inputs)}")
        self.inputs[name] = tensor
        own = (*I[: len(self.ranges)], *R[: len(self.reduction)])
        return build.load(name, tuple(map(to_expr, at)) or own[: tensor.dim()], tensor.dtype, indirect, mask)

    def write(self, *values: Node, mask: Node | None = None, inner: bool = False) -> None:
        """Stores each value in a new output, at the output variables. inner: an element for each step of the reduction,
        too."""
        sizes = [*self.ranges, *(self.reduction if inner else ())]
        position = (*I[: len(self.ranges)], *R[: len(sizes) - len(self.ranges)])
        for value in values:
            name = f"o{len(self.outputs)}"
            self.outputs[name] = (sizes, value.dtype)
            self.stores.append(Store(name, position, value, mask=mask))
            if mask is not None:
                self.inputs[name] = numbers(value.dtype, *sizes)


New = Callable[..., Probe]
"""Makes a probe that counts, with the arguments of `Probe`."""


def numbers(dtype: torch.dtype, *size: int, salt: int = 0) -> torch.Tensor:
    """Returns small numbers of both signs in no order, halves too for floats; bools for bool."""
    count = math.prod(size)
    values = (torch.arange(count) * 37 + salt * 11) % 97 - (0 if dtype == U8 else 40)
    if dtype == BOOL:
        return (values % 3 > 0).reshape(size)
    if dtype.is_floating_point:
        return (values / 2).to(dtype).reshape(size)
    return values.to(dtype).reshape(size)


def special(dtype: torch.dtype) -> torch.Tensor:
    """Returns numbers with infinities, NaN, -0, and the greatest, least and tiniest values of the dtype among them."""
    info = torch.finfo(dtype)
    odd = [math.inf, -math.inf, math.nan, -0.0, 0.0, info.max, info.min, info.tiny, -info.tiny, info.tiny / 4]
    values = numbers(dtype, ROWS * 3)
    values[7::11] = torch.tensor((odd * 2)[: len(values[7::11])], dtype=F64).to(dtype)
    return values


def _compare(kind: str, left: Expr, right: int) -> Node:
    return call(kind, build.index(left), build.index(right))


def _within(position: Expr, low: int, high: int) -> Node:
    return call("bitwise_and", _compare("ge", position, low), _compare("lt", position, high))


# ---------------------------------------------------------------------- the probes, one function to a construct or two


def _vectors(new: New) -> None:
    for name, count in (("vector loops", LONG), ("threads", SHARED)):
        loop = new(name, [count])
        x, y, z = (loop.read(numbers(F32, count, salt=n) + n / 3) for n in range(3))
        a, b = loop.read(numbers(F64, count)), loop.read(numbers(I32, count))
        loop.write(call("add", call("mul", x, y), z))  # rounded twice
        loop.write(call("div", x, call("sub", y, build.const(100.0, F32))), call("mul", a, build.cast(b, F64)))
        loop.write(build.cast(b, F32), build.cast(x, I64))


def _halves(new: New) -> None:
    for name, dtype in (("float16", F16), ("bfloat16", BF16)):
        # Along columns and into rows: no blocks of memory in order.
        loop = new(name, [ROWS, 3])
        table = special(dtype).reshape(3, ROWS)
        loop.write(call("add", loop.read(table, I[1], I[0]), build.const(0.25, dtype)))
        loop.write(build.cast(build.cast(loop.read(numbers(F32, ROWS, 3) / 3), dtype), F32))
    loop = new("float16 blocks", [LONG])
    x, wide = loop.read(torch.cat([special(F16)] * 12)[:LONG]), loop.read(numbers(F32, LONG) / 3)
    loop.write(call("mul", x, build.const(0.5, F16)), build.cast(wide, F16), build.cast(x, F32))
    loop = new("float8", [512])
    every = torch.arange(512).to(U8)
    # Ties and subnormal numbers, of both signs; what is too large depends on torch's version.
    spread = torch.arange(1, 9).mul(2.0 ** torch.arange(-12, 4).float()[:, None] / 8).flatten().repeat(4)
    spread[::2] *= -1
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        loop.write(build.cast(build.bitcast(loop.read(every), dtype), F32))
        loop.write(build.bitcast(build.cast(loop.read(spread), dtype), U8))


def _masks(new: New) -> None:
    """Padding, a shift by data, rows under masks; and what g++ 12 miscompiles (docs/compilers.md)."""
    loop = new("masked loads", [LONG])
    inside, bits = _within(I[0] - 3, 0, LONG - 9), loop.read(numbers(BOOL, LONG))
    for dtype in (F32, F64, U8, I64):
        row = numbers(dtype, LONG)
        loop.write(loop.read(row, I[0] - 3, mask=inside), loop.read(row, mask=bits))
    for dtype, columns, backwards in ((F16, 5, False), (F32, 2, False), (F64, 2, True)):
        loop = new("masked loads", [35, columns])
        first, second = _compare("lt", I[0], 2), _compare("lt", I[0], 5)
        column = columns - 1 - I[1] if backwards else I[1]
        parts = []
        for number, (rows, start, mask) in enumerate(
            ((2, 0, first), (3, 2, _within(I[0], 2, 5)), (30, 5, _compare("ge", I[0], 5)))
        ):
            parts.append(loop.read(numbers(dtype, rows, columns, salt=number), I[0] - start, column, mask=mask))
        loop.write(call("where", first, parts[0], call("where", second, parts[1], parts[2])))
    # The smallest program that shows the fault. With AVX2 alone the probes above do not show the fault.
    loop, inside = new("masked loads", [64, 2]), _compare("ge", I[0], 2)
    loop.write(call("where", inside, loop.read(numbers(F32, 64, 2), *I[:2], mask=inside), build.const(0.0, F32)))
    loop = new("masked stores", [LONG])
    bits = loop.read(numbers(BOOL, LONG))
    for dtype in (F32, I8):
        loop.write(loop.read(numbers(dtype, LONG, salt=2)), mask=bits)
    loop = new("selections", [LONG])
    x, y, bits = loop.read(numbers(F32, LONG)), loop.read(numbers(F32, LONG, salt=3)), loop.read(numbers(BOOL, LONG))
    n, m = loop.read(numbers(I64, LONG)), loop.read(numbers(I64, LONG, salt=3))
    loop.write(call("where", bits, x, y), call("where", call("lt", x, y), n, m))
    loop.write(call("where", call("bitwise_xor", bits, call("eq", n, m)), y, x))
    loop = new("tests as positions", [LONG])
    bits, x = loop.read(numbers(BOOL, LONG)), loop.read(numbers(F32, LONG))
    chosen = call("where", call("lt", x, build.const(1.0, F32)), build.const(1, I64), build.const(0, I64))
    least = call("minimum", loop.read(numbers(U8, LONG) % 3), build.const(1, U8))
    for dtype in (BOOL, U8, BF16, F32, F64):
        table = numbers(dtype, 2, salt=1) if dtype != BOOL else torch.tensor([False, True])
        for place in (build.cast(bits, I64), chosen, build.cast(least, I64)):
            loop.write(loop.read(table, placeholder(0), indirect=(place,)))


def _short_loops(new: New) -> None:
    for columns in (2, 5):
        loop = new("unrolled loops", [ROWS, columns])
        bias = loop.read(numbers(F32, columns), I[1])
        for dtype in (F32, U8, BF16):
            x = numbers(dtype, ROWS, columns)
            loop.write(loop.read(x, I[0], columns - 1 - I[1]), call("add", build.cast(loop.read(x), F32), bias))
    loop = new("unrolled loops", [ROWS * 2], [3])
    row = loop.read(numbers(F32, ROWS * 2, 3), I[0], R[0])
    loop.write(build.reduce("sum", row))
    loop.write(call("sub", row, build.reduce("max", row)), inner=True)
    loop = new("steps apart", [ROWS, 5])
    loop.write(loop.read(numbers(BF16, ROWS, 5), mask=_compare("ge", I[0], 2)))
    loop.write(loop.read(numbers(BF16, ROWS, 5, salt=1), I[0], 4 - I[1], mask=_compare("eq", mod(I[0], to_expr(3)), 0)))


def _tiles(new: New) -> None:
    for dtypes in ((F32, U8), (F64, BF16)):
        loop = new("tiles", [75, 83])
        loop.write(*(loop.read(numbers(dtype, 83, 75), I[1], I[0]) for dtype in dtypes))
    for columns in (5, 12):
        loop = new("tiles", [75], [columns])
        for dtype in (F16, F32, U8):
            row = loop.read(numbers(dtype, 75, columns), I[0], R[0])
            loop.write(call("sub", build.cast(row, F32), build.cast(build.reduce("max", row), F32)), inner=True)


def _rows(new: New) -> None:
    loop = new("sums", [3], [LONG])
    x, n = loop.read(numbers(F32, 3, LONG)), loop.read(numbers(I64, 3, LONG))
    signs = call("where", call("lt", n, build.const(0, I64)), build.const(-1, I64), build.const(1, I64))
    loop.write(*(build.reduce("sum", value) for value in (x, n, build.cast(x, F64))), build.reduce("prod", signs))
    loop = new("extremes", [3], [LONG])
    for dtype in (F32, F64, I64, I8):
        wide = numbers(dtype, 3, LONG)
        if dtype.is_floating_point:
            wide[1], wide[2] = math.inf, -math.inf
        value = loop.read(wide)
        loop.write(build.reduce("max", value), build.reduce("min", value))
    loop = new("tests", [3], [LONG])
    bits, y = loop.read(numbers(BOOL, 3, LONG)), numbers(F32, 3, LONG)
    y[1, 1033], y[2] = math.nan, -math.inf
    loop.write(build.reduce("any", bits), build.reduce("all", call("bitwise_or", bits, _compare("lt", I[0], 2))))
    loop.write(build.reduce("max", loop.read(y)))
    loop = new("positions", [3], [LONG])
    for values in (y, numbers(I64, 3, LONG)):
        value = loop.read(values)
        loop.write(build.reduce("argmax", value), build.reduce("argmin", value))
    for count in (2048, 16):  # powers of two: the means are exact
        loop = new("moments", [ROWS], [count], tolerance=4e-5)
        value = loop.read(numbers(F32, ROWS, count))
        loop.write(*(build.reduce(kind, value) for kind in MOMENTS))
    loop = new("kept rows", [5], [LONG], tolerance=4e-6)
    x = loop.read(numbers(F32, 5, LONG) / 16)
    power = call("exp", call("sub", x, build.reduce("max", x)))
    loop.write(call("div", power, build.reduce("sum", power)), inner=True)


def _rows_together(new: New) -> None:
    for count in (3, 13):
        loop = new("rows together", [count, 5], [LONG])
        x = loop.read(numbers(F32, count, LONG), I[0], R[0])
        for dtype in (I8, BF16):
            weight = build.cast(loop.read(numbers(dtype, 5, LONG), I[1], R[0]), F32)
            loop.write(build.reduce("dot", x, weight))
    for count in (1, 7):
        loop = new("rows together", [count, 5], [18, 32])
        low, high = (loop.read(numbers(F32, count, 18, 32, salt=salt), I[0], *R) for salt in (0, 1))
        packed, scale = loop.read(numbers(U8, 5, 18, 32), I[1], *R), loop.read(numbers(F32, 5, 18), I[1], R[0])
        halves = call("bitwise_and", packed, build.const(15, U8)), call("shift_right", packed, build.const(4, U8))
        weights = (call("mul", build.cast(half, F32), scale) for half in halves)
        loop.write(call("add", *(build.reduce("dot", *pair) for pair in zip((low, high), weights, strict=True))))


def _columns(new: New) -> None:
    loop = new("columns", [70], [1030])
    x, n = loop.read(numbers(F32, 1030, 70), R[0], I[0]), loop.read(numbers(I64, 1030, 70), R[0], I[0])
    loop.write(*(build.reduce(kind, x) for kind in ("sum", "max", "argmax")), build.reduce("sum", n))
    loop.write(build.reduce("any", call("gt", x, build.const(23.0, F32))))
    loop = new("columns", [70], [64], tolerance=4e-5)
    value = loop.read(numbers(F32, 64, 70), R[0], I[0])
    loop.write(*(build.reduce(kind, value) for kind in MOMENTS))
    for at, sizes in (((I[0], R[0]), (ROWS, 41)), ((R[0], I[0]), (41, ROWS))):
        loop = new("scans", [ROWS], [41])
        x, n = loop.read(numbers(F32, *sizes), *at), loop.read(numbers(I64, *sizes), *at)
        loop.write(build.scan("sum", x), build.scan("max", x), build.scan("sum", n), inner=True)


_UNARY_MATH = ("exp", "log", "sin", "tanh", "erf", "log1p", "atan")


def _functions(new: New) -> None:
    for dtype, tolerance in ((F32, 2e-6), (F64, 1e-13)):
        loop = new("vector math", [203], tolerance=tolerance)
        x = loop.read((numbers(dtype, 203) / 16).abs() + 0.25)
        y = loop.read(numbers(dtype, 203, salt=5) / 16)
        loop.write(*(call(name, x) for name in _UNARY_MATH), call("pow", x, y), call("atan2", x, y))
    loop = new("vector math", [203], tolerance=8e-3)  # bfloat16 makes vectors of float longer than the processor's
    loop.write(build.cast(call("exp", build.cast(loop.read(numbers(BF16, 203) / 16), F32)), BF16))
    loop = new("scalar math", [203])
    x, y = loop.read(numbers(F32, 203)), loop.read(numbers(F32, 203, salt=5) + 0.25)
    loop.write(*(call(name, x, y) for name in ("fmod", "remainder", "floordiv", "nextafter")))
    loop = new("roundings", [203])
    for dtype in (F32, F64):
        x = loop.read(numbers(dtype, 203) / 2 + 0.25)
        loop.write(*(call(name, x) for name in ("floor", "ceil", "trunc", "round")), call("sqrt", call("mul", x, x)))
    loop = new("special values", [ROWS * 3])
    for dtype in (F32, F64):
        one, other = special(dtype), special(dtype).flip(0)
        other[::5] = one[::5]
        left, right = loop.read(one), loop.read(other)
        loop.write(*(call(name, left, right) for name in ("maximum", "minimum", "fmax", "fmin", "copysign")))
        loop.write(*(call(name, left) for name in ("isnan", "isinf", "signbit", "abs")))
        loop.write(*(call(name, left, right) for name in ("lt", "le", "eq", "ne")))
        loop.write(call("add", left, call("neg", right)))


def _integers(new: New) -> None:
    loop = new("integers", [ROWS * 3])
    for dtype in (I8, U8, I32, I64):
        least, greatest = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        x, y = numbers(dtype, ROWS * 3), numbers(dtype, ROWS * 3, salt=4)
        x[::7], x[3::7], y[::5] = greatest, least, greatest
        a, b = loop.read(x), loop.read(y)
        loop.write(*(call(name, a, b) for name in ("add", "sub", "mul", "bitwise_xor")))
        loop.write(call("abs" if dtype.is_signed else "bitwise_not", a), build.cast(a, I8))
    loop = new("divisions", [ROWS * 3])
    for dtype in (I8, U8, I32, I64):
        x, y = numbers(dtype, ROWS * 3), numbers(dtype, ROWS * 3, salt=4)
        a, b = loop.read(x), loop.read(torch.where(y == 0, 3, y))
        loop.write(*(call(name, a, b) for name in ("truncdiv", "floordiv", "remainder", "fmod")))
    loop.write(build.index(mod(I[0] * 7 + 5, to_expr(11))))
    loop = new("shifts", [ROWS * 3])
    for dtype in (I8, U8, I32, I64):
        by = (torch.arange(ROWS * 3) % (8 * dtype.itemsize)).to(dtype)
        for name in ("shift_left", "shift_right"):
            loop.write(call(name, loop.read(numbers(dtype, ROWS * 3)), loop.read(by)))
    loop = new("bits", [ROWS * 3])
    for source, target in ((F32, I32), (I64, F64), (F16, torch.int16), (torch.int16, BF16)):
        loop.write(build.bitcast(loop.read(numbers(source, ROWS * 3)), target))


def _changes(new: New) -> None:
    for name, count in (("atomics", SHARED), ("combinations", ROWS * 3)):
        loop = new(name, [count])
        at = loop.read((torch.arange(count) * 7) % 40)
        changes: tuple[tuple[torch.dtype, StoreMode], ...] = ((I64, "add"), (I32, "max"), (F32, "add"), (F16, "max"))
        for dtype, mode in changes:
            value = loop.read(numbers(dtype, count))
            table = f"t{len(loop.outputs)}"
            loop.inputs[table], loop.outputs[table] = numbers(dtype, 40), ([40], dtype)
            loop.stores.append(Store(table, (placeholder(0),), value, (at,), mode))
    for bad in (False, True):
        positions = (torch.arange(LONG) * 7) % 40
        if bad:
            positions[1031] = 40
        loop = new("bounds", [LONG], raises=bad)
        row = build.bounded(loop.read(positions), 40)
        loop.write(loop.read(numbers(F32, 40), placeholder(0), indirect=(row,)))
    loop = new("random numbers", [LONG])
    seed = loop.read(torch.tensor([12345]), to_expr(0))
    loop.write(call("random_uniform", seed, build.index(I[0])), call("random_bits", seed, build.index(I[0] + 5)))


_MAKERS: tuple[Callable[[New], None], ...] = (
    _vectors, _halves, _masks, _short_loops, _tiles, _rows, _rows_together, _columns, _functions, _integers, _changes,
)  # fmt: skip


def make_probes() -> dict[str, Probe]:
    """Returns all probes by label: the construct and a number."""
    found: dict[str, Probe] = {}
    numbers_of: Counter[str] = Counter()

    def new(construct: str, *sizes: Any, **expected: Any) -> Probe:
        numbers_of[construct] += 1
        return found.setdefault(f"{construct} {numbers_of[construct]}", Probe(construct, *sizes, **expected))

    for make in _MAKERS:
        make(new)
    return found
