"""Device functions that generated Triton kernels call: eager's semantics where Triton's own operators differ.

NaN goes through minima and maxima, integer division follows the sign rules of torch, division and square root round
as IEEE 754 asks. Importing this module needs Triton but no GPU.
"""

# The functions below are Triton's language, not Python: a type hint would mean something else there.
import triton
import triton.language as tl
from triton.language.extra import libdevice  # kernels import it from here

from litz.targets.triton.float8 import _from_float8, _half_float8, _to_float8, _word_float8  # noqa: F401

# Arithmetic.


@triton.jit
def _div(a, b):
    if a.dtype == tl.float64:
        return a / b
    else:
        return tl.div_rn(a, b)


@triton.jit
def _div_near(a, b):
    # div.full.f32: at most 2 units in the last place, for all finite operands.
    return a / b


@triton.jit
def _reciprocal(a):
    return _div(tl.full([], 1.0, a.dtype), a)


@triton.jit
def _sqrt(a):
    if a.dtype == tl.float64:
        return tl.sqrt(a)
    else:
        return tl.sqrt_rn(a)


@triton.jit
def _sigmoid(a):
    # The fast division: at most 2 units in the last place.
    return 1.0 / (1.0 + libdevice.exp(a * -1.0))


if triton.knobs.runtime.interpret:  # its Triton has no assembly

    @triton.jit
    def _exp2_flushed(a):
        return tl.exp2(a)

    @triton.jit
    def _reciprocal_near(a):
        return 1.0 / a

    @triton.jit
    def _tanh_near(a):
        return 1.0 - 2.0 / (1.0 + tl.exp2(a * 2.8853900817779268))

    @triton.jit
    def _exact_float(a):
        return a.to(tl.float32)

else:

    @triton.jit
    def _exp2_flushed(a):
        # What is below 2^-126 is 0. Results that are subnormal take three instructions more, of about eight a score.
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [a], tl.float32, True, 1)

    @triton.jit
    def _reciprocal_near(a):
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [a], tl.float32, True, 1)

    @triton.jit
    def _tanh_near(a):
        # 1 - 2 / (1 + e^2a), to 2^-21 of 1: see `litz_contractions.attention.near`.
        power = _exp2_flushed(a * 2.8853900817779268) + 1.0
        return 1.0 - 2.0 * _reciprocal_near(power)

    @triton.jit
    def _exact_float(a):
        # Of integers up to 2^24. LLVM would make the sum of two again one conversion, of a sum for each element.
        return tl.inline_asm_elementwise("cvt.rn.f32.s32 $0, $1;", "=f,r", [a.to(tl.int32)], tl.float32, True, 1)


@triton.jit
def _neg(a):
    # 0 - a, which is what the minus sign means to Triton, would lose the sign of zero.
    if a.dtype.is_floating():
        return a * -1.0
    else:
        return -a


@triton.jit
def _mean(total, count):
    # A row without values has no mean: 0 / 0 is NaN, as in eager.
    return _div(total, (tl.zeros_like(total) + count).to(total.dtype))


@triton.jit
def _maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _maximum_int(a, b):
    return tl.maximum(a, b)


@triton.jit
def _minimum_int(a, b):
    return tl.minimum(a, b)


@triton.jit
def _multiply(a, b):
    return a * b


@triton.jit
def _sign(a):
    # NaN compares with nothing, and its sign is 0 in eager.
    return (a > 0).to(a.dtype) - (a < 0).to(a.dtype)


# Integer division: towards zero, downwards, and the remainders that belong to each.


@triton.jit
def _truncdiv_int(a, b):
    return a // b


@triton.jit
def _floordiv_int(a, b):
    quotient = a // b
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1, quotient)


@triton.jit
def _remainder_int(a, b):
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def _fmod_int(a, b):
    return a % b


@triton.jit
def _floordiv_float(a, b):
    rest = libdevice.fmod(a, b)
    quotient = _div(a - rest, b)
    quotient = tl.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1.0, quotient)
    whole = tl.floor(quotient)
    whole = tl.where(quotient - whole > 0.5, whole + 1.0, whole)
    exact = _div(a, b)
    whole = tl.where(quotient == 0.0, libdevice.copysign(tl.zeros_like(exact), exact), whole)
    return tl.where(b == 0.0, exact, whole)


