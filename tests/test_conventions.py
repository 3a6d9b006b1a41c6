"""Derivatives at ties, bounds, zeros and where there is no number: PyTorch's, written out."""

import math

import numpy as np
import pytest
from helpers import check, torch

import gt

nan, inf = math.nan, math.inf
TIES = [1.0, nan, 1.0, nan, 2.0], [2.0, 1.0, nan, nan, 2.0]
LABELS = [1.0, 0.0, 0.0, 1.0, 0.3]

# A function of (library, tensors), the tensors, and the gradient of its sum for each.
SLOPES = {
    "clamp": (lambda m, x: x.clamp(0, 2), [[-1.0, 0.0, 1.0, 2.0, 3.0, nan]], [[0, 0, 1, 0, 0, 0]]),
    "clamp from below": (lambda m, x: x.clamp(min=0), [[-1.0, 0.0, 1.0]], [[0, 0, 1]]),
    "clamp turned around": (lambda m, x: x.clamp(3, 2), [[-1.0, 2.0, 2.5, 3.0, 4.0]], [[0, 0, 0, 0, 0]]),
    "clamp by nan": (lambda m, x: x.clamp(nan, 2), [[1.0, 3.0]], [[0, 0]]),
    "clamp by tensors": (
        lambda m, x, a, b: x.clamp(a, b),
        [[-1.0, 0.0, 1.0, 2.0, 3.0], [0.0] * 5, [2.0] * 5],
        [[0, 0.5, 1, 0.5, 0], [1, 0.5, 0, 0, 0], [0, 0, 0, 0.5, 1]],
    ),
    "clamp by a tensor with nan": (
        lambda m, x, a: x.clamp(min=a),
        [[nan, 1.0, 1.0], [0.0, nan, 0.0]],
        [[1, 1, 1], [1, 1, 0]],
    ),
    "maximum": (lambda m, a, b: m.maximum(a, b), TIES, [[0, 1, 1, 1, 0.5], [1, 1, 1, 1, 0.5]]),
    "minimum": (lambda m, a, b: m.minimum(a, b), TIES, [[1, 1, 1, 1, 0.5], [0, 1, 1, 1, 0.5]]),
    "relu": (lambda m, x: x.relu(), [[-1.0, 0.0, 1.0, nan]], [[0, 0, 1, 1]]),
    "max": (lambda m, x: x.max(), [[1.0, nan, 3.0, nan]], [[0, 0.5, 0, 0.5]]),
    "min": (lambda m, x: x.min(), [[1.0, nan, 3.0]], [[0, 1, 0]]),
    "median": (lambda m, x: x.median(), [[1.0, 2.0, 2.0, 4.0]], [[0, 0.5, 0.5, 0]]),
    "median with nan": (lambda m, x: x.median(), [[1.0, nan, 2.0]], [[0, 1, 0]]),
    "hardswish": (lambda m, x: m.nn.functional.hardswish(x), [[-3.0, 0.0, 3.0, 4.0, inf]], [[0, 0.5, 1, 1, 1]]),
    "fmod": (
        lambda m, a, b: m.fmod(a, b),
        [[0.0, 1.7, -1.7, 3.0], [1.5, 1.5, 1.5, -2.0]],
        [[1, 1, 1, 1], [0, -1, 1, 1]],
    ),
    "atan2": (lambda m, a, b: m.atan2(a, b), [[0.0, 3.0], [0.0, 4.0]], [[0, 0.16], [0, -0.12]]),
    "huber": (lambda m, x: _huber(m, x, "huber_loss"), [[inf, -inf, 0.5, -3.0]], [[1, -1, 0.5, -1]]),
    "smooth l1": (lambda m, x: _huber(m, x, "smooth_l1_loss"), [[inf, -inf, 0.5, -3.0]], [[1, -1, 0.5, -1]]),
    "binary cross entropy": (
        lambda m, p: m.nn.functional.binary_cross_entropy(p, m.tensor(LABELS), reduction="sum"),
        [[0.0, 1.0, 0.0, 1.0, 0.3]],
        [[-1e12, 1e12, 0, 0, 0]],
    ),
    "binary cross entropy of a sigmoid": (
        lambda m, z: m.nn.functional.binary_cross_entropy(z.sigmoid(), m.tensor([1.0, 0.0]), reduction="sum"),
        [[-90.0, 30.0]],
        [[0, 0]],
    ),
    "prod": (lambda m, x: x.prod(), [[2.0, 0.0, 3.0]], [[0, 6, 0]]),
    "prod of rows": (lambda m, x: x.prod(1), [[[2.0, 0.0, 0.0], [1.0, 2.0, 3.0]]], [[[0, 0, 0], [6, 3, 2]]]),
    "cumprod": (lambda m, x: x.cumprod(0), [[2.0, 0.0, 3.0, 0.0, 5.0]], [[1, 8, 0, 0, 0]]),
}


