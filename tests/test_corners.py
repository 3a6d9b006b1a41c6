"""Functions composed of others at zeros, bounds, infinities and NaN: numbers are written out, and PyTorch's."""

import math

import numpy as np
import pytest
from helpers import needs_torch, torch, values

import gt

NAN, INF = math.nan, math.inf


def slope(T, f, x, dtype=None):
    """A function's slope at some numbers."""
    x = T.tensor(x, dtype=dtype or T.float32).requires_grad_()
    f(x).sum().backward()
    return x.grad


def of(T, kind, *numbers):
    return T.tensor(numbers, dtype=getattr(T, kind))


# An expression over a library T, and its numbers.
CASES = {
    "shift by the whole type": (
        lambda T: (of(T, "int32", 1, -1, -(2**31)) >> 31, of(T, "int8", -128, 127) >> 7, T.tensor([1, -1]) >> 63),
        ([0, -1, -1], [-1, 0], [0, -1]),
    ),
    "shift beyond the type": (
        lambda T: (of(T, "uint8", 200) >> 8, T.tensor([1, -1]) >> T.tensor([70, 70]), T.tensor([5, -5]) << 64),
        ([0], [0, -1], [0, 0]),
    ),
    "shift to the sign": (
        lambda T: (T.tensor([1, 3]) << 63, of(T, "uint8", 255) << 1, of(T, "int8", 100) << of(T, "int8", 1)),
        ([-(2**63)] * 2, [254], [-56]),
    ),
    "shift back": (lambda T: (T.tensor([5, -5]) >> -1, T.tensor([5]) << -1), ([0, -1], [0])),
    "shift of a bool": (lambda T: (T.tensor([True]) << 1, 1 << T.tensor([3]), -9 >> T.tensor([1])), ([2], [8], [-5])),
    "shift in a wider type": (lambda T: of(T, "int8", 2) << T.tensor([40]), [2**41]),
    "celu": (
        lambda T: (
            T.nn.functional.celu(T.tensor([0.0, 89, 1e4, -INF, NAN])),
            slope(T, T.nn.functional.celu, [0.0, 89, 1e4, -1e4]),
            slope(T, lambda x: T.nn.functional.celu(x, 2.0), [0.0, 300], T.float16),
        ),
        ([0, 89, 1e4, -1, NAN], [1, 1, 1, 0], [1, 1]),
    ),
    "asinh": (
        lambda T: (T.asinh(of(T, "float16", 300, -60000)), slope(T, T.asinh, [0.0, 1e-3, -1e10, INF])),
        ([6.3984375, -11.6953125], [1, 0.9999995, 1e-10, 0]),
    ),
    "asinh in double precision": (
        lambda T: T.asinh(of(T, "float64", 2e4, -1e5, 1e9)),
        [10.596634733721073, -12.206072645555173, 21.416413017506358],
    ),
    "sign of asinh of zero": (lambda T: T.signbit(T.asinh(T.tensor([-0.0, 0.0]))), [True, False]),
    "acosh": (
        lambda T: (
            T.acosh(T.tensor([1.0, 0.5, -1e4, -1e10, -1e30, INF])),
            T.acosh(of(T, "float16", 300, 60000)),
            slope(T, T.acosh, [1.0, 1.5, 1e10]),
        ),
        ([0, NAN, NAN, NAN, NAN, INF], [6.3984375, 11.6953125], [INF, 0.8944272, 1e-10]),
    ),
    "xlogy": (
        lambda T: (
            T.xlogy(T.tensor([0.0, 0, 0, 0]), T.tensor([0.0, -1, INF, NAN])),
            slope(T, lambda x: T.xlogy(x, T.tensor([3.0, 3, 0, -1])), [0.0, 1, 0, 0]),
            slope(T, lambda y: T.xlogy(T.tensor([0.0, 2]), y), [2.0, 4]),
        ),
        ([0, 0, 0, NAN], [1.0986123, 1.0986123, 0, 0], [0, 0.5]),
    ),
    "threshold": (
        lambda T: (T.threshold(T.tensor([NAN, 0.0, 1]), 0.0, 5.0), T.nn.Threshold(0.0, 5.0)(T.tensor([NAN, 0.0, 1]))),
        ([NAN, 5, 1], [NAN, 5, 1]),
    ),
    "norms of zero": (
        lambda T: tuple(slope(T, lambda x, p=p: T.linalg.vector_norm(x, p), [0.0, 0.0]) for p in (1, 2, 3, 4, INF)),
        ([0, 0],) * 5,
    ),
    "norms along a dimension": (
        lambda T: tuple(
            T.linalg.vector_norm(T.tensor([[1.0, 2], [-3, 4]]), p, dim=1) for p in (0, 3, 0.5, -1, INF, -INF)
        ),
        ([2, 2], [2.0800838, 4.4979414], [5.8284271, 13.9282032], [2 / 3, 12 / 7], [2, 4], [1, 3]),
    ),
    "einsum of lists": (
        lambda T: (T.einsum(T.arange(4).view(2, 2), [0, 26]), T.einsum(T.arange(4).view(2, 2), [26, 0])),
        ([[0, 1], [2, 3]], [[0, 2], [1, 3]]),
    ),
    "scatter of numbers": (
        lambda T: (
            T.ones(1, 3).scatter(1, T.tensor([[0, 2]]), 2.5, reduce="add"),
            T.full((1, 3), 2.0).scatter(1, T.tensor([[0, 0, 1]]), 3.0, reduce="multiply"),
            T.scatter(T.full((1, 3), 2), 1, T.tensor([[0]]), T.tensor([[5, 7]]), reduce="multiply"),
            T.ones(1, 3).scatter(1, T.tensor([[1]]), value=4.0),
        ),
        ([[3.5, 1, 3.5]], [[18, 6, 2]], [[10, 2, 2]], [[1, 4, 1]]),
    ),
    "index_put_ with a list": (
        lambda T: (
            T.zeros(3).index_put_([T.tensor([2, 0])], T.tensor([1.0, 2])),
            T.zeros(2, 2).index_put_([T.tensor([1, 1]), T.tensor([0, 0])], T.tensor(3.0), accumulate=True),
            T.index_put(T.zeros(2), [T.tensor([1])], T.tensor(4.0)),
        ),
        ([2, 0, 1], [[0, 0], [6, 0]], [0, 4]),
    ),
    "empty": (
        lambda T: (
            T.zeros(0, 3).nanmedian(),
            T.zeros(0, 3).histc(2),
            T.zeros(0).cov(),
            T.combinations(T.tensor([1.0, 2]), 0),
            *T.zeros(0, 3).unique_consecutive(return_counts=True),
            *T.unique_consecutive(T.tensor([[1, 1], [1, 1], [1, 2]]), dim=0, return_inverse=True),
        ),
        (NAN, [0, 0], NAN, [], [], [], [[1, 1], [1, 2]], [0, 0, 1]),
    ),
    "mode of a number": (lambda T: tuple(T.tensor(3.0).mode()), (3, 0)),
    "cov of too few": (lambda T: (T.tensor([1.0]).cov(), T.tensor([1.0, 2]).cov(correction=5)), (NAN, INF)),
    "histc": (
        lambda T: (T.tensor([1.0, 2]).histc(2, 1, 1), T.tensor([1.0, NAN, INF]).histc(3, 0, 2)),
        ([1, 1], [0, 1, 0]),
    ),
    "circular padding that cuts": (
        lambda T: tuple(
            T.nn.functional.pad(T.arange(5.0).view(1, 5), pad, mode="circular") for pad in ((-1, 2), (2, -1), (-1, -2))
        ),
        ([[1, 2, 3, 4, 1, 2]], [[2, 3, 0, 1, 2, 3]], [[1, 2]]),
    ),
    "numbers before tensors": (
        lambda T: (
            T.add(1, T.tensor([2.0])),
            T.sub(1, of(T, "float16", 2), alpha=3),
            T.mul(2, T.tensor([3])),
            T.div(7, T.tensor([2]), rounding_mode="floor"),
            T.floor_divide(7.5, T.tensor([2])),
            T.remainder(7, T.tensor([4])),
            T.bitwise_and(7, of(T, "int8", 13)),
        ),
        ([3], [-5], [6], [3], [3], [3], [5]),
    ),
    "ldexp": (
        lambda T: (T.ldexp(of(T, "float16", 1e-4), T.tensor([20])), T.ldexp(T.tensor([1e-30]), T.tensor([150]))),
        ([104.875], [1.4272477e15]),
    ),
    "types of ldexp": (
        lambda T: tuple(
            T.ldexp(of(T, kind, 1), T.tensor([2])).dtype.itemsize for kind in ("float16", "bfloat16", "float64", "int8")
        ),
        (2, 2, 8, 4),
    ),
}

