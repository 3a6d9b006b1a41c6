"""Error and gamma functions, divisors, parts of numbers, slopes, windows: against closed forms and PyTorch."""

import math

import numpy as np
import pytest
from helpers import check, compare, draw, needs_new_torch, needs_torch, ours, torch

import gt

INF, NAN = math.inf, math.nan
ULPS = 2
# What Python has, and where it is asked.
RIGHT = {
    "erfc": (math.erfc, np.concatenate([np.linspace(-6, 9.2, 800), [0.0]])),
    "lgamma": (math.lgamma, np.concatenate([np.linspace(-9.99, 40, 901), 10.0 ** np.arange(-30.0, 36.0), [1.0, 2.0]])),
}


def ulps(mine, right):
    """How many of the last place of single precision the worst element is off."""
    return (np.abs(mine - right) / np.spacing(np.abs(right.astype(np.float32))).astype(np.float64)).max()


@pytest.mark.parametrize("kind", RIGHT)
def test_single_precision_is_exact_to_the_last_places(kind):
    f, x = RIGHT[kind]
    x = x.astype(np.float32)
    right = np.array([f(float(v)) for v in x])
    mine = getattr(gt, kind)(gt.tensor(x)).numpy()
    assert mine.dtype == np.float32 and ulps(mine, right) <= ULPS
    wide = getattr(gt.tensor(x.astype(np.float64)), kind)().numpy()
    np.testing.assert_allclose(wide, right, rtol=1e-13, atol=1e-13)


def test_the_inverse_of_erf():
    x = np.concatenate([np.linspace(-0.999, 0.999, 801), 10.0 ** -np.arange(1.0, 30.0)])
    found = gt.erfinv(gt.tensor(x))
    np.testing.assert_allclose(found.erf().numpy(), x, rtol=1e-14)
    single = gt.tensor(x.astype(np.float32)).erfinv().numpy()
    assert ulps(single, gt.tensor(x.astype(np.float32)).double().erfinv().numpy()) <= ULPS
    ends = gt.tensor([-1.0, 1.0, 0.0, 1.5, -1.1]).erfinv().tolist()
    assert ends[:3] == [-INF, INF, 0.0] and all(math.isnan(v) for v in ends[3:])


def test_gamma_functions_by_recurrence():
    x = gt.tensor(np.concatenate([np.linspace(-7.3, 30, 500), [1e-8, 1e8]]))
    np.testing.assert_allclose(((x + 1).digamma() - x.digamma()).numpy()[:-1], (1 / x).numpy()[:-1], rtol=1e-9)
    for n in range(1, 4):
        step = (-1) ** n * math.factorial(n) / x ** (n + 1)
        right = ((x + 1).polygamma(n) - step).numpy()
        np.testing.assert_allclose(x.polygamma(n).numpy()[:-1], right[:-1], rtol=1e-8)
    assert abs(gt.digamma(gt.tensor(1.0, dtype=gt.float64)).item() + 0.5772156649015329) < 1e-14
    assert abs(gt.polygamma(1, gt.tensor(1.0, dtype=gt.float64)).item() - math.pi**2 / 6) < 1e-14


def test_gamma_functions_at_their_poles():
    x = gt.tensor([0.0, -0.0, -1.0, -2.0, INF, NAN])
    assert x.lgamma().tolist()[:5] == [INF] * 5 and gt.tensor([-INF, 1.0, 2.0]).lgamma().tolist() == [INF, 0, 0]
    found = x.digamma().tolist()
    assert found[:2] == [-INF, INF] and all(map(math.isnan, found[2:4])) and found[4] == INF
    assert gt.erfc(gt.tensor([INF, -INF, 0.0])).tolist() == [0, 2, 1]
    with pytest.raises(RuntimeError, match="negative n"):
        gt.polygamma(-1, x)


