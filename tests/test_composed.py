"""Functions composed of others, against PyTorch and against NumPy where it has them."""

import math

import numpy as np
import pytest
from helpers import check, draw, needs_new_torch, needs_torch, ours, theirs, torch

import gt

NAN, INF = math.nan, math.inf

# Expressions over a library T: x (4, 6), y (4, 6), m (3, 3), v (6), w (6), i (8, integers), s (values with 0, inf, nan)
CASES = {
    "logaddexp": lambda T, a: T.logaddexp(a.x, a.y),
    "logaddexp inf": lambda T, a: T.logaddexp(T.tensor([INF, -INF, INF]), T.tensor([INF, -INF, -INF])),
    "logaddexp2": lambda T, a: T.logaddexp2(a.x, a.y),
    "hypot": lambda T, a: T.hypot(a.x, a.y),
    "hypot large": lambda T, a: T.hypot(T.tensor([1e30, 0.0, INF]), T.tensor([1e30, 0.0, 1.0])),
    "logit": lambda T, a: T.logit(a.x.sigmoid()),
    "logit eps": lambda T, a: a.x.logit(0.1),
    "sinc": lambda T, a: T.sinc(a.x.round()) + a.x.sinc(),
    "heaviside": lambda T, a: T.heaviside(a.x.round().detach(), a.y.detach()),
    "deg2rad": lambda T, a: T.deg2rad(a.x * 100) + a.x.rad2deg(),
    "fmax": lambda T, a: (T.fmax(a.s, a.s.flip(0)), T.fmin(a.s, a.s.flip(0))),
    "signbit": lambda T, a: (T.signbit(T.tensor([-1.0, -0.0, 0.0, 2.0, -INF])), T.tensor([-1, 0, 2]).signbit()),
    "copysign": lambda T, a: (T.copysign(a.x, a.y), a.x.copysign(-1.0), a.x.copysign(-0.0)),
    "isposinf": lambda T, a: (T.isposinf(a.s), T.isneginf(a.s), a.i.isreal()),
    "ldexp": lambda T, a: T.ldexp(a.x, T.tensor([1, 2, 3, 0, -1, -2])),
    "float_power": lambda T, a: T.float_power(T.tensor([1, 2, 3]), 0.5),
    "fix": lambda T, a: (T.fix(a.x), T.sgn(a.x), +a.x),
    "inner": lambda T, a: (T.inner(a.v, a.w), T.inner(a.x, a.y), T.inner(a.x, T.tensor(2.0).double())),
    "vdot": lambda T, a: (T.vdot(a.v, a.w), T.ger(a.v, a.w)),
    "kron": lambda T, a: (T.kron(a.m, a.x), T.kron(a.v, a.m), T.kron(a.m.view(1, 3, 3), a.x)),
    "cross": lambda T, a: (T.cross(a.m, a.m.T, dim=0), a.m.cross(a.m.T, 1), T.linalg.cross(a.m, a.m[:1])),
    "addmv": lambda T, a: (
        T.addmv(a.v[:4], a.x, a.w, beta=2, alpha=3),
        T.addmv(T.full((4,), NAN).double(), a.x, a.w, beta=0),
    ),
    "addr": lambda T, a: T.addr(a.x, a.v[:4], a.w, alpha=2),
    "addbmm": lambda T, a: T.addbmm(a.m, a.x.view(2, 3, 4), a.y.view(2, 4, 3), beta=0.5),
    "matrix_power": lambda T, a: (a.m.matrix_power(5), T.matrix_power(a.m, 0), T.linalg.matrix_power(a.m, 1)),
    "multi_dot": lambda T, a: T.linalg.multi_dot([a.x, a.y.T, a.x, a.y.T]),
    "atleast": lambda T, a: (*T.atleast_1d(a.x.sum(), a.v), T.atleast_2d(a.v), T.atleast_3d(a.v), T.atleast_3d(a.x)),
    "column_stack": lambda T, a: (T.column_stack([a.v, a.w]), T.column_stack([a.x, a.v[:4]]), T.row_stack([a.x, a.v])),
    "dstack": lambda T, a: T.dstack([a.x, a.y]),
    "block_diag": lambda T, a: T.block_diag(a.m, a.v, a.x),
    "meshgrid": lambda T, a: T.meshgrid(a.v, a.w[:2], indexing="ij"),
    "meshgrid xy": lambda T, a: T.meshgrid(a.v, a.w[:2], a.w[:3], indexing="xy"),
    "cartesian": lambda T, a: T.cartesian_prod(a.v, a.w[:2], a.w[:3]),
    "tril_indices": lambda T, a: (T.tril_indices(3, 4, 1), T.triu_indices(4, 3, -1), T.triu_indices(2, 2, 5)),
    "diag": lambda T, a: (T.diag(a.v), T.diag(a.v, -2), a.x.diag(1), T.diagflat(a.m, 1)),
    "diag_embed": lambda T, a: (T.diag_embed(a.x), a.x.diag_embed(1), a.x.diag_embed(-1, 0, 2)),
    "trace": lambda T, a: (T.trace(a.m), a.x.trace()),
    "scatters": lambda T, a: (
        T.diagonal_scatter(a.m, a.v[:3]),
        T.select_scatter(a.x, a.v, 0, 2),
        T.slice_scatter(a.x, a.y[:, :3], 1, 0, 6, 2),
    ),
    "index_put": lambda T, a: T.index_put(a.v, (T.tensor([0, 1, 0]),), a.w[:3], accumulate=True),
    "rot90": lambda T, a: (T.rot90(a.x), a.x.rot90(2), a.x.rot90(3, (0, 1)), a.x.rot90(-1, (1, 0))),
    "unfold": lambda T, a: (a.v.unfold(0, 3, 2), a.x.unfold(1, 2, 1), a.x.unfold(0, 4, 1)),
    "argwhere": lambda T, a: T.argwhere(a.x > 0),
    "sum_to_size": lambda T, a: (a.x.sum_to_size(1, 6), a.x.sum_to_size(6), a.x.sum_to_size(4, 1)),
    "tensor_split": lambda T, a: (
        *a.v.tensor_split(4),
        *T.tensor_split(a.x, (1, 3, 9), 1),
        *T.tensor_split(a.v, (-2,)),
    ),
    "hsplit": lambda T, a: (*T.hsplit(a.x, 2), *a.v.hsplit(3), *T.vsplit(a.x, [1]), *a.x.view(2, 2, 6).dsplit(3)),
    "split_with_sizes": lambda T, a: a.v.split_with_sizes([1, 5]),
    "var_mean": lambda T, a: (*T.var_mean(a.x, 1), *T.std_mean(a.x, correction=0), *T.var_mean(a.x, 0, keepdim=True)),
    "aminmax": lambda T, a: (*T.aminmax(a.x), *a.x.aminmax(dim=1, keepdim=True)),
    "nansum": lambda T, a: (T.nansum(a.s[a.s != INF]), a.s[2:].nanmean(), T.nanmean(a.x, 1, True)),
    "dist": lambda T, a: (T.dist(a.x, a.y), a.x.dist(a.y, 1)),
    "diff": lambda T, a: (T.diff(a.v), T.diff(a.x, 2), T.diff(a.x, dim=0, prepend=a.y), T.diff(a.x > 0)),
    "trapezoid": lambda T, a: (T.trapezoid(a.x), T.trapz(a.x, a.v), T.trapezoid(a.x, dx=2.0, dim=0)),
    "cumulative trapezoid": lambda T, a: T.cumulative_trapezoid(a.x, a.y),
    "cov": lambda T, a: (T.cov(a.x), a.v.cov(), a.x.cov(correction=0), T.corrcoef(a.x), a.v.corrcoef()),
    "cov weights": lambda T, a: a.x.cov(fweights=T.tensor([1, 2, 1, 3, 1, 1]), aweights=a.y[0].abs()),
    "bincount": lambda T, a: (T.bincount(a.i), a.i.bincount(minlength=20), a.i.bincount(a.x.detach().view(-1)[:8])),
    "histc": lambda T, a: (T.histc(a.x, 5), a.x.histc(4, -1, 2)),
    "isin": lambda T, a: (T.isin(a.i, T.tensor([1, 2])), T.isin(a.i, 3, invert=True)),
    "logspace": lambda T, a: (T.logspace(-2, 2, 5), T.logspace(0, 8, 9, base=2, dtype=T.float64)),
    "vector_norm": lambda T, a: (
        *(T.linalg.vector_norm(a.x, o, 1) for o in (0, 0.5, 1, 2, 3, INF, -INF)),
        T.linalg.vector_norm(a.x, 3, keepdim=True),
        T.linalg.vector_norm(a.x, 2, (0, 1)),
    ),
    "matrix_norm": lambda T, a: (
        *(T.linalg.matrix_norm(a.x, o) for o in ("fro", 1, -1, INF, -INF)),
        T.linalg.matrix_norm(a.x.view(2, 2, 6), 1, (2, 0)),
        T.linalg.matrix_norm(a.x.view(2, 2, 6), INF, keepdim=True),
    ),
    "norm": lambda T, a: (T.linalg.norm(a.x), T.linalg.norm(a.x, 1), T.linalg.norm(a.v, 3), T.linalg.norm(a.x, 2, 1)),
    "vecdot": lambda T, a: (T.linalg.vecdot(a.x, a.y), T.linalg.diagonal(a.m)),
    "in place": lambda T, a: (
        a.x.clone().square_().log2_().tan_(),
        a.x.clone().clip_(-1, 1).subtract_(a.y).negative_(),
        a.x.clone().addmm_(a.x, a.x.T @ a.y, alpha=0.1),
        a.s.clone().nan_to_num_(),
        (a.x > 0).logical_and_(a.y > 0),
        a.x.clone().fmod_(0.7).true_divide_(3),
    ),
    "fill_diagonal": lambda T, a: (a.x.detach().clone().fill_diagonal_(5), T.zeros(3, 3, 3).fill_diagonal_(1)),
    "angles": lambda T, a: (
        T.atan2(a.x, a.y),
        (a.x / 4).asin() + T.acos(a.y / 4) + a.x.atan(),
        T.atan2(T.tensor([0.0, 0.0, -0.0, 1.0]), T.tensor([0.0, -1.0, -1.0, 0.0])),
    ),
    "inverse hyperbolic": lambda T, a: (
        a.x.asinh() + (a.y / 4).atanh() + T.acosh(a.x.abs() + 1.1),
        T.asinh(T.tensor([1e-8, -1e-3, 0.0, 1e6, -1e30])),
        T.acosh(T.tensor([1.0, 1e30])),
    ),
    "shifts": lambda T, a: (a.i << 2, a.i >> 1, 1 << a.i, T.bitwise_right_shift(T.tensor([-9, 9]), 1)),
    "xlogy": lambda T, a: (a.x.xlogy(2.5), T.xlogy(a.i, 3), T.xlogy(T.tensor([0.0, 0.0]), T.tensor([0.0, NAN]))),
    "copysign of types": lambda T, a: T.copysign(T.tensor([1, -2]), T.tensor([-1.0, 1.0], dtype=T.float16)),
    "searchsorted": lambda T, a: (
        T.searchsorted(T.tensor([[1, 3, 5], [2, 4, 6]]), T.tensor([[3, 6], [3, 6]]), right=True),
        T.bucketize(a.x.detach(), T.tensor([-1.0, 0.0, 1.0]).double()),
        T.searchsorted(T.tensor([1.0, 2.0]), T.tensor([NAN, 1.5])),
    ),
    "quantile": lambda T, a: (
        T.quantile(a.x, T.tensor([0.0, 0.3, 1.0]).double(), dim=1, keepdim=True),
        a.x.quantile(0.4, interpolation="midpoint"),
        T.quantile(a.s, 0.5),
        T.nanquantile(a.s, 0.5),
        a.s.nanmedian(),
    ),
    "cummax": lambda T, a: (*T.cummax(a.x, 1), *a.i.cummin(0), *T.cummax(a.s, 0)),
    "logcumsumexp": lambda T, a: a.x.logcumsumexp(0),
    "mode": lambda T, a: (*T.mode(T.tensor([[1, 2, 2, 1, 3], [5, 4, 4, 5, 5]])), *a.i.mode(0, True)),
    "cdist": lambda T, a: (T.cdist(a.x, a.y), T.cdist(a.x, a.x.detach()), T.cdist(a.m, a.m.T, p=1)),
    "pairs": lambda T, a: (
        T.pdist(a.x),
        T.pairwise_distance(a.x, a.y),
        T.combinations(a.v, 3),
        T.vander(a.v.detach(), 3),
    ),
    "unique of rows": lambda T, a: (
        *T.unique(T.tensor([[1, 2], [0, 2], [1, 2]]), dim=0, return_inverse=True, return_counts=True),
        *T.unique_consecutive(a.i, return_inverse=True, return_counts=True),
    ),
    "repeat_interleave": lambda T, a: (
        a.x.repeat_interleave(T.tensor([1, 0, 2, 1]), dim=0),
        T.repeat_interleave(T.tensor([1, 0, 2])),
        a.v.repeat_interleave(2),
    ),
    "scatter_reduce": lambda T, a: tuple(
        a.x.scatter_reduce(1, T.tensor([[0, 0, 1], [3, 3, 3]]), a.y[:2, :3], kind, include_self=own)
        for kind in ("sum", "mean", "amax", "amin", "prod")
        for own in (True, False)
    ),
    "scatter_": lambda T, a: T.zeros(2, 3).scatter_(1, T.tensor([[0], [2]]), 1.5, reduce="add"),
    "einsum of lists": lambda T, a: (T.einsum(a.x, [0, 1], a.y, [2, 1], [0, 2]), T.einsum(a.m, [0, 0])),
    "pads": lambda T, a: tuple(
        T.nn.functional.pad(a.x.view(1, 4, 6), (2, 1), mode=mode) for mode in ("reflect", "replicate", "circular")
    ),
    "jacobian": lambda T, a: (
        T.autograd.functional.jacobian(lambda x, y: (x * y, x.sum()), (a.v.detach(), a.w.detach())),
        T.autograd.functional.hessian(lambda x, y: (x**2 * y).sum(), (a.v.detach(), a.w.detach())),
        T.autograd.functional.vjp(lambda x: x**2, a.v.detach(), a.w.detach()),
        T.autograd.functional.jvp(lambda x: x**2, a.v.detach(), a.w.detach()),
        T.autograd.functional.vhp(lambda x: (x**3).sum(), a.v.detach(), a.w.detach()),
    ),
    "sizes": lambda T, a: (
        list(T.broadcast_shapes((2, 1), (3,), (1, 1, 1))),
        a.x.is_same_size(a.y),
        T.is_nonzero(a.v[:1]),
    ),
}


