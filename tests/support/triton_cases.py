"""Loops for testing the Triton code generator: every op row and every structure, by name, with inputs.

Each case is a Program of one Loop on CUDA, inputs on the CPU, and the sizes of its symbols. Used three ways: compiled
for sm_90, run in Triton's interpreter (`python -m support.triton_cases SHARD OF`), run on a GPU.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import sympy
import torch

from litz.ir import Buffer, Layout, Loop, Node, Program, Range, Store, TensorRef
from litz.ir.build import bitcast as bitcast_node
from litz.ir.build import bounded, call, cast, const, guard, index, load, reduce, scan
from litz.ir.dtypes import FLOAT, HALF, INTEGER
from litz.ir.index import Expr, FloorDiv, PythonMod, Symbol, loop_var, placeholder, reduction_var, to_expr
from litz.ir.interpret import run_loop
from litz.ir.ops import OPS
from litz.ir.verify import verify
from litz.schedule.schedule import Kernel
from litz_plugins import CodegenContext, DeviceInfo, KernelSource

CUDA = torch.device("cuda", 0)
f16, bf16, f32, f64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
i0, i1, i2 = loop_var(0), loop_var(1), loop_var(2)
r0, r1 = reduction_var(0), reduction_var(1)
arg0 = placeholder(0)
S = sympy.Symbol("s77", integer=True, nonnegative=True)
T = sympy.Symbol("s12", integer=True, nonnegative=True)


@dataclass
class Case:
    """A loop to test. `tolerance` is relative and absolute; `close` replaces a tolerance for half types."""

    program: Program
    inputs: Mapping[str, torch.Tensor]
    sizes: Mapping[Symbol, int] = field(default_factory=dict)
    tolerance: float = 2e-6
    interpreted: bool = True
    inplace: Mapping[str, str] = field(default_factory=dict)
    equal_nan: bool = True

    @property
    def loop(self) -> Loop:
        (loop,) = self.program.loops
        return loop

    @property
    def source(self) -> KernelSource:
        from litz.codegen.triton import TritonCodegen

        context = CodegenContext(None, DeviceInfo("cuda", 0), self.program)  # type: ignore[arg-type]
        return TritonCodegen().generate(Kernel("kernel", self.loop, inplace=self.inplace), context)

    def tensors(self, device: torch.device | str = "cpu") -> dict[str, torch.Tensor]:
        """Fresh memory for every buffer; what is no input is filled with a pattern."""
        memory: dict[str, torch.Tensor] = {}
        for name, buffer in self.program.buffers.items():
            if name in self.inplace:
                continue
            if name in self.inputs:
                given = self.inputs[name]
                held = torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device=device)
                memory[name] = held.copy_(given) if 0 not in given.stride() else given.to(device)
            else:
                size = [int(expr.xreplace(dict(self.sizes))) for expr in buffer.layout.size]
                stride = [int(expr.xreplace(dict(self.sizes))) for expr in buffer.layout.stride]
                memory[name] = torch.empty_strided(size, stride, dtype=buffer.dtype, device=device).zero_()
        for name, other in self.inplace.items():
            memory[name] = memory[other]
        return memory

    def expected(self) -> dict[str, torch.Tensor]:
        """What the IR interpreter writes."""
        memory = self.tensors()
        cpu = torch.device("cpu")
        run_loop(replace(self.loop, device=cpu), self.program, memory, dict(self.sizes))
        return {name: memory[name] for name in self.loop.writes}

    def arguments(self, memory: Mapping[str, torch.Tensor]) -> tuple[list[torch.Tensor], list[int]]:
        items = self.source.arguments
        tensors = [memory[item] for item in items if isinstance(item, str)]
        return tensors, [int(self.sizes[item]) for item in items if not isinstance(item, str)]

    def check(self, memory: Mapping[str, torch.Tensor]) -> None:
        """Compare what a kernel has written with the interpreter."""
        for name, want in self.expected().items():
            got = memory[name].cpu()
            loose = {bf16: 1.6e-2, f16: 2e-3, f64: 1e-9}.get(want.dtype, 0.0)
            tolerance = max(self.tolerance, loose) if want.dtype != f64 else max(1e-9, self.tolerance)
            torch.testing.assert_close(
                got, want, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda text, n=name: f"{n}: {text}"
            )


def tensor_buffer(name: str, tensor: torch.Tensor, kind: str = "input") -> Buffer:
    layout = Layout(tuple(map(to_expr, tensor.shape)), tuple(map(to_expr, tensor.stride())))
    return Buffer(name, tensor.dtype, CUDA, layout, kind)  # type: ignore[arg-type]


def output(name: str, size: Sequence[int | Expr], dtype: torch.dtype) -> Buffer:
    return Buffer(name, dtype, CUDA, Layout.contiguous(tuple(size)))


def make(
    inputs: Mapping[str, torch.Tensor],
    outputs: Sequence[Buffer],
    ranges: Sequence[int | Expr],
    reduction: Sequence[int | Expr],
    stores: Sequence[Store],
    *,
    buffers: Sequence[Buffer] = (),
    hints: Mapping[Symbol, int] | None = None,
    **rest: object,
) -> Case:
    """A case of one loop. `buffers` replace those made from the inputs, for symbolic layouts."""
    held = {name: tensor_buffer(name, tensor) for name, tensor in inputs.items()}
    held.update({buffer.name: buffer for buffer in (*buffers, *outputs)})
    loop = Loop(
        "loop",
        CUDA,
        tuple(Range(loop_var(n), to_expr(size)) for n, size in enumerate(ranges)),
        tuple(Range(reduction_var(n), to_expr(size)) for n, size in enumerate(reduction)),
        tuple(stores),
    )
    symbols = sorted({s for b in held.values() for s in b.layout.free_symbols}, key=str)
    results = tuple(TensorRef(name, held[name].layout) for name in loop.writes)
    program = Program("case", (*symbols, *inputs), held, (loop,), results, hints=hints or {})
    verify(program)
    return Case(program, inputs, **rest)  # type: ignore[arg-type]


CASES: dict[str, Callable[[], Case]] = {}


def case(name: str) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    def register(function: Callable[[], Case]) -> Callable[[], Case]:
        CASES[name] = cache(function)
        return function

    return register


def _random(*size: int, dtype: torch.dtype = f32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, size, generator=generator).bool()
    if dtype.is_floating_point:
        return torch.randn(size, generator=generator, dtype=f32).to(dtype)
    low = 0 if dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64) else -9
    return torch.randint(low, 10, size, generator=generator).to(dtype)


# Op rows: many in one kernel, an output each.

_POSITIVE = {"log", "log2", "log10", "sqrt", "rsqrt", "lgamma", "reciprocal", "acosh", "pow", "log1p"}
_UNIT = {"asin", "acos", "atanh", "erfinv"}


def _operand(name: str, x: Node) -> Node:
    """Values that an op is defined for: |x| + 1, or x / (|x| + 1)."""
    one = const(1, x.dtype)
    if name in _POSITIVE:
        return call("add", call("abs", x), one)
    if name in _UNIT:
        return call("div", x, call("add", call("abs", x), one))
    return x


def _op_stores(names: Sequence[str], dtype: torch.dtype, loads: Sequence[Node]) -> list[tuple[str, Node]]:
    stores = []
    for name in names:
        row = OPS[name]
        args = [*loads[: row.arity]]
        if name == "where":
            args = [call("gt", loads[0], loads[1]) if dtype != torch.bool else loads[0], loads[0], loads[1]]
        args[0] = _operand(name, args[0]) if dtype.is_floating_point else args[0]
        stores.append((name, call(name, *args)))
    return stores


def _rows(dtype: torch.dtype) -> list[str]:
    """The rows that take arguments of a dtype (random numbers are cases of their own)."""
    kind = "float" if dtype in FLOAT else "bool" if dtype == torch.bool else "int"
    names = []
    for name, row in OPS.items():
        if name.startswith("random"):
            continue
        try:
            dtypes = (torch.bool, dtype, dtype) if name == "where" else (dtype,) * row.arity
            row.rule(dtypes)
            row.text("triton", kind)
            row.text("cpp", kind)
        except (TypeError, KeyError):
            continue
        if dtype in HALF and name == "nextafter":
            continue  # in float32 it is another function
        if kind == "bool" and name in ("sub", "neg", "abs", "shift_left", "shift_right", "truncdiv", "floordiv"):
            continue
        if kind != "float" and name in ("sign", "abs", "neg") and dtype in (torch.uint8,):
            continue
        names.append(name)
    return names


def _op_case(dtype: torch.dtype, names: Sequence[str], special: bool = True) -> Case:
    count = 70
    a, b, c = (_random(count, dtype=dtype, seed=n) for n in range(3))
    if dtype.is_floating_point and special:
        a[:6] = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 2.5])
        b[1:5] = torch.tensor([1.0, float("nan"), 0.5, -1.0])
    if dtype in INTEGER:
        b[b == 0] = 3
        if dtype != torch.uint8:
            b[::7] = 70
        a[0] = torch.iinfo(dtype).max
    loads = [load(name, (i0,), dtype) for name in "abc"]
    pairs = _op_stores(names, dtype, loads)
    inputs = {name: t for name, t in zip("abc", (a, b, c), strict=True)}
    used = {node.buffer for _, value in pairs for node in _walk(value) if node.op == "load"}
    return make(
        {name: t for name, t in inputs.items() if name in used},
        [output(f"out_{name}", (count,), value.dtype) for name, value in pairs],
        [count],
        [],
        [Store(f"out_{name}", (i0,), value) for name, value in pairs],
        tolerance=1e-5 if dtype != f64 else 1e-9,
        # The interpreter's own errors: NaN goes through fmax, and ~ of uint8 overflows.
        interpreted=not {"fmax", "fmin"} & set(names) and (dtype != torch.uint8 or "bitwise_not" not in names),
    )


def _walk(node: Node) -> Sequence[Node]:
    from litz.ir.node import walk

    return tuple(walk(node))


_OUTSIDE = ("fmax", "fmin")
for _dtype in (f32, f64):
    _text = f"ops-{str(_dtype).removeprefix('torch.')}-fmax"
    CASES[_text] = cache(lambda dtype=_dtype: _op_case(dtype, _OUTSIDE))
for _dtype in (f32, f64, bf16, f16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool):
    for _arity in (1, 2, 3):
        _names = [name for name in _rows(_dtype) if OPS[name].arity == _arity and name not in _OUTSIDE]
        if not _names:
            continue
        _text = f"ops-{str(_dtype).removeprefix('torch.')}-{_arity}"
        CASES[_text] = cache(lambda dtype=_dtype, names=tuple(_names): _op_case(dtype, names))


@case("casts")
def _() -> Case:
    dtypes = [f32, f64, bf16, f16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
    inputs = {
        f"in{n}": _random(40, dtype=dtype, seed=n).abs() if dtype != torch.bool else _random(40, dtype=dtype)
        for n, dtype in enumerate(dtypes)
    }
    stores, outputs = [], []
    for n, source in enumerate(dtypes):
        for m, target in enumerate(dtypes):
            if source != target:
                stores.append(Store(f"o{n}_{m}", (i0,), cast(load(f"in{n}", (i0,), source), target)))
                outputs.append(output(f"o{n}_{m}", (40,), target))
    return make(inputs, outputs, [40], [], stores)


@case("bitcasts")
def _() -> Case:
    a, b = _random(33), _random(33, dtype=bf16)
    return make(
        {"a": a, "b": b},
        [output("o", (33,), torch.int32), output("p", (33,), torch.int16), output("q", (33,), bf16)],
        [33],
        [],
        [
            Store("o", (i0,), bitcast_node(load("a", (i0,), f32), torch.int32)),
            Store("p", (i0,), bitcast_node(load("b", (i0,), bf16), torch.int16)),
            Store("q", (i0,), bitcast_node(bitcast_node(load("b", (i0,), bf16), torch.int16), bf16)),
        ],
    )


@case("constants")
def _() -> Case:
    values = [0.0, -0.0, 1.5, -2.0, float("inf"), -float("inf"), float("nan"), 1e30]
    x = load("a", (i0,), f32)
    stores = [Store(f"o{n}", (i0,), call("copysign", x, const(v, f32))) for n, v in enumerate(values)]
    stores += [Store(f"p{n}", (i0,), const(v, f32)) for n, v in enumerate(values)]
    stores.append(Store("q", (i0,), call("add", load("b", (i0,), torch.int64), const(2**40, torch.int64))))
    stores.append(Store("t", (i0,), call("where", call("gt", x, const(0, f32)), const(1, f64), const(0.1, f64))))
    outputs = [output(s.buffer, (20,), s.value.dtype) for s in stores]
    return make({"a": _random(20), "b": _random(20, dtype=torch.int64)}, outputs, [20], [], stores)


# Pointwise structures.


def _scale(x: Node) -> Node:
    return call("add", call("mul", x, const(2, x.dtype)), const(1, x.dtype))


def _pointwise(a: torch.Tensor) -> Case:
    position = tuple(loop_var(n) for n in range(a.dim()))
    x = load("a", position, a.dtype)
    value = _scale(x) if a.dtype != torch.bool else call("bitwise_not", x)
    return make({"a": a}, [output("o", a.shape, a.dtype)], a.shape, [], [Store("o", position, value)])


for _dtype in (f32, bf16, torch.int64, torch.bool):
    _short = str(_dtype).removeprefix("torch.")
    CASES[f"contiguous-{_short}"] = cache(lambda d=_dtype: _pointwise(_random(3, 50, 7, dtype=d)))
    CASES[f"transposed-{_short}"] = cache(lambda d=_dtype: _pointwise(_random(70, 40, dtype=d).t()))
    CASES[f"transposed-batch-{_short}"] = cache(
        lambda d=_dtype: _pointwise(_random(2, 33, 3, 40, dtype=d).permute(0, 3, 2, 1))
    )
    CASES[f"expanded-{_short}"] = cache(lambda d=_dtype: _pointwise(_random(1, 40, dtype=d).expand(9, 40)))
    CASES[f"scalar-{_short}"] = cache(lambda d=_dtype: _pointwise(_random(1, dtype=d).reshape(())))
    CASES[f"empty-{_short}"] = cache(lambda d=_dtype: _pointwise(_random(4, 0, dtype=d)))
    CASES[f"strided-{_short}"] = cache(lambda d=_dtype: _pointwise(_random(20, 33, dtype=d)[::2, 1::2]))


@case("bias")
def _() -> Case:
    value = call("add", load("a", (i0, i1), bf16), load("b", (i1,), bf16))
    inputs = {"a": _random(37, 24, dtype=bf16), "b": _random(24, dtype=bf16)}
    return make(inputs, [output("o", (37, 24), bf16)], [37, 24], [], [Store("o", (i0, i1), value)])


@case("reshaped")
def _() -> Case:
    """A view that is no affine function: 35 columns read as 7 by 15."""
    value = load("a", (PythonMod(i0, to_expr(7)), FloorDiv(i0, to_expr(7))), f32)
    return make({"a": _random(7, 15)}, [output("o", (105,), f32)], [105], [], [Store("o", (i0,), value)])


@case("flipped")
def _() -> Case:
    return make(
        {"a": _random(9, 20)},
        [output("o", (9, 20), f32)],
        [9, 20],
        [],
        [Store("o", (i0, i1), load("a", (i0, 19 - i1), f32))],
    )


@case("padded")
def _() -> Case:
    above, below = (const(n, torch.int64) for n in (2, 12))
    inside = call("bitwise_and", call("ge", index(i0), above), call("lt", index(i0), below))
    value = call("where", inside, load("a", (i0 - 2, i1), f32, mask=inside), const(7, f32))
    return make({"a": _random(10, 6)}, [output("o", (15, 6), f32)], [15, 6], [], [Store("o", (i0, i1), value)])


@case("negative-division")
def _() -> Case:
    position = index(FloorDiv(i0 - 5, to_expr(3)))
    rest = index(PythonMod(i0 - 5, to_expr(3)))
    return make(
        {},
        [output("o", (12,), torch.int64), output("p", (12,), torch.int64)],
        [12],
        [],
        [Store("o", (i0,), position), Store("p", (i0,), rest)],
    )


@case("embedding")
def _() -> Case:
    row = bounded(load("rows", (i0,), torch.int64), 11)
    value = load("table", (arg0, i1), bf16, (row,))
    inputs = {"rows": torch.randint(0, 11, (13,)), "table": _random(11, 24, dtype=bf16)}
    return make(inputs, [output("o", (13, 24), bf16)], [13, 24], [], [Store("o", (i0, i1), value)])


@case("dynamic-table")
def _() -> Case:
    """A fixed number of rows from a table of any length: its size is an argument only for the launcher's sake."""
    row = bounded(load("rows", (i0,), torch.int64), S)
    value = load("table", (arg0, i1), f32, (row,))
    return make(
        {"rows": torch.randint(0, 11, (13,)), "table": _random(11, 24)},
        [output("o", (13, 24), f32)],
        [13, 24],
        [],
        [Store("o", (i0, i1), value)],
        buffers=[Buffer("table", f32, CUDA, Layout.contiguous((S, 24)), "input")],
        hints={S: 64},
        sizes={S: 11},
    )


