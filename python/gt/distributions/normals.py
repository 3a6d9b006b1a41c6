"""Distributions made of normal numbers, or shaped like them."""

import math

from gt import _gt
from gt.distributions.basic import Distribution, Normal, _Located, _together
from gt.linalg import cholesky, inv, solve_triangular

__all__ = ["Cauchy", "Gumbel", "HalfNormal", "MultivariateNormal", "StudentT"]


class MultivariateNormal(Distribution):
    """Normal vectors with a covariance, given as such, as its inverse or as its Cholesky factor."""

    has_rsample = True

    def __init__(self, loc, covariance_matrix=None, precision_matrix=None, scale_tril=None, validate_args=None):
        given = [m for m in (covariance_matrix, precision_matrix, scale_tril) if m is not None]
        if len(given) != 1:
            raise ValueError("Exactly one of covariance_matrix or precision_matrix or scale_tril may be specified.")
        if loc.dim() < 1:
            raise ValueError("loc must be at least one-dimensional.")
        if given[0].dim() < 2:
            raise ValueError("MultivariateNormal: the matrix must be at least two-dimensional")
        if covariance_matrix is not None:
            tril = cholesky(covariance_matrix)
        elif precision_matrix is not None:
            tril = cholesky(inv(precision_matrix))
        else:
            tril = scale_tril
        batch = _gt.broadcast_tensors(loc[..., 0], tril[..., 0, 0])[0].shape
        size = loc.shape[-1]
        self.loc, self.scale_tril = loc.expand(*batch, size), tril.expand(*batch, size, size)
        super().__init__(batch, (size,))

    def rsample(self, sample_shape=()):
        noise = _gt.randn(self._shape(sample_shape), dtype=self.loc.dtype)
        return self.loc + (self.scale_tril @ noise.unsqueeze(-1)).squeeze(-1)

    def _half_log_det(self):
        return self.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def _distance(self, value):
        """The squared distance from the mean, in units of the spread."""
        gap = (value - self.loc).unsqueeze(-1)
        tril = self.scale_tril.expand(*gap.shape[:-1], gap.shape[-2])
        return solve_triangular(tril, gap, upper=False).square().sum((-2, -1))

    def log_prob(self, value):
        whole = self.event_shape[0] * math.log(2 * math.pi) + self._distance(value)
        return -0.5 * whole - self._half_log_det()

    def entropy(self):
        return self._half_log_det() + 0.5 * self.event_shape[0] * (1.0 + math.log(2 * math.pi))

    @property
    def covariance_matrix(self):
        return self.scale_tril @ self.scale_tril.mT

    @property
    def precision_matrix(self):
        return inv(self.covariance_matrix)

    @property
    def mean(self):
        return self.loc

    @property
    def mode(self):
        return self.loc

    @property
    def variance(self):
        return self.scale_tril.square().sum(-1)


class HalfNormal(Distribution):
    """The sizes of normal numbers around zero."""

    has_rsample = True

    def __init__(self, scale, validate_args=None):
        (self.scale,) = _together(scale)
        self._normal = Normal(_gt.zeros_like(self.scale), self.scale)
        super().__init__(self.scale.shape)

    def rsample(self, sample_shape=()):
        return self._normal.rsample(sample_shape).abs()

    def log_prob(self, value):
        return _gt.where(value >= 0, self._normal.log_prob(value) + math.log(2), -math.inf)

    def entropy(self):
        return self._normal.entropy() - math.log(2)

    @property
    def mean(self):
        return self.scale * math.sqrt(2 / math.pi)

    @property
    def variance(self):
        return self.scale**2 * (1 - 2 / math.pi)


class Gumbel(_Located):
    """The largest of many numbers."""

    def _noise(self, shape):
        return -_gt.empty(shape, dtype=self.loc.dtype).exponential_().log()

    def log_prob(self, value):
        y = (self.loc - value) / self.scale
        return (y - y.exp()) - self.scale.log()

    def entropy(self):
        return self.scale.log() + (1 + _EULER)

    @property
    def mean(self):
        return self.loc + self.scale * _EULER

    @property
    def variance(self):
        return (math.pi / math.sqrt(6) * self.scale) ** 2


_EULER = 0.57721566490153286060


class Cauchy(_Located):
    """Ratios of normal numbers."""

    def _noise(self, shape):
        return (math.pi * (_gt.rand(shape, dtype=self.loc.dtype) - 0.5)).tan()

    def log_prob(self, value):
        return -math.log(math.pi) - self.scale.log() - (((value - self.loc) / self.scale) ** 2).log1p()

    def entropy(self):
        return math.log(4 * math.pi) + self.scale.log()

    @property
    def mean(self):
        return _gt.full_like(self.loc, math.nan)

    @property
    def variance(self):
        return _gt.full_like(self.loc, math.inf)


class StudentT(Distribution):
    """Means of a few normal numbers, in units of their own spread."""

    def __init__(self, df, loc=0.0, scale=1.0, validate_args=None):
        self.df, self.loc, self.scale = _together(df, loc, scale)
        super().__init__(self.df.shape)

    def sample(self, sample_shape=()):
        from gt.distributions.shares import Chi2

        shape = self._shape(sample_shape)
        square = Chi2(self.df).sample(sample_shape)
        noise = _gt.randn(shape, dtype=self.loc.dtype)
        return self.loc.detach() + self.scale.detach() * noise * (square / self.df.detach()).rsqrt()

    def log_prob(self, value):
        y = (value - self.loc) / self.scale
        z = (
            self.scale.log()
            + 0.5 * self.df.log()
            + 0.5 * math.log(math.pi)
            + (0.5 * self.df).lgamma()
            - (0.5 * (self.df + 1.0)).lgamma()
        )
        return -0.5 * (self.df + 1.0) * (y**2.0 / self.df).log1p() - z

    @property
    def mean(self):
        return _gt.where(self.df > 1, self.loc, math.nan)

    @property
    def variance(self):
        wide = self.scale**2 * self.df / (self.df - 2)
        return _gt.where(self.df > 2, wide, _gt.where(self.df > 1, math.inf, math.nan))
