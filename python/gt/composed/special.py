"""Error and gamma functions, computed in double precision and given in the type of their argument."""

import math

from gt import _gt
from gt.autograd.function import Function
from gt.composed.pointwise import _float

__all__ = ["digamma", "erfc", "erfinv", "lgamma", "mvlgamma", "polygamma"]


def _polynomial(x, coefficients):
    """The highest power first."""
    total = coefficients[0]
    for c in coefficients[1:]:
        total = total * x + c
    return total


class _Elementwise(Function):
    """A function of each element whose slope is another function."""

    @staticmethod
    def forward(ctx, x, value, slope):
        ctx.save_for_backward(x)
        ctx.slope = slope
        return value(x.double()).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.slope(x), None, None


# Chebyshev coefficients of log(erfc(z) exp(z^2) / t) over t = 2 / (2 + z), from Numerical Recipes, third edition, 6.2.
_ERFC = (
    -1.3026537197817094, 6.4196979235649026e-1, 1.9476473204185836e-2, -9.561514786808631e-3, -9.46595344482036e-4,
    3.66839497852761e-4, 4.2523324806907e-5, -2.0278578112534e-5, -1.624290004647e-6, 1.303655835580e-6,
    1.5626441722e-8, -8.5238095915e-8, 6.529054439e-9, 5.059343495e-9, -9.91364156e-10, -2.27365122e-10,
    9.6467911e-11, 2.394038e-12, -6.886027e-12, 8.94487e-13, 3.13092e-13, -1.12708e-13, 3.81e-16, 7.106e-15,
    -1.523e-15, -9.4e-17, 1.21e-16, -2.8e-17,
)  # fmt: skip


def _erfc_parts(z):
    """A factor and an exponent that make `erfc` of what is not negative."""
    t = 2 / (2 + z)
    y = 4 * t - 2
    last, before = 0.0, 0.0
    for c in _ERFC[:0:-1]:
        last, before = y * last - before + c, last
    return t, 0.5 * (_ERFC[0] + y * last) - before - z * z


def _erfc(x):
    t, power = _erfc_parts(x.abs())
    tail = t * power.exp()
    return _gt.where(x < 0, 2 - tail, tail)


def _log_ndtr(x):
    t, power = _erfc_parts(x.abs() * math.sqrt(0.5))
    # Half of erfc, whose logarithm is taken part by part where it would vanish.
    return _gt.where(x < 0, t.log() + power - math.log(2), (t * power.exp() * -0.5).log1p())


def erfc(input):
    """One less the error function, exact where that is nearly one."""
    return _Elementwise.apply(_float(input), _erfc, lambda x: (-x * x).exp() * (-2 / math.sqrt(math.pi)))


# Wichura's algorithm AS 241 for the quantiles of the normal distribution: in the middle, outside, and far outside.
_MIDDLE = (
    (2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4,
     1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080),
    (5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
     5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0),
)  # fmt: skip
_OUTSIDE = (
    (7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258,
     3.64784832476320460504, 5.76949722146069140550, 4.63033784615654529590, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
     6.89767334985100004550e-1, 1.67638483018380384940, 2.05319162663775882187, 1.0),
)  # fmt: skip
_FAR = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2,
     2.96560571828504891230e-1, 1.78482653991729133580, 5.46378491116411436990, 6.65790464350110377720),
    (2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4,
     1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0),
)  # fmt: skip


def _ratio(x, of):
    return _polynomial(x, of[0]) / _polynomial(x, of[1])


def _erfinv(x):
    size = x.abs()
    middle = x / 2 * _ratio(0.180625 - x * x / 4, _MIDDLE)
    r = (-((1 - size) / 2).log()).sqrt()
    outer = _gt.where(r <= 5, _ratio(r - 1.6, _OUTSIDE), _ratio(r - 5, _FAR)) * x.sign()
    found = _gt.where(size <= 0.85, middle, outer) / math.sqrt(2)
    return _gt.where(size == 1, x * math.inf, found)


def _ndtri(p):
    gap = p - 0.5
    r = (-p.minimum(1 - p).log()).sqrt()
    outer = _gt.where(r <= 5, _ratio(r - 1.6, _OUTSIDE), _ratio(r - 5, _FAR)) * gap.sign()
    found = _gt.where(gap.abs() <= 0.425, gap * _ratio(0.180625 - gap * gap, _MIDDLE), outer)
    return _gt.where((p == 0) | (p == 1), gap * math.inf, found)


