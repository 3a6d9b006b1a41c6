"""Decompositions and solvers of `gt.linalg`: found by LAPACK in this process, which waits for the matrix, with
gradients as operations on the workers."""

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
        return values, vectors

    @staticmethod
    def backward(ctx, g_values, g_vectors):
        values, vectors = ctx.saved_tensors
        gaps = values.unsqueeze(-2) - values.unsqueeze(-1)
        same = _gt.eye(values.shape[-1], dtype=_gt.bool)
        mixed = (_t(vectors) @ g_vectors) / gaps.masked_fill(same, 1.0)
        inner = mixed.masked_fill(same, 0.0) + g_values.diag_embed()
        return _symmetric(vectors @ inner @ _t(vectors))


class Svd(Function):
    """Singular values, the largest first, and vectors, of which there are as many as values."""

    @staticmethod
    def forward(ctx, A):
        U, S, Vh = host("svd", lambda a: tuple(np.linalg.svd(a, full_matrices=False)), A)
        ctx.save_for_backward(U, S, Vh)
        return U, S, Vh

    @staticmethod
    def backward(ctx, gU, gS, gVh):
        U, S, Vh = ctx.saved_tensors
        V, gV = _t(Vh), _t(gVh)
        same = _gt.eye(S.shape[-1], dtype=_gt.bool)
        gaps = (S.square().unsqueeze(-2) - S.square().unsqueeze(-1)).masked_fill(same, 1.0)
        row, column = S.unsqueeze(-2), S.unsqueeze(-1)
        uu, vv = _t(U) @ gU, _t(V) @ gV
        inner = ((uu - _t(uu)) / gaps * row + column * ((vv - _t(vv)) / gaps)).masked_fill(same, 0.0)
        inner = inner + gS.diag_embed()
        out = U @ inner @ Vh
        m, n, k = U.shape[-2], V.shape[-2], S.shape[-1]
        if m > k:
            out = out + (gU / row - U @ (_t(U) @ (gU / row))) @ Vh
        if n > k:
            out = out + U @ (_t(gV / row) - (_t(gV / row) @ V) @ Vh)
        return out


class Qr(Function):
    """`Q` with columns at right angles and `R` with zeros below its diagonal, `Q @ R = A`."""

    @staticmethod
    def forward(ctx, A):
        Q, R = host("qr", lambda a: tuple(np.linalg.qr(a)), A)
        ctx.save_for_backward(Q, R)
        return Q, R

    @staticmethod
    def backward(ctx, gQ, gR):
        Q, R = ctx.saved_tensors
        if R.shape[-1] > R.shape[-2]:
            raise RuntimeError("linalg.qr: the gradient of a matrix with more columns than rows is not supported")
        M = R @ _t(gR) - _t(gQ) @ Q
        lower = M.tril(-1)
        inner = lower + _t(lower) + M.diagonal(0, -2, -1).diag_embed()
        return _t(Solve.apply(R, _t(gQ + Q @ inner)))
