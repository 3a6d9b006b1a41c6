"""Distributions: their samples by their moments, their densities by integration, and all of it against PyTorch."""

import math

import numpy as np
import pytest
from helpers import check, needs_torch, torch

import gt


def library(T):
    return T.distributions


MAKES = {
    "normal": lambda D, a, b: D.Normal(a, b.exp()),
    "lognormal": lambda D, a, b: D.LogNormal(a * 0.3, b.exp() * 0.3),
    "laplace": lambda D, a, b: D.Laplace(a, b.exp()),
    "uniform": lambda D, a, b: D.Uniform(a, a + b.exp() + 2),
    "exponential": lambda D, a, b: D.Exponential(b.exp()),
    "bernoulli": lambda D, a, b: D.Bernoulli(logits=a),
    "bernoulli of probs": lambda D, a, b: D.Bernoulli(a.sigmoid()),
    "categorical": lambda D, a, b: D.Categorical(logits=a),
    "categorical of probs": lambda D, a, b: D.Categorical(b.exp()),
    "independent": lambda D, a, b: D.Independent(D.Normal(a, b.exp()), 1),
}


def spread(b):
    """Covariances that the parameters give."""
    row = b.unsqueeze(-1)
    return row @ row.mT + 0.5 * b.new_ones(3).diag()


SHAPED = {
    "multivariate": lambda D, a, b: D.MultivariateNormal(a, spread(b)),
    "multivariate by its factor": lambda D, a, b: D.MultivariateNormal(a, scale_tril=spread(b).tril()),
    "multivariate by its inverse": lambda D, a, b: D.MultivariateNormal(a, precision_matrix=spread(b)),
    "half normal": lambda D, a, b: D.HalfNormal(b.exp()),
    "gumbel": lambda D, a, b: D.Gumbel(a, b.exp()),
    "cauchy": lambda D, a, b: D.Cauchy(a, b.exp()),
    "student": lambda D, a, b: D.StudentT(b.exp() + 6, a, b.exp()),
    "gamma": lambda D, a, b: D.Gamma(a.exp(), b.exp()),
    "chi2": lambda D, a, b: D.Chi2(b.exp() * 3),
    "beta": lambda D, a, b: D.Beta(a.exp(), b.exp() + 0.5),
    "dirichlet": lambda D, a, b: D.Dirichlet(a.exp()),
    "geometric": lambda D, a, b: D.Geometric(logits=a),
    "one hot": lambda D, a, b: D.OneHotCategorical(logits=a),
    "straight through": lambda D, a, b: D.OneHotCategoricalStraightThrough(b.exp()),
    "relaxed one hot": lambda D, a, b: D.RelaxedOneHotCategorical(a.new_tensor(0.7), logits=a),
    "relaxed bernoulli": lambda D, a, b: D.RelaxedBernoulli(a.new_tensor(0.7), logits=a),
    "mixture": lambda D, a, b: D.MixtureSameFamily(D.Categorical(logits=a), D.Normal(b, a.exp())),
    "mixture of vectors": lambda D, a, b: D.MixtureSameFamily(
        D.Categorical(logits=a[0]), D.Independent(D.Normal(b.T, a.T.exp()), 1)
    ),
    "tanh": lambda D, a, b: D.TransformedDistribution(
        D.Normal(a, b.exp()), [D.AffineTransform(0.1, 0.5), D.TanhTransform(cache_size=1)]
    ),
    "composed": lambda D, a, b: D.TransformedDistribution(
        D.Independent(D.Normal(a, b.exp()), 1),
        D.ComposeTransform([D.SigmoidTransform(), D.AffineTransform(1.0, b.exp())]),
    ),
    "softplus": lambda D, a, b: D.TransformedDistribution(D.Normal(a, b.exp()), [D.transforms.SoftplusTransform()]),
    "power of exp": lambda D, a, b: D.TransformedDistribution(
        D.Normal(a, b.exp()), [D.ExpTransform(), D.PowerTransform(2.0), D.ExpTransform().inv]
    ),
}
# What has no moments, no entropy or no divergence, there or here.
NO_MOMENTS = {"relaxed one hot", "relaxed bernoulli", "tanh", "composed", "softplus", "power of exp"}
NO_ENTROPY = NO_MOMENTS | {"mixture", "mixture of vectors", "student"}
NO_DIVERGENCE = NO_ENTROPY | {"gumbel", "cauchy", "chi2"}