POINTS = np.array([-3.7, -1.2, -0.4, 0.3, 0.9, 1.46, 2.5, 7.0, 31.0])
CASES = {
    "erfc": lambda T, x: T.erfc(x),
    "erfinv": lambda T, x: T.erfinv(x / 40) + (x / 40).erfinv(),
    "lgamma": lambda T, x: x.lgamma(),
    "digamma": lambda T, x: T.digamma(x),
    "polygamma": lambda T, x: (T.polygamma(1, x), x.abs().polygamma(2), T.polygamma(3, x.abs())),
    "mvlgamma": lambda T, x: T.mvlgamma(x.abs() + 2, 3),
    "in place": lambda T, x: (x.clone().erfc_(), x.clone().lgamma_(), (x / 40).clone().erfinv_(), x.clone().digamma_()),
    "of integers": lambda T, x: (T.tensor([1, 2]).lgamma(), T.erfc(T.tensor([True, False])), T.tensor([3]).digamma()),
    "of half": lambda T, x: (T.erfc(T.tensor([0.5, 1.0]).half()), T.tensor([0.5, 3.0]).bfloat16().lgamma()),
    "hardshrink": lambda T, x: (x.hardshrink(), T.hardshrink(x, 1.0)),
    "angle": lambda T, x: (T.angle(x.detach()), T.tensor([1, -1]).angle(), T.tensor([NAN]).angle()),
    "frexp": lambda T, x: (*T.frexp(x), *T.tensor([0.0, INF, -INF, NAN, 1e-42, 3.4e38, 1.0, -2.0]).frexp()),
    "frexp of doubles": lambda T, x: T.frexp(T.tensor([1e308, 1e-308, 2.0**-1022, 1 - 2.0**-53], dtype=T.float64)),
    "renorm": lambda T, x: (T.renorm(x.view(3, 3), 2, 0, 2.0), x.view(3, 3).renorm(1, 1, 5.0)),
    "gradient": lambda T, x: (
        *T.gradient(x),
        *T.gradient(x.view(3, 3), spacing=0.5),
        *T.gradient(x.view(3, 3), spacing=(2.0, 3.0), edge_order=2),
        *T.gradient(x, spacing=(T.arange(9.0).double() ** 2,), edge_order=2),
        *T.gradient(x.view(3, 3), spacing=[T.tensor([0.0, 1.0, 4.0]).double()], dim=1),
    ),
    "windows": lambda T, x: tuple(
        getattr(T, f"{name}_window")(n, periodic, dtype=T.float64)
        for name in ("hann", "hamming", "blackman", "bartlett")
        for n in (0, 1, 2, 7)
        for periodic in (True, False)
    ),
    "hamming": lambda T, x: (T.hamming_window(5, False, 0.6, 0.3), T.hann_window(4)),
    "put": lambda T, x: (
        x.view(3, 3).put(T.tensor([[0, -1]]), T.tensor([[5.0, 6.0]]).double()),
        T.put(x, T.tensor([1, 1]), x[:2], accumulate=True),
        x.clone().view(3, 3).t().put_(T.tensor([1, 4]), x[:2]),
    ),
    "index_reduce": lambda T, x: tuple(
        T.index_reduce(x.view(3, 3), 0, T.tensor([0, 2, 0]), x.view(3, 3) * 2, kind, include_self=own)
        for kind in ("prod", "mean", "amax", "amin")
        for own in (True, False)
    ),
    "unravel_index": lambda T, x: (
        *T.unravel_index(T.tensor([[5, 0], [7, 11]]), (2, 2, 3)), *T.unravel_index(T.tensor(3), 4)
    ),
    "copies and parts": lambda T, x: (
        T.narrow_copy(x, 0, 1, 2),
        *T.unsafe_chunk(x, 2),
        *x.unsafe_split(4),
        *T.unsafe_split_with_sizes(x, [4, 5]),
        T.is_same_size(x, x),
    ),
    "real numbers": lambda T, x: (
        T.real(x), x.real, T.conj(x), x.view(3, 3).H, x.view(3, 3).mH, T.adjoint(x.view(3, 3)), T.resolve_neg(x)
    ),
}  # fmt: skip


