"""Statements that compute element by element."""

from __future__ import annotations

import torch

from .operations import Draft, Draw, Place, is_number, operation_on, place, some, tuple_text

SMOOTH = (
    "torch.sin({0})", "torch.cos({0})", "torch.tanh({0})", "torch.sigmoid({0})", "torch.erf({0})", "torch.atan({0})",
    "torch.exp({0}.clamp(max=4))", "torch.exp2({0}.clamp(max=4))", "torch.expm1({0}.clamp(max=3))",
    "torch.log({0}.abs() + 1)", "torch.log2({0}.abs() + 1)", "torch.log1p({0}.abs())", "torch.sqrt({0}.abs() + 0.5)",
    "torch.rsqrt({0}.abs() + 1)", "torch.reciprocal({0}.abs() + 1)", "torch.asinh({0})",
    "torch.nn.functional.gelu({0})", "torch.nn.functional.gelu({0}, approximate='tanh')",
    "torch.nn.functional.silu({0})", "torch.nn.functional.softplus({0})", "torch.nn.functional.mish({0})",
    "torch.nn.functional.elu({0})", "torch.nn.functional.logsigmoid({0})", "torch.nn.functional.selu({0})",
    "torch.pow({0}.abs() + 1, 0.5)", "torch.pow({0}.abs() + 1, -1.5)", "torch.special.erfc({0})",
    "torch.sinc({0})", "torch.deg2rad({0})", "torch.cosh({0}.clamp(-3, 3))", "torch.nn.functional.hardswish({0})",
)  # fmt: skip
"""Smooth functions of any float dtype; their results are rounded."""
NARROW = ("torch.nn.functional.hardsigmoid({0})",)
"""Functions of floats other than float64: eager's gradient of hardsigmoid has 1/6 rounded to float32, for doubles as
well."""
PLAIN = (
    "torch.relu({0})", "-{0}", "torch.abs({0})", "torch.square({0})", "torch.clamp({0}, -1, 2)",
    "torch.clamp({0}, min=0.5)", "torch.nn.functional.leaky_relu({0}, 0.25)", "torch.nn.functional.hardtanh({0})",
    "torch.nan_to_num({0})", "torch.nan_to_num({0}, 1.0, 2.0, -2.0)", "torch.isnan({0})", "torch.isinf({0})",
    "torch.isfinite({0})", "torch.nn.functional.relu6({0})", "torch.pow({0}, 2)", "torch.pow({0}, 3)",
    "torch.nn.functional.softsign({0})", "torch.positive({0})",
)  # fmt: skip
JUMPS = (
    "torch.floor({0})", "torch.ceil({0})", "torch.round({0})", "torch.trunc({0})", "torch.sign({0})",
    "torch.frac({0})", "torch.logical_not({0})", "torch.sgn({0})", "torch.signbit({0})",
    "torch.nn.functional.threshold({0}, 0.5, -1.0)", "torch.nn.functional.hardshrink({0})",
    "torch.heaviside({0}, {0})", "torch.round({0}, decimals=1)",
)  # fmt: skip
INTEGER = (
    "torch.abs({0})", "-{0}", "torch.bitwise_not({0})", "torch.sign({0})", "torch.square({0})",
    "torch.clamp({0}, 0, 3)", "torch.pow({0}, 3)", "torch.logical_not({0})", "torch.relu({0})",
    "{0} << 2", "{0} >> 1", "{0} % 3", "{0} // 2",
    "{0} // -3", "torch.fmod({0}, 3)", "torch.div({0}, 3, rounding_mode='trunc')", "torch.sqrt({0}.abs())",
    "torch.sigmoid({0})", "torch.exp({0}.clamp(-4, 4))", "{0} & 3", "{0} | 4", "{0} ^ 5", "~{0}",
    "torch.div({0}, 3)", "torch.remainder({0}, -3)", "torch.floor({0})", "{0} != 0",
)  # fmt: skip
BOOLEAN = ("~{0}", "torch.logical_not({0})", "{0} + 1", "{0} * 2.5", "{0}.to(torch.int64)", "torch.abs({0} * 1)")
ARITHMETIC = (
    "{0} + {1}", "{0} - {1}", "{0} * {1}", "torch.add({0}, {1}, alpha=2)", "torch.maximum({0}, {1})",
    "torch.minimum({0}, {1})", "torch.fmax({0}, {1})", "torch.fmin({0}, {1})", "torch.sub({0}, {1}, alpha=3)",
    "torch.rsub({0}, {1})",
)  # fmt: skip
ROUNDED = (
    "{0} / ({1}.abs() + 1)", "torch.atan2({0}, {1}.abs() + 1)", "torch.hypot({0}, {1})", "torch.logaddexp({0}, {1})",
    "torch.xlogy({0}, {1}.abs() + 1)", "torch.lerp({0}, {1}, 0.25)", "torch.addcmul({0}, {1}, {1}, value=0.5)",
    "torch.addcdiv({0}, {1}, {1}.abs() + 1)", "torch.pow({0}.abs() + 1, {1}.clamp(-2, 2))",
    "torch.nn.functional.mse_loss({0}, {1}, reduction='none')", "torch.logaddexp2({0}, {1})",
)  # fmt: skip
COMPARISONS = (
    "{0} == {1}", "{0} != {1}", "{0} < {1}", "{0} <= {1}", "{0} > {1}", "{0} >= {1}", "torch.logical_and({0}, {1})",
    "torch.logical_or({0}, {1})", "torch.logical_xor({0}, {1})", "torch.copysign({0}, {1})",
)  # fmt: skip
DIVISIONS = (
    "torch.div({0}, {1}.abs() + 1, rounding_mode='floor')", "torch.div({0}, -{1}.abs() - 1, rounding_mode='trunc')",
    "torch.remainder({0}, {1}.abs() + 1)", "torch.remainder({0}, -{1}.abs() - 1)", "torch.fmod({0}, {1}.abs() + 1)",
    "torch.floor_divide({0}, {1}.abs() + 1)",
)  # fmt: skip
COMPLEX = (
    "-{0}", "{0}.conj()", "{0}.real", "{0}.imag", "{0}.conj().imag", "torch.view_as_real({0}.resolve_conj())",
    "{0} * 2", "{0} * (1 - 2j)", "{0}.conj() * {0}", "torch.abs({0})", "{0} + 1", "{0} == {0}.conj()",
    "{0}.mT.conj()", "{0} / 2",
)  # fmt: skip
BITWISE = ("{0} & {1}", "{0} | {1}", "{0} ^ {1}", "torch.gcd({0}, {1})")
SHIFTS = ("{0} << ({1} & 3)", "{0} >> ({1} & 3)")


