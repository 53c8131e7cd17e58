"""Structures of a Loop as C++ against the interpreter: layouts, reductions, scans, sizes, starts."""

from __future__ import annotations

import re

import pytest
import sympy
import torch

from litz.ir import Layout, Node, Store, build
from litz.ir.index import ZERO, floordiv, mod, to_expr
from litz.ir.reductions import REDUCTIONS
from support.cpp_kernels import Case, I, R, load

F32 = torch.float32
S0 = sympy.Symbol("s0", integer=True, positive=True)
S1 = sympy.Symbol("s1", integer=True, positive=True)


def randn(*size: int, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    values = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.to(dtype) if dtype.is_floating_point else (values * 20).to(dtype)


def out(*size: int, dtype: torch.dtype = F32) -> torch.Tensor:
    return torch.empty(size, dtype=dtype)


def add(*nodes: Node) -> Node:
    total = nodes[0]
    for node in nodes[1:]:
        total = build.call("add", total, node)
    return total


# ---------------------------------------------------------------------- pointwise layouts


@pytest.mark.parametrize("size", [(), (1,), (7,), (5, 9), (300, 400), (3, 0), (2, 3, 4, 5)], ids=str)
def test_contiguous(size: tuple[int, ...]) -> None:
    x, y = randn(*size), randn(*size, seed=1)
    value = build.call("mul", add(load("x", x), load("y", y)), load("x", x))
    Case(size, [Store("o", tuple(I[: len(size)]), value)], {"x": x, "y": y}, {"o": out(*size)}).check()


def test_broadcast_transposed_expanded_strided() -> None:
    size = (40, 30, 70)
    x = randn(*size)
    transposed = randn(70, 30, 40).permute(2, 1, 0)
    bias = randn(70)
    channel = randn(30)
    expanded = randn(40, 1, 1).expand(size)
    strided = randn(40, 30, 140)[:, :, ::2]
    value = add(
        load("x", x), load("t", transposed), load("e", expanded), load("s", strided),
        load("b", bias, I[2]), load("c", channel, I[1]),
    )  # fmt: skip
    inputs = {"x": x, "t": transposed, "e": expanded, "s": strided, "b": bias, "c": channel}
    Case(size, [Store("o", tuple(I[:3]), value)], inputs, {"o": out(*size)}).check()
    # Channels-last output from contiguous input.
    target = torch.empty(40, 70, 30).permute(0, 2, 1)
    Case(size, [Store("o", tuple(I[:3]), value)], inputs, {"o": target}).check()


def test_weights_of_channels_do_not_choose_the_vector_loop() -> None:
    """However many there are: they come from cache, and the tensor itself from memory."""
    x, weights = randn(3, 20, 150), {f"w{n}": randn(20, seed=n) for n in range(5)}
    value = add(load("x", x), *(load(name, w, I[1]) for name, w in weights.items()))
    source = Case((3, 20, 150), [Store("o", tuple(I[:3]), value)], {"x": x, **weights}, {"o": out(3, 20, 150)}).check()
    assert "transpose(&" not in source.text


@pytest.mark.each_value
@pytest.mark.parametrize("shape", [(512, 512), (100, 1003), (33, 17), (1000, 8)], ids=str)
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16, torch.float64, torch.uint8], ids=str)
def test_transpose(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Tiles, whole and cut, with the other operand on either side."""
    x = randn(shape[1], shape[0], dtype=dtype)
    y = randn(*shape, dtype=dtype, seed=1)
    value = add(load("x", x, I[1], I[0]), load("y", y))
    both = [Store("o", (I[0], I[1]), value), Store("p", (I[1], I[0]), value)]
    outputs = {"o": out(*shape, dtype=dtype), "p": out(shape[1], shape[0], dtype=dtype)}
    Case(shape, both, {"x": x, "y": y}, outputs).check()
    batched = randn(3, shape[1], shape[0], dtype=dtype)
    store = Store("o", (I[0], I[1], I[2]), load("x", batched, I[0], I[2], I[1]))
    Case((3, *shape), [store], {"x": batched}, {"o": out(3, *shape, dtype=dtype)}).check()


def test_short_innermost_dimension() -> None:
    """Three channels last: the pixels are the lanes."""
    x, bias = randn(5000, 3), randn(3)
    value = add(load("x", x), load("b", bias, I[1]))
    inputs = {"x": x, "b": bias}
    Case((5000, 3), [Store("o", (I[0], I[1]), value)], inputs, {"o": out(5000, 3)}).check()
    y = randn(40, 50, 3)
    value = add(load("y", y), load("b", bias, I[2]), load("c", randn(40), I[0]))
    inputs = {"y": y, "b": bias, "c": randn(40)}
    Case((40, 50, 3), [Store("o", tuple(I[:3]), value)], inputs, {"o": out(40, 50, 3)}).check()
    total = build.reduce("sum", build.load("y", (R[0], R[1], R[2]), F32))
    Case((), [Store("o", (), total)], {"y": y}, {"o": out()}, (40, 50, 3)).check(rtol=1e-4, atol=1e-4)
    doubled = build.load("x", (floordiv(I[0], to_expr(2)), floordiv(I[1], to_expr(2))), F32)
    Case((600, 6), [Store("o", (I[0], I[1]), doubled)], {"x": x}, {"o": out(600, 6)}).check()


def test_half_blocks() -> None:
    """float16 in blocks: whole and cut ones, values at other strides beside it, in place."""
    for size in ((5000,), (3, 1030), (70, 1024)):
        x, y = randn(*size, dtype=torch.float16), randn(*size, dtype=torch.float16, seed=1)
        bias = randn(size[-1], dtype=torch.float16, seed=2)
        value = add(build.call("mul", load("x", x), load("y", y)), load("b", bias, I[len(size) - 1]))
        store = Store("o", tuple(I[: len(size)]), build.call("exp", value))
        inputs = {"x": x, "y": y, "b": bias}
        outputs = {"o": out(*size, dtype=torch.float16)}
        Case(size, [store], inputs, outputs).check()
        Case(size, [store], inputs, outputs, inplace={"o": "x"}).check()


def test_reshapes_split_loops() -> None:
    """Divisions of a loop variable become loops of their own."""
    x = randn(24, 80)
    flat = I[0]
    n = 24 * 80
    ranges = {I[0]: to_expr(n)}
    value = build.load("x", (floordiv(flat, to_expr(80), ranges), mod(flat, to_expr(80), ranges)), F32)
    bias = build.load("b", (mod(floordiv(flat, to_expr(10), ranges), to_expr(8), ranges),), F32)
    case = Case([n], [Store("o", (flat,), add(value, bias))], {"x": x, "b": randn(8)}, {"o": out(n)})
    text = case.check().text
    (walked,) = re.findall("for [(]int i0 = b;.*", text, re.DOTALL)
    assert "/" not in walked and "%" not in walked, "a division is in the innermost loop"
    # 1920 is no multiple of 11: the division stays, and is right.
    odd = build.load("b", (mod(floordiv(flat, to_expr(11), ranges), to_expr(7), ranges),), F32)
    Case([n], [Store("o", (flat,), add(value, odd))], {"x": x, "b": randn(7)}, {"o": out(n)}).check()
    shifted = build.load("b", (mod(flat - 3, to_expr(7)),), F32)
    Case([n], [Store("o", (flat,), shifted)], {"b": randn(7)}, {"o": out(n)}).check()


def test_symbolic_sizes() -> None:
    for rows, columns in ((3, 5), (100, 700), (0, 4), (4, 0)):
        x = randn(rows, columns)
        layouts = {name: Layout.contiguous((S0, S1)) for name in ("x", "o")}
        value = build.call("exp", load("x", x))
        sizes = {S0: rows, S1: columns}
        case = Case((S0, S1), [Store("o", (I[0], I[1]), value)], {"x": x}, {"o": out(rows, columns)},
                    layouts=layouts, sizes=sizes)  # fmt: skip
        case.check()
        row = build.load("x", (I[0], R[0]), F32)
        total = build.reduce("sum", row)
        stores = [Store("o", (I[0], R[0]), build.call("sub", row, total)), Store("t", (I[0],), total)]
        layouts["t"] = Layout.contiguous((S0,))
        Case((S0,), stores, {"x": x}, {"o": out(rows, columns), "t": out(rows)}, (S1,), layouts=layouts,
             sizes=sizes).check(rtol=1e-4, atol=1e-4)  # fmt: skip
        column = build.reduce("sum", build.load("x", (R[0], I[0]), F32))
        layouts["t"] = Layout.contiguous((S1,))
        Case((S1,), [Store("t", (I[0],), column)], {"x": x}, {"t": out(columns)}, (S0,), layouts=layouts,
             sizes=sizes).check(rtol=1e-4, atol=1e-4)  # fmt: skip


def test_size_without_text_is_an_argument() -> None:
    """A size function that C++ has no word for is computed by the caller."""
    odd = sympy.Abs(S0 - 20)
    x = randn(15)
    layouts = {"x": Layout.contiguous((odd,)), "o": Layout.contiguous((odd,))}
    value = add(load("x", x), build.cast(build.index(I[0] + odd), F32))
    case = Case((odd,), [Store("o", (I[0],), value)], {"x": x}, {"o": out(15)}, layouts=layouts, sizes={S0: 5})
    source = case.check()
    assert source.arguments[2:] == (odd,)


def test_index_values_and_narrow_integers() -> None:
    """Positions as values: compared, divided, cast; those that do not fit in 32 bits too."""
    i, j = build.index(I[0]), build.index(I[1])
    big = build.index(I[0] * 3_000_000_000 + I[1])
    tril = build.call("where", build.call("ge", i, j), build.const(1.0, F32), build.const(0.0, F32))
    stores = [
        Store("a", (I[0], I[1]), tril),
        Store("b", (I[0], I[1]), build.cast(build.call("mul", i, j), F32)),
        Store("c", (I[0], I[1]), big),
        Store("d", (I[0], I[1]), build.call("remainder", build.call("sub", i, j), build.const(7, torch.int64))),
        Store("e", (I[0], I[1]), build.call("mul", build.index(I[0] * 40000), build.index(I[1] * 40000))),
    ]
    long = {name: out(60, 90, dtype=torch.int64) for name in "cde"}
    Case((60, 90), stores, {}, {"a": out(60, 90), "b": out(60, 90), **long}).check()


# ---------------------------------------------------------------------- reductions

SHAPES = {
    "row": ((50,), (333,), (I[0], R[0])),
    "short row": ((90,), (24,), (I[0], R[0])),
    "small": ((90,), (5,), (I[0], R[0])),
    "long row": ((2,), (70001,), (I[0], R[0])),
    "column": ((333,), (50,), (R[0], I[0])),
    "short column": ((333,), (40,), (R[0], I[0])),
    "long column": ((33,), (3001,), (R[0], I[0])),
    "channels": ((12,), (6, 9, 11), (R[0], I[0], R[1], R[2])),
    "channels last": ((40,), (6, 9, 11), (R[0], R[1], R[2], I[0])),
    "window": ((90, 70), (2, 3), (I[0] * 2 + R[0], I[1] * 3 + R[1])),
    "all": ((), (40, 500), (R[0], R[1])),
    "batched columns": ((7, 60), (90,), (I[0], R[0], I[1])),
    "empty": ((4,), (0,), (I[0], R[0])),
}


def shape_of(ranges: tuple[int, ...], inner: tuple[int, ...], index: tuple[sympy.Expr, ...]) -> tuple[int, ...]:
    ends = {**dict(zip(I, ranges, strict=False)), **dict(zip(R, inner, strict=False))}
    return tuple(int(expr.xreplace({s: max(n - 1, 0) for s, n in ends.items()})) + 1 for expr in index)


def reduction_case(name: str, dtype: torch.dtype, kinds: list[str]) -> Case:
    ranges, inner, index = SHAPES[name]
    shape = shape_of(ranges, inner, index) if name != "empty" else (4, 0)
    x = torch.rand(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    if dtype.is_floating_point:
        x = (x - 0.4).to(dtype)
    else:
        x = (x * 3).to(dtype)
    stores, outputs = [], {}
    for kind in kinds:
        value = build.load("x", index, dtype)
        if kind == "prod" and dtype.is_floating_point:
            value = build.call("add", build.call("mul", value, build.const(1e-3, dtype)), build.const(1.0, dtype))
        node = build.reduce(kind, *[value] * REDUCTIONS[kind].arity)
        if node.dtype.itemsize == 2 and node.dtype.is_floating_point:
            node = build.cast(node, F32)  # without the rounding of the last step
        stores.append(Store(f"o_{kind}", tuple(I[: len(ranges)]), node))
        outputs[f"o_{kind}"] = torch.empty(ranges, dtype=node.dtype)
    return Case(ranges, stores, {"x": x}, outputs, inner)


@pytest.mark.each_value
@pytest.mark.parametrize("name", [name for name in SHAPES if name != "empty"])
@pytest.mark.parametrize("dtype", [F32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_float_reductions(name: str, dtype: torch.dtype) -> None:
    kinds = ["sum", "prod", "dot", "max", "min", "any", "all", "argmax", "argmin", "welford_mean", "welford_m2"]
    case = reduction_case(name, dtype, kinds)
    case.check(rtol=1e-4 if dtype != torch.float64 else 1e-11, atol=2e-4 if dtype != torch.float64 else 1e-9)


@pytest.mark.each_value
@pytest.mark.parametrize("name", ["row", "column", "window", "channels", "all"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.int8, torch.bool], ids=str)
def test_integer_reductions(name: str, dtype: torch.dtype) -> None:
    kinds = ["sum", "max", "min", "any", "all"]
    if dtype != torch.bool:
        kinds += ["prod", "argmax", "argmin"]
    reduction_case(name, dtype, kinds).check()


def test_reduction_of_nothing() -> None:
    """Sums are 0; the rest has no meaning in torch."""
    reduction_case("empty", F32, ["sum", "any", "all"]).check()


@pytest.mark.parametrize("name", ["row", "column", "window", "channels"])
def test_nan_and_infinity(name: str) -> None:
    case = reduction_case(name, F32, ["max", "min", "argmax", "argmin", "sum"])
    x = case.inputs["x"]
    flat = x.reshape(-1)
    flat[5], flat[77], flat[200] = float("nan"), float("inf"), float("-inf")
    flat[401] = float("nan")
    case.check(rtol=1e-4, atol=1e-4)
    x.fill_(float("-inf"))
    case.check()


@pytest.mark.each_value
@pytest.mark.parametrize("mean", [1000, 100_000])
@pytest.mark.parametrize("name", [name for name in SHAPES if name not in ("all", "batched columns", "empty")])
def test_welford_is_accurate(name: str, mean: int) -> None:
    """Squared deviations are as exact far from zero as near it: a mean that float32 rounds is not subtracted."""
    case = reduction_case(name, F32, ["welford_mean", "welford_m2"])
    case.inputs["x"].add_(mean)
    wide = case.inputs["x"].double()
    got = case.run()
    ranges, inner, _ = SHAPES[name]
    double = Case(ranges, [Store(s.buffer, s.index, _as_double(s.value)) for s in case.stores], {"x": wide},
                  {n: t.double() for n, t in case.outputs.items()}, inner)  # fmt: skip
    for key, value in double.run().items():
        torch.testing.assert_close(got[key].double(), value, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["row", "short row", "small", "column", "long row", "long column", "channels last"])
def test_moments_of_huge_numbers(name: str) -> None:
    """Neither the sum nor a product with 0 may leave what float32 can hold, where mean and squares do not."""
    case = reduction_case(name, F32, ["welford_mean", "welford_m2"])
    case.inputs["x"].fill_(3e38)
    got = case.run()
    assert (got["o_welford_mean"] == case.inputs["x"].flatten()[0]).all() and (got["o_welford_m2"] == 0).all()
    case.inputs["x"].copy_(randn(*case.inputs["x"].shape)).mul_(1e30)
    assert (case.run()["o_welford_m2"] == float("inf")).all()


@pytest.mark.parametrize("name", ["row", "short row", "long row", "channels", "all"])
def test_moments_in_double(name: str) -> None:
    """Squares beyond what float32 holds are counted, and NaN stays NaN."""
    case = reduction_case(name, F32, ["welford_double_mean", "welford_double_m2"])
    x = case.inputs["x"]
    case.check(rtol=1e-6, atol=1e-7)
    x.mul_(1e25)
    case.check(rtol=1e-6, atol=1e18)
    x.view(-1)[:3] = torch.tensor([3e38, -3e38, 0.0])
    case.check(rtol=1e-6, atol=1e31)
    x.view(-1)[4], x.view(-1)[-1] = float("nan"), float("nan")
    case.check(rtol=1e-6, atol=1e31)


def _as_double(node: Node) -> Node:
    source = node.args[0]
    return build.reduce(node.attrs[0], build.load(source.buffer, source.index, torch.float64))


def test_long_sums_are_accurate() -> None:
    x = torch.rand(1 << 22, generator=torch.Generator().manual_seed(0))
    total = build.reduce("sum", build.load("x", (R[0],), F32))
    got = Case((), [Store("o", (), total)], {"x": x}, {"o": out()}, (1 << 22,)).run()["o"]
    assert abs(got.double() - x.double().sum()) < 1e-6 * x.double().sum()
    x = torch.rand(100_000, 32, generator=torch.Generator().manual_seed(0))
    total = build.reduce("sum", build.load("x", (R[0], I[0]), F32))
    got = Case((32,), [Store("o", (I[0],), total)], {"x": x}, {"o": out(32)}, (100_000,)).run()["o"]
    torch.testing.assert_close(got.double(), x.double().sum(0), rtol=2e-6, atol=0)


@pytest.mark.parametrize("shape", ["row", "column", "window", "channels"])
def test_welford_combine(shape: str) -> None:
    ranges, inner, index = SHAPES[shape]
    size = shape_of(ranges, inner, index)
    inputs = {"mean": randn(*size), "m2": randn(*size, seed=1).abs(), "weight": torch.rand(size) + 1}
    values = [build.load(name, index, F32) for name in inputs]
    stores = [
        Store(kind, tuple(I[: len(ranges)]), build.reduce(f"welford_combine_{kind}", *values))
        for kind in ("mean", "m2")
    ]
    stores = [Store(f"o_{s.buffer}", s.index, s.value) for s in stores]
    outputs = {f"o_{kind}": torch.empty(ranges) for kind in ("mean", "m2")}
    Case(ranges, stores, inputs, outputs, inner).check(rtol=1e-4, atol=1e-4)


@pytest.mark.each_value
@pytest.mark.parametrize("kind", ["sum", "max", "argmax", "welford_mean"])
@pytest.mark.parametrize(
    ("size", "along", "unrolled"), [(8, "row", True), (16, "row", True), (17, "row", False), (32, "column", True)]
)
def test_short_rows_are_walked_along(size: int, along: str, unrolled: bool, kind: str) -> None:
    """Unrolled are reductions across outputs, and those of rows that a tile turns."""
    x = randn(101, size) if along == "row" else randn(size, 101).t()
    index = (I[0], R[0])
    value = build.reduce(kind, load("x", x, *index))
    want = out(101, dtype=value.dtype)
    text = Case((101,), [Store("o", (I[0],), value)], {"x": x}, {"o": want}, (size,)).check().text
    assert ("#pragma GCC unroll" in text.split("int kernel")[1]) == unrolled


@pytest.mark.each_value
@pytest.mark.parametrize("layout", ["row", "column", "small"])
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16, torch.float16], ids=str)
def test_softmax_in_one_loop(layout: str, dtype: torch.dtype) -> None:
    """Three walks; the exponentials of a row are kept."""
    ranges, inner = {"row": ((70,), (501,)), "column": ((501,), (70,)), "small": ((501,), (6,))}[layout]
    index = (I[0], R[0]) if layout == "row" else (R[0], I[0])
    shape = (ranges[0], inner[0]) if layout == "row" else (inner[0], ranges[0])
    x = randn(*shape, dtype=dtype)
    scale = build.call("exp", build.load("scale", (I[0],), F32))
    row = build.call("mul", build.cast(build.load("x", index, dtype), F32), scale)
    top = build.reduce("max", row)
    e = build.call("exp", build.call("sub", row, top))
    total = build.reduce("sum", e)
    soft = build.cast(build.call("div", e, total), dtype)
    stores = [Store("o", index, soft), Store("top", (I[0],), top), Store("log", (I[0],), build.call("log", total))]
    inputs = {"x": x, "scale": randn(ranges[0], seed=5)}
    outputs = {"o": out(*shape, dtype=dtype), "top": out(*ranges), "log": out(*ranges)}
    text = Case(ranges, stores, inputs, outputs, inner).check().text
    if layout == "row":
        # Once for the scale, once for the row.
        assert text.split("int kernel")[1].count("exp(") == 2


@pytest.mark.parametrize("along", [0, 1], ids=["outer", "inner"])
def test_softmax_over_two_ranges_of_what_varies_along_one(along: int) -> None:
    """Exponentials that are the same along the innermost range were kept in an array that their readers, written
    outside of that range, could not index. (The other one's loop, and what is made of both, keep theirs.)"""
    x, y = randn(5, 40), randn(5, 40, 24, seed=1)
    exponent = build.load("x", (I[0], R[0]), F32) if along == 0 else build.load("y", (I[0], R[0], R[1]), F32)
    e = build.call("exp", build.call("sub", exponent, build.reduce("max", exponent)))
    soft = build.call("div", e, build.reduce("sum", e))
    both = build.call("mul", soft, build.load("y", (I[0], R[0], R[1]), F32))
    again = build.call("div", both, build.reduce("sum", build.call("abs", both)))
    stores = [Store(name, (I[0], R[0], R[1]), value) for name, value in (("soft", soft), ("again", again))]
    outputs = {"soft": out(5, 40, 24), "again": out(5, 40, 24)}
    text = Case((5,), stores, {"x": x, "y": y}, outputs, (40, 24)).check(rtol=1e-4, atol=1e-5).text
    assert (" row" in text.split("int kernel")[1]) == (along == 1)


@pytest.mark.parametrize("layout", ["row", "column"])
def test_layer_norm_and_more(layout: str) -> None:
    """Welford, values at output level between stages, several outputs at both levels."""
    ranges, inner = ((65,), (200,)) if layout == "row" else ((200,), (65,))
    index = (I[0], R[0]) if layout == "row" else (R[0], I[0])
    shape = (65, 200)
    x, residual = randn(*shape), randn(*shape, seed=2)
    count = inner[0]
    value = add(build.load("x", index, F32), build.load("residual", index, F32))
    mean, m2 = build.reduce("welford_mean", value), build.reduce("welford_m2", value)
    variance = build.call("div", m2, build.const(float(count), F32))
    scale = build.call("rsqrt", add(variance, build.const(1e-5, F32)))
    normal = build.call("mul", build.call("sub", value, mean), scale)
    weighted = add(build.call("mul", normal, build.load("w", (R[0],), F32)), build.load("b", (R[0],), F32))
    again = build.reduce("sum", build.call("abs", weighted))
    stores = [
        Store("sum", index, value),
        Store("o", index, weighted),
        Store("mean", (I[0],), mean),
        Store("scale", (I[0],), scale),
        Store("again", (I[0],), again),
    ]
    inputs = {"x": x, "residual": residual, "w": randn(count, seed=3), "b": randn(count, seed=4)}
    outputs = {"sum": out(*shape), "o": out(*shape), **{k: out(*ranges) for k in ("mean", "scale", "again")}}
    Case(ranges, stores, inputs, outputs, inner).check(rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["sum", "max", "any", "welford_m2"])
def test_groups_of_channels_are_lanes(kind: str) -> None:
    """Of 7 rows, and of 900, which are several parts; far from zero, where states must not be rounded."""
    for pixels in (7, 900):
        x = randn(3, pixels, 4, 6) + 1000
        value = build.reduce(kind, build.load("x", (I[0], R[0], I[1], R[1]), F32))
        memory = torch.empty(3, 4, dtype=value.dtype)
        case = Case((3, 4), [Store("o", (I[0], I[1]), value)], {"x": x}, {"o": memory}, (pixels, 6))
        assert case.check(rtol=1e-5, atol=0).text.startswith(f"// column kernel [3, 24 | {pixels}]")


def test_columns_of_float16_are_converted_in_blocks() -> None:
    """By an instruction for eight; a loop of vectors would take a dozen operations for each."""
    x = randn(90, 300).half()
    total = build.reduce("sum", build.cast(build.load("x", (R[0], I[0]), torch.float16), F32))
    text = Case((300,), [Store("o", (I[0],), total)], {"x": x}, {"o": out(300)}, (90,)).check(rtol=1e-5, atol=1e-4).text
    assert "widen_f16(" in text.split("int kernel")[1] and "from_f16(" not in text.split("int kernel")[1]


def test_what_rows_share_is_made_once() -> None:
    """The scale of a group of channels, in a block of rows: no root and no division in the innermost loop."""
    x, scale = randn(2, 64, 40), randn(2, 4).abs()
    group = build.call("rsqrt", build.load("s", (I[0], floordiv(I[2], to_expr(10))), F32))
    value = build.call("mul", build.load("x", (I[0], I[1], I[2]), F32), group)
    case = Case((2, 64, 40), [Store("o", tuple(I[:3]), value)], {"x": x, "s": scale}, {"o": out(2, 64, 40)})
    (walked,) = re.findall("for [(]int i1 = b;.*", case.check().text, re.DOTALL)
    assert not re.search("sqrt|/|%", walked) and "i2 < 40" in walked


@pytest.mark.ci_cases(
    *("torch.float32-beside", "torch.bfloat16-beside", "torch.float16-beside", "torch.float8_e5m2-beside"),
    *("torch.float32-apart", "torch.bfloat16-in place", "torch.float16-apart", "torch.float8_e5m2-in place"),
)
@pytest.mark.parametrize("where", ["beside", "in place", "apart"])
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16, torch.float16, torch.float8_e5m2], ids=str)
def test_a_later_walk_reads_what_an_earlier_one_stored(where: str, dtype: torch.dtype) -> None:
    """A sum that is stored side by side is not computed again, nor of float16 that was converted; every second element,
    and float8's NaN, are."""
    x, residual = randn(65, 256, dtype=F32).to(dtype), randn(65, 256, dtype=F32, seed=2).to(dtype)
    index = (I[0], R[0])
    total = build.cast(add(*(build.cast(build.load(name, index, dtype), F32) for name in ("x", "residual"))), dtype)
    value = build.cast(total, F32)
    normal = build.call("div", value, build.reduce("max", build.call("abs", value)))
    stores = [Store("sum", index, total), Store("o", index, normal)]
    memory = out(65, 512, dtype=dtype)[:, ::2] if where == "apart" else out(65, 256, dtype=dtype)
    outputs = {"sum": memory, "o": out(65, 256)}
    inplace = {"sum": "x"} if where == "in place" else {}
    case = Case((65,), stores, {"x": x, "residual": residual}, outputs, (256,), inplace)
    text = case.check(rtol=0, atol=0).text.split("int kernel")[1]
    again = dtype != torch.float16 and (where != "beside" or dtype == torch.float8_e5m2)
    assert text.count("p1[") == (2 if again else 1)


