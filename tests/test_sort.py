"""Order along a dimension: sort, topk, kthvalue, median, unique."""

import numpy as np
import pytest
from helpers import DTYPES, check, draw, needs_torch, ours, theirs, torch, values

import gt

NAN = float("nan")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable_in_every_dtype(dtype, descending):
    x = draw((5, 7, 3), dtype)
    for dim in (0, 1, -1):
        mine = ours(x, dtype).sort(dim, descending)
        kept = values(ours(x, dtype))
        key = -kept.astype("float64") if descending else kept.astype("float64")
        order = np.argsort(key, axis=dim, kind="stable")
        assert (mine.indices.numpy() == order).all()
        assert (values(mine.values) == np.take_along_axis(kept, order, dim)).all()
        assert mine.values.dtype == getattr(gt, dtype) and mine.indices.dtype == gt.int64
        assert (gt.argsort(ours(x, dtype), dim, descending).numpy() == order).all()


def test_nan_is_the_largest_and_zeros_are_equal():
    x = gt.tensor([1.0, NAN, -0.0, 0.0, -np.inf, NAN, np.inf])
    assert x.sort().indices.tolist() == [4, 2, 3, 0, 6, 1, 5]
    assert x.sort(descending=True).indices.tolist() == [1, 5, 6, 0, 2, 3, 4]
    assert x.topk(3).indices.tolist() == [1, 5, 6]
    assert x.topk(2, largest=False).indices.tolist() == [4, 2]


@pytest.mark.parametrize("dtype", ["float32", "int64", "bfloat16"])
def test_topk_and_kthvalue(dtype):
    x = draw((4, 9, 2), dtype)
    t = ours(x, dtype)
    kept = values(t).astype("float64")
    for largest in (True, False):
        mine = gt.topk(t, 4, 1, largest)
        order = np.argsort(-kept if largest else kept, axis=1, kind="stable")[:, :4]
        assert (mine.indices.numpy() == order).all()
        assert (values(mine[0]) == np.take_along_axis(values(t), order, 1)).all()
    low, at = gt.kthvalue(t, 3, 1)
    assert (values(low) == np.sort(kept, 1)[:, 2]).all()
    assert (np.take_along_axis(kept, at.numpy()[:, None], 1)[:, 0] == values(low)).all()
    assert t.kthvalue(9, dim=1, keepdim=True).values.shape == (4, 1, 2)
    assert (values(gt.msort(t)) == np.sort(values(t), 0)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1])
def test_few_of_many(dtype, dim):
    rng = np.random.default_rng(3)
    x = rng.integers(-90, 90, (5, 700)).astype("float32")
    x[1], x[2] = np.sort(x[1]), -np.sort(-x[2])
    x[3] = 7
    x = np.where(x == 5, -0.0, np.where(x == 6, 0.0, x)).astype("float32")
    x = x if dim else np.ascontiguousarray(x.T)
    t = gt.tensor(x).to(getattr(gt, dtype))
    kept = values(t).astype("float64")
    for k in (1, 3, 60):
        for largest in (True, False):
            mine = t.topk(k, dim, largest)
            order = np.argsort(-kept if largest else kept, axis=dim, kind="stable").take(range(k), dim)
            np.testing.assert_array_equal(mine.indices.numpy(), order)
            np.testing.assert_array_equal(values(mine.values), np.take_along_axis(values(t), order, dim))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_nan_among_few_of_many(dtype):
    x = gt.arange(500.0).to(getattr(gt, dtype))
    x[[3, 77, 300]] = NAN
    x[[9, 450]] = -np.inf
    assert x.topk(4).indices.tolist()[:3] == [3, 77, 300]
    assert x.topk(3, largest=False).indices.tolist() == [9, 450, 0]


@pytest.mark.parametrize("chance", [0.0, 0.02, 0.5, 0.98, 1.0])
@pytest.mark.parametrize("shape", [(40001,), (3, 20003), (300, 7), (4, 50, 3)])
def test_flags_in_order(shape, chance):
    x = np.random.default_rng(5).random(shape) < chance
    t = gt.tensor(x)
    for dim in {0, len(shape) - 1}:
        for descending in (False, True):
            order = np.argsort(~x if descending else x, axis=dim, kind="stable")
            mine = t.sort(dim, descending)
            np.testing.assert_array_equal(mine.indices.numpy(), order)
            np.testing.assert_array_equal(mine.values.numpy(), np.take_along_axis(x, order, dim))
            k = shape[dim] * 2 // 3
            few = t.topk(k, dim, descending)
            np.testing.assert_array_equal(few.indices.numpy(), order.take(range(k), dim))
    np.testing.assert_array_equal(t.nonzero().numpy(), np.argwhere(x))
    y = gt.arange(x.size).reshape(shape)
    np.testing.assert_array_equal(y[t].numpy(), y.numpy()[x])