class Inputs:
    def __init__(self, make):
        def leaf(shape, seed):
            return make(draw(shape, "float64", seed=seed), grad=True)

        self.x, self.y, self.m = leaf((4, 6), 0), leaf((4, 6), 1), leaf((3, 3), 2)
        self.v, self.w = leaf((6,), 3), leaf((6,), 4)
        self.i = make(draw((8,), "int64", 0, 6, seed=5))
        self.s = make(np.array([INF, -2.0, NAN, 0.0, 3.0, NAN]))
        self.leaves = [self.x, self.y, self.m, self.v, self.w]


def flat(result):
    if isinstance(result, (tuple, list)):
        return [part for item in result for part in flat(item)]
    return [result]


def total(results):
    """One number of all results that carry gradients, in which a wrong one shows."""
    parts = [(r * r + r).sum() * (i + 1) for i, r in enumerate(results) if getattr(r, "requires_grad", False)]
    return sum(parts[1:], parts[0]) if parts else None


@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CASES)
def test_against_torch(kind):
    if kind in ("ldexp", "aminmax"):
        needs_new_torch(f"the gradient of {kind}")
    seen = []
    for library, make in ((gt, ours), (torch, theirs)):
        inputs = Inputs(make)
        results = flat(CASES[kind](library, inputs))
        loss = total(results)
        if loss is not None:
            loss.backward()
        seen.append((results, [leaf.grad for leaf in inputs.leaves]))
    check(seen[0][0], seen[1][0])
    for mine, right in zip(seen[0][1], seen[1][1]):
        if right is None or mine is None:
            # One library may call a gradient zero where the other says there is none.
            assert all(g is None or not np.any(g.numpy()) for g in (mine, right))
        else:
            check(mine, right)


