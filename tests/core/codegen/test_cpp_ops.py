"""Every row of the op table as C++ against its meaning in torch, many ops to a kernel."""

from __future__ import annotations

import ctypes
import math
import platform
from collections.abc import Sequence

import pytest
import torch

from litz.ir import Node, Store, build
from litz.ir.index import placeholder
from litz.ir.ops import OPS
from litz.targets.cpp.dialect import CPP
from litz.targets.cpp.prelude import VECTOR_BINARY, VECTOR_UNARY
from support import cpp_kernels
from support.cpp_kernels import Case, I, R, load

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 65504.0, 1e38, 3e-8]
RANDOM = {"random_uniform", "random_normal", "random_bits"}
NO_INTEGER = {"pow", "shift_left", "shift_right", "truncdiv", "floordiv", "remainder", "fmod"}
# Ops whose special values torch itself treats differently between its scalar and vector code.
LOOSE = {"lgamma", "pow", "tan", "sinh", "cosh", "sin", "cos"}


VECTOR = (*VECTOR_UNARY, *VECTOR_BINARY)


def floats(dtype: torch.dtype, seed: int, count: int = 211) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    random = torch.randn(count, generator=generator, dtype=torch.float64) * 3
    special = torch.tensor(SPECIAL, dtype=torch.float64)
    mixed = torch.cat([special[torch.randperm(len(special), generator=generator)], random])
    return mixed.clamp(-60000, 60000).where(~mixed.isfinite() | (dtype == torch.float16), mixed).to(dtype)


def integers(dtype: torch.dtype, seed: int, count: int = 227) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    info = torch.iinfo(dtype)
    edge = torch.tensor([info.min, info.max, 0, 1, 2, 3, info.max - 1, 7], dtype=dtype)
    low = max(info.min, -20)
    return torch.cat(
        [edge[torch.randperm(8, generator=generator)], torch.randint(low, 20, (count,), generator=generator).to(dtype)]
    )


def rows(dtype: torch.dtype) -> list[str]:
    """The ops that take arguments of this dtype, random numbers aside."""
    found = []
    for name, row in OPS.items():
        if name in RANDOM or name == "where":
            continue
        try:
            row.rule((dtype,) * row.arity)
        except TypeError:
            continue
        found.append(name)
    return found


def make_case(names: list[str], tensors: list[torch.Tensor]) -> Case:
    inputs = {f"x{n}": t for n, t in enumerate(tensors)}
    nodes = [load(name, t) for name, t in inputs.items()]
    stores, outputs = [], {}
    for name in names:
        value: Node = build.call(name, *nodes[: OPS[name].arity])
        outputs[f"o_{name}"] = torch.empty(tensors[0].shape, dtype=value.dtype)
        stores.append(Store(f"o_{name}", (I[0],), value))
    return Case([tensors[0].numel()], stores, inputs, outputs)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_ops(dtype: torch.dtype) -> None:
    tensors = [floats(dtype, seed) for seed in (1, 2, 3)]
    exact = {torch.float32: (2e-6, 1e-30), torch.float64: (1e-13, 1e-300)}.get(dtype, (1e-2, 1e-7))
    names = [name for name in rows(dtype) if name != "nextafter" or dtype.itemsize > 2]
    strict = [name for name in names if name not in LOOSE]
    make_case(strict, tensors).check(
        rtol=max(exact[0], 4e-6 if dtype != torch.float64 else 1e-13), atol=2e-6 if dtype != torch.float64 else 1e-13
    )
    finite = [t.nan_to_num(1.0, 30.0, -30.0).clamp(-30, 30) for t in tensors]
    make_case([name for name in names if name in LOOSE], finite).check(rtol=max(1e-5, exact[0]), atol=1e-5)