@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CASES)
def test_against_torch(kind):
    if kind == "copies and parts":
        needs_new_torch("gradients of narrow_copy")
    compare(CASES[kind], [POINTS], (1e-8, 1e-9) if kind not in ("of half", "of integers", "hamming") else None)


@needs_torch
def test_divisors():
    for dtype in ("uint8", "int8", "int16", "int32", "int64"):
        top = {"uint8": 255, "int8": 127}.get(dtype, 30000)
        low = 0 if dtype == "uint8" else -top
        a, b = draw((200,), dtype, low, top), draw((200,), dtype, low, top, seed=1)
        a[:4], b[:4] = [0, 0, 6, 5], [0, 7, 0, 5]
        compare(lambda T, a, b: (T.gcd(a, b), a.gcd(b[:1])), [a, b])
        if dtype in ("int32", "int64"):
            compare(lambda T, a, b: (T.lcm(a, b), a.lcm(b)), [a, b])
    # Neighbours among Fibonacci's numbers take the most steps.
    x, y = 4660046610375530309, 7540113804746346429
    assert gt.gcd(gt.tensor([x]), gt.tensor([y])).tolist() == [math.gcd(x, y)]
    assert gt.gcd(gt.tensor([12, 18]), gt.tensor([8, 27], dtype=gt.int32)).tolist() == [4, 9]
    assert gt.lcm(gt.tensor([4, 0, -6]), gt.tensor([6, 5, 4])).tolist() == [12, 0, 12]


def test_second_derivatives():
    x = gt.tensor([0.4, 1.7, 3.0], dtype=gt.float64, requires_grad=True)
    (first,) = gt.autograd.grad(gt.lgamma(x).sum(), x, create_graph=True)
    (second,) = gt.autograd.grad(first.sum(), x)
    check(first, x.detach().digamma())
    check(second, gt.polygamma(1, x.detach()))


REFUSED = [
    (lambda T: T.gcd(T.ones(2), T.ones(2)), RuntimeError),
    (lambda T: T.frexp(T.tensor([1])), RuntimeError),
    (lambda T: T.renorm(T.ones(2), 2, 0, 1.0), RuntimeError),
    (lambda T: T.renorm(T.ones(2, 2), 2, 0, -1.0), RuntimeError),
    (lambda T: T.gradient(T.ones(1)), RuntimeError),
    (lambda T: T.gradient(T.ones(3), edge_order=3), RuntimeError),
    (lambda T: T.hann_window(-1), RuntimeError),
    (lambda T: T.hann_window(3, dtype=T.int64), RuntimeError),
    (lambda T: T.unravel_index(T.ones(2), (2, 2)), (ValueError, TypeError)),
    (lambda T: T.unravel_index(T.tensor([1]), (2, -2)), ValueError),
    (lambda T: T.ones(3).put(T.tensor([0, 1]), T.ones(3)), (RuntimeError, IndexError)),
    (lambda T: T.index_reduce(T.ones(3), 0, T.tensor([0]), T.ones(1), "sum"), RuntimeError),
    # A RuntimeError in PyTorch before 2.15.
    (lambda T: T.imag(T.ones(2)), (TypeError, RuntimeError)),
    (lambda T: T.ones(2, 2, 2).H, RuntimeError),
    (lambda T: T.mvlgamma(T.ones(2), 0), RuntimeError),
    (lambda T: T.matrix_exp(T.ones(2, 3)), RuntimeError),
]


@pytest.mark.parametrize("i", range(len(REFUSED)))
def test_what_is_refused(i):
    f, error = REFUSED[i]
    for library in (gt, torch) if torch is not None else (gt,):
        with pytest.raises(error):
            f(library)