@case("dynamic-first-row")
def _() -> Case:
    return make(
        {"table": _random(11, 24)},
        [output("o", (24,), f32)],
        [24],
        [],
        [Store("o", (i0,), load("table", (to_expr(0), i0), f32))],
        buffers=[Buffer("table", f32, CUDA, Layout.contiguous((S, 24)), "input")],
        hints={S: 64},
        sizes={S: 11},
    )


@case("guarded-gather")
def _() -> Case:
    row = load("rows", (i0,), torch.int64)
    wanted = call("ge", row, const(0, torch.int64))
    value = call("where", wanted, guard(load("table", (arg0,), f32, (bounded(row, 11),)), wanted), const(-1, f32))
    inputs = {"rows": torch.tensor([3, -100, 10, 0, -100, 7]), "table": _random(11)}
    return make(inputs, [output("o", (6,), f32)], [6], [], [Store("o", (i0,), value)])


@case("gather-of-one-row")
def _() -> Case:
    """The table is expanded from one element: which row the index names does not count, that it is in range does."""
    row = load("rows", (i0,), torch.int64)
    value = load("table", (0 * arg0,), f32, (bounded(row, 7),))
    inputs = {"rows": torch.tensor([3, 6, 0, 2, 5]), "table": _random(1)}
    return make(inputs, [output("o", (5,), f32)], [5], [], [Store("o", (i0,), value)])