@operation_on(some(), 4.0)
def unary(draw: Draw, name: str) -> Draft | None:
    """Applies a function of one operand, chosen for the variable's dtype."""
    dtype = draw.value(name).dtype
    if dtype == torch.bool:
        return Draft(draw.rng.choice(BOOLEAN).format(name))
    if dtype.is_complex:
        text = draw.rng.choice(COMPLEX)
        return Draft(text.format(name), exact="==" in text, rough="abs" in text)
    if not dtype.is_floating_point:
        return Draft(draw.rng.choice(INTEGER).format(name))
    if draw.reference.is_exact(name) and draw.chance(0.3):
        return Draft(draw.rng.choice(JUMPS).format(name), exact=True)
    if draw.chance(0.55):
        return Draft(draw.rng.choice(PLAIN).format(name))
    smooth = SMOOTH if dtype == torch.float64 else (*SMOOTH, *NARROW)
    # Some gradients are made of the result: of a tanh near 1 one rounding is all that 1 - tanh ** 2 has.
    return Draft(draw.rng.choice(smooth).format(name), rough=True, deep=True)


@operation_on(some(is_number), 5.0)
def binary(draw: Draw, name: str) -> Draft | None:
    """Combines a variable with a number or a tensor that broadcasts with it."""
    floating = draw.value(name).dtype.is_floating_point
    if draw.chance(0.25):
        text = draw.rng.choice([*ARITHMETIC[:4], "{0} / {1}" if floating else "{0} * {1}", "{1} - {0}", "{1} * {0}"])
        scalar = draw.scalar(name)
        return None if "/" in text and float(scalar) == 0 else Draft(text.format(name, scalar), rough="/" in text)
    partner = draw.partner(name, lambda t: t.dtype != torch.bool or draw.chance(0.2))
    if floating and draw.chance(0.3):
        return Draft(draw.rng.choice(ROUNDED).format(name, partner), rough=True)
    pair = (name, partner) if draw.chance(0.7) else (partner, name)
    return Draft(draw.rng.choice(ARITHMETIC).format(*pair))