@triton.jit
def _remainder_float(a, b):
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def _pow_int(a, b):
    # By squaring. A negative power of an integer is 0 unless the base is 1 or -1. An unsigned exponent has no sign bit.
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    result = tl.full([], 1, a.dtype) + tl.zeros_like(a + b)
    base = a + tl.zeros_like(result)
    power = b + tl.zeros_like(result)
    odd = (power & 1) != 0
    negative = power < 0
    for _ in tl.static_range(0, bits):
        result = tl.where((power & 1) != 0, result * base, result)
        base = base * base
        power = power >> 1
    sign = tl.where(odd, a, tl.zeros_like(a) + 1)
    small = tl.where(a == 1, tl.zeros_like(a) + 1, tl.where(a == -1, sign, tl.zeros_like(a)))
    return tl.where(negative, small, result)


@triton.jit
def _shift_left(a, b):
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    inside = (b >= 0) & (b < bits)
    return tl.where(inside, a << tl.where(inside, b, tl.zeros_like(b)), tl.zeros_like(a))


@triton.jit
def _shift_right(a, b):
    # Beyond the width the sign fills everything, which is what a shift by the width less one gives.
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    inside = (b >= 0) & (b < bits)
    shifted = a >> tl.where(inside, b, tl.zeros_like(b) + (bits - 1))
    if a.dtype.is_int_signed():
        return shifted
    else:
        return tl.where(inside, shifted, tl.zeros_like(a))


# Reductions with several values.


@triton.jit
def _argmax(value, position, new, new_position):
    return _first(new > value, value, position, new, new_position)


@triton.jit
def _argmin(value, position, new, new_position):
    return _first(new < value, value, position, new, new_position)


@triton.jit
def _first(better, value, position, new, new_position):
    # NaN is better than all numbers; of equals, two NaNs too, the one that comes first is taken.
    better = better | ((new != new) & (value == value))
    equal = (new == value) | ((new != new) & (value != value))
    take = better | (equal & (new_position < position))
    return tl.where(take, new, value), tl.where(take, new_position, position)


@triton.jit
def _welford_step(mean, m2, value, count):
    """The `count`-th value of every lane."""
    delta = value - mean
    if value.dtype == tl.float64:
        mean = mean + delta / count
    else:
        # One division for all lanes.
        mean = tl.fma(delta, 1.0 / count, mean)
    return mean, tl.fma(delta, value - mean, m2)


@triton.jit
def _welford_combine(mean, m2, weight, new_mean, new_m2, new_weight):
    delta = new_mean - mean
    total = weight + new_weight
    some = tl.where(total == 0.0, 1.0, total)
    if total.dtype == tl.float64:
        share = new_weight / some
    else:  # an instruction in place of about eight
        share = new_weight * _reciprocal_near(some)
    return tl.fma(delta, share, mean), tl.fma(delta * delta * weight, share, m2 + new_m2), total


@triton.jit
def _softmax_step(top, total, value):
    """The running maximum, and the sum of exponentials relative to it."""
    # One exponential is enough: it belongs to whichever of the two is less. Of equals (infinities too) it is 1.
    ratio = tl.where(value == top, 1.0, libdevice.exp(-tl.abs(value - top)))
    return _maximum(top, value), tl.where(value > top, tl.fma(total, ratio, 1.0), total + ratio)


@triton.jit
def _softmax_combine(top, total, other_top, other_total):
    ratio = tl.where(other_top == top, 1.0, libdevice.exp(-tl.abs(other_top - top)))
    sum = tl.where(other_top > top, tl.fma(total, ratio, other_total), tl.fma(other_total, ratio, total))
    return _maximum(top, other_top), sum


@triton.jit
def _softmax_total(top, total):
    # Relative to an infinite maximum nothing is a number: inf - inf.
    return tl.where(tl.abs(top) == float("inf"), float("nan"), total)


# Several neighbours at a time: values are [rows, groups, neighbours], states [rows, groups].


