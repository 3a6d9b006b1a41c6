"""Elementwise functions."""

import math
from collections import namedtuple

from gt import _gt
from gt._gt import Tensor

__all__ = [
    "acosh",
    "angle",
    "arccosh",
    "arcsinh",
    "arctanh",
    "asinh",
    "atanh",
    "bitwise_left_shift",
    "bitwise_right_shift",
    "copysign",
    "deg2rad",
    "fix",
    "float_power",
    "frexp",
    "fmax",
    "fmin",
    "gcd",
    "hardshrink",
    "heaviside",
    "hypot",
    "isneginf",
    "isposinf",
    "isreal",
    "lcm",
    "ldexp",
    "logaddexp",
    "logaddexp2",
    "logit",
    "positive",
    "rad2deg",
    "sgn",
    "signbit",
    "sinc",
    "threshold",
    "xlogy",
]

Parts = namedtuple("Parts", ["mantissa", "exponent"])

fix = Tensor.trunc
sgn = Tensor.sign


def _float(x):
    return x if x.is_floating_point() else x.to(_gt.get_default_dtype())


def _tensor(name, other):
    if not isinstance(other, Tensor):
        raise TypeError(f"{name}(): argument 'other' (position 2) must be Tensor, not {type(other).__name__}")


def _pair(name, input, other):
    """Both operands in the floating-point type of their result."""
    _tensor(name, other)
    dtype = _gt.result_type(input, other)
    dtype = dtype if dtype.is_floating_point else _gt.get_default_dtype()
    return input.to(dtype), other.to(dtype)


def positive(input):
    """The tensor itself."""
    if input.dtype == _gt.bool:
        raise RuntimeError("positive: the + operator on a bool tensor is not supported")
    return input


def logaddexp(input, other):
    """`log(exp(input) + exp(other))` without overflow."""
    # Equal operands have no gap, even where both are infinite.
    input, other = _pair("logaddexp", input, other)
    gap = _gt.where(input == other, 0.0, (input - other).abs())
    return input.maximum(other) + (-gap).exp().log1p()


def logaddexp2(input, other):
    """`log2(2**input + 2**other)` without overflow."""
    input, other = _pair("logaddexp2", input, other)
    gap = _gt.where(input == other, 0.0, (input - other).abs())
    return input.maximum(other) + (-gap).exp2().log1p() / math.log(2)


def hypot(input, other):
    """`sqrt(input**2 + other**2)` without overflow on the way."""
    input, other = _pair("hypot", input, other)
    if input.element_size() < 4:
        return hypot(input.float(), other.float()).to(input.dtype)
    # Infinity beside what is not a number is infinity.
    endless = input.isinf() | other.isinf()
    input, other = _gt.where(endless, math.inf, input), _gt.where(endless, math.inf, other)
    largest = input.detach().abs().maximum(other.detach().abs())
    scale = _gt.where((largest == 0) | largest.isinf(), 1.0, largest)
    return scale * ((input / scale).square() + (other / scale).square()).sqrt()


def logit(input, eps=None):
    """The inverse of the sigmoid; with `eps`, of values clamped to [eps, 1 - eps]."""
    x = _float(input)
    if eps is not None:
        x = x.clamp(eps, 1 - eps)
    return (x / (1 - x)).log()


def sinc(input):
    """`sin(pi x) / (pi x)`, and 1 at 0."""
    x = _float(input)
    angle = _gt.where(x == 0, 1.0, x * math.pi)
    return _gt.where(x == 0, 1.0, angle.sin() / angle)


def heaviside(input, values):
    """0 below zero, 1 above, and `values` at zero."""
    return _gt.where(input == 0, values, (input > 0).to(input.dtype))


def deg2rad(input):
    """Degrees as radians."""
    return _float(input) * (math.pi / 180)


def rad2deg(input):
    """Radians as degrees."""
    return _float(input) * (180 / math.pi)


def fmax(input, other):
    """The larger one; of a number and NaN, the number."""
    _tensor("fmax", other)
    return _gt.where(other.isnan(), input, _gt.where(input.isnan(), other, input.maximum(other)))


def fmin(input, other):
    """The smaller one; of a number and NaN, the number."""
    _tensor("fmin", other)
    return _gt.where(other.isnan(), input, _gt.where(input.isnan(), other, input.minimum(other)))


def signbit(input):
    """True where the sign is negative, also of -0."""
    if not input.is_floating_point():
        return input < 0
    return (input < 0) | ((input == 0) & (input.reciprocal() < 0))


def copysign(input, other):
    """The size of `input` with the sign of `other`."""
    if not isinstance(other, Tensor):
        size = _float(input).abs()
        return -size if math.copysign(1.0, other) < 0 else size
    size, other = _pair("copysign", input, other)
    size = size.abs()
    return _gt.where(signbit(other), -size, size)


def xlogy(input, other):
    """`input * log(other)`, and 0 where `input` is 0."""
    dtype = _gt.result_type(input, other)
    dtype = dtype if dtype.is_floating_point else _gt.get_default_dtype()
    x, y = (t.to(dtype) if isinstance(t, Tensor) else _gt.full((), t, dtype=dtype) for t in (input, other))
    # Only logarithms that are not finite are hidden: the others are the slope at zero.
    hidden = (x == 0) & ((y <= 0) | y.isinf())
    return x * _gt.where(hidden, 1.0, y).log()