@case("positions")
def _() -> Case:
    causal = call("le", index(i1), index(i0))
    value = call("where", causal, cast(index(i0 * 20 + i1), f32), const(-1, f32))
    return make(
        {},
        [output("o", (9, 20), f32), output("p", (9, 20), torch.int64)],
        [9, 20],
        [],
        [Store("o", (i0, i1), value), Store("p", (i0, i1), index(i0 * 20 + i1))],
    )


@case("random")
def _() -> Case:
    seed = load("seed", (), torch.int64)
    names = ["random_uniform", "random_normal", "random_bits"]
    values = [call(name, seed, index(i0)) for name in names]
    return make(
        {"seed": torch.tensor(2**40 + 12345)},
        [output(name, (80,), value.dtype) for name, value in zip(names, values, strict=True)],
        [80],
        [],
        [Store(name, (i0,), value) for name, value in zip(names, values, strict=True)],
        tolerance=1e-5,
    )


@case("inplace")
def _() -> Case:
    value = call("add", call("exp", load("a", (i0,), f32)), load("b", (i0,), f32))
    built = make({"a": _random(50), "b": _random(50)}, [output("o", (50,), f32)], [50], [], [Store("o", (i0,), value)])
    return replace(built, inplace={"o": "a"})


@case("wide-row")
def _() -> Case:
    """A row longer than a signed number of 32 bits counts, though not an unsigned one: compiled only."""
    length = 2**31 + 5
    held = output("a", (length,), torch.int8)
    value = reduce("argmin", load("a", (r0,), torch.int8))
    return make(
        {},
        [output("o", (), torch.int64)],
        [],
        [length],
        [Store("o", (), value)],
        buffers=[replace(held, kind="input")],
        interpreted=False,
    )