@operation_on(some(exact=True), 2.0)
def comparison(draw: Draw, name: str) -> Draft | None:
    """Compares a variable with a number or a tensor; the result may jump, so operands are exact."""
    if draw.chance(0.3):
        return Draft(f"{name} {draw.rng.choice(['<', '>', '==', '<=', '!='])} {draw.scalar(name)}", exact=True)
    partner = draw.partner(name, exact=True)
    number = draw.value(name).dtype != torch.bool
    text = draw.rng.choice([*COMPARISONS, *(DIVISIONS if number else ())])
    return Draft(text.format(name, partner), exact=True, rough="copysign" not in text)


@operation_on(some(lambda t: not t.dtype.is_floating_point), 1.5)
def bits(draw: Draw, name: str) -> Draft | None:
    """Applies bitwise operations and shifts to integers and bools."""
    boolean = draw.value(name).dtype == torch.bool
    partner = draw.partner(name, lambda t: not t.dtype.is_floating_point and (t.dtype == torch.bool) == boolean)
    table = BITWISE[:3] if boolean else (*BITWISE, *SHIFTS)
    return Draft(draw.rng.choice(table).format(name, partner))


@operation_on(some(), 2.0)
def where(draw: Draw, name: str) -> Draft | None:
    """Chooses elements by a mask: where or masked_fill."""
    mask = draw.partner(name, lambda t: t.dtype == torch.bool)
    if draw.chance(0.3):
        return Draft(f"{name}.masked_fill({mask}, {draw.rng.choice(['0', '1', '-1', '2'])})")
    other = draw.scalar(name) if draw.chance(0.3) else draw.partner(name)
    pair = (name, other) if draw.chance(0.5) else (other, name)
    return Draft(f"torch.where({mask}, {pair[0]}, {pair[1]})")


NUMBERS = (
    "{0}", "{0} / 7", "round({0} / 7, 2)", "round({0} * 1.37, -1)", "round({0} / 7, 0)", "round({0} / 3)", "{0} // 3",
    "{0} % 4", "float({0})", "int({0} * 0.75)", "min({0}, 5)", "max({0}, 5)", "abs(3 - {0})", "{0} > 4", "{0} == 3",
    "{0} ** 2", "abs({0}) ** 0.5", "-{0}", "math.sqrt({0})", "math.floor({0} / 3)", "math.ceil({0} / 4)",
    "bool({0} - 3)",
    "2 if {0} > 4 else 0.5", "{0} / 2 > 2", "int({0} > 3) + 1", "({0} + 1) // 2 * 2", "divmod({0}, 3)[1]",
    "{0} / 4 - 1", "round({0})", "1 / {0}", "(3 - {0}) // 2", "(3 - {0}) % 4", "math.trunc(-{0} / 4)", "not {0}",
    "2 ** -{0}",
)  # fmt: skip
"""Python's numbers, of a size: integers, floats and truth values, which are symbols where the size is."""
NUMBER_USES = (
    "{0} + ({1})", "{0} * ({1})", "({1}) - {0}", "torch.clamp({0}, max={1})", "torch.full_like({0}, {1})",
    "torch.full({2}, {1})", "torch.add({0}, {0}, alpha={1})", "torch.masked_fill({0}, {0} == {0}, {1})",
    "torch.scalar_tensor({1})", "{0} / (({1}) + 40)", "torch.where({0} == {0}, {0}, {1})",
)  # fmt: skip
NUMBER_TESTS = ("{0} < ({1})", "{0} == ({1})", "torch.where({0} > ({1}), {0}, 0)", "{0} // (({1}) + 40)")


@operation_on(place(lambda t: t.dim() > 0), 1.2)
def python_number(draw: Draw, at: Place) -> Draft | None:
    """Computes with a number that Python makes of a size, in code that dynamo traces."""
    name, dim, _ = at
    number = draw.rng.choice(NUMBERS).format(f"{name}.size({dim})")
    if draw.reference.is_exact(name) and draw.chance(0.3):
        return Draft(draw.rng.choice(NUMBER_TESTS).format(name, number), exact=True)
    return Draft(draw.rng.choice(NUMBER_USES).format(name, number, tuple_text(draw.shape(name))), rough=True)


@operation_on(some(is_number), 0.7)
def clamp(draw: Draw, name: str) -> Draft | None:
    """Clamps a variable between tensors, or from below."""
    low, high = draw.partner(name), draw.partner(name)
    return Draft(draw.rng.choice(["torch.clamp({0}, {1}, {2})", "torch.clamp({0}, min={1})"]).format(name, low, high))
