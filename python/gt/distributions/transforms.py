"""Functions with inverses, and the distributions of what they give."""

import math

from gt import _gt
from gt.autograd.grad_mode import no_grad
from gt.distributions import constraints
from gt.distributions.basic import Distribution

__all__ = [
    "AffineTransform",
    "ComposeTransform",
    "ExpTransform",
    "PowerTransform",
    "SigmoidTransform",
    "SoftplusTransform",
    "TanhTransform",
    "Transform",
    "TransformedDistribution",
]


class Transform:
    """A function with an inverse and the logarithm of its slope. With `cache_size=1` the last value is not computed
    back, which loses no digits."""

    bijective = True
    domain = codomain = constraints.real

    def __init__(self, cache_size=0):
        if cache_size not in (0, 1):
            raise ValueError("cache_size must be 0 or 1")
        self._cache_size, self._last = cache_size, (None, None)

    @property
    def event_dim(self):
        return self.domain.event_dim

    def __call__(self, x):
        if self._cache_size and x is self._last[0]:
            return self._last[1]
        y = self._call(x)
        if self._cache_size:
            self._last = x, y
        return y

    def _inv_call(self, y):
        if self._cache_size and y is self._last[1]:
            return self._last[0]
        x = self._inverse(y)
        if self._cache_size:
            self._last = x, y
        return x

    @property
    def inv(self):
        return _Inverse(self)

    def _call(self, x):
        raise NotImplementedError

    def _inverse(self, y):
        raise NotImplementedError

    def log_abs_det_jacobian(self, x, y):
        raise NotImplementedError

    def forward_shape(self, shape):
        return shape

    def inverse_shape(self, shape):
        return shape

    def __repr__(self):
        return f"{type(self).__name__}()"


class _Inverse(Transform):
    def __init__(self, transform):
        super().__init__()
        self.transform, self.domain, self.codomain = transform, transform.codomain, transform.domain

    @property
    def inv(self):
        return self.transform

    def __call__(self, x):
        return self.transform._inv_call(x)

    def _inv_call(self, y):
        return self.transform(y)

    def log_abs_det_jacobian(self, x, y):
        return -self.transform.log_abs_det_jacobian(y, x)


class ExpTransform(Transform):
    codomain = constraints.positive

    def _call(self, x):
        return x.exp()

    def _inverse(self, y):
        return y.log()

    def log_abs_det_jacobian(self, x, y):
        return x


class PowerTransform(Transform):
    domain = codomain = constraints.positive

    def __init__(self, exponent, cache_size=0):
        super().__init__(cache_size)
        self.exponent = exponent

    def _call(self, x):
        return x**self.exponent

    def _inverse(self, y):
        return y ** (1 / self.exponent)

    def log_abs_det_jacobian(self, x, y):
        return (self.exponent * y / x).abs().log()


class SigmoidTransform(Transform):
    codomain = constraints.unit_interval

    def _call(self, x):
        return x.sigmoid()

    def _inverse(self, y):
        return y.logit()

    def log_abs_det_jacobian(self, x, y):
        return -(-x).softplus() - x.softplus()


class SoftplusTransform(Transform):
    codomain = constraints.positive

    def _call(self, x):
        return x.softplus()

    def _inverse(self, y):
        return (-y).expm1().neg().log() + y

    def log_abs_det_jacobian(self, x, y):
        return -(-x).softplus()


class TanhTransform(Transform):
    codomain = constraints.interval(-1.0, 1.0)

    def _call(self, x):
        return x.tanh()

    def _inverse(self, y):
        return y.atanh()

    def log_abs_det_jacobian(self, x, y):
        return 2.0 * (math.log(2.0) - x - (-2.0 * x).softplus())


class AffineTransform(Transform):
    """`loc + scale * x`."""

    def __init__(self, loc, scale, event_dim=0, cache_size=0):
        super().__init__(cache_size)
        self.loc, self.scale, self._dims = loc, scale, event_dim

    @property
    def event_dim(self):
        return self._dims

    def _call(self, x):
        return self.loc + self.scale * x

    def _inverse(self, y):
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x, y):
        scale = self.scale
        logs = scale.abs().log() if isinstance(scale, _gt.Tensor) else math.log(abs(scale))
        logs = logs + _gt.zeros_like(x)
        return _summed(logs, self._dims)


class ComposeTransform(Transform):
    """One after the other."""

    def __init__(self, parts, cache_size=0):
        super().__init__(cache_size)
        self.parts = list(parts)
        if self.parts:
            self.domain, self.codomain = self.parts[0].domain, self.parts[-1].codomain

    @property
    def event_dim(self):
        return max((part.event_dim for part in self.parts), default=0)

    def _call(self, x):
        for part in self.parts:
            x = part(x)
        return x

    def _inverse(self, y):
        for part in reversed(self.parts):
            y = part._inv_call(y)
        return y

    def log_abs_det_jacobian(self, x, y):
        total = 0.0
        for part in self.parts:
            after = part(x)
            total = total + _summed(part.log_abs_det_jacobian(x, after), self.event_dim - part.event_dim)
            x = after
        return total


def _summed(t, dims):
    return t.sum(tuple(range(-dims, 0))) if dims > 0 else t


class TransformedDistribution(Distribution):
    """What functions make of a distribution's values."""

    def __init__(self, base_distribution, transforms, validate_args=None):
        self.base_dist = base_distribution
        self.transforms = [transforms] if isinstance(transforms, Transform) else list(transforms)
        shape = (*base_distribution.batch_shape, *base_distribution.event_shape)
        inner = len(base_distribution.event_shape)
        self._dims = max([inner, *(t.event_dim for t in self.transforms)])
        cut = len(shape) - self._dims
        super().__init__(shape[:cut], shape[cut:])

    @property
    def has_rsample(self):
        return self.base_dist.has_rsample

    def sample(self, sample_shape=()):
        with no_grad():
            return self._through(self.base_dist.sample(sample_shape))

    def rsample(self, sample_shape=()):
        return self._through(self.base_dist.rsample(sample_shape))

    def _through(self, x):
        for transform in self.transforms:
            x = transform(x)
        return x

    def log_prob(self, value):
        logs = 0.0
        for transform in reversed(self.transforms):
            x = transform._inv_call(value)
            logs = logs - _summed(transform.log_abs_det_jacobian(x, value), self._dims - transform.event_dim)
            value = x
        return logs + _summed(self.base_dist.log_prob(value), self._dims - len(self.base_dist.event_shape))