@case("wide-offsets")
def _() -> Case:
    """More elements than 32 bits count: compiled only."""
    held = output("a", (70000, 70000), torch.int8)
    value = call("add", load("a", (i0, i1), torch.int8), const(1, torch.int8))
    built = make(
        {},
        [output("o", (70000, 70000), torch.int8)],
        [70000, 70000],
        [],
        [Store("o", (i0, i1), value)],
        buffers=[replace(held, kind="input")],
        interpreted=False,
    )
    return built


def _symbolic(rows: int, columns: int, hint: int) -> Case:
    layout = Layout.contiguous((S, T))
    held = Buffer("a", f32, CUDA, layout, "input")
    value = call("mul", load("a", (i0, i1), f32), load("b", (i1,), f32))
    return make(
        {"a": _random(rows, columns), "b": _random(columns)},
        [output("o", (S, T), f32)],
        [S, T],
        [],
        [Store("o", (i0, i1), value)],
        buffers=[held, Buffer("b", f32, CUDA, Layout.contiguous((T,)), "input")],
        hints={S: hint, T: hint},
        sizes={S: rows, T: columns},
    )


CASES["symbolic"] = cache(lambda: _symbolic(5, 37, 1024))
CASES["symbolic-16"] = cache(lambda: _symbolic(16, 48, 1024))
CASES["symbolic-empty"] = cache(lambda: _symbolic(0, 37, 64))