# What both libraries refuse.
REFUSED = {
    "rot90 in no plane": lambda T: T.rot90(T.zeros(2, 2), 1, [0, 0]),
    "rot90 in no plane, from the end": lambda T: T.rot90(T.zeros(2, 2), 1, [0, -2]),
    "rot90 of a vector": lambda T: T.rot90(T.zeros(2), 1, [0, 1]),
    "searchsorted in too few rows": lambda T: T.searchsorted(T.tensor([[1.0, 3], [2, 4]]), T.tensor([3.0])),
    "searchsorted of a number in rows": lambda T: T.searchsorted(T.tensor([[1.0, 3], [2, 4]]), 3.0),
    "searchsorted on both sides": lambda T: T.searchsorted(T.tensor([1.0, 3]), 2.0, right=True, side="left"),
    "searchsorted on no side": lambda T: T.searchsorted(T.tensor([1.0, 3]), 2.0, side="up"),
    "bucketize in rows": lambda T: T.bucketize(T.tensor([1.0]), T.tensor([[1.0, 3], [2, 4]])),
    "histc of no bins": lambda T: T.tensor([1.0]).histc(0),
    "histc backwards": lambda T: T.tensor([1.0]).histc(3, 2, 1),
    "histc of NaN": lambda T: T.tensor([1.0, NAN]).histc(3),
    "histc without an end": lambda T: T.tensor([1.0]).histc(3, 0, INF),
    "pad with a value reflected": lambda T: T.nn.functional.pad(T.zeros(1, 4), (1, 1), mode="reflect", value=3),
    "unique of nothing": lambda T: T.zeros(0, 3).unique(dim=1),
    "unique_consecutive of nothing": lambda T: T.zeros(0, 3).unique_consecutive(dim=1),
    "combinations of a matrix": lambda T: T.combinations(T.zeros(2, 2), 1),
    "combinations of less than nothing": lambda T: T.combinations(T.zeros(2), -1),
}