def test_slopes_by_numpy():
    x, at = draw((5, 6), "float64"), np.array([0.0, 1.0, 1.5, 4.0, 4.5, 9.0])
    for order in (1, 2):
        for mine, right in zip(gt.gradient(ours(x), edge_order=order), np.gradient(x, edge_order=order)):
            check(mine, right)
        mine = gt.gradient(ours(x), spacing=(ours(at),), dim=1, edge_order=order)[0]
        check(mine, np.gradient(x, at, axis=1, edge_order=order))


def test_windows_by_numpy():
    for name, right in (
        ("hann", np.hanning),
        ("hamming", np.hamming),
        ("bartlett", np.bartlett),
        ("blackman", np.blackman),
    ):
        window = getattr(gt, f"{name}_window")
        np.testing.assert_allclose(window(9, False, dtype=gt.float64).numpy(), right(9), atol=1e-12)
        np.testing.assert_allclose(window(8).numpy(), right(9)[:8], atol=1e-6)


SPECIAL = (
    "digamma entr erf erfc erfinv exp2 expit expm1 gammaln i0 i0e i1 i1e log1p log_ndtr logit ndtr ndtri psi sinc"
).split()


@needs_torch
@pytest.mark.parametrize("kind", SPECIAL)
def test_special_functions_are_pytorchs(kind):
    unit = kind in ("erfinv", "logit", "ndtri", "entr", "log1p")
    x = np.concatenate([np.linspace(0.01, 0.99, 40), [1e-9]]) if unit else np.linspace(-14.3, 17.9, 60)
    compare(lambda T, x: getattr(T.special, kind)(x), [x], (1e-9, 1e-12))
    ends = np.array([0.0, 1.0, -1.0, INF, -INF, NAN], dtype=np.float32)
    check(getattr(gt.special, kind)(ours(ends)), getattr(torch.special, kind)(torch.tensor(ends)))
    check(getattr(gt.special, kind)(gt.tensor([1, 2])), getattr(torch.special, kind)(torch.tensor([1, 2])))


@needs_torch
def test_special_functions_of_more_arguments():
    x, y = draw((3, 4), "float64", 0.1, 2), draw((3, 4), "float64", 0.1, 2)
    compare(
        lambda T, x, y: (
            T.special.xlog1py(x, y),
            T.special.xlog1py(2, y),
            T.special.xlogy(x, 2.5),
            T.special.polygamma(2, x),
            T.special.multigammaln(x + 3, 2),
            T.special.logsumexp(x, 1),
            T.special.softmax(x, 0),
            T.special.log_softmax(x, 0, dtype=T.float64),
        ),
        [x, y],
    )
    compare(lambda T, x: T.special.entr(x), [np.array([0.0, 0.5, 1.0])])
    zeros = [0.0, 0.0, 1.0], [-1.0, NAN, -1.0]
    check(gt.special.xlog1py(*map(gt.tensor, zeros)), torch.special.xlog1py(*map(torch.tensor, zeros)))


def test_tails_of_the_normal_distribution():
    x = gt.tensor([-40.0, -5.0, 0.0, 5.0, 9.0], dtype=gt.float64)
    np.testing.assert_allclose(
        gt.special.log_ndtr(x).numpy(),
        [-804.608442013754, -15.064998393988727, math.log(0.5), -2.866516129637633e-07, -1.1285884059538324e-19],
        rtol=1e-12,
    )
    p = gt.tensor([1e-300, 1e-12, 0.3, 0.5], dtype=gt.float64)
    np.testing.assert_allclose(gt.special.ndtr(gt.special.ndtri(p)).numpy(), p.numpy(), rtol=1e-10)


@needs_torch
def test_kaiser_windows():
    for options in ({"periodic": True, "beta": 8.6}, {"periodic": False}, {"periodic": False, "dtype": "float64"}):
        seen = []
        for T in (gt, torch):
            more = {**options, "dtype": getattr(T, options["dtype"])} if "dtype" in options else options
            seen.append(T.kaiser_window(9, **more))
        check(*seen, tolerance=(1e-5, 1e-6))