@pytest.mark.parametrize(("count", "loops"), [(3, 1), (16, 1), (17, 2), (47, 4), (48, 1), (63, 4), (127, 4), (143, 1)])
def test_what_is_left_of_a_short_row_is_loops_of_their_own(count: int, loops: int) -> None:
    """With shorter and shorter vectors; what is left of a long row stays where it is."""
    row = build.load("x", (I[0], R[0]), F32)
    value = build.reduce("sum", build.call("exp", row))
    case = Case((65,), [Store("o", (I[0],), value)], {"x": randn(65, count, dtype=F32)}, {"o": out(65)}, (count,))
    assert case.check(rtol=1e-5, atol=1e-5).text.count("#pragma omp simd") == loops


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", [F32, torch.float64, torch.int64], ids=str)
@pytest.mark.parametrize("count", [511, 512, 543, 9001])
def test_values_of_a_long_row_enter_several_states(kind: str, dtype: torch.dtype, count: int) -> None:
    """So that additions wait for no others; of halves a vector holds enough for two states."""
    x = torch.full((3, count), 1, dtype=dtype) if kind == "prod" else randn(3, count, dtype=dtype)
    x[1, count - 1] = x[2, count // 2] = 100
    if dtype.is_floating_point:
        x[0, count - 2] = float("nan")
    value = build.reduce(kind, build.load("x", (I[0], R[0]), dtype))
    result = out(3, dtype=value.dtype)
    text = Case((3,), [Store("o", (I[0],), value)], {"x": x}, {"o": result}, (count,)).check(rtol=1e-5, atol=1e-5).text
    assert ("r0_v" in text) == (count >= 512)


@pytest.mark.each_value
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("layout", ["row", "column", "small"])
@pytest.mark.parametrize("dtype", [F32, torch.int64, torch.bfloat16], ids=str)
def test_scan(kind: str, layout: str, dtype: torch.dtype) -> None:
    """A scan, a reduction of it, and a store that needs both."""
    n, m = {"row": (40, 300), "column": (300, 40), "small": (300, 5)}[layout]
    index = (I[0], R[0]) if layout == "row" else (R[0], I[0])
    shape = (n, m) if layout == "row" else (m, n)
    x = (torch.rand(shape, generator=torch.Generator().manual_seed(0)) + 0.5).to(dtype)
    if dtype == F32 and kind in ("max", "min"):
        x.reshape(-1)[100] = float("nan")
    value = build.scan(kind, build.load("x", index, dtype))
    last = build.reduce("max", value)
    stores = [Store("o", index, value), Store("p", index, build.call("sub", value, last)), Store("t", (I[0],), last)]
    outputs = {"o": out(*shape, dtype=dtype), "p": out(*shape, dtype=dtype), "t": out(n, dtype=dtype)}
    Case((n,), stores, {"x": x}, outputs, (m,)).check(rtol=2e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-2)


def test_level_mix_without_reduction() -> None:
    """A store per output point beside a store per point of both."""
    x = randn(30, 40)
    stores = [
        Store("o", (I[0], R[0]), build.call("exp", build.load("x", (I[0], R[0]), F32))),
        Store("t", (I[0],), build.load("x", (I[0], to_expr(0)), F32)),
    ]
    Case((30,), stores, {"x": x}, {"o": out(30, 40), "t": out(30)}, (40,)).check()
    flat = [stores[0]]
    Case((30,), flat, {"x": x}, {"o": out(30, 40)}, (40,)).check()


# ---------------------------------------------------------------------- where positions start


def test_positions_are_counted_from_the_first_that_is_read() -> None:
    """Loops that differ only in that, as the steps of a loop in Python do, have one text. The distances between
    positions in one buffer stay in the text, and so do positions before the first element, which a mask forbids."""
    x, texts = randn(9, 24), set()
    for row in (1, 2, 7):
        value = add(load("x", x, row + 1, I[0]), load("x", x, row, I[0] + 4), load("y", x, row, 3))
        source = Case((20,), [Store("o", (I[0],), value)], {"x": x, "y": x}, {"o": out(20)}).check()
        texts.add(source.text)
        assert source.arguments == ("x", "y", "o", row * 24 + 4, row * 24 + 3)
    assert len(texts) == 1
    before = build.load(
        "x", (ZERO, I[0] - 3), F32, mask=build.call("ge", build.index(I[0]), build.const(3, torch.int64))
    )
    source = Case((20,), [Store("o", (I[0],), before)], {"x": x}, {"o": out(20)}).check()
    assert source.arguments == ("x", "o")


def test_symbolic_sizes_and_segments_with_starts() -> None:
    x, y = randn(40, 300), randn(40, 300)
    low = build.call("lt", build.index(I[1]), build.const(100, torch.int64))
    high = build.call("ge", build.index(I[1]), build.const(100, torch.int64))
    left = build.load("x", (I[0], I[1] + 150), F32, mask=low)
    right = build.load("y", (I[0], I[1] - 50), F32, mask=high)
    value = build.call("where", low, left, right)
    source = Case((40, 250), [Store("o", (I[0], I[1]), value)], {"x": x, "y": y}, {"o": out(40, 250)}).check()
    assert "segments" in source.text and source.arguments[3:] == (150,)
    z = randn(9, 24)
    value = add(build.load("z", (to_expr(2), I[0]), F32), build.load("z", (S0, I[0]), F32))
    Case((S1,), [Store("o", (I[0],), value)], {"z": z}, {"o": out(24)}, sizes={S0: 5, S1: 24}).check()


@pytest.mark.ci_cases(
    *("1000-8-torch.float32", "1000-8-torch.float16", "300-17-torch.bfloat16", "300-17-torch.float32"),
    *("5-100-torch.float32", "5-100-torch.bfloat16", "1-65-torch.float16"),
)
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("pixels", "channels"), [(1000, 8), (300, 17), (5, 100), (1, 65)])
def test_moments_of_short_rows(pixels: int, channels: int, dtype: torch.dtype) -> None:
    """A group norm, channels last: the channels of all groups are lanes, and those of a group have one result."""
    x = randn(3, pixels, 2, channels, dtype=dtype)
    value = build.cast(build.load("x", (I[0], R[0], I[1], R[1]), dtype), F32)
    mean, m2 = (build.reduce(f"welford_{kind}", value) for kind in ("mean", "m2"))
    stores = [
        Store("m", (I[0], I[1]), mean),
        Store("s", (I[0], I[1]), m2),
        Store("o", (I[0], R[0], I[1], R[1]), build.cast(build.call("sub", value, mean), dtype)),
    ]
    outputs = {"m": out(3, 2), "s": out(3, 2), "o": out(3, pixels, 2, channels, dtype=dtype)}
    case = Case((3, 2), stores, {"x": x}, outputs, (pixels, channels))
    text = case.check(rtol=1e-2 if dtype != F32 else 1e-4, atol=1e-3).text
    if pixels > 1:
        assert text.startswith(f"// column kernel [3, {2 * channels} | {pixels}]"), "a group's channels are no lanes"
