"""Gamma numbers, and what is made of them: their shares of a sum."""

from gt import _gt
from gt.autograd.grad_mode import no_grad
from gt.distributions.basic import Distribution, _together

__all__ = ["Beta", "Chi2", "Dirichlet", "Gamma"]

# Attempts of which the first that is taken counts. One in twenty or fewer fails, so that all of them never do.
ATTEMPTS = 10


def _gammas(concentration, shape):
    """Gamma numbers at rate one, by Marsaglia's and Tsang's method."""
    a = concentration.expand(shape)
    # Below one, the number at one more is made smaller.
    less = a < 1
    d = _gt.where(less, a + 1, a) - 1.0 / 3.0
    c = 1.0 / (9.0 * d).sqrt()
    x = _gt.randn((ATTEMPTS, *shape), dtype=a.dtype)
    u = 1 - _gt.rand((ATTEMPTS, *shape), dtype=a.dtype)
    v = (1 + c * x) ** 3
    taken = (v > 0) & (u.log() < 0.5 * x * x + d - d * v + d * v.clamp(min=1e-30).log())
    first = taken.int().argmax(0, keepdim=True)
    found = d * v.clamp(min=1e-30).gather(0, first).squeeze(0)
    smaller = (1 - _gt.rand(shape, dtype=a.dtype)) ** (1 / a)
    return _gt.where(less, found * smaller, found)


class Gamma(Distribution):
    """Gamma numbers."""

    def __init__(self, concentration, rate, validate_args=None):
        self.concentration, self.rate = _together(concentration, rate)
        super().__init__(self.concentration.shape)

    def sample(self, sample_shape=()):
        with no_grad():
            return _gammas(self.concentration, self._shape(sample_shape)) / self.rate

    def log_prob(self, value):
        a = self.concentration
        return a * self.rate.log() + (a - 1) * value.log() - self.rate * value - a.lgamma()

    def entropy(self):
        a = self.concentration
        return a - self.rate.log() + a.lgamma() + (1.0 - a) * a.digamma()

    @property
    def mean(self):
        return self.concentration / self.rate

    @property
    def mode(self):
        return ((self.concentration - 1) / self.rate).clamp(min=0)

    @property
    def variance(self):
        return self.concentration / self.rate**2


class Chi2(Gamma):
    """Sums of squares of normal numbers."""

    def __init__(self, df, validate_args=None):
        (df,) = _together(df)
        super().__init__(0.5 * df, _gt.full_like(df, 0.5))

    @property
    def df(self):
        return self.concentration * 2


class Dirichlet(Distribution):
    """Shares that add up to one, along the last dimension."""

    def __init__(self, concentration, validate_args=None):
        if concentration.dim() < 1:
            raise ValueError("`concentration` parameter must be at least one-dimensional.")
        self.concentration = concentration
        super().__init__(concentration.shape[:-1], concentration.shape[-1:])

    def sample(self, sample_shape=()):
        with no_grad():
            parts = _gammas(self.concentration, self._shape(sample_shape))
            return parts / parts.sum(-1, keepdim=True)

    def log_prob(self, value):
        a = self.concentration
        return ((a - 1.0) * value.log()).sum(-1) + a.sum(-1).lgamma() - a.lgamma().sum(-1)

    def entropy(self):
        a, k = self.concentration, self.concentration.shape[-1]
        whole = a.sum(-1)
        logs = a.lgamma().sum(-1) - whole.lgamma()
        return logs - (k - whole) * whole.digamma() - ((a - 1.0) * a.digamma()).sum(-1)

    @property
    def mean(self):
        return self.concentration / self.concentration.sum(-1, keepdim=True)

    @property
    def variance(self):
        a, whole = self.concentration, self.concentration.sum(-1, keepdim=True)
        return a * (whole - a) / (whole**2 * (whole + 1))


class Beta(Distribution):
    """Numbers between zero and one: the first of two shares."""

    def __init__(self, concentration1, concentration0, validate_args=None):
        self._dirichlet = Dirichlet(_gt.stack(_together(concentration1, concentration0), -1))
        super().__init__(self._dirichlet.batch_shape)

    @property
    def concentration1(self):
        return self._dirichlet.concentration[..., 0]

    @property
    def concentration0(self):
        return self._dirichlet.concentration[..., 1]

    def sample(self, sample_shape=()):
        return self._dirichlet.sample(sample_shape)[..., 0]

    def log_prob(self, value):
        return self._dirichlet.log_prob(_gt.stack([value, 1.0 - value], -1))

    def entropy(self):
        return self._dirichlet.entropy()

    @property
    def mean(self):
        return self._dirichlet.mean[..., 0]

    @property
    def mode(self):
        return (self.concentration1 - 1) / (self.concentration1 + self.concentration0 - 2)

    @property
    def variance(self):
        return self._dirichlet.variance[..., 0]