# Reductions.

_KINDS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")


def _reduce_values(dtype: torch.dtype, x: Node) -> list[tuple[str, Node]]:
    kinds = [k for k in _KINDS if dtype != torch.bool or k in ("sum", "any", "all")]
    if dtype in HALF or dtype == torch.int8:
        kinds = [k for k in kinds if k != "prod"]
    values = [(kind, reduce(kind, x)) for kind in kinds]
    if dtype.is_floating_point:
        values += [(kind, reduce(kind, x)) for kind in ("welford_mean", "welford_m2")]
    return values


def _reduction(a: torch.Tensor, kept: int, symbolic: bool = False, hint: int = 16) -> Case:
    """Every kind over the dimensions from `kept` on."""
    outer = tuple(loop_var(n) for n in range(kept))
    inner = tuple(reduction_var(n) for n in range(a.dim() - kept))
    values = _reduce_values(a.dtype, load("a", (*outer, *inner), a.dtype))
    results = [output(f"o_{kind}", a.shape[:kept], value.dtype) for kind, value in values]
    stores = [Store(f"o_{kind}", outer, value) for kind, value in values]
    if not symbolic:
        return make({"a": a}, results, a.shape[:kept], a.shape[kept:], stores, tolerance=1e-4)
    held = Buffer("a", a.dtype, CUDA, Layout.contiguous((*a.shape[:-1], S)), "input")
    reduced = (*a.shape[kept:-1], S)
    return make(
        {"a": a},
        results,
        a.shape[:kept],
        reduced,
        stores,
        buffers=[held],
        hints={S: hint},
        sizes={S: a.shape[-1]},
        tolerance=1e-4,
    )