NUMPY = {
    "kron": lambda T, x, v: T.kron(x, x),
    "diag": lambda T, x, v: T.diag(v),
    "trace": lambda T, x, v: T.trace(x),
    "diff": lambda T, x, v: T.diff(x),
    "rot90": lambda T, x, v: T.rot90(x),
    "hypot": lambda T, x, v: T.hypot(x, v),
    "logaddexp": lambda T, x, v: T.logaddexp(x, v),
    "sinc": lambda T, x, v: T.sinc(x),
    "cov": lambda T, x, v: T.cov(x),
    "corrcoef": lambda T, x, v: T.corrcoef(x),
    "inner": lambda T, x, v: T.inner(x, v),
    "heaviside": lambda T, x, v: T.heaviside(x, v),
    "copysign": lambda T, x, v: T.copysign(x, v),
    "signbit": lambda T, x, v: T.signbit(x),
    "column_stack": lambda T, x, v: T.column_stack([v, v]),
    "nansum": lambda T, x, v: T.nansum(x),
    "isin": lambda T, x, v: T.isin(x, v),
}


@pytest.mark.parametrize("kind", NUMPY)
def test_against_numpy(kind):
    x, v = draw((4, 4), "float64"), draw((4,), "float64", seed=1)
    x[0, 0] = 0.0
    v[2] = x[1, 1]
    mine = NUMPY[kind](gt, gt.tensor(x), gt.tensor(v))
    np.testing.assert_allclose(mine.numpy(), NUMPY[kind](np, x, v), rtol=1e-9, atol=1e-12)


