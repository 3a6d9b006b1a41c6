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
