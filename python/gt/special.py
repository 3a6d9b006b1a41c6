"""Special functions under PyTorch's names in `torch.special`."""

import math

from gt import _gt
from gt._function import function as _function
from gt._gt import Tensor
from gt.composed import special as _doubles
from gt.composed.bessel import i0, i0e, i1, i1e
from gt.composed.pointwise import _float, logit, sinc, xlogy
from gt.composed.special import digamma, erfc, erfinv, polygamma
from gt.composed.special import lgamma as gammaln
from gt.composed.special import mvlgamma as multigammaln

__all__ = [
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfinv",
    "exp2",
    "expit",
    "expm1",
    "gammaln",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "log1p",
    "log_ndtr",
    "log_softmax",
    "logit",
    "logsumexp",
    "multigammaln",
    "ndtr",
    "ndtri",
    "polygamma",
    "psi",
    "round",
    "sinc",
    "softmax",
    "xlog1py",
    "xlogy",
]

psi = digamma
erf, exp2, expit, expm1 = Tensor.erf, Tensor.exp2, Tensor.sigmoid, Tensor.expm1
log1p, logsumexp, round = Tensor.log1p, Tensor.logsumexp, Tensor.round


def softmax(input, dim, *, dtype=None):
    """Exponentials along a dimension, divided by their sum."""
    return input.softmax(dim, dtype)


def log_softmax(input, dim, *, dtype=None):
    """The logarithm of `softmax`."""
    return input.log_softmax(dim, dtype)


def entr(input):
    """`-x * log(x)`: 0 at 0, and minus infinity below."""

    def value(x):
        return _gt.where(x < 0, -math.inf, -xlogy(x, x))

    return _doubles._Elementwise.apply(_float(input), value, lambda x: -x.log() - 1)


def xlog1py(input, other):
    """`input * log1p(other)`, and 0 where `input` is 0."""
    dtype = _gt.result_type(input, other)
    dtype = dtype if dtype.is_floating_point else _gt.get_default_dtype()
    x, y = (t.to(dtype) if isinstance(t, Tensor) else _gt.full((), t, dtype=dtype) for t in (input, other))
    # Only logarithms that are not finite are hidden: the others are the slope at zero.
    hidden = (x == 0) & ((y <= -1) | y.isinf())
    return x * _gt.where(hidden, 0.0, y).log1p()


def ndtr(input):
    """The share of the normal distribution below a number."""
    return erfc(_float(input) * -math.sqrt(0.5)) / 2


def log_ndtr(input):
    """The logarithm of `ndtr`, exact where that is nearly zero."""

    def slope(x):
        return (-x * x / 2 - log_ndtr(x)).exp() / math.sqrt(2 * math.pi)

    return _doubles._Elementwise.apply(_float(input), _doubles._log_ndtr, slope)


def ndtri(input):
    """The number below which a share of the normal distribution lies."""

    def slope(p):
        return (ndtri(p).square() / 2).exp() * math.sqrt(2 * math.pi)

    return _doubles._Elementwise.apply(_float(input), _doubles._ndtri, slope)


# Results may go to `out`.
for _name in __all__:
    globals()[_name] = _function(globals()[_name], None)