def test_median_takes_the_smaller_of_two_and_shows_nan():
    x = np.array([[3.0, 1.0, 2.0, 4.0], [5.0, NAN, 0.0, 1.0]], "float32")
    mine = gt.tensor(x).median(1)
    np.testing.assert_array_equal(mine.values.numpy(), [2.0, NAN])
    assert mine.indices.tolist() == [2, 1]
    assert gt.median(gt.tensor([3, 1, 2, 4])).item() == 2
    assert gt.tensor(x).median(1, keepdim=True).values.shape == (2, 1)


def test_unique_counts_and_inverts():
    x = draw((6, 8), "int32", -4, 4)
    mine = gt.unique(gt.tensor(x), return_inverse=True, return_counts=True)
    right = np.unique(x, return_inverse=True, return_counts=True)
    for m, r in zip(mine, right):
        assert (m.numpy().ravel() == r.ravel()).all()
    assert mine[1].shape == (6, 8)
    assert gt.tensor(x).unique().tolist() == right[0].tolist()
    assert gt.unique(gt.tensor([2.0, NAN, 2.0, NAN])).numel() == 3
    assert gt.unique(gt.zeros(0)).shape == (0,)
    rows, inverse, counts = gt.unique(gt.tensor([[2, 1], [0, 1], [2, 1]]), True, True, True, dim=0)
    assert rows.tolist() == [[0, 1], [2, 1]] and inverse.tolist() == [1, 0, 1] and counts.tolist() == [1, 2]


def test_gradients_go_where_elements_came_from():
    x = draw((4, 5), "float64")
    weight = draw((4, 5), "float64", seed=1)
    t = gt.tensor(x, requires_grad=True)
    (t.sort(1).values * gt.tensor(weight)).sum().backward()
    right = np.zeros_like(x)
    np.put_along_axis(right, np.argsort(x, 1), weight, 1)
    np.testing.assert_allclose(t.grad.numpy(), right)
    t.grad = None
    (t.topk(2, 0).values * gt.tensor(weight[:2])).sum().backward()
    right = np.zeros_like(x)
    np.put_along_axis(right, np.argsort(-x, 0)[:2], weight[:2], 0)
    np.testing.assert_allclose(t.grad.numpy(), right)
    t.grad = None
    t.median(1).values.sum().backward()
    assert (t.grad.numpy().sum(1) == 1).all()


def test_numbers_and_bad_arguments():
    x = gt.tensor(3.0)
    assert x.sort().values.item() == 3 and x.sort().indices.item() == 0
    assert x.topk(1).values.item() == 3 and x.median().item() == 3
    with pytest.raises(RuntimeError, match="k out of range"):
        gt.ones(3).topk(4)
    with pytest.raises(RuntimeError, match="k out of range"):
        gt.ones(3).kthvalue(0)
    with pytest.raises(IndexError):
        gt.ones(3).sort(1)


@needs_torch
def test_as_pytorch():
    x = draw((3, 6), "float32")
    a, b = ours(x, "float32"), theirs(x, "float32")
    check(tuple(a.sort(0, True)), tuple(b.sort(0, True)))
    check(tuple(a.topk(3)), tuple(b.topk(3)))
    check(tuple(a.kthvalue(2, 0)), tuple(b.kthvalue(2, 0)))
    check(tuple(a.median(1)), tuple(b.median(1)))
    check(a.median(), b.median())
    check(a.unique(return_inverse=True, return_counts=True), torch.unique(b, return_inverse=True, return_counts=True))
    assert repr(a.sort()).startswith("gt.return_types.sort(")


def test_a_failure_beside_a_sort_leaves_both_its_results():
    x = gt.tensor([3.0, 1.0, 2.0])
    best = x.sort()
    lost = x.gather(0, gt.tensor([7])).sort()
    with pytest.raises(IndexError):
        lost.indices.tolist()
    assert best.values.tolist() == [1, 2, 3] and best.indices.tolist() == [1, 2, 0]
