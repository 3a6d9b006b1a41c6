"""Decompositions and solvers of `gt.linalg`: found by LAPACK in this process, which waits for the matrix, with
gradients as operations on the workers."""

import math

import numpy as np

from gt import _gt
from gt._gt import tensor
from gt.autograd.function import Function


class LinAlgError(RuntimeError):
    """A matrix that has no inverse, no factor or no solution."""


def check(name, A, square=True):
    if A.dim() < 2:
        raise RuntimeError(f"linalg.{name}: The input tensor A must have at least 2 dimensions, got {A.dim()}")
    if square and A.shape[-1] != A.shape[-2]:
        raise RuntimeError(
            f"linalg.{name}: A must be batches of square matrices, but they are {A.shape[-2]} by {A.shape[-1]} matrices"
        )
    if A.dtype not in (_gt.float32, _gt.float64):
        raise RuntimeError(f"linalg.{name}: Expected a float32 or float64 tensor as input, got {A.dtype}")


def host(name, find, *tensors, known=None):
    """What a function of arrays gives, as tensors of the type of the first one; does not wait for a known array."""
    arrays = [t.detach().numpy() for t in tensors] if known is None else [known]
    try:
        found = find(*arrays)
    except np.linalg.LinAlgError as error:
        raise LinAlgError(f"linalg.{name}: {error}") from None
    parts = found if isinstance(found, tuple) else (found,)
    made = tuple(tensor(np.array(p, order="C"), dtype=tensors[0].dtype) for p in parts)
    return made if isinstance(found, tuple) else made[0]


def _t(A):
    return A.transpose(-1, -2)


def _symmetric(A):
    return (A + _t(A)) / 2


def _sized(g, like):
    """The gradient of something that was broadcast."""
    return g.sum_to_size(*like)


class Solve(Function):
    """`X` with `A @ X = B`, for matrices `B`."""

    @staticmethod
    def forward(ctx, A, B):
        X = host("solve", np.linalg.solve, A, B)
        ctx.save_for_backward(A, X)
        ctx.sizes = tuple(A.shape), tuple(B.shape)
        return X

    @staticmethod
    def backward(ctx, g):
        A, X = ctx.saved_tensors
        gB = Solve.apply(_t(A), g)
        return _sized(-gB @ _t(X), ctx.sizes[0]), _sized(gB, ctx.sizes[1])


class Inverse(Function):
    @staticmethod
    def forward(ctx, A, known=None):
        inverse = host("inv", np.linalg.inv, A, known=known)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx, g):
        (inverse,) = ctx.saved_tensors
        return -_t(inverse) @ g @ _t(inverse), None


class SlogDet(Function):
    @staticmethod
    def forward(ctx, A):
        sign, size = host("slogdet", lambda a: tuple(np.linalg.slogdet(a)), A)
        ctx.save_for_backward(A)
        ctx.mark_non_differentiable(sign)
        return sign, size

    @staticmethod
    def backward(ctx, _, g):
        (A,) = ctx.saved_tensors
        return g.unsqueeze(-1).unsqueeze(-1) * _t(Inverse.apply(A))


class Cholesky(Function):
    """`L` with `L @ L.T = A`, where `A` is symmetric and positive."""

    @staticmethod
    def forward(ctx, A):
        def find(a):
            ctx.known = np.linalg.cholesky(a)
            return ctx.known

        L = host("cholesky", find, A)
        ctx.save_for_backward(L)
        return L

    @staticmethod
    def backward(ctx, g):
        (L,) = ctx.saved_tensors
        inner = _t(L) @ g.tril()
        inner = inner.tril() - inner.diagonal(0, -2, -1).diag_embed() / 2
        # The gradient need not wait for the factor: it was found here.
        inverse = Inverse.apply(L, ctx.known)
        return _symmetric(_t(inverse) @ inner @ inverse)


