"""Elementwise ops against eager: values, promotion, layouts, symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from operators.harness import check, program_of

aten = torch.ops.aten
F32, BF16, I64, BOOL = torch.float32, torch.bfloat16, torch.int64, torch.bool
Function = Callable[..., Any]


def values(dtype: torch.dtype, *size: int) -> torch.Tensor:
    """Negative, zero and positive numbers, in a fixed order."""
    count = torch.Size(size).numel()
    base = (torch.arange(count, dtype=torch.float64) * 37 % 41 - 20) / 7
    if dtype == BOOL:
        return (base > 0).reshape(size)
    return (base * 7 if not dtype.is_floating_point else base).to(dtype).reshape(size)


SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, float("inf"), -float("inf"), float("nan")])

FLOAT_UNARY = [
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
    "cosh", "tanh", "asinh", "acosh", "atanh", "sqrt", "rsqrt", "reciprocal", "erf", "erfc", "erfinv", "lgamma",
    "sigmoid", "sinc", "deg2rad", "rad2deg", "logit", "angle",
]  # fmt: skip
SAME_UNARY = ["neg", "abs", "sign", "sgn", "floor", "ceil", "trunc", "round", "square", "positive"]
TESTS = ["isnan", "isinf", "isposinf", "isneginf", "isfinite", "signbit", "logical_not"]
BINARY = [
    "add", "sub", "mul", "div", "remainder", "fmod", "maximum", "minimum", "fmax", "fmin", "atan2", "hypot",
    "copysign", "floor_divide", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor",
    "xlogy", "logaddexp", "logaddexp2", "heaviside", "pow", "true_divide", "nextafter",
]  # fmt: skip
BITS = ["bitwise_and", "bitwise_or", "bitwise_xor"]
FLOATS_ONLY = {"hypot", "logaddexp", "logaddexp2", "nextafter"}


@pytest.mark.parametrize("name", FLOAT_UNARY)
def test_functions(name: str) -> None:
    function = getattr(torch, name)
    check(function, SPECIAL)
    check(function, values(F32, 5, 8))
    check(function, values(BF16, 5, 8))
    check(function, values(I64, 5, 8))
    check(function, values(BOOL, 5, 8))


@pytest.mark.parametrize("name", SAME_UNARY)
def test_functions_that_keep_the_dtype(name: str) -> None:
    function = getattr(torch, name)
    check(function, SPECIAL)
    check(function, values(BF16, 5, 8))
    check(function, values(I64, 5, 8))


@pytest.mark.parametrize("name", TESTS)
def test_predicates(name: str) -> None:
    for x in (SPECIAL, SPECIAL.to(BF16), values(I64, 7), values(BOOL, 7)):
        check(getattr(torch, name), x)


@pytest.mark.parametrize("name", BINARY)
def test_two_tensors(name: str) -> None:
    function = getattr(torch, name)
    left, right = (t.reshape(-1) for t in torch.meshgrid(SPECIAL, SPECIAL, indexing="ij"))
    check(function, left, right)
    halves = name != "nextafter"  # the next of a half type is torch's own kernel's
    check(function, values(BF16, 4, 9), values(BF16, 9).flip(0) + 2, native=halves)
    if name not in FLOATS_ONLY:
        check(function, values(I64, 4, 9), values(I64, 4, 9).abs() % 5 + 1)


@pytest.mark.parametrize("name", BITS)
def test_bits(name: str) -> None:
    function = getattr(torch, name)
    check(function, values(I64, 4, 9), values(I64, 9) + 3)
    check(function, values(BOOL, 4, 9), values(BOOL, 9).flip(0))
    check(lambda x: function(x, 6), values(I64, 4, 9))
    check(torch.bitwise_not, values(I64, 9))
    check(torch.bitwise_not, values(BOOL, 9))


def test_shifts() -> None:
    check(lambda x, y: (x << y, x >> y, x << 2, x >> 1), values(I64, 40), values(I64, 40).abs() % 20)


PROMOTION = [
    (F32, (3,), 2),
    (BF16, (3,), 0.1),
    (BF16, (), 0.1),
    (I64, (3,), 0.5),
    (I64, (3,), True),
    (BOOL, (3,), 2),
    (BOOL, (3,), 0.5),
    (F32, (3,), torch.ones(3, dtype=BF16)),
    (BF16, (3,), torch.ones(3, dtype=torch.float16)),
    (BF16, (3,), torch.tensor(2.0)),
    (I64, (3,), torch.tensor(2.0)),
    (torch.int32, (3,), torch.tensor(2)),
    (torch.uint8, (3,), torch.ones(3, dtype=torch.int8)),
    (torch.float16, (), torch.tensor(2, dtype=I64)),
    (F32, (3,), torch.ones((), dtype=torch.float64)),
]


@pytest.mark.each_value
@pytest.mark.parametrize(("dtype", "size", "other"), PROMOTION)
@pytest.mark.parametrize("name", ["add", "mul", "div", "eq", "lt", "maximum", "where"])
def test_promotion(dtype: torch.dtype, size: tuple[int, ...], other: Any, name: str) -> None:
    x = values(dtype, *size)
    if name == "maximum" and not isinstance(other, torch.Tensor):
        pytest.skip("maximum takes tensors")
    function = (lambda a, b: torch.where(a > 0, a, b)) if name == "where" else getattr(torch, name)
    if isinstance(other, torch.Tensor):
        check(function, x, other)
        check(lambda a, b: function(b, a), x, other)
    else:
        check(lambda a: function(a, other), x)


ARGUMENTS: dict[str, Function] = {
    "add alpha": lambda x, y: torch.add(x, y, alpha=2.5),
    "sub alpha": lambda x, y: torch.sub(x, y, alpha=-3),
    "rsub": lambda x, y: torch.rsub(x, 2) + torch.rsub(x, y),
    "scalar minus": lambda x, y: 1 - x,
    "div trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "div floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "floor_divide": lambda x, y: x // 2,
    "remainder scalar": lambda x, y: torch.remainder(5.5, x) + x % 3,
    "clamp": lambda x, y: x.clamp(-0.5, 0.7),
    "clamp crossed": lambda x, y: x.clamp(0.7, -0.5),
    "clamp tensors": lambda x, y: torch.clamp(x, y, y + 1),
    "clamp min": lambda x, y: x.clamp_min(0.1),
    "clamp max": lambda x, y: x.clamp_max(y),
    "where": lambda x, y: torch.where(x > y, x, 2.0),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, -1e4),
    "masked_fill tensor": lambda x, y: x.masked_fill(y > 0, torch.tensor(3)),
    "nan_to_num": lambda x, y: (x / (y - y)).nan_to_num(1.0, None, -5.0),
    "lerp": lambda x, y: x.lerp(y, 0.3) + x.lerp(y, 0.8),
    "lerp tensor": lambda x, y: x.lerp(y, y.sigmoid()),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=0.5),
    "round decimals": lambda x, y: x.round(decimals=1) + (x * 100).round(decimals=-1),
    "fill": lambda x, y: aten.fill(x, 3),
    "logit eps": lambda x, y: torch.logit(x, 0.1),
    "logsigmoid": lambda x, y: -F.softplus(-x),
    "float_power": lambda x, y: torch.float_power(x, 2),
    "entr": lambda x, y: torch.special.entr(x.abs()),
    "xlog1py": lambda x, y: torch.special.xlog1py(x, y.abs()),
    "ndtr": lambda x, y: torch.special.ndtr(x),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(name: str) -> None:
    x, y = values(F32, 6, 7), values(F32, 6, 7).flip(0) + 0.1
    check(ARGUMENTS[name], x, y)
    check(ARGUMENTS[name], x, y, dynamic=True)
    check(ARGUMENTS[name], x.to(BF16), y.to(BF16), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 4, 7, -1, -2, 0.5, -0.5, 1.5, 12, 0.0, -3.0])
def test_powers(exponent: float) -> None:
    check(lambda x: x**exponent, values(F32, 40).abs() + 0.1)
    check(lambda x: x**exponent, SPECIAL)
    check(lambda x: x**exponent, values(BF16, 40).abs() + 0.1)
    if exponent >= 0:
        check(lambda x: x**exponent, values(I64, 40))


def test_small_powers_are_products() -> None:
    text = str(program_of(lambda x: (x**3, x**-2, x**0.5), values(F32, 4)))
    assert "pow" not in text.replace("# pow", "")


ACTIVATIONS: dict[str, Function] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "elu": lambda x: F.elu(x, 1.3),
    "celu": lambda x: F.celu(x, 1.3),
    "selu": F.selu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "softplus": lambda x: F.softplus(x * 20, 0.7, 5),
    "hardtanh": lambda x: F.hardtanh(x, -0.4, 0.9),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "hardshrink": F.hardshrink,
    "softshrink": lambda x: aten.softshrink(x, 0.3),
    "threshold": lambda x: F.threshold(x, 0.2, -1.0),
    "tanhshrink": F.tanhshrink,
    "softsign": F.softsign,
    "prelu": lambda x: F.prelu(x, torch.full((7,), 0.3).to(x.dtype)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    check(ACTIVATIONS[name], SPECIAL.expand(7, 10).t().contiguous() if name == "prelu" else SPECIAL)
    check(ACTIVATIONS[name], values(F32, 6, 7), dynamic=True)
    check(ACTIVATIONS[name], values(BF16, 6, 7), rtol=1e-2, atol=1e-2)


GRADIENTS: dict[str, Function] = {
    "gelu": lambda g, x: aten.gelu_backward(g, x),
    "gelu tanh": lambda g, x: aten.gelu_backward(g, x, approximate="tanh"),
    "silu": lambda g, x: aten.silu_backward(g, x),
    "mish": lambda g, x: aten.mish_backward(g, x),
    "sigmoid": lambda g, x: aten.sigmoid_backward(g, x),
    "tanh": lambda g, x: aten.tanh_backward(g, x),
    "threshold": lambda g, x: aten.threshold_backward(g, x, 0.0),
    "leaky_relu": lambda g, x: aten.leaky_relu_backward(g, x, 0.2, False),
    "hardtanh": lambda g, x: aten.hardtanh_backward(g, x, -0.5, 0.8),
    "hardsigmoid": lambda g, x: aten.hardsigmoid_backward(g, x),
    "hardswish": lambda g, x: aten.hardswish_backward(g, x * 2),
    "hardshrink": lambda g, x: aten.hardshrink_backward(g, x, 0.5),
    "softshrink": lambda g, x: aten.softshrink_backward(g, x, 0.5),
    "softplus": lambda g, x: aten.softplus_backward(g, x, 0.7, 1.0),
    "elu": lambda g, x: aten.elu_backward(g, 1.2, 1.1, 0.9, False, x),
    "elu of result": lambda g, x: aten.elu_backward(g, 1.2, 1.1, 0.9, True, x),
    "logit": lambda g, x: aten.logit_backward(g, x.sigmoid(), 0.2),
    "dropout": lambda g, x: aten.native_dropout_backward(g, x > 0, 1.25),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    g, x = values(F32, 6, 7).flip(0), values(F32, 6, 7)
    check(GRADIENTS[name], g, x)
    check(GRADIENTS[name], g.to(BF16), x.to(BF16), rtol=1e-2, atol=1e-2)


CASTS = [F32, BF16, torch.float16, torch.float64, I64, torch.int32, torch.int8, torch.uint8, BOOL]


@pytest.mark.parametrize("source", CASTS)
@pytest.mark.parametrize("target", CASTS)
def test_casts(source: torch.dtype, target: torch.dtype) -> None:
    x = values(F32, 5, 6).abs().to(source)
    check(lambda x: x.to(target), x)


def test_cast_rounds_before_what_follows() -> None:
    check(lambda x: (x.to(BF16).to(F32) - x, torch.ops.prims.convert_element_type(x, BF16)), values(F32, 30) / 3)


def test_bits_as_another_type() -> None:
    check(lambda x: x.view(torch.int32), values(F32, 30))
    check(lambda x: x.view(torch.int16), values(BF16, 30))
    check(lambda x: x.view(torch.int16), values(F32, 30), native=False)


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "transposed": lambda: values(F32, 6, 4).t(),
    "expanded": lambda: values(F32, 1, 6).expand(4, 6),
    "sliced": lambda: values(F32, 8, 13)[::2, 1::2],
    "permuted": lambda: values(F32, 2, 3, 4).permute(1, 2, 0),
    "channels last": lambda: values(F32, 2, 3, 4, 5).to(memory_format=torch.channels_last),
    "zero-size": lambda: values(F32, 0, 6),
    "zero-dimensional": lambda: values(F32).clone(),
    "one element": lambda: values(F32, 1, 1),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_outputs_lie_as_in_eager(name: str) -> None:
    x = LAYOUTS[name]()
    check(lambda x: (x.exp(), x + x, x * 2, x > 0, x.to(BF16), x.clone(), F.gelu(x), torch.where(x > 0, x, 0.0)), x)
    if x.numel() > 1:
        check(lambda x: (x.exp() + 1, x.to(BF16)), x, dynamic=True)


def test_broadcast() -> None:
    x, y = values(F32, 4, 1, 3), values(F32, 5, 1)
    check(lambda x, y, z: (x + y, y * z, torch.where(x > 0, y, z)), x, y, values(F32))
    check(lambda x, y: x * y + 1, x, y, dynamic=True)


def test_scalars_from_sizes() -> None:
    def function(x: torch.Tensor) -> Any:
        n, m = x.shape
        return x * n, x / (n + m), x * m**0.5, x + n / m

    check(function, values(F32, 4, 9), dynamic=True)


def test_half_types_compute_in_float32() -> None:
    """One op is one rounding: x * 0.3 is by the float32 0.3, not by the nearest bfloat16."""
    check(lambda x: (x * 0.3, x / 3, x - 1e-3, x == 0.1), torch.linspace(-2, 2, 100).to(BF16))
