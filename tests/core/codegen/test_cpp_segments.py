"""Loops that choose by position, split into segments: kernels against the interpreter, and which loops are split."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate

import pytest
import sympy
import torch

from litz.ir import Layout, Node, Store, build
from litz.ir.index import mod, placeholder, to_expr
from support.cpp_kernels import Case, I, R, layout_of, load

F32 = torch.float32
S0 = sympy.Symbol("s0", integer=True, positive=True)


def values(*size: int, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    drawn = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn > 0 if dtype == torch.bool else (drawn * 20).to(dtype)


def compare(kind: str, left: object, right: object) -> Node:
    return build.call(kind, build.index(to_expr(left)), build.index(to_expr(right)))  # type: ignore[arg-type]


def joined(parts: Sequence[torch.Tensor], dim: int, at: Sequence[sympy.Expr] = tuple(I)) -> Node:
    """The element of a concatenation at a position, as the lowering of `cat` writes it. The parts are p0, p1, ..."""
    ends = list(accumulate(part.size(dim) for part in parts))
    result: Node | None = None
    for number in reversed(range(len(parts))):
        part, end = parts[number], ends[number]
        start = end - part.size(dim)
        before = compare("lt", at[dim], end)
        position = list(at[: part.dim()])
        position[dim] = position[dim] - start
        mask = build.logical_and(compare("ge", at[dim], start) if number else None, before if result else None)
        value = load(f"p{number}", part, *position, mask=mask)
        result = value if result is None else build.call("where", before, value, result)
    assert result is not None
    return result


def named(parts: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"p{number}": part for number, part in enumerate(parts)}


def inside(position: sympy.Expr, size: int) -> Node:
    return build.call("bitwise_and", compare("ge", position, 0), compare("lt", position, size))


def out(*size: int, dtype: torch.dtype = F32) -> dict[str, torch.Tensor]:
    return {"o": torch.empty(size, dtype=dtype)}


def segments_in(text: str) -> int:
    found = re.match(r"// \w+ kernel in (\d+) segments", text)
    return int(found[1]) if found else 1


def cat_case(
    parts: Sequence[torch.Tensor], dim: int, layouts: dict[str, Layout] | None = None, last: bool = False
) -> Case:
    """relu(cat(parts) * weight) and the concatenation itself; last: with outputs in channels last."""
    whole = torch.cat(list(parts), dim)
    value = joined(parts, dim)
    weight = values(whole.size(1), dtype=whole.dtype, seed=9)
    scaled = build.call("maximum", build.call("mul", value, load("w", weight, I[1])), build.const(0, whole.dtype))
    index = tuple(I[: whole.dim()])
    empty = torch.empty_like(whole, memory_format=torch.channels_last if last else torch.contiguous_format)
    return Case(
        tuple(whole.shape),
        [Store("o", index, scaled), Store("c", index, value)],
        {**named(parts), "w": weight},
        {"o": empty, "c": empty.clone()},
        layouts=layouts or {},
    )


@pytest.mark.parametrize("dtype", [F32, torch.bfloat16, torch.float16, torch.int64], ids=str)
def test_cat_of_channels(dtype: torch.dtype) -> None:
    """Odd sizes, a part of one channel, and one with strides of its own."""
    parts = [values(3, n, 9, 11, dtype=dtype, seed=n) for n in (7, 1, 10)]
    parts.append(values(11, 9, 5, 3, dtype=dtype).permute(3, 2, 1, 0))
    source = cat_case(parts, 1).check()
    assert segments_in(source.text) == 4
    assert "const bool" not in source.text, "something is still chosen"


@pytest.mark.parametrize(("dim", "sizes"), [(0, (1, 2)), (2, (5, 40)), (3, (33, 31, 1))])
def test_cat_along_other_dimensions(dim: int, sizes: tuple[int, ...]) -> None:
    shape = [3, 8, 9, 30]
    parts = [values(*shape[:dim], n, *shape[dim + 1 :], seed=n) for n in sizes]
    assert segments_in(cat_case(parts, dim).check().text) == len(sizes)


@pytest.mark.parametrize("sizes", [(31, 33), (3, 5), (8,) * 8], ids=str)
def test_cat_in_channels_last(sizes: tuple[int, ...]) -> None:
    """The range that is vectorized is the one that is split."""
    parts = [values(2, n, 20, 21, seed=n).contiguous(memory_format=torch.channels_last) for n in sizes]
    parts[0] = parts[0].contiguous()
    assert segments_in(cat_case(parts, 1, last=True).check().text) == len(sizes)


def test_threads_share_the_segments() -> None:
    parts = [values(2, n, 40, 41, seed=n) for n in (16, 5, 20)]
    case = cat_case(parts, 1)
    text = case.source().text
    assert text.count("omp parallel") == 1 and text.count("omp for") == text.count("nowait") == 3
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        case.check()
    finally:
        torch.set_num_threads(before)


def test_a_batch_of_unknown_size() -> None:
    """Whether threads share the work is decided once, for all segments."""
    for batch in (1, 5):
        parts = [values(batch, n, 9, 11, seed=n) for n in (7, 12)]
        case = cat_case(parts, 1)
        for name, tensor in {**case.inputs, **case.outputs}.items():
            if name != "w":
                held = layout_of(tensor)
                case.layouts = {**case.layouts, name: Layout((S0, *held.size[1:]), held.stride)}
        case.ranges, case.sizes = (S0, *case.ranges[1:]), {S0: batch}
        source = case.check()
        assert segments_in(source.text) == 2 and source.text.count(" if (") == 1


@pytest.mark.parametrize("layout", ["row", "column"])
def test_reductions_of_a_cat(layout: str) -> None:
    """Sums over the pixels of each channel and a store of each pixel."""
    parts = [values(n, 300, seed=n) for n in (7, 1, 25)]
    if layout == "column":
        parts = [part.t().contiguous().t() for part in parts]
    value = build.call("mul", joined(parts, 0, (I[0], R[0])), build.const(2.0, F32))
    total = build.reduce("sum", value)
    stores = [Store("o", (I[0], R[0]), build.call("sub", value, total)), Store("t", (I[0],), total)]
    whole = torch.cat(parts)
    case = Case((33,), stores, named(parts), {"o": torch.empty_like(whole), "t": torch.empty(33)}, (300,))
    assert segments_in(case.check(rtol=1e-4, atol=1e-3).text) == 3


def test_every_comparison() -> None:
    """Both ways around, in conjunctions and disjunctions, under a mask of the store."""
    x, y = values(40, 400), values(40, 400, seed=1)
    i = I[0]
    conditions = [
        build.call("bitwise_and", compare("gt", i, 4), compare("le", i, 30)),
        build.call("bitwise_or", compare("eq", i, 11), compare("ge", 7, i)),
        build.call("bitwise_or", compare("lt", 33 - i, 0), compare("ne", i + 1, 21)),
    ]
    stores = [
        Store(
            f"o{n}", (i, I[1]), build.call("where", c, load("x", x, mask=c), load("y", y)), mask=c if n == 2 else None
        )
        for n, c in enumerate(conditions)
    ]
    outputs = {f"o{n}": torch.empty(40, 400) for n in range(3)}
    case = Case((40, 400), stores, {"x": x, "y": y}, outputs)
    assert segments_in(case.source().text) > 1
    got = case.run()
    rows = torch.arange(40)[:, None]
    wanted = [(rows > 4) & (rows <= 30), (rows == 11) | (rows <= 7), (rows > 33) | (rows != 20)]
    for n, where in enumerate(wanted):
        torch.testing.assert_close(got[f"o{n}"], torch.where(where, x, torch.full_like(y, 7.0) if n == 2 else y))


def test_what_is_not_split() -> None:
    # Little work; more segments than are compiled; functions of pairs that lie side by side, which need lanes.
    few = [values(2, n, 3, 3) for n in (4, 5)]
    many = [values(2, 3, 16, 16, seed=n) for n in range(20)]
    for parts, dim in ((few, 1), (many, 1)):
        assert segments_in(cat_case(parts, dim).source().text) == 1
    pairs = [values(2000, 1, seed=n) for n in range(2)]
    waves = build.call("where", compare("lt", I[1], 1), *(build.call(f, joined(pairs, 1)) for f in ("sin", "cos")))
    case = Case((2000, 2), [Store("o", (I[0], I[1]), waves)], named(pairs), out(2000, 2))
    assert segments_in(case.source().text) == 1
    # A choice without loads.
    ones = build.cast(compare("eq", I[1], 5), F32)
    assert segments_in(Case((300, 40), [Store("o", (I[0], I[1]), ones)], {}, out(300, 40)).source().text) == 1
    # Sums that iterations share.
    halves = [values(50, 100, seed=n) for n in range(2)]
    store = Store("o", (I[1],), joined(halves, 0), mode="add")
    case = Case((100, 100), [store], named(halves), {"o": torch.zeros(100)})
    assert segments_in(case.source().text) == 1


DTYPES = [F32, torch.bfloat16, torch.float16, torch.uint8, torch.int64]


@pytest.mark.ci_cases(
    *("30-torch.float32", "17-torch.float32", "63-torch.bfloat16", "65-torch.bfloat16", "17-torch.float16"),
    *("63-torch.float16", "65-torch.uint8", "30-torch.uint8", "65-torch.int64", "17-torch.int64"),
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("side", [30, 17, 63, 65])
def test_pads(dtype: torch.dtype, side: int) -> None:
    """The borders are fills and the rest is a copy: of its rows the three parts lie in one loop."""
    x = values(12, side, side, dtype=dtype)
    mask = build.call("bitwise_and", inside(I[1] - 1, side), inside(I[2] - 2, side))
    padded = load("x", x, I[0], I[1] - 1, I[2] - 2, mask=mask)
    size = (12, side + 3, side + 3)
    source = Case(size, [Store("o", tuple(I[:3]), padded)], {"x": x}, out(*size, dtype=dtype)).check()
    assert segments_in(source.text) == 5 and "?" not in source.text.split("extern", 1)[1]
    assert source.text.count("++i1") == 3, "a row is not written at a time"


@pytest.mark.ci_cases(
    *("1-torch.float32", "63-torch.float32", "7-torch.bfloat16", "-5-torch.bfloat16", "1-torch.float16"),
    *("63-torch.float16", "-5-torch.uint8", "7-torch.uint8", "63-torch.int64", "-5-torch.int64"),
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shift", [1, 7, 63, -5])
def test_rolls(dtype: torch.dtype, shift: int) -> None:
    """No remainder is left."""
    x = values(70, 65, dtype=dtype)
    rolled = load("x", x, I[0], mod(I[1] - shift, to_expr(65), {I[1]: to_expr(65)}))
    source = Case((70, 65), [Store("o", (I[0], I[1]), rolled)], {"x": x}, out(70, 65, dtype=dtype)).check()
    assert segments_in(source.text) == 2 and "%" not in source.text and "remainder" not in source.text
    assert len(re.findall(r"for \(int i0", source.text)) == 1, "a row is not written at a time"


@pytest.mark.parametrize("kind", ["reflect", "replicate"])
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16, torch.float16], ids=str)
def test_positions_by_choices(kind: str, dtype: torch.dtype) -> None:
    """Absolute values, the greater and the lesser: positions that computed nodes stand for become affine ones."""

    def at(var: sympy.Expr, size: int) -> Node:
        position, last = build.index(var - 3), build.const(size - 1, torch.int64)
        if kind == "replicate":
            return build.call("minimum", build.call("maximum", position, build.const(0, torch.int64)), last)
        turned = build.call("sub", last, build.call("abs", position))
        return build.call("sub", last, build.call("abs", turned))

    x = values(5, 20, 33, dtype=dtype)
    where = (at(I[1], 20), at(I[2], 33))
    value = build.load("x", (I[0], placeholder(0), placeholder(1)), dtype, where)
    size = (5, 26, 39)
    case = Case(
        size, [Store("o", tuple(I[:3]), build.cast(build.cast(value, F32), dtype))], {"x": x}, out(*size, dtype=dtype)
    )
    source = case.check()
    assert segments_in(source.text) == 9 and not re.search("abs_int|ALL_BITS", source.text)
    assert "to_bf16" not in source.text and "to_f16" not in source.text, "a copy does not move bits"
    want = torch.nn.functional.pad(x.float(), (3, 3, 3, 3), mode=kind).to(dtype)
    torch.testing.assert_close(case.run()["o"], want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_copies_keep_the_bits_of_nans(dtype: torch.dtype) -> None:
    """Transposed, contiguous along both, padded, and by way of float32."""
    bits = torch.randint(-(2**15), 2**15, (70, 66), generator=torch.Generator().manual_seed(0)).to(torch.int16)
    x = bits.view(dtype)
    padded = load("x", x, I[0], I[1] - 1, mask=inside(I[1] - 1, 66))
    cases = {
        "t": (
            Case((66, 70), [Store("o", (I[0], I[1]), load("x", x, I[1], I[0]))], {"x": x}, out(66, 70, dtype=dtype)),
            bits.t(),
        ),
        "copy": (Case((70, 66), [Store("o", (I[0], I[1]), load("x", x))], {"x": x}, out(70, 66, dtype=dtype)), bits),
        "pad": (
            Case((70, 68), [Store("o", (I[0], I[1]), padded)], {"x": x}, out(70, 68, dtype=dtype)),
            torch.nn.functional.pad(bits, (1, 1)),
        ),
        "wide": (
            Case(
                (70, 66),
                [Store("o", (I[0], I[1]), build.cast(build.cast(load("x", x), F32), dtype))],
                {"x": x},
                out(70, 66, dtype=dtype),
            ),
            bits,
        ),
    }
    for name, (case, wanted) in cases.items():
        assert torch.equal(case.run()["o"].view(torch.int16), wanted), name


@pytest.mark.parametrize("dtype", [F32, torch.bfloat16, torch.float16], ids=str)
def test_segments_of_a_row_that_compute(dtype: torch.dtype) -> None:
    """In one loop that threads share, whatever lies between memory and what is computed."""
    x = values(40, 33, 65, dtype=dtype)
    mask = build.call("bitwise_and", inside(I[1] - 1, 33), inside(I[2] - 8, 65))
    padded = build.cast(load("x", x, I[0], I[1] - 1, I[2] - 8, mask=mask), F32)
    value = build.cast(build.call("sqrt", build.call("abs", padded)), dtype)
    case = Case((40, 35, 81), [Store("o", tuple(I[:3]), value)], {"x": x}, out(40, 35, 81, dtype=dtype))
    source = case.check(rtol=1e-2 if dtype != F32 else 1e-5, atol=1e-5)
    assert segments_in(source.text) == 5 and source.text.count("omp parallel") == 1


@pytest.mark.parametrize("size", [(1, 8, 600), (70, 1, 65), (1, 1, 5000), (0, 17, 65), (2, 63, 100)], ids=str)
def test_pads_of_odd_sizes(size: tuple[int, ...]) -> None:
    """Also of one row, and of none."""
    x, end = values(*size), size[2]
    padded = load("x", x, I[0], I[1], I[2] - 3, mask=inside(I[2] - 3, end))
    wide = (*size[:2], end + 4)
    Case(wide, [Store("o", tuple(I[:3]), padded)], {"x": x}, out(*wide)).check()