def erfinv(input):
    """The inverse of the error function."""
    return _Elementwise.apply(_float(input), _erfinv, lambda x: erfinv(x).square().exp() * (math.sqrt(math.pi) / 2))


# Recurrences lead from any positive number to one above this, where series in 1 / x are exact.
_SHIFT = 10
# Bernoulli's numbers B2, B4, ...
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
_STIRLING = [b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI, 1)][::-1]


def _from_integer(x):
    """How far a number is from the nearest integer, which leaves the angle `pi x` exact."""
    return x - x.round()


def _lgamma(x):
    below = x <= 0
    y = _gt.where(below, 1 - x, x)
    near = y < _SHIFT
    small, product = _gt.where(near, y, 1.0), 1.0
    for k in range(_SHIFT):
        product = product * (small + k)
    z = _gt.where(near, y + _SHIFT, y)
    series = _polynomial(1 / (z * z), _STIRLING) / z
    value = (z - 0.5) * z.log() - z + 0.5 * math.log(2 * math.pi) + series
    value = _gt.where((x == 1) | (x == 2), 0.0, _gt.where(near, value - product.log(), value))
    mirrored = math.log(math.pi) - (_from_integer(x) * math.pi).sin().abs().log() - value
    value = _gt.where(below, mirrored, value)
    return _gt.where(x.isinf() | (below & (x == x.floor())), math.inf, value)


def lgamma(input):
    """The logarithm of the size of the gamma function."""
    return _Elementwise.apply(_float(input), _lgamma, digamma)


def _cotangents(n):
    """Coefficients of the n-th derivative of `cot(pi x)` as a polynomial in `cot(pi x)`, the highest power first."""
    powers = [0.0, 1.0]
    for _ in range(n):
        slope = [k * c for k, c in enumerate(powers)][1:]
        powers = [-math.pi * (a + b) for a, b in zip([*slope, 0.0, 0.0], [0.0, 0.0, *slope])]
    return powers[::-1]


def _positive_polygamma(n, x):
    z = x + _SHIFT
    inverse = 1 / (z * z)
    if n == 0:
        terms = [b / (2 * k) for k, b in enumerate(_BERNOULLI, 1)][::-1]
        series = z.log() - 0.5 / z - _polynomial(inverse, terms) * inverse
        # The sign of a zero counts, which a sum with zero would lose.
        return series - 1 / x - sum(1 / (x + k) for k in range(1, _SHIFT))
    # Hurwitz's zeta function by the formula of Euler and Maclaurin.
    s = n + 1
    terms = [b * math.prod(range(s, s + 2 * k - 1)) / math.factorial(2 * k) for k, b in enumerate(_BERNOULLI, 1)]
    tail = z ** (1 - s) / (s - 1) + z**-s / 2 + _polynomial(inverse, terms[::-1]) * z ** (-s - 1)
    return (-1) ** s * math.factorial(n) * (tail + sum((x + k) ** -s for k in range(_SHIFT)))


def _polygamma(n, x):
    below = x < 0
    value = _positive_polygamma(n, _gt.where(below, 1 - x, x))
    angle = _from_integer(x) * math.pi
    mirror = _polynomial(angle.cos() / angle.sin(), _cotangents(n)) * math.pi
    value = _gt.where(below, (-1) ** n * value - mirror, value)
    return _gt.where(below & (x == x.floor()), math.nan, value) if n == 0 else value


def polygamma(n, input):
    """The n-th derivative of `digamma`."""
    if n < 0:
        raise RuntimeError(f"polygamma(n, x) does not support negative n, got {n}")
    return _Elementwise.apply(_float(input), lambda x: _polygamma(n, x), lambda x: polygamma(n + 1, x))


def digamma(input):
    """The slope of `lgamma`."""
    return polygamma(0, input)


def mvlgamma(input, p):
    """The logarithm of the gamma function of `p` dimensions."""
    if p < 1:
        raise RuntimeError(f"mvlgamma: p has to be greater than or equal to 1, got {p}")
    halves = _gt.arange(p, dtype=_gt.float64) / -2
    x = _float(input)
    return lgamma(x.unsqueeze(-1) + halves.to(x.dtype)).sum(-1) + p * (p - 1) / 4 * math.log(math.pi)


def _polygamma_of(self, n):
    """The n-th derivative of `digamma`."""
    return polygamma(n, self)


METHODS = {
    "digamma": digamma,
    "erfc": erfc,
    "erfinv": erfinv,
    "lgamma": lgamma,
    "mvlgamma": mvlgamma,
    "polygamma": _polygamma_of,
}
