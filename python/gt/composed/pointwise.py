"""Elementwise functions."""

import math

from gt import _gt
from gt._gt import Tensor

__all__ = [
    "copysign",
    "deg2rad",
    "fix",
    "float_power",
    "fmax",
    "fmin",
    "heaviside",
    "hypot",
    "isneginf",
    "isposinf",
    "isreal",
    "ldexp",
    "logaddexp",
    "logaddexp2",
    "logit",
    "positive",
    "rad2deg",
    "sgn",
    "signbit",
    "sinc",
]

fix = Tensor.trunc
sgn = Tensor.sign


def _float(x):
    return x if x.is_floating_point() else x.float()


def positive(input):
    """The tensor itself."""
    if input.dtype == _gt.bool:
        raise RuntimeError("positive: the + operator on a bool tensor is not supported")
    return input


def logaddexp(input, other):
    """`log(exp(input) + exp(other))` without overflow."""
    # Equal operands have no gap, even where both are infinite.
    gap = _gt.where(input == other, 0.0, (input - other).abs())
    return input.maximum(other) + (-gap).exp().log1p()


def logaddexp2(input, other):
    """`log2(2**input + 2**other)` without overflow."""
    gap = _gt.where(input == other, 0.0, (input - other).abs())
    return input.maximum(other) + (-gap).exp2().log1p() / math.log(2)


def hypot(input, other):
    """`sqrt(input**2 + other**2)` without overflow on the way."""
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
    return _gt.where(input.isnan(), other, _gt.where(other.isnan(), input, input.maximum(other)))


def fmin(input, other):
    """The smaller one; of a number and NaN, the number."""
    return _gt.where(input.isnan(), other, _gt.where(other.isnan(), input, input.minimum(other)))


def signbit(input):
    """True where the sign is negative, also of -0."""
    if not input.is_floating_point():
        return input < 0
    return (input < 0) | ((input == 0) & (input.reciprocal() < 0))


def copysign(input, other):
    """The size of `input` with the sign of `other`."""
    size = _float(input).abs()
    negative = signbit(other) if isinstance(other, Tensor) else math.copysign(1.0, other) < 0
    if not isinstance(other, Tensor):
        return -size if negative else size
    return _gt.where(negative, -size, size)


def isposinf(input):
    return input.isinf() & (input > 0)


def isneginf(input):
    return input.isinf() & (input < 0)


def isreal(input):
    return _gt.ones_like(input, dtype=_gt.bool)


def ldexp(input, other):
    """`input * 2**other`."""
    return input * _gt.pow(2.0, other)


def float_power(input, exponent):
    """`input ** exponent` in double precision."""
    exponent = exponent.double() if isinstance(exponent, Tensor) else float(exponent)
    return _gt.pow(input.double() if isinstance(input, Tensor) else float(input), exponent)