@pytest.mark.parametrize("dtype", (*INTEGERS, torch.bool), ids=str)
def test_integer_ops(dtype: torch.dtype) -> None:
    if dtype == torch.bool:
        tensors = [torch.tensor([0, 0, 1, 1] * 9).bool(), torch.tensor([0, 1, 0, 1] * 9).bool()]
    else:
        tensors = [integers(dtype, 1), integers(dtype, 2)]
    have = [name for name in rows(dtype) if has_text(name, dtype) and name not in NO_INTEGER]
    make_case(have, tensors).check()


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_division(dtype: torch.dtype) -> None:
    """Eager raises on a zero divisor, so there is none; and the least number divided by -1 is torch's own affair."""
    left, right = integers(dtype, 1), integers(dtype, 2)
    right = torch.where(right == 0, torch.ones_like(right), right)
    left = torch.where((left == torch.iinfo(dtype).min) & (left < 0), torch.ones_like(left), left)
    make_case(["truncdiv", "floordiv", "remainder", "fmod"], [left, right]).check()
    small = (left % 5, right.abs() % 9)
    make_case(["pow"], list(small)).check()
    width = 8 * dtype.itemsize
    shifts = torch.arange(left.numel()).remainder(width).to(dtype)
    make_case(["shift_left", "shift_right"], [left, shifts]).check()


def test_division_by_zero_does_not_trap() -> None:
    for dtype in INTEGERS:
        x = integers(dtype, 1)
        case = make_case(["truncdiv", "floordiv", "remainder", "fmod"], [x, torch.zeros_like(x)])
        case.run()
        if dtype != torch.uint8:
            make_case(["truncdiv", "floordiv"], [x, -torch.ones_like(x)]).run()


def has_text(name: str, dtype: torch.dtype) -> bool:
    try:
        CPP.op(name, dtype)
        OPS[name].torch(*[torch.ones(1, dtype=dtype)] * OPS[name].arity)
    except (NotImplementedError, RuntimeError):
        return False
    return True


def test_every_row_has_text() -> None:
    """What torch computes for a category, the dialect of C++ can say."""
    for name, row in OPS.items():
        for dtype in (torch.float32, torch.int32, torch.bool):
            try:
                row.rule((dtype,) * row.arity)
                row.torch(*[torch.ones(1, dtype=dtype)] * row.arity)
            except (TypeError, RuntimeError):
                continue
            if name in ("isnan", "isinf", "signbit") and dtype != torch.float32:
                continue  # constant for these: lowering never makes them
            assert CPP.op(name, dtype), name


@pytest.mark.parametrize("dtype", (*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool), ids=str)
def test_casts(dtype: torch.dtype) -> None:
    """Every dtype to every other, `where`, and back to memory."""
    if dtype == torch.bool:
        x = torch.tensor([True, False] * 40)
    elif dtype.is_floating_point:
        x = (torch.randn(80, generator=torch.Generator().manual_seed(4)) * 50).to(dtype)
    else:
        x = torch.randint(0, 120, (80,), generator=torch.Generator().manual_seed(4)).to(dtype)
    node = load("x", x)
    stores, outputs = [], {}
    for target in (*FLOATS, *INTEGERS, torch.bool):
        value = node
        if dtype.is_floating_point and target == torch.uint8:
            value = build.call("abs", node)
        value = build.cast(value, target)
        chosen = build.call("where", build.cast(node, torch.bool), value, build.const(3, target))
        name = f"o_{str(target)[6:]}"
        stores.append(Store(name, (I[0],), chosen))
        outputs[name] = torch.empty(80, dtype=target)
    Case([80], stores, {"x": x}, outputs).check(rtol=0, atol=0)