def at(T, kind):
    if "hot" in kind and "relaxed" not in kind or kind == "straight through":
        return T.tensor([[0.0, 0, 1], [1, 0, 0]]).double()
    if kind in ("dirichlet", "relaxed one hot"):
        return T.tensor([[0.2, 0.3, 0.5], [0.1, 0.6, 0.3]]).double()
    if kind == "mixture" or kind == "mixture of vectors":
        return T.tensor([0.3, -0.8]).double()
    if kind == "geometric":
        return T.tensor([[0.0, 1.0, 3.0], [2.0, 0.0, 5.0]]).double()
    if kind == "composed":
        return 1 + parameters(T)[1].exp().detach() * T.tensor([[0.2, 0.3, 0.5], [0.1, 0.6, 0.3]]).double()
    return T.tensor([[0.2, 0.3, 0.5], [0.1, 0.6, 0.3]]).double()


@needs_torch
@pytest.mark.parametrize("kind", SHAPED)
def test_shapes_against_torch(kind):
    seen = []
    for T in (gt, torch):
        D, (a, b), (c, d) = library(T), parameters(T), parameters(T, 0.3)
        p, q = SHAPED[kind](D, a, b), SHAPED[kind](D, c, d)
        out = [p.log_prob(at(T, kind))]
        if kind not in NO_ENTROPY:
            out.append(p.entropy())
        if kind not in NO_MOMENTS:
            out += [p.mean, p.variance]
        if kind not in NO_DIVERGENCE:
            out.append(D.kl_divergence(p, q))
        sum((o[o.isfinite()] * (i + 1)).sum() for i, o in enumerate(out) if o.requires_grad).backward()
        grads = [x.grad for x in (a, b) if x.grad is not None]
        sample = p.sample((5, 2))
        shapes = [list(p.batch_shape), list(p.event_shape), list(sample.shape), p.has_rsample]
        if T is gt and kind in ("gamma", "chi2", "beta", "dirichlet", "student"):
            # There are no gradients through these samples.
            shapes[-1] = True
        if p.has_rsample:
            assert p.rsample().requires_grad
        seen.append([out, grads, shapes])
    check(*seen, (1e-6, 1e-6))


@pytest.mark.parametrize("kind", SHAPED)
def test_shaped_samples_have_the_moments(kind):
    gt.manual_seed(0)
    p = SHAPED[kind](library(gt), *(x.detach() for x in parameters(gt)))
    drawn = p.sample((20000,))
    # Densities tell where samples are: their mean logarithm is the entropy.
    if kind not in NO_ENTROPY:
        check(-p.log_prob(drawn).mean(0), p.entropy().numpy(), (0.03, 0.03))
    if kind in NO_MOMENTS or kind == "cauchy":
        assert bool(drawn.isfinite().all()) and bool(p.log_prob(drawn).isfinite().all())
        return
    drawn = drawn.double().numpy()
    np.testing.assert_allclose(drawn.mean(0), p.mean.numpy(), atol=0.1)
    np.testing.assert_allclose(drawn.var(0), p.variance.numpy(), rtol=0.2, atol=0.01)