def test_numbers_of_their_own():
    assert gt.bincount(gt.tensor([1, 1, 3])).tolist() == [0, 2, 0, 1]
    assert gt.histc(gt.tensor([0.0, 1.0, 1.9, 2.0, 5.0]), 2, 0, 2).tolist() == [1, 3]
    assert gt.tensor([1.0, 2, 3, 4]).unfold(0, 2, 1).tolist() == [[1, 2], [2, 3], [3, 4]]
    assert [g.tolist() for g in gt.meshgrid(gt.arange(2), gt.arange(3), indexing="xy")] == [
        [[0, 1], [0, 1], [0, 1]],
        [[0, 0], [1, 1], [2, 2]],
    ]
    assert gt.linalg.multi_dot([gt.ones(2, 50), gt.ones(50, 3), gt.ones(3, 1)]).tolist() == [[150.0]] * 2


def test_random_ones():
    x = gt.normal(3.0, 0.5, (20_000,))
    assert abs(x.mean().item() - 3) < 0.02 and abs(x.std().item() - 0.5) < 0.02
    y = gt.normal(gt.tensor([0.0, 100.0]), gt.tensor([1.0, 2.0]))
    assert y.shape == (2,) and abs(y[1].item() - 100) < 20
    z = gt.randint_like(gt.zeros(1000), 2, 5)
    assert z.dtype is gt.float32 and set(z.tolist()) == {2.0, 3.0, 4.0}
    assert set(gt.full((50,), 0.5).bernoulli().tolist()) == {0.0, 1.0}
    assert set(gt.tensor([0.0, 1.0, 1.0]).multinomial(2).tolist()) == {1, 2}