def _peculiar(a: torch.Tensor) -> torch.Tensor:
    """With ties, and NaN in one row."""
    a = a.clone()
    flat = a.view(a.shape[0], -1)
    flat[0, 1] = flat[0, -1] = flat.max() + 1 if a.dtype != torch.bool else True
    if a.dtype.is_floating_point:
        flat[1, 3] = float("nan")
        flat[1, -2] = float("nan")
    return a


for _dtype in (f32, f64, bf16, torch.int64, torch.int8, torch.bool):
    _short = str(_dtype).removeprefix("torch.")
    CASES[f"reduce-row-{_short}"] = cache(lambda d=_dtype: _reduction(_peculiar(_random(5, 19, dtype=d)), 1))
    CASES[f"reduce-long-{_short}"] = cache(lambda d=_dtype: _reduction(_peculiar(_random(2, 70, dtype=d)), 1, True))
CASES["reduce-full"] = cache(lambda: _reduction(_random(6, 7), 0))
CASES["reduce-two"] = cache(lambda: _reduction(_random(4, 5, 6), 1))
CASES["reduce-one"] = cache(lambda: _reduction(_random(4, 1), 1))
CASES["reduce-one-row"] = cache(lambda: _reduction(_random(1, 9), 1))
CASES["reduce-two-long"] = cache(lambda: _reduction(_random(3, 5, 9), 1, True))
CASES["reduce-columns"] = cache(lambda: _reduction(_random(19, 21).t(), 1))
CASES["reduce-columns-long"] = cache(lambda: _reduction(_random(70, 3).t(), 1))
CASES["reduce-middle"] = cache(lambda: _reduction(_random(2, 11, 5).permute(0, 2, 1), 2))


@case("reduce-empty")
def _() -> Case:
    x = load("a", (i0, r0), f32)
    kinds = ["sum", "prod", "welford_mean"]
    return make(
        {"a": _random(5, 0)},
        [output(kind, (5,), f32) for kind in kinds],
        [5],
        [0],
        [Store(kind, (i0,), reduce(kind, x)) for kind in kinds],
    )


@case("reduce-huge")
def _() -> Case:
    """Longer than what is held in registers; a power of two, so that there is no mask."""
    x = load("a", (i0, r0), f32)
    return make(
        {"a": _random(2, 16384)},
        [output("o", (2,), f32), output("p", (2,), f32)],
        [2],
        [16384],
        [Store("o", (i0,), reduce("sum", x)), Store("p", (i0,), reduce("welford_m2", x))],
        tolerance=1e-4,
        interpreted=False,
    )


@case("welford-combine")
def _() -> Case:
    parts = [load(name, (i0, r0), f32) for name in ("mean", "m2", "weight")]
    inputs = {"mean": _random(4, 10), "m2": _random(4, 10).abs(), "weight": torch.randint(0, 5, (4, 10)).float()}
    kinds = ["welford_combine_mean", "welford_combine_m2"]
    return make(
        inputs,
        [output(kind, (4,), f32) for kind in kinds],
        [4],
        [10],
        [Store(kind, (i0,), reduce(kind, *parts)) for kind in kinds],
        tolerance=1e-5,
    )