def asinh(input):
    """The inverse of `sinh`."""
    if input.dtype == _gt.float16:
        return asinh(input.float()).to(input.dtype)
    x = _float(input)
    negative = signbit(x)
    size = _gt.where(negative, -x, x)
    # Squares of large numbers overflow, where the logarithm of twice the number is as good.
    large = size > 1e8
    near, far = _gt.where(large, 1.0, size), _gt.where(large, size, 1.0)
    small = (near + near * near / (1 + (near * near + 1).sqrt())).log1p()
    out = _gt.where(large, far.log() + math.log(2), small)
    return _gt.where(negative, -out, out)


def acosh(input):
    """The inverse of `cosh` on numbers from 1."""
    if input.dtype == _gt.float16:
        return acosh(input.float()).to(input.dtype)
    x = _float(input)
    large = x > 1e8
    near, far = _gt.where(large, 2.0, x), _gt.where(large, x, 2.0)
    less = near - 1
    # Two roots: below 1 either is NaN, and at 1 the slope is infinite.
    return _gt.where(large, far.log() + math.log(2), (less + less.sqrt() * (near + 1).sqrt()).log1p())


def atanh(input):
    """The inverse of `tanh`."""
    x = _float(input)
    return (x.log1p() - (-x).log1p()) * 0.5


arcsinh, arccosh, arctanh = asinh, acosh, atanh


def _whole(name, input, other):
    """The type of the result, which is one of integers."""
    dtype = _gt.result_type(input, other)
    if dtype.is_floating_point or dtype == _gt.bool:
        raise RuntimeError(f"{name}: expected integers, got {dtype}")
    return dtype


def _shifted(name, input, other):
    """Both operands in the type of their result, and the bits of that type."""
    dtype = _whole(name, input, other)
    x, places = (t if isinstance(t, Tensor) else _gt.tensor(t) for t in (input, other))
    return x.to(dtype), places.to(dtype), 8 * dtype.itemsize


def bitwise_left_shift(input, other):
    """Bits moved up by `other` places."""
    x, places, bits = _shifted("bitwise_left_shift", input, other)
    inside = (places >= 0) & (places < bits)
    return _gt.where(inside, x * _gt.pow(2, _gt.where(inside, places, 0)), 0)


def bitwise_right_shift(input, other):
    """Bits moved down by `other` places; the sign stays."""
    x, places, bits = _shifted("bitwise_right_shift", input, other)
    # The highest power of a signed type is its lowest number: what is moved so far has its sign left.
    inside = (places >= 0) & (places < bits - x.is_signed())
    return _gt.where(inside, x // _gt.pow(2, _gt.where(inside, places, 0)), -(x < 0).to(x.dtype))


def threshold(input, threshold, value):
    """`value` where the input is not above the threshold."""
    return input.masked_fill(input <= threshold, value)


def hardshrink(input, lambd=0.5):
    """Zero where the input is near zero."""
    return input.masked_fill(input.abs() <= lambd, 0)


def isposinf(input):
    return input.isinf() & (input > 0)


def isneginf(input):
    return input.isinf() & (input < 0)


def isreal(input):
    return _gt.ones_like(input, dtype=_gt.bool)


def ldexp(input, other):
    """`input * 2**other`."""
    input, other = _pair("ldexp", input, other)
    # In two steps, of which neither overflows where the result does not.
    half = (other / 2).trunc()
    return input * _gt.pow(2.0, half) * _gt.pow(2.0, other - half)


def float_power(input, exponent):
    """`input ** exponent` in double precision."""
    exponent = exponent.double() if isinstance(exponent, Tensor) else float(exponent)
    return _gt.pow(input.double() if isinstance(input, Tensor) else float(input), exponent)


def frexp(input):
    """Numbers from 1/2 to 1 and powers of two, whose product is the input."""
    if not input.is_floating_point():
        raise RuntimeError(f"frexp: expected a floating-point tensor, got {input.dtype}")
    x = input.double()
    plain = (x != 0) & ~x.isinf() & ~x.isnan()
    size = _gt.where(plain, x.detach().abs(), 0.5)
    power = size.log2().floor() + 1
    # The logarithm of what is next to a power of two is rounded to it. Two steps reach powers beyond all numbers.
    half = (power / 2).floor()
    share = size / _gt.pow(2.0, half) / _gt.pow(2.0, power - half)
    power = power + (share >= 1).double() - (share < 0.5).double()
    half = (power / 2).floor()
    power, half = _gt.where(plain, power, 0.0), _gt.where(plain, half, 0.0)
    mantissa = x / _gt.pow(2.0, half) / _gt.pow(2.0, power - half)
    return Parts(mantissa.to(input.dtype), power.to(_gt.int32))


def angle(input):
    """0 for numbers from zero, pi for negative ones."""
    x = _float(input)
    return _gt.where(x.isnan(), x, (x < 0).to(x.dtype) * math.pi)


def gcd(input, other):
    """The greatest common divisor."""
    _tensor("gcd", other)
    dtype = _whole("gcd", input, other)
    a, b = _gt.broadcast_tensors(input.to(dtype).abs(), other.to(dtype).abs())
    # So many steps of Euclid's algorithm as Fibonacci's numbers of this size take.
    for _ in range(dtype.itemsize * 12 + 1):
        done = b == 0
        a, b = _gt.where(done, a, b), a % _gt.where(done, 1, b)
    return a


def lcm(input, other):
    """The least common multiple."""
    divisor = gcd(input, other)
    return (input // _gt.where(divisor == 0, 1, divisor) * other).abs().to(divisor.dtype)


# Python's operators that are functions here.
OPERATORS = {
    "__lshift__": bitwise_left_shift,
    "__rshift__": bitwise_right_shift,
    "__rlshift__": lambda self, other: bitwise_left_shift(other, self),
    "__rrshift__": lambda self, other: bitwise_right_shift(other, self),
}