def test_own_transforms_and_rules():
    D = gt.distributions

    class Twice(D.Transform):
        domain = codomain = D.constraints.real

        def _call(self, x):
            return 2 * x

        def _inverse(self, y):
            return y / 2

        def log_abs_det_jacobian(self, x, y):
            return gt.full_like(x, math.log(2.0))

    p = D.TransformedDistribution(D.Normal(0.5, 1.0), Twice())
    x = gt.tensor([0.3, 1.2])
    check(p.log_prob(x), D.Normal(1.0, 2.0).log_prob(x).numpy(), (1e-6, 1e-6))

    class Own(D.Normal):
        pass

    @D.register_kl(Own, D.Laplace)
    def rule(p, q):
        return gt.tensor(7.0)

    assert D.kl_divergence(Own(0.0, 1.0), D.Laplace(0.0, 1.0)).item() == 7.0
    assert D.kl_divergence(Own(0.0, 1.0), D.Normal(0.0, 1.0)).item() == 0.0
    assert D.constraints.simplex.check(gt.tensor([[0.5, 0.5], [0.5, 0.6]])).tolist() == [True, False]


def parameters(T, offset=0.0):
    a = np.array([[0.3, -0.7, 1.1], [0.2, 0.9, -1.0]]) + offset
    return T.tensor(a, requires_grad=True), T.tensor(a[::-1].copy() / 2, requires_grad=True)


def value(T, kind):
    if "categorical" in kind:
        return T.tensor([2, 0])
    if "bernoulli" in kind:
        return T.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]).double()
    return T.tensor([[0.5, 0.4, 1.3], [0.7, 1.2, 0.1]]).double()


@needs_torch
@pytest.mark.parametrize("kind", MAKES)
def test_against_torch(kind):
    seen = []
    for T in (gt, torch):
        D, (a, b), (c, d) = library(T), parameters(T), parameters(T, 0.3)
        p, q = MAKES[kind](D, a, b), MAKES[kind](D, c, d)
        out = [p.log_prob(value(T, kind)), p.entropy()]
        if "categorical" not in kind:
            out += [p.mean, p.variance]
        if kind not in ("laplace", "uniform"):
            out.append(D.kl_divergence(p, q))
        sum((o * (i + 1)).sum() for i, o in enumerate(out)).backward()
        grads = [x.grad for x in (a, b) if x.grad is not None]
        seen.append([out, grads, list(p.batch_shape), list(p.event_shape), list(p.sample((5, 2)).shape)])
    check(*seen)


@pytest.mark.parametrize("kind", MAKES)
def test_samples_have_the_moments(kind):
    gt.manual_seed(0)
    p = MAKES[kind](library(gt), *(x.detach() for x in parameters(gt)))
    drawn = p.sample((20000,)).double().numpy()
    if "categorical" in kind:
        shares = np.stack([(drawn == k).mean(0) for k in range(3)], -1)
        np.testing.assert_allclose(shares, p.probs.numpy(), atol=0.02)
        return
    np.testing.assert_allclose(drawn.mean(0), p.mean.numpy(), atol=0.06)
    np.testing.assert_allclose(drawn.var(0), p.variance.numpy(), rtol=0.12)


def test_densities_have_mass_one():
    x = gt.linspace(-30, 30, 60001, dtype=gt.float64)
    for p in (gt.distributions.Normal(0.3, 1.7), gt.distributions.Laplace(-1.0, 0.8), gt.distributions.Uniform(-1, 2)):
        assert math.isclose(gt.trapezoid(p.log_prob(x).exp(), x).item(), 1, rel_tol=2e-3)


def test_gradients_go_through_samples():
    loc, scale = gt.tensor(0.5, requires_grad=True), gt.tensor(2.0, requires_grad=True)
    p = gt.distributions.Normal(loc, scale)
    x = p.rsample((4,))
    x.sum().backward()
    assert loc.grad.item() == 4.0
    check(scale.grad, ((x.detach() - 0.5) / 2).sum().numpy(), (1e-4, 1e-4))
    assert not p.sample((2,)).requires_grad


def test_what_is_refused():
    D = gt.distributions
    with pytest.raises(ValueError, match="either probs or logits"):
        D.Bernoulli()
    with pytest.raises(NotImplementedError, match="no rule"):
        D.kl_divergence(D.Normal(0.0, 1.0), D.Laplace(0.0, 1.0))
    with pytest.raises(NotImplementedError, match="sample()"):
        D.Categorical(gt.ones(3)).rsample()