def _huber(m, x, name):
    return getattr(m.nn.functional, name)(x, m.zeros(4), reduction="sum")


def slopes(library, case):
    f, inputs, _ = SLOPES[case]
    leaves = [library.tensor(x, requires_grad=True) for x in inputs]
    f(library, *leaves).sum().backward()
    return [x.grad.numpy() for x in leaves]


def near(found, right):
    np.testing.assert_allclose(found, np.array(right, dtype="float32"), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", SLOPES)
def test_slopes(case):
    for found, right in zip(slopes(gt, case), SLOPES[case][2]):
        near(found, right)


@pytest.mark.skipif(torch is None or int(torch.__version__.split(".")[1]) < 15, reason="PyTorch before 2.15 differs")
@pytest.mark.parametrize("case", SLOPES)
def test_slopes_are_pytorchs(case):
    for found, right in zip(slopes(torch, case), SLOPES[case][2]):
        near(found, right)


# A function of a tensor, where, and the second derivatives there.
CURVES = {
    "prod": (lambda x: x.prod(), [2.0, 0.0, 0.0], [[0, 0, 0], [0, 0, 2], [0, 2, 0]]),
    "cumprod": (lambda x: x.cumprod(0).sum(), [2.0, 0.0, 0.0], [[0, 1, 0], [1, 0, 2], [0, 2, 0]]),
    "softplus": (lambda x: gt.nn.functional.softplus(x).sum(), [0.0], [[0.25]]),
    "logsigmoid": (lambda x: gt.nn.functional.logsigmoid(x).sum(), [0.0], [[-0.25]]),
    "cross entropy of logits": (
        lambda x: gt.nn.functional.binary_cross_entropy_with_logits(x, gt.ones(1)),
        [0.0],
        [[0.25]],
    ),
    "soft margin": (lambda x: gt.nn.functional.soft_margin_loss(x, gt.ones(1)), [0.0], [[0.25]]),
}


@pytest.mark.parametrize("case", CURVES)
def test_second_derivatives_at_zero(case):
    f, at, right = CURVES[case]
    near(gt.autograd.functional.hessian(f, gt.tensor(at)).numpy(), right)


def test_second_derivatives_of_running_products():
    """Against differences of the first ones, which `test_slopes` holds against numbers."""

    def slope(x):
        x = gt.tensor(x, dtype=gt.float64, requires_grad=True)
        (x.cumprod(0) * gt.arange(1.0, 8.0)).square().sum().backward()
        return x.grad.numpy()

    at = np.array([1.5, 0.0, -2.0, 0.5, 0.0, 3.0, 1.0])
    found = gt.autograd.functional.hessian(
        lambda x: (x.cumprod(0) * gt.arange(1.0, 8.0)).square().sum(), gt.tensor(at)
    ).numpy()
    step = 1e-5 * np.eye(7)
    right = np.stack([(slope(at + d) - slope(at - d)) / 2e-5 for d in step])
    np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)


def test_halves_do_not_overflow_on_the_way():
    x = gt.tensor([500.0, -500.0, 11000.0], dtype=gt.float16, requires_grad=True)
    for f in (lambda x: gt.nn.functional.gelu(x, approximate="tanh"), gt.nn.functional.hardswish):
        x.grad = None
        y = f(x)
        y.sum().backward()
        check(y.detach(), np.array([500, 0, 11000], dtype="float16"))
        check(x.grad, np.array([1, 0, 1], dtype="float16"))


PIECES = {
    "relu": gt.relu,
    "leaky_relu": gt.nn.functional.leaky_relu,
    "hardtanh": gt.nn.functional.hardtanh,
    "relu6": gt.nn.functional.relu6,
    "softshrink": gt.nn.functional.softshrink,
    "threshold": lambda x: gt.nn.functional.threshold(x, 0.1, 5.0),
    "hardsigmoid": gt.nn.functional.hardsigmoid,
    "clamp": lambda x: x.clamp(-1, 1),
    "amax": lambda x: x.amax(0),
}


@pytest.mark.parametrize("name", PIECES)
def test_a_gradient_in_pieces_has_one_of_zeros(name):
    x = gt.tensor([1.5, -2.0, 0.3], requires_grad=True)
    (g,) = gt.autograd.grad(PIECES[name](x).sum(), x, create_graph=True)
    ((g - 1) ** 2).sum().backward()
    check(x.grad, np.zeros(3, dtype="float32"))