def test_half_rounding_is_exact() -> None:
    """Conversions agree with torch bit for bit: every half there is, and floats around the ties."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        half = every.view(dtype)
        wide = load("x", half)
        case = Case([2**16], [Store("o", (I[0],), build.cast(wide, torch.float32))], {"x": half},
                    {"o": torch.empty(2**16)})  # fmt: skip
        assert torch.equal(case.run()["o"].nan_to_num(1e30), half.float().nan_to_num(1e30))
        near = half.float()
        noise = torch.tensor([1.0, 1 + 2**-9, 1 - 2**-9, 1 + 2**-12, 1 + 2**-11 + 2**-20])
        x = (near[:, None] * noise).reshape(-1)
        case = Case([x.numel()], [Store("o", (I[0],), build.cast(load("x", x), dtype))], {"x": x},
                    {"o": torch.empty(x.numel(), dtype=dtype)})  # fmt: skip
        got, want = case.run()["o"], x.to(dtype)
        same = (got.view(torch.int16) == want.view(torch.int16)) | (got.isnan() & want.isnan())
        assert same.all()


def test_bitcast() -> None:
    x = floats(torch.float32, 5)
    h = floats(torch.bfloat16, 5).nan_to_num(2.0)  # which NaN a conversion gives is not defined
    stores = [
        Store("a", (I[0],), build.bitcast(load("x", x), torch.int32)),
        Store("b", (I[0],), build.bitcast(build.bitcast(load("x", x), torch.int32), torch.float32)),
        Store("c", (I[0],), build.bitcast(load("h", h), torch.int16)),
        Store("d", (I[0],), build.bitcast(build.bitcast(load("h", h), torch.int16), torch.bfloat16)),
    ]
    outputs = {
        "a": torch.empty(x.shape, dtype=torch.int32),
        "b": torch.empty_like(x),
        "c": torch.empty(h.shape, dtype=torch.int16),
        "d": torch.empty_like(h),
    }
    Case([x.numel()], stores, {"x": x, "h": h}, outputs).check(rtol=0, atol=0)


def test_random_bits_are_the_interpreters() -> None:
    seed = build.load("seed", (), torch.int64)
    position = build.index(I[0] * 50 + I[1])
    stores = [
        Store("bits", (I[0], I[1]), build.call("random_bits", seed, position)),
        Store("uniform", (I[0], I[1]), build.call("random_uniform", seed, position)),
    ]
    normal = [Store("normal", (I[0], I[1]), build.call("random_normal", seed, position))]
    for value in (0, 1, 2**40 + 17, -5):
        inputs = {"seed": torch.tensor(value)}
        exact = {"bits": torch.empty(100, 50, dtype=torch.int64), "uniform": torch.empty(100, 50)}
        Case([100, 50], stores, inputs, exact).check(rtol=0, atol=0)
        Case([100, 50], normal, inputs, {"normal": torch.empty(100, 50)}).check(rtol=1e-5, atol=1e-5)


def test_literals() -> None:
    x = torch.zeros(3)
    values = [0.1, -0.0, math.inf, -math.inf, math.nan, 1e-45, 3.4028234663852886e38, 1e20, 1 / 3]
    for dtype in (torch.float32, torch.float64):
        stores = [Store(f"o{n}", (I[0],), build.const(v, dtype)) for n, v in enumerate(values)]
        outputs = {f"o{n}": torch.empty(3, dtype=dtype) for n in range(len(values))}
        Case([3], stores, {"x": x}, outputs).check(rtol=0, atol=0)
    numbers = [-(2**63), 2**63 - 1, -(2**31), 5]
    stores = [Store(f"o{n}", (I[0],), build.const(v, torch.int64)) for n, v in enumerate(numbers)]
    Case([3], stores, {"x": x}, {f"o{n}": torch.empty(3, dtype=torch.int64) for n in range(4)}).check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("names", [VECTOR[at : at + 4] for at in range(0, len(VECTOR), 4)], ids=" ".join)
def test_an_element_has_the_same_bits_wherever_it_lies(names: Sequence[str], dtype: torch.dtype) -> None:
    """In a vector or alone: a value computed again may be compared with the first one, as amax's backward does. Beside
    a store of bools g++ makes vectors of 512 bits where the processor has them, whatever width it is told to prefer.
    Four functions are a kernel, for most of a build's time does not grow with what is built."""
    x, y = (floats(dtype, seed, 4000) for seed in (1, 2))
    inputs = {"x": x, "y": y, "where": torch.randperm(x.numel(), generator=torch.Generator().manual_seed(1))}
    values = {name: build.call(name, *(load("x", x), load("y", y))[: OPS[name].arity]) for name in names}
    in_vectors = [Store(name, (I[0],), value) for name, value in values.items()]
    flags = [Store(f"{name}_flags", (I[0],), build.call("eq", value, load("x", x))) for name, value in values.items()]
    goal = build.bounded(build.load("where", (I[0],), torch.int64), x.numel())
    one_by_one = [Store(name, (placeholder(0),), value, (goal,), "add") for name, value in values.items()]
    made = {store.buffer: torch.zeros_like(x) for store in in_vectors}
    made |= {store.buffer: torch.zeros_like(x, dtype=torch.bool) for store in flags}
    vector, wide, alone = (
        Case([x.numel()], stores, inputs | made, {store.buffer: made[store.buffer] for store in stores}).run()
        for stores in (in_vectors, [*in_vectors, *flags], one_by_one)
    )
    for name in names:
        assert torch.equal(alone[name][inputs["where"]].nan_to_num(7.0), vector[name].nan_to_num(7.0)), name
        assert torch.equal(wide[name].nan_to_num(7.0), vector[name].nan_to_num(7.0)), name