@needs_torch
def test_limits_of_types():
    for name in ("float16", "bfloat16", "float32", "float64"):
        mine, right = gt.finfo(getattr(gt, name)), torch.finfo(getattr(torch, name))
        for field in ("bits", "eps", "max", "min", "tiny", "smallest_normal", "resolution", "dtype"):
            assert getattr(mine, field) == getattr(right, field), (name, field)
    for name in ("uint8", "int8", "int16", "int32", "int64"):
        mine, right = gt.iinfo(getattr(gt, name)), torch.iinfo(getattr(torch, name))
        assert (mine.bits, mine.min, mine.max, repr(mine)) == (right.bits, right.min, right.max, repr(right))
    with pytest.raises(TypeError, match="iinfo"):
        gt.finfo(gt.int32)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bfloat16"])
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("n", [512, 1000, 1023])
def test_searchsorted_of_many(dtype, right, n):
    rng = np.random.default_rng(1)
    rows, x = (
        np.sort(rng.integers(-99, 99, (3, n))).astype("float32"),
        rng.integers(-120, 120, (3, 6000)).astype("float32"),
    )
    if dtype != "int64":
        rows[:, -3:], x[0, 0] = [INF, NAN, NAN], NAN
    rows[1], x[1, 0] = -99, 0
    side = "right" if right else "left"
    wanted = np.stack([np.searchsorted(a, v, side) for a, v in zip(rows, x, strict=True)])
    a, v = gt.tensor(rows).to(getattr(gt, dtype)), gt.tensor(x).to(getattr(gt, dtype))
    if right and dtype != "int64":
        wanted[0, 0] = n - 2  # NaN stands before the NaNs of the row on both sides.
    np.testing.assert_array_equal(gt.searchsorted(a, v, right=right).numpy(), wanted)
    for k in range(3):
        found = gt.searchsorted(a[k], v[k].reshape(2, -1), right=right, out_int32=True)
        assert found.dtype == gt.int32
        np.testing.assert_array_equal(found.numpy().reshape(-1), wanted[k])


def test_what_is_refused():
    for bad, message in (
        (lambda: gt.diag(gt.ones(2, 2, 2)), "diag: expected a vector or a matrix"),
        (lambda: gt.trace(gt.ones(3)), "trace: expected a matrix"),
        (lambda: gt.bincount(gt.tensor([-1, 2])), "not negative"),
        (lambda: gt.ones(3).unfold(0, 4, 1), "unfold"),
        (lambda: gt.broadcast_shapes((2,), (3,)), "do not fit"),
        (lambda: gt.meshgrid(gt.ones(2), indexing="no"), "indexing"),
        (lambda: gt.ones(2, 2).matrix_power(-1), "ingular"),
        (lambda: gt.hsplit(gt.ones(2, 5), 2), "equal parts"),
    ):
        with pytest.raises(RuntimeError, match=message):
            bad()
    model = gt.nn.Linear(1, 1)
    assert gt.compile(model) is model and gt.compile(mode="max-autotune")(model) is model
