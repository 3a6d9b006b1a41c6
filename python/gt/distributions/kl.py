"""How far distributions are from one another."""

import math

from gt import _gt
from gt.distributions.basic import (
    Bernoulli,
    Categorical,
    Exponential,
    Independent,
    Laplace,
    LogNormal,
    Normal,
    Uniform,
)
from gt.distributions.counts import Geometric, OneHotCategorical
from gt.distributions.normals import HalfNormal, MultivariateNormal
from gt.distributions.shares import Beta, Dirichlet, Gamma
from gt.linalg import solve_triangular

__all__ = ["kl_divergence", "register_kl"]


def _normals(p, q):
    ratio = (p.scale / q.scale) ** 2
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale) ** 2 - 1 - ratio.log())


def _categories(p, q):
    gap = p.probs * (p.logits - q.logits)
    return gap.masked_fill(p.probs == 0, 0.0).sum(-1)


def _bernoullis(p, q):
    ones = p.probs * ((-q.logits).softplus() - (-p.logits).softplus())
    return ones + (1 - p.probs) * (q.logits.softplus() - p.logits.softplus())


def _uniforms(p, q):
    inside = (q.low <= p.low) & (q.high >= p.high)
    return _gt.where(inside, ((q.high - q.low) / (p.high - p.low)).log(), math.inf)


def _exponentials(p, q):
    ratio = q.rate / p.rate
    return ratio - 1 - ratio.log()


def _laplaces(p, q):
    ratio, gap = p.scale / q.scale, (p.loc - q.loc).abs()
    return -ratio.log() + gap / q.scale + ratio * (-gap / p.scale).exp() - 1


def _gammas(p, q):
    sums = q.concentration * (p.rate / q.rate).log() + q.concentration.lgamma() - p.concentration.lgamma()
    return (
        sums
        + (p.concentration - q.concentration) * p.concentration.digamma()
        + (q.rate - p.rate) * (p.concentration / p.rate)
    )


def _dirichlets(p, q):
    a, b = p.concentration, q.concentration
    logs = a.sum(-1).lgamma() - b.sum(-1).lgamma() - (a.lgamma() - b.lgamma()).sum(-1)
    return logs + ((a - b) * (a.digamma() - a.sum(-1, keepdim=True).digamma())).sum(-1)


def _betas(p, q):
    return _dirichlets(p._dirichlet, q._dirichlet)


def _multivariate(p, q):
    if p.event_shape != q.event_shape:
        raise ValueError(
            "KL-divergence between two Multivariate Normals with different event shapes cannot be computed"
        )
    spread = solve_triangular(q.scale_tril, p.scale_tril, upper=False)
    traces = spread.square().sum((-2, -1)) + q._distance(p.loc)
    return q._half_log_det() - p._half_log_det() + 0.5 * (traces - p.event_shape[0])


def _one_hots(p, q):
    return _categories(p._categorical, q._categorical)


def _geometrics(p, q):
    return -p.entropy() - (-q.probs).log1p() / p.probs - q.logits


def _half_normals(p, q):
    return _normals(p._normal, q._normal)


def _independents(p, q):
    if p._dims != q._dims:
        raise NotImplementedError("kl_divergence: the distributions reinterpret different numbers of dimensions")
    return p._summed(kl_divergence(p.base_dist, q.base_dist))


_DIVERGENCES = {
    (Normal, Normal): _normals,
    (LogNormal, LogNormal): _normals,
    (Laplace, Laplace): _laplaces,
    (Categorical, Categorical): _categories,
    (OneHotCategorical, OneHotCategorical): _one_hots,
    (Bernoulli, Bernoulli): _bernoullis,
    (Uniform, Uniform): _uniforms,
    (Exponential, Exponential): _exponentials,
    (Gamma, Gamma): _gammas,
    (Beta, Beta): _betas,
    (Dirichlet, Dirichlet): _dirichlets,
    (Geometric, Geometric): _geometrics,
    (HalfNormal, HalfNormal): _half_normals,
    (MultivariateNormal, MultivariateNormal): _multivariate,
    (Independent, Independent): _independents,
}


def register_kl(type_p, type_q):
    """Makes a function the rule for two kinds of distributions and those made from them."""

    def register(rule):
        _DIVERGENCES[type_p, type_q] = rule
        return rule

    return register


def kl_divergence(p, q):
    """How many nats are lost if `q` is taken for `p`."""
    # The rule for the nearest kinds.
    for a in type(p).__mro__:
        for b in type(q).__mro__:
            if (a, b) in _DIVERGENCES:
                return _DIVERGENCES[a, b](p, q)
    raise NotImplementedError(f"kl_divergence: no rule for {type(p).__name__} and {type(q).__name__}")