def _softmax(rows: int, columns: int, dtype: torch.dtype, symbolic: bool = False) -> Case:
    x = cast(load("a", (i0, r0), dtype), f32)
    shifted = call("sub", x, reduce("max", x))
    power = call("exp", shifted)
    value = cast(call("div", power, reduce("sum", power)), dtype)
    a = _random(rows, columns, dtype=dtype)
    a[0, :] = -float("inf")
    a[0, 3] = 1.0
    width: int | Expr = S if symbolic else columns
    return make(
        {"a": a},
        [output("o", (rows, width), dtype)],
        [rows],
        [width],
        [Store("o", (i0, r0), value)],
        buffers=[Buffer("a", dtype, CUDA, Layout.contiguous((rows, width)), "input")],
        hints={S: 16},
        sizes={S: columns} if symbolic else {},
        tolerance=1e-5,
    )


CASES["softmax"] = cache(lambda: _softmax(4, 50, bf16))
CASES["softmax-f32"] = cache(lambda: _softmax(4, 64, f32))
CASES["softmax-long"] = cache(lambda: _softmax(3, 75, f32, symbolic=True))
CASES["softmax-long-bf16"] = cache(lambda: _softmax(3, 64, bf16, symbolic=True))


def _layer_norm(rows: int, columns: int, symbolic: bool) -> Case:
    width: int | Expr = S if symbolic else columns
    x = cast(load("a", (i0, r0), bf16), f32)
    mean, m2 = reduce("welford_mean", x), reduce("welford_m2", x)
    length = cast(index(width), f32) if symbolic else const(columns, f32)
    scale = call("rsqrt", call("add", call("div", m2, length), const(1e-5, f32)))
    normal = call("mul", call("sub", x, mean), scale)
    value = call("add", call("mul", normal, load("w", (r0,), f32)), load("b", (r0,), f32))
    return make(
        {"a": _random(rows, columns, dtype=bf16), "w": _random(columns), "b": _random(columns, seed=4)},
        [output("o", (rows, width), bf16), output("mean", (rows,), f32), output("rstd", (rows,), f32)],
        [rows],
        [width],
        [Store("o", (i0, r0), cast(value, bf16)), Store("mean", (i0,), mean), Store("rstd", (i0,), scale)],
        buffers=[
            Buffer("a", bf16, CUDA, Layout.contiguous((rows, width)), "input"),
            Buffer("w", f32, CUDA, Layout.contiguous((width,)), "input"),
            Buffer("b", f32, CUDA, Layout.contiguous((width,)), "input"),
        ],
        hints={S: 16},
        sizes={S: columns} if symbolic else {},
        tolerance=1e-4,
    )


CASES["layer-norm"] = cache(lambda: _layer_norm(5, 48, False))
CASES["layer-norm-long"] = cache(lambda: _layer_norm(3, 75, True))


@case("late-store")
def _() -> Case:
    """A row written where it is read, and read again for the second pass: the store must come last."""
    x = load("a", (i0, r0), f32)
    y = call("sub", x, reduce("max", x))
    built = make(
        {"a": _random(3, 40)},
        [output("o", (3, S), f32), output("total", (3,), f32)],
        [3],
        [S],
        [Store("o", (i0, r0), call("add", x, const(1, f32))), Store("total", (i0,), reduce("sum", y))],
        buffers=[Buffer("a", f32, CUDA, Layout.contiguous((3, S)), "input")],
        hints={S: 16},
        sizes={S: 40},
    )
    return replace(built, inplace={"o": "a"}, tolerance=1e-5)


def _scans(symbolic: bool) -> Case:
    columns = 45
    width: int | Expr = S if symbolic else columns
    x, n = load("a", (i0, r0), f32), load("n", (i0, r0), torch.int64)
    stores = [Store(f"o_{kind}", (i0, r0), scan(kind, x)) for kind in ("sum", "max", "min")]
    stores.append(Store("n_sum", (i0, r0), scan("sum", n)))
    stores.append(Store("total", (i0,), reduce("sum", scan("max", x))))
    stores.append(Store("p", (i0, r0), scan("prod", call("mul", x, const(0.5, f32)))))
    outputs = [output(s.buffer, (3,) if s.buffer == "total" else (3, width), s.value.dtype) for s in stores]
    held = [
        Buffer("a", f32, CUDA, Layout.contiguous((3, width)), "input"),
        Buffer("n", torch.int64, CUDA, Layout.contiguous((3, width)), "input"),
    ]
    return make(
        {"a": _random(3, columns), "n": _random(3, columns, dtype=torch.int64)},
        outputs,
        [3],
        [width],
        stores,
        buffers=held,
        hints={S: 16},
        sizes={S: columns} if symbolic else {},
        tolerance=1e-4,
    )