class Eigh(Function):
    """Eigenvalues, the smallest first, and eigenvectors in columns, of symmetric matrices."""

    @staticmethod
    def forward(ctx, A):
        values, vectors = host("eigh", lambda a: tuple(np.linalg.eigh(a)), A)
        ctx.save_for_backward(values, vectors)
        ctx.set_materialize_grads(False)
        return values, vectors

    @staticmethod
    def backward(ctx, g_values, g_vectors):
        values, vectors = ctx.saved_tensors
        if g_vectors is None:
            # Values that are equal have slopes, their vectors have none.
            return vectors * g_values.unsqueeze(-2) @ _t(vectors)
        gaps = values.unsqueeze(-2) - values.unsqueeze(-1)
        same = _gt.eye(values.shape[-1], dtype=_gt.bool)
        inner = ((_t(vectors) @ g_vectors) / gaps.masked_fill(same, 1.0)).masked_fill(same, 0.0)
        if g_values is not None:
            inner = inner + g_values.diag_embed()
        return _symmetric(vectors @ inner @ _t(vectors))


class Svd(Function):
    """Singular values, the largest first, and vectors: as many as values, or all."""

    @staticmethod
    def forward(ctx, A, full):
        U, S, Vh = host("svd", lambda a: tuple(np.linalg.svd(a, full_matrices=full)), A)
        ctx.save_for_backward(U, S, Vh)
        ctx.set_materialize_grads(False)
        return U, S, Vh

    @staticmethod
    def backward(ctx, gU, gS, gVh):
        U, S, Vh = ctx.saved_tensors
        m, n, k = U.shape[-2], Vh.shape[-1], S.shape[-1]
        U, Vh = U.narrow(-1, 0, k), Vh.narrow(-2, 0, k)
        if gU is None and gVh is None:
            # Values that are equal have slopes, their vectors have none.
            return U * gS.unsqueeze(-2) @ Vh, None
        V = _t(Vh)
        gU = _gt.zeros_like(U) if gU is None else gU.narrow(-1, 0, k)
        gV = _gt.zeros_like(V) if gVh is None else _t(gVh.narrow(-2, 0, k))
        same = _gt.eye(k, dtype=_gt.bool)
        gaps = (S.square().unsqueeze(-2) - S.square().unsqueeze(-1)).masked_fill(same, 1.0)
        row, column = S.unsqueeze(-2), S.unsqueeze(-1)
        uu, vv = _t(U) @ gU, _t(V) @ gV
        inner = ((uu - _t(uu)) / gaps * row + column * ((vv - _t(vv)) / gaps)).masked_fill(same, 0.0)
        if gS is not None:
            inner = inner + gS.diag_embed()
        out = U @ inner @ Vh
        if m > k:
            out = out + (gU / row - U @ (_t(U) @ (gU / row))) @ Vh
        if n > k:
            out = out + U @ (_t(gV / row) - (_t(gV / row) @ V) @ Vh)
        return out, None


class PseudoInverse(Function):
    """The pseudo-inverse: singular values up to `cut` count as zero."""

    @staticmethod
    def forward(ctx, A, cut, hermitian):
        if hermitian:
            S, right = host("pinv", lambda a: tuple(np.linalg.eigh(a)), A)
            left = _t(right)
        else:
            U, S, Vh = host("pinv", lambda a: tuple(np.linalg.svd(a, full_matrices=False)), A)
            left, right = _t(U), _t(Vh)
        small = S.abs() <= cut
        inverse = _gt.where(small, 0.0, 1 / _gt.where(small, 1.0, S))
        inverse = right * inverse.unsqueeze(-2) @ left
        ctx.save_for_backward(A, inverse)
        return inverse

    @staticmethod
    def backward(ctx, g):
        # Golub and Pereyra's derivative, which holds as long as the rank stays the same.
        A, P = ctx.saved_tensors
        g, Pt = _t(g), _t(P)
        if A.shape[-2] <= A.shape[-1]:
            K = g @ P
            KPt = K @ Pt
            out = KPt - _t(P @ K) - (A @ P) @ KPt + (Pt @ P) @ (g - K @ A)
        else:
            K = P @ g
            PtK = Pt @ K
            out = PtK - _t(K @ P) + ((g - A @ K) @ P) @ Pt - (PtK @ P) @ A
        return out, None, None


def _lu(a):
    """Both factors in one matrix, and the row that each row changes places with, for a stack of matrices."""
    a = a.copy()
    rows, columns = a.shape[-2:]
    every, pivots = np.arange(len(a)), np.empty((len(a), min(rows, columns)), dtype=np.int32)
    for k in range(min(rows, columns)):
        pivots[:, k] = best = k + np.abs(a[:, k:, k]).argmax(1)
        a[every, k], a[every, best] = a[every, best], a[every, k]
        with np.errstate(divide="ignore", invalid="ignore"):
            below = np.where(a[:, k, None, k] == 0, 0, a[:, k + 1 :, k] / a[:, k, None, k])
        a[:, k + 1 :, k] = below
        a[:, k + 1 :, k + 1 :] -= below[:, :, None] * a[:, k, None, k + 1 :]
    return a, pivots