@triton.jit
def _welford_group(mean, m2, value, size: tl.constexpr, before):
    """The states of groups that have seen `before` times `size` values, and `size` more."""
    own = tl.sum(value, 2) * (1.0 / size)
    spread = value - own[:, :, None]
    delta = own - mean
    # One division for all lanes.
    share = 1.0 / (before + 1)
    weight = before * size * share
    return tl.fma(delta, share, mean), tl.fma(delta * delta, weight, m2 + tl.sum(spread * spread, 2))


@triton.jit
def _softmax_group(top, total, value, near: tl.constexpr):
    """As `_softmax_step`, with one exponential for each value and one for each group. `near`: see `_exp_below`."""
    new = _maximum(top, tl.reduce(value, 2, _maximum))
    # Of a row that has had nothing but -inf so far the sum is 0, not what exp(-inf + inf) is.
    base = tl.where(new == -float("inf"), 0.0, new)
    if near:
        return new, tl.fma(total, _exp_below(top - base), tl.sum(_exp_below(value - base[:, :, None]), 2))
    else:
        return new, tl.fma(total, libdevice.exp(top - base), tl.sum(libdevice.exp(value - base[:, :, None]), 2))


@triton.jit
def _exp_below(a):
    """exp(a) for a <= 0 as a term of a sum that is at least 1: off by less than 2^-22 + |a| 2^-23, relative, so that a
    term of it is off by less than 2^-22 of the sum, however small. What is below 2^-126 is 0."""
    return _exp2_flushed(a * 1.4426950408889634)


# For values that are rounded to half types: see `litz.targets.triton.rounded`.


@triton.jit
def _exp_near(a):
    return _exp2_flushed(a * 1.4426950408889634)


@triton.jit
def _sigmoid_near(a):
    return _reciprocal_near(1.0 + _exp2_flushed(a * -1.4426950408889634))


@triton.jit
def _tanh_plus_one(a):
    return 2.0 * _reciprocal_near(1.0 + _exp2_flushed(a * -2.8853900817779268))


@triton.jit
def _tanh_slope(u):
    less = _tanh_plus_one(-tl.abs(u))  # 1 - tanh(abs(u)), which is right also where it is near 0
    return less * (2.0 - less)


@triton.jit
def _erf_plus_one(a):
    size = tl.abs(a)
    # Not a number, or infinite, it is in the product with `size`.
    x = tl.minimum(size, 4.0)
    q = tl.fma(x, -6.711184141749982e-06, 1.0409199603600428e-04)
    q = tl.fma(x, q, -6.519249873235822e-04)
    q = tl.fma(x, q, 1.864160061813891e-03)
    q = tl.fma(x, q, 3.9853883208706975e-04)
    q = tl.fma(x, q, -2.804683707654476e-02)
    q = tl.fma(x, q, 1.48423969745636e-01)
    q = tl.fma(x, q, 9.18423056602478e-01)
    q = tl.fma(x, q, 1.62790846824646)
    rest = _exp2_flushed(-size * q)
    return tl.where(a < 0.0, rest, 2.0 - rest)


# Random numbers. The position counts modulo 2**32, see `litz.ir.philox`.


@triton.jit
def _random_uniform(seed, position):
    return tl.rand(seed, position.to(tl.uint32))


@triton.jit
def _random_normal(seed, position):
    return tl.randn(seed, position.to(tl.uint32))


@triton.jit
def _random_bits(seed, position):
    return tl.randint(seed, position.to(tl.uint32)).to(tl.uint32, bitcast=True).to(tl.int64)


# Atomic updates that the hardware has no instruction for. Maxima and minima of floats are those of their bits; for the
# rest, compare and swap until it has worked.


@triton.jit
def _unsigned(bits):
    if bits.dtype.primitive_bitwidth == 32:
        return bits.to(tl.uint32, bitcast=True)
    else:
        return bits.to(tl.uint64, bitcast=True)