CASES["scan"] = cache(lambda: _scans(False))
CASES["scan-long"] = cache(lambda: _scans(True))


# Scatter.


def _scatter(mode: str, dtype: torch.dtype) -> Case:
    target = _random(12, dtype=dtype, seed=7)
    row = bounded(load("rows", (i0,), torch.int64), 12)
    wanted = call("ne", load("rows", (i0,), torch.int64), const(5, torch.int64))
    return make(
        {"t": target, "rows": torch.randint(0, 12, (30,)), "a": _random(30, dtype=dtype)},
        [],
        [30],
        [],
        [Store("t", (arg0,), load("a", (i0,), dtype), (row,), mode, wanted)],  # type: ignore[arg-type]
        tolerance=1e-5 if mode != "prod" else 1e-3,
        interpreted=dtype != bf16 or mode != "add",  # the interpreter has no such atomic
    )


for _dtype in (f32, bf16, f64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool):
    for _mode in ("add", "prod", "max", "min"):
        _text = f"scatter-{_mode}-{str(_dtype).removeprefix('torch.')}"
        CASES[_text] = cache(lambda m=_mode, d=_dtype: _scatter(m, d))


@case("scatter-rows")
def _() -> Case:
    """The backward of an embedding: rows meet, columns do not."""
    row = bounded(load("rows", (i0,), torch.int64), 6)
    return make(
        {"t": torch.zeros(6, 20), "rows": torch.randint(0, 6, (11,)), "a": _random(11, 20)},
        [],
        [11, 20],
        [],
        [Store("t", (arg0, i1), load("a", (i0, i1), f32), (row,), "add")],
        tolerance=1e-5,
    )


@case("scatter-one")
def _() -> Case:
    """All meet at one element."""
    return make({"t": torch.zeros(()), "a": _random(40)}, [], [40], [],
                [Store("t", (), load("a", (i0,), f32), mode="add")], tolerance=1e-5)  # fmt: skip


@case("scatter-along-rows")
def _() -> Case:
    """Fused with a reduction: each element is scaled by its row's sum and added up elsewhere. S rows: with a mask."""
    x = load("a", (i0, r0), f32)
    row = load("rows", (i0,), torch.int64)
    return make(
        {"t": torch.zeros(4, 20), "rows": torch.randint(0, 4, (9,)), "a": _random(9, 20)},
        [],
        [S],
        [20],
        [Store("t", (arg0, r0), call("mul", x, reduce("sum", x)), (row,), "add")],
        buffers=[
            Buffer("a", f32, CUDA, Layout.contiguous((S, 20)), "input"),
            Buffer("rows", torch.int64, CUDA, Layout.contiguous((S,)), "input"),
        ],
        hints={S: 4096},
        sizes={S: 9},
        tolerance=1e-4,
    )


@case("scatter-result")
def _() -> Case:
    """Row sums, added up where they belong."""
    row = load("rows", (i0,), torch.int64)
    return make(
        {"t": torch.zeros(4), "rows": torch.randint(0, 4, (9,)), "a": _random(9, 20)},
        [],
        [9],
        [20],
        [Store("t", (arg0,), reduce("sum", load("a", (i0, r0), f32)), (row,), "add")],
        tolerance=1e-5,
    )


def interpret_cases(names: Sequence[str]) -> dict[str, str]:
    """Run cases in Triton's interpreter: for each, "" or what went wrong."""
    from litz.runtime.triton_interpret import interpret_source

    problems = {}
    for name in names:
        try:
            built = CASES[name]()
            memory = built.tensors()
            interpret_source(built.source, *built.arguments(memory))
            built.check(memory)
            problems[name] = ""
        except Exception:
            problems[name] = traceback.format_exc()[-3000:]
    return problems


def interpreted_names() -> list[str]:
    return [name for name in CASES if CASES[name]().interpreted]


if __name__ == "__main__":
    shard, shards = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    chosen = sys.argv[3:] or interpreted_names()[shard::shards]
    print(json.dumps(interpret_cases(chosen)))
