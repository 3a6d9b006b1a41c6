"""Distributions over counts and choices, and smooth ones in their place."""

import math

from gt import _gt
from gt.autograd.grad_mode import no_grad
from gt.distributions.basic import Bernoulli, Categorical, Distribution

__all__ = [
    "Geometric",
    "MixtureSameFamily",
    "OneHotCategorical",
    "OneHotCategoricalStraightThrough",
    "RelaxedBernoulli",
    "RelaxedOneHotCategorical",
]


class Geometric(Bernoulli):
    """How many failures come before the first success."""

    def sample(self, sample_shape=()):
        with no_grad():
            u = 1 - _gt.rand(self._shape(sample_shape), dtype=self.probs.dtype)
            return (u.log() / (-self.probs).log1p()).floor()

    def log_prob(self, value):
        return value * (-self.probs).log1p() + self.probs.log()

    def entropy(self):
        return _gt.binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none") / self.probs

    @property
    def mean(self):
        return 1.0 / self.probs - 1.0

    @property
    def variance(self):
        return (1.0 / self.probs - 1.0) / self.probs


class OneHotCategorical(Distribution):
    """One of several, as a row with a one at its place."""

    def __init__(self, probs=None, logits=None, validate_args=None):
        self._categorical = Categorical(probs, logits)
        super().__init__(self._categorical.batch_shape, self._categorical.logits.shape[-1:])

    @property
    def probs(self):
        return self._categorical.probs

    @property
    def logits(self):
        return self._categorical.logits

    @property
    def mean(self):
        return self.probs

    @property
    def variance(self):
        return self.probs * (1 - self.probs)

    @property
    def mode(self):
        return self._row(self.probs.argmax(-1))

    def _row(self, picked):
        from gt.nn.functional import one_hot

        return one_hot(picked, self.event_shape[0]).to(self.probs.dtype)

    def sample(self, sample_shape=()):
        return self._row(self._categorical.sample(sample_shape))

    def log_prob(self, value):
        return self._categorical.log_prob(value.argmax(-1))

    def entropy(self):
        return self._categorical.entropy()


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """Samples have the gradient of the probabilities."""

    has_rsample = True

    def rsample(self, sample_shape=()):
        return self.sample(sample_shape) + (self.probs - self.probs.detach())


class RelaxedOneHotCategorical(Distribution):
    """Rows near those with a single one: the nearer, the lower the temperature."""

    has_rsample = True

    def __init__(self, temperature, probs=None, logits=None, validate_args=None):
        self.temperature, self._categorical = temperature, Categorical(probs, logits)
        super().__init__(self._categorical.batch_shape, self._categorical.logits.shape[-1:])

    @property
    def probs(self):
        return self._categorical.probs

    @property
    def logits(self):
        return self._categorical.logits

    def rsample(self, sample_shape=()):
        noise = -_gt.empty(self._shape(sample_shape), dtype=self.logits.dtype).exponential_().log()
        return ((self.logits + noise) / self.temperature).softmax(-1)

    def log_prob(self, value):
        k, temperature = self.event_shape[0], self.temperature
        logs = value.log()
        scores = self.logits - logs * temperature
        scale = math.lgamma(k) + (k - 1) * _log(temperature)
        return (scores - scores.logsumexp(-1, keepdim=True)).sum(-1) + scale - logs.sum(-1)


def _log(number):
    return number.log() if isinstance(number, _gt.Tensor) else math.log(number)


class RelaxedBernoulli(Distribution):
    """Numbers near zero and one: the nearer, the lower the temperature."""

    has_rsample = True

    def __init__(self, temperature, probs=None, logits=None, validate_args=None):
        self.temperature, self._bernoulli = temperature, Bernoulli(probs, logits)
        super().__init__(self._bernoulli.batch_shape)

    @property
    def probs(self):
        return self._bernoulli.probs

    @property
    def logits(self):
        return self._bernoulli.logits

    def rsample(self, sample_shape=()):
        u = _gt.rand(self._shape(sample_shape), dtype=self.logits.dtype)
        eps = 2.0**-52 if u.dtype == _gt.float64 else 2.0**-23
        u = u.clamp(eps, 1 - eps)
        return ((u.log() - (-u).log1p() + self.logits) / self.temperature).sigmoid()

    def log_prob(self, value):
        odds = value.logit()
        gap = self.logits - odds * self.temperature
        jacobian = odds.abs() + 2 * (-odds.abs()).exp().log1p()
        return _log(self.temperature) + gap - 2 * gap.exp().log1p() + jacobian


class MixtureSameFamily(Distribution):
    """One of several distributions of a kind, which stand along the last dimension of their batch."""

    def __init__(self, mixture_distribution, component_distribution, validate_args=None):
        self.mixture_distribution, self.component_distribution = mixture_distribution, component_distribution
        super().__init__(component_distribution.batch_shape[:-1], component_distribution.event_shape)

    def _wide(self, t):
        return t.reshape(*t.shape, *[1] * len(self.event_shape))

    @property
    def _dim(self):
        return -1 - len(self.event_shape)

    def sample(self, sample_shape=()):
        with no_grad():
            picked = self._wide(self.mixture_distribution.sample(sample_shape).unsqueeze(-1))
            every = self.component_distribution.sample(sample_shape)
            picked = picked.expand(*every.shape[: self._dim % every.dim()], 1, *self.event_shape)
            return every.gather(self._dim, picked).squeeze(self._dim)

    def log_prob(self, value):
        logs = self.component_distribution.log_prob(value.unsqueeze(self._dim))
        return (logs + self.mixture_distribution.logits.log_softmax(-1)).logsumexp(-1)

    @property
    def mean(self):
        weights = self._wide(self.mixture_distribution.probs)
        return (weights * self.component_distribution.mean).sum(self._dim)

    @property
    def variance(self):
        weights, parts = self._wide(self.mixture_distribution.probs), self.component_distribution
        within = (weights * parts.variance).sum(self._dim)
        gaps = parts.mean - self.mean.unsqueeze(self._dim)
        return within + (weights * gaps**2).sum(self._dim)