def _order(pivots, rows):
    """Which row of the matrix each row of its factors is."""
    lead = pivots.shape[:-1]
    order = np.tile(np.arange(rows), (math.prod(lead), 1))
    each = np.arange(len(order))
    for k, best in enumerate(pivots.reshape(len(order), pivots.shape[-1]).T):
        order[each, k], order[each, best] = order[each, best], order[each, k]
    return order.reshape(*lead, rows)


class Lu(Function):
    """`L` below the diagonal and `U` from there on, `L @ U` being the rows of a square matrix in another order, the
    order, and the row that each row changes places with, counted from 1."""

    @staticmethod
    def forward(ctx, A):
        lead, rows = A.shape[:-2], A.shape[-2]
        factors, pivots = _lu(A.detach().numpy().reshape(math.prod(lead), *A.shape[-2:]))
        order = tensor(_order(pivots, rows), dtype=_gt.int64).reshape(*lead, rows)
        pivots = tensor(pivots + 1, dtype=_gt.int32).reshape(*lead, pivots.shape[-1])
        factors = tensor(factors, dtype=A.dtype).reshape(A.shape)
        ctx.save_for_backward(factors, order)
        ctx.mark_non_differentiable(order, pivots)
        return factors, order, pivots

    @staticmethod
    def backward(ctx, g, _, __):
        factors, order = ctx.saved_tensors
        rows, columns = factors.shape[-2:]
        k = min(rows, columns)
        one = _gt.eye(k, dtype=factors.dtype)
        square, gs = factors[..., :k, :k], g[..., :k, :k]
        L, U = square.tril(-1) + one, square.triu()
        inner = (_t(L) @ gs.tril(-1)).tril(-1) + (gs.triu() @ _t(U)).triu()
        if rows > k:
            # The rows below are L2 with L2 @ U = A2.
            low, g_low = factors[..., k:, :], g[..., k:, :]
            inner = inner - (_t(low) @ g_low).triu()
            below = _t(Solve.apply(U, _t(g_low)))
        if columns > k:
            # The columns beside are U2 with L @ U2 = A2.
            right, g_right = factors[..., k:], g[..., k:]
            inner = inner - (g_right @ _t(right)).tril(-1)
            beside = Solve.apply(_t(L), g_right)
        out = _t(Solve.apply(U, _t(Solve.apply(_t(L), inner))))
        out = _gt.cat([out, below], -2) if rows > k else _gt.cat([out, beside], -1) if columns > k else out
        back = order.argsort(-1)
        return out.take_along_dim(back.unsqueeze(-1), -2)


class Qr(Function):
    """`Q` with columns at right angles and `R` with zeros below its diagonal, `Q @ R = A`."""

    @staticmethod
    def forward(ctx, A):
        Q, R = host("qr", lambda a: tuple(np.linalg.qr(a)), A)
        ctx.save_for_backward(A, Q, R)
        return Q, R

    @staticmethod
    def backward(ctx, gQ, gR):
        A, Q, R = ctx.saved_tensors
        rows, columns = R.shape[-2:]
        if columns <= rows:
            return _qr_backward(Q, R, gQ, gR)
        # What stands right of a square is `Q` turned: its gradient goes to `Q`, too.
        rest, g_rest = A.narrow(-1, rows, columns - rows), gR.narrow(-1, rows, columns - rows)
        gQ = gQ + rest @ _t(g_rest)
        square = _qr_backward(Q, R.narrow(-1, 0, rows), gQ, gR.narrow(-1, 0, rows))
        return _gt.cat([square, Q @ g_rest], -1)


def _qr_backward(Q, R, gQ, gR):
    M = R @ _t(gR) - _t(gQ) @ Q
    lower = M.tril(-1)
    inner = lower + _t(lower) + M.diagonal(0, -2, -1).diag_embed()
    return _t(Solve.apply(R, _t(gQ + Q @ inner)))