def parts(result):
    return list(result) if isinstance(result, tuple) else [result]


def agree(result, right):
    result, right = parts(result), parts(right)
    assert len(result) == len(right)
    for a, b in zip(result, right):
        rtol = 1e-14 if "float64" in str(getattr(a, "dtype", "")) else 1e-6
        np.testing.assert_allclose(values(a), np.array(b), rtol=rtol, atol=0)


@pytest.mark.parametrize("kind", CASES)
def test_corners(kind):
    expression, right = CASES[kind]
    agree(expression(gt), right)


@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CASES)
def test_corners_are_pytorchs(kind):
    expression, right = CASES[kind]
    agree(expression(torch), right)


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused(kind):
    with pytest.raises(RuntimeError, match=kind.split()[0].split("_")[0]):
        REFUSED[kind](gt)
    if torch is not None:
        with pytest.raises(RuntimeError):
            REFUSED[kind](torch)


def test_what_random_functions_refuse():
    x = gt.zeros(2)
    for bad in (
        lambda: gt.normal(0.0, -1.0, (2,)),
        lambda: gt.normal(x, -1.0),
        lambda: x.exponential_(-1),
        lambda: x.exponential_(0.0),
        lambda: x.log_normal_(0, -1),
        lambda: x.cauchy_(0, -1),
        lambda: x.bernoulli(2.0),
        lambda: gt.randint_like(x, 300, dtype=gt.uint8),
        lambda: gt.randint_like(x, -129, 0, dtype=gt.int8),
    ):
        with pytest.raises(RuntimeError, match="expected .*, got"):
            bad()
    assert gt.randint_like(x, 255, 256, dtype=gt.uint8).tolist() == [255, 255]
    assert x.tolist() == [0, 0] and x.exponential_(2.0, generator=gt.Generator()).min() > 0


@needs_torch
@pytest.mark.parametrize(
    "case",
    [
        lambda T: T.ones(2, 2, dtype=T.bool) @ T.ones(2, 2, dtype=T.bool),
        lambda T: T.rand(2, dtype=T.int64),
        lambda T: T.randn_like(T.ones(2, dtype=T.int32)),
        lambda T: T.nn.functional.scaled_dot_product_attention(*[T.ones(1, 1, 2, 2)] * 3, dropout_p=1.5),
    ],
    ids=["matmul of bool", "rand of int64", "randn_like of int32", "dropout_p of 1.5"],
)
def test_what_is_not_computed_is_a_runtime_error(case):
    for library in (gt, torch):
        with pytest.raises(RuntimeError):
            case(library)
