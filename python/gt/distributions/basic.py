"""Probability distributions: samples, with gradients where they have some, and the logarithms of their densities."""

import math

from gt import _gt
from gt._gt import Tensor
from gt._size import Size
from gt.autograd.grad_mode import no_grad

__all__ = [
    "Bernoulli",
    "Categorical",
    "Distribution",
    "Exponential",
    "Independent",
    "Laplace",
    "LogNormal",
    "Normal",
    "Uniform",
]


def _together(*values):
    """Numbers and tensors as tensors of one shape."""
    like = next((v for v in values if isinstance(v, Tensor)), None)
    dtype = like.dtype if like is not None else _gt.get_default_dtype()
    return _gt.broadcast_tensors(*(v if isinstance(v, Tensor) else _gt.tensor(float(v), dtype=dtype) for v in values))


class Distribution:
    """What distributions share: a batch of them, each of events of one shape."""

    has_rsample: object = False
    # What PyTorch's distributions say of their parameters and values: nobody looks.
    arg_constraints: dict = {}
    support = None

    def __init__(self, batch_shape=(), event_shape=(), validate_args=None):
        self.batch_shape, self.event_shape = Size(batch_shape), Size(event_shape)

    def _shape(self, sample_shape):
        return (*sample_shape, *self.batch_shape, *self.event_shape)

    def sample(self, sample_shape=()):
        """Random events, without a gradient."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape=()):
        """Random events as functions of the parameters, with their gradient."""
        raise NotImplementedError(f"{type(self).__name__} has no samples with gradients: use sample()")

    def log_prob(self, value):
        raise NotImplementedError

    def entropy(self):
        raise NotImplementedError

    @property
    def stddev(self):
        return self.variance.sqrt()

    def sample_n(self, n):
        return self.sample((n,))

    def perplexity(self):
        return self.entropy().exp()

    def __repr__(self):
        names = ("loc", "scale", "low", "high", "rate", "probs", "logits")
        said = [f"{n}: {self.__dict__[n]}" for n in names if isinstance(self.__dict__.get(n), Tensor)]
        return f"{type(self).__name__}({', '.join(said)})"


class _Located(Distribution):
    """With a location and a scale."""

    has_rsample = True

    def __init__(self, loc, scale, validate_args=None):
        self.loc, self.scale = _together(loc, scale)
        super().__init__(self.loc.shape)

    def _noise(self, shape):
        raise NotImplementedError

    def rsample(self, sample_shape=()):
        return self.loc + self._noise(self._shape(sample_shape)) * self.scale

    @property
    def mean(self):
        return self.loc

    @property
    def mode(self):
        return self.loc


class Normal(_Located):
    """The normal distribution."""

    def _noise(self, shape):
        return _gt.randn(shape, dtype=self.loc.dtype)

    @property
    def variance(self):
        return self.scale**2

    def log_prob(self, value):
        gap = value - self.loc
        return -(gap**2) / (2 * self.scale**2) - self.scale.log() - 0.5 * math.log(2 * math.pi)

    def entropy(self):
        return 0.5 + 0.5 * math.log(2 * math.pi) + self.scale.log()

    def cdf(self, value):
        return 0.5 * (1 + ((value - self.loc) / (self.scale * math.sqrt(2))).erf())


class LogNormal(Normal):
    """Numbers whose logarithms are normal."""

    def rsample(self, sample_shape=()):
        return super().rsample(sample_shape).exp()

    @property
    def mean(self):
        return (self.loc + self.scale**2 / 2).exp()

    @property
    def variance(self):
        square = self.scale**2
        return square.expm1() * (2 * self.loc + square).exp()

    def log_prob(self, value):
        return super().log_prob(value.log()) - value.log()

    def entropy(self):
        return super().entropy() + self.loc


class Laplace(_Located):
    """The Laplace distribution."""

    def _noise(self, shape):
        u = _gt.rand(shape, dtype=self.loc.dtype) * 2 - 1
        return -u.sign() * (-u.abs()).log1p()

    @property
    def variance(self):
        return 2 * self.scale**2

    def log_prob(self, value):
        return -(2 * self.scale).log() - (value - self.loc).abs() / self.scale

    def entropy(self):
        return 1 + (2 * self.scale).log()


class Uniform(Distribution):
    """Numbers from `low` up to `high`, all alike."""

    has_rsample = True

    def __init__(self, low, high, validate_args=None):
        self.low, self.high = _together(low, high)
        super().__init__(self.low.shape)

    def rsample(self, sample_shape=()):
        u = _gt.rand(self._shape(sample_shape), dtype=self.low.dtype)
        return self.low + u * (self.high - self.low)

    @property
    def mean(self):
        return (self.low + self.high) / 2

    @property
    def variance(self):
        return (self.high - self.low) ** 2 / 12

    def log_prob(self, value):
        inside = (value >= self.low) & (value < self.high)
        return _gt.where(inside, 0.0, -math.inf) - (self.high - self.low).log()

    def entropy(self):
        return (self.high - self.low).log()


class Exponential(Distribution):
    """Waiting times at a rate."""

    has_rsample = True

    def __init__(self, rate, validate_args=None):
        (self.rate,) = _together(rate)
        super().__init__(self.rate.shape)

    def rsample(self, sample_shape=()):
        return _gt.empty(self._shape(sample_shape), dtype=self.rate.dtype).exponential_() / self.rate

    @property
    def mean(self):
        return 1 / self.rate

    @property
    def variance(self):
        return self.rate**-2

    def log_prob(self, value):
        return self.rate.log() - self.rate * value

    def entropy(self):
        return 1 - self.rate.log()


def _either(name, probs, logits):
    if (probs is None) == (logits is None):
        raise ValueError(f"{name}: either probs or logits must be specified, but not both")


class Bernoulli(Distribution):
    """Ones with a probability, else zeros."""

    def __init__(self, probs=None, logits=None, validate_args=None):
        _either("Bernoulli", probs, logits)
        if probs is not None:
            (self.probs,) = _together(probs)
            eps = 2.0**-52 if self.probs.dtype == _gt.float64 else 2.0**-23
            self.logits = self.probs.clamp(eps, 1 - eps).logit()
        else:
            (self.logits,) = _together(logits)
            self.probs = self.logits.sigmoid()
        super().__init__(self.probs.shape)

    def sample(self, sample_shape=()):
        with no_grad():
            return _gt.bernoulli(self.probs.expand(self._shape(sample_shape)))

    @property
    def mean(self):
        return self.probs

    @property
    def variance(self):
        return self.probs * (1 - self.probs)

    def log_prob(self, value):
        logits, value = _gt.broadcast_tensors(self.logits, value)
        return -_gt.binary_cross_entropy_with_logits(logits, value, reduction="none")

    def entropy(self):
        return _gt.binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")


class Categorical(Distribution):
    """One of several, with probabilities along the last dimension."""

    def __init__(self, probs=None, logits=None, validate_args=None):
        _either("Categorical", probs, logits)
        given = probs if logits is None else logits
        if given.dim() < 1:
            raise ValueError("Categorical: the parameter must be at least one-dimensional")
        if logits is None:
            self.probs = probs / probs.sum(-1, keepdim=True)
            eps = 2.0**-52 if probs.dtype == _gt.float64 else 2.0**-23
            self.logits = self.probs.clamp(eps, 1 - eps).log()
        else:
            self.logits = logits - logits.logsumexp(-1, keepdim=True)
            self.probs = self.logits.softmax(-1)
        super().__init__(given.shape[:-1])

    def sample(self, sample_shape=()):
        rows = self.probs.detach().reshape(-1, self.probs.shape[-1])
        count = math.prod(sample_shape)
        return _gt.multinomial(rows, count, True).T.reshape(self._shape(sample_shape))

    def log_prob(self, value):
        value = value.long().unsqueeze(-1)
        value, logits = _gt.broadcast_tensors(value, self.logits)
        return logits.gather(-1, value[..., :1]).squeeze(-1)

    def entropy(self):
        least = -3.4028234663852886e38 if self.logits.dtype == _gt.float32 else -1.7e308
        return -(self.logits.clamp(min=least) * self.probs).sum(-1)

    @property
    def mode(self):
        return self.probs.argmax(-1)


class Independent(Distribution):
    """The last dimensions of a batch as one event."""

    def __init__(self, base_distribution, reinterpreted_batch_ndims, validate_args=None):
        self.base_dist, self._dims = base_distribution, reinterpreted_batch_ndims
        shape = (*base_distribution.batch_shape, *base_distribution.event_shape)
        cut = len(base_distribution.batch_shape) - reinterpreted_batch_ndims
        super().__init__(shape[:cut], shape[cut:])

    @property
    def has_rsample(self):
        return self.base_dist.has_rsample

    def _summed(self, t):
        return t.sum(tuple(range(-self._dims, 0))) if self._dims else t

    def sample(self, sample_shape=()):
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape=()):
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value):
        return self._summed(self.base_dist.log_prob(value))

    def entropy(self):
        return self._summed(self.base_dist.entropy())

    @property
    def mean(self):
        return self.base_dist.mean

    @property
    def variance(self):
        return self.base_dist.variance