@pytest.mark.parametrize("masked", [False, True])
def test_a_copy_of_bfloat16_moves_the_bits(masked: bool) -> None:
    """As eager's does: of NaN there are 254, and a value that is read as a float and rounded again is one of them."""
    x = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    within = build.call("ge", build.index(I[0]), build.const(3, torch.int64)) if masked else None
    value = build.load("x", (I[0],), torch.bfloat16, mask=within)
    case = Case([x.numel()], [Store("o", (I[0],), value)], {"x": x}, {"o": torch.zeros_like(x)})
    expected = x.view(torch.int16).where(torch.arange(x.numel()) >= 3, 0) if masked else x.view(torch.int16)
    assert torch.equal(case.run()["o"].view(torch.int16), expected)


def test_erf_of_floats_is_near_and_ends_at_one() -> None:
    """Of numbers of all exponents, within two units in the last place; eager's is within one."""
    x = torch.arange(0, 0x7F800000, 9973, dtype=torch.int32).view(torch.float32)
    x = torch.cat([x, -x, torch.tensor([math.inf, -math.inf, math.nan])])
    found = Case(
        [x.numel()], [Store("o", (I[0],), build.call("erf", load("x", x)))], {"x": x}, {"o": torch.empty_like(x)}
    ).run()["o"]
    exact = x.double().erf()
    unit = (torch.nextafter(exact.float().abs(), torch.tensor(2.0)).double() - exact.float().abs().double()).abs()
    assert torch.equal(found.isnan(), x.isnan()) and found[:-1].abs().max() <= 1
    assert ((found.double() - exact).abs() / unit).nan_to_num(0.0).max() < 2
    assert found[0] == 0 and found[-3:-1].tolist() == [1, -1] and torch.equal(found.signbit()[:-1], x.signbit()[:-1])


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="MMX is x86's")
def test_kernels_leave_the_state_of_x87_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without AVX g++ used MMX registers, which are those of x87, and libm's fmod and lgamma were NaN afterwards."""
    monkeypatch.setattr(cpp_kernels, "OPTIONS", cpp_kernels.OPTIONS.replace(cpp_march="x86-64-v2"))
    x = (torch.arange(101 * 9) * 37 % 97).float().reshape(101, 9)
    top = build.reduce("max", build.load("x", (I[0], R[0]), torch.float32))
    Case([101], [Store("o", (I[0],), top)], {"x": x}, {"o": torch.empty(101)}, reduction=[9]).check(rtol=0, atol=0)
    fmod = ctypes.CDLL("libm.so.6").fmodl  # of long doubles, which x87 has the registers of
    fmod.argtypes, fmod.restype = [ctypes.c_longdouble] * 2, ctypes.c_longdouble
    assert [fmod(7.5, 2.0) for _ in range(8)] == [1.5] * 8