@triton.jit
def _atomic_extreme(place, value, mask, mode: tl.constexpr):
    """The maximum or minimum of what is there, of 32 or 64 bits, and `value`; NaN if either is.

    Floats without a sign are in the order of their bits, those with one in the opposite order, and all of these are
    less as signed integers, greater as unsigned ones. The NaN that is stored is the last in either order, so that
    nothing takes its place; a NaN that was there before is left alone.
    """
    old = tl.load(place, mask=mask, other=0.0, volatile=True)
    live = mask & (old == old)
    bits = _bits(value)
    words = place.to(tl.pointer_type(bits.dtype), bitcast=True)
    highest = tl.full([], -1, bits.dtype).to(_unsigned(bits).dtype, bitcast=True) >> 1
    others = place.to(tl.pointer_type(_unsigned(bits).dtype), bitcast=True)
    nan = value != value
    if mode == "max":
        bits = tl.where(nan, highest.to(bits.dtype, bitcast=True), bits)
        # What is there is no less already for most: that is looked at first.
        live = live & (nan | (value > old) | ((value == old) & (bits >= 0)))
        tl.atomic_max(words, bits, live & (bits >= 0), sem="relaxed")
        tl.atomic_min(others, _unsigned(bits), live & (bits < 0), sem="relaxed")
    else:
        bits = tl.where(nan, -1, bits)
        live = live & (nan | (value < old) | ((value == old) & (bits < 0)))
        tl.atomic_min(words, bits, live & (bits >= 0), sem="relaxed")
        tl.atomic_max(others, _unsigned(bits), live & (bits < 0), sem="relaxed")


@triton.jit
def _combine(old, new, mode: tl.constexpr):
    if mode == "add":
        return old + new
    elif mode == "prod":
        return old * new
    elif mode == "max":
        return _maximum(old, new)
    else:
        return _minimum(old, new)


@triton.jit
def _wide(value):
    # Half types and small integers are combined in 32 bits.
    if value.dtype.primitive_bitwidth >= 32:
        return value
    elif value.dtype.is_floating():
        return value.to(tl.float32)
    else:
        return value.to(tl.int32)


@triton.jit
def _bits(value):
    if value.dtype.primitive_bitwidth == 16:
        return value.to(tl.int16, bitcast=True)
    elif value.dtype.primitive_bitwidth == 32:
        return value.to(tl.int32, bitcast=True)
    else:
        return value.to(tl.int64, bitcast=True)


@triton.jit
def _atomic(base, offset, value, mask, mode: tl.constexpr):
    """Combine elements of 16, 32 or 64 bits with `value` where `mask` holds."""
    # A lane that is done swaps its element with itself, one that is masked off element 0.
    place = base + tl.where(mask, offset, tl.zeros_like(offset))
    words = place.to(tl.pointer_type(_bits(value).dtype))
    pending = mask
    while tl.max(pending.to(tl.int32)) != 0:
        old = tl.load(place, volatile=True)
        new = _combine(_wide(old), _wide(value), mode).to(value.dtype)
        expected = _bits(old)
        seen = tl.atomic_cas(words, expected, tl.where(pending, _bits(new), expected))
        pending = pending & (seen != expected)


@triton.jit
def _atomic_narrow(base, offset, value, mask, mode: tl.constexpr):
    """Combine bytes: the 32-bit word that holds each is swapped. The base is a multiple of 4."""
    offset = tl.where(mask, offset, tl.zeros_like(offset)).to(tl.int64)
    # bool is stored as a byte.
    address = base.to(tl.int64, bitcast=True) + offset
    shift = ((address & 3) * 8).to(tl.int32)
    words = (address & -4).to(tl.pointer_type(tl.int32), bitcast=True)
    pending = mask
    while tl.max(pending.to(tl.int32)) != 0:
        expected = tl.load(words, volatile=True)
        old = ((expected >> shift) & 255).to(tl.uint8)
        if value.dtype == tl.int8:
            new = _combine(old.to(tl.int8, bitcast=True).to(tl.int32), value.to(tl.int32), mode)
        else:
            new = _combine(old.to(tl.int32), value.to(tl.int32), mode)
        word = (expected & ~(tl.full([], 255, tl.int32) << shift)) | ((new & 255) << shift)
        seen = tl.atomic_cas(words, expected, tl.where(pending, word, expected))
        pending = pending & (seen != expected)
