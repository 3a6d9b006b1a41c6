"""Norms, products, solvers and decompositions under PyTorch's names in `torch.linalg`."""

import math
from collections import namedtuple

from gt import _decompose as found
from gt import _gt
from gt._decompose import LinAlgError
from gt._gt import Tensor
from gt.composed.products import chain_matmul as multi_dot
from gt.composed.products import cross as _cross
from gt.composed.products import matrix_power

__all__ = [
    "LinAlgError",
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "lstsq",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "multi_dot",
    "norm",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
    "vecdot",
    "vector_norm",
]

Eigen = namedtuple("Eigen", ["eigenvalues", "eigenvectors"])
Singular = namedtuple("Singular", ["U", "S", "Vh"])
SignAndLog = namedtuple("SignAndLog", ["sign", "logabsdet"])
Factors = namedtuple("Factors", ["Q", "R"])
LeastSquares = namedtuple("LeastSquares", ["solution", "residuals", "rank", "singular_values"])


matmul = Tensor.matmul


def diagonal(A, *, offset=0, dim1=-2, dim2=-1):
    """The diagonals of matrices."""
    return A.diagonal(offset, dim1, dim2)


def cross(input, other, *, dim=-1):
    """The cross product along a dimension of size 3."""
    return _cross(input, other, dim)


def vecdot(x, y, *, dim=-1):
    """The sum of products along a dimension."""
    return (x * y).sum(dim)


def vector_norm(x, ord=2, dim=None, keepdim=False, *, dtype=None):
    """The norm of elements, of all or along dimensions, as one vector."""
    x = x if dtype is None else x.to(dtype)
    dims = list(range(x.dim())) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    if ord == 0:
        return (x != 0).to(x.dtype).sum(dims, keepdim=keepdim)
    return x.norm(float(ord), dims, keepdim=keepdim)


def matrix_norm(A, ord="fro", dim=(-2, -1), keepdim=False, *, dtype=None):
    """The norm of matrices: Frobenius, or the largest or smallest sum of a row (inf) or column (1)."""
    A = A if dtype is None else A.to(dtype)
    if ord == "fro":
        return vector_norm(A, 2, dim, keepdim)
    row, col = (d % A.dim() for d in dim)
    if ord in (2, -2, "nuc"):
        S = svdvals(A.movedim((row, col), (-2, -1)))
        out = S.sum(-1) if ord == "nuc" else S.amax(-1) if ord == 2 else S.amin(-1)
        return out.unsqueeze(min(row, col)).unsqueeze(max(row, col)) if keepdim else out
    if ord not in (1, -1, math.inf, -math.inf):
        raise RuntimeError(f"matrix_norm: expected fro, nuc, 1, -1, 2, -2, inf or -inf, got {ord!r}")
    over, other = (row, col) if abs(ord) == 1 else (col, row)
    sums = A.abs().sum(over, keepdim=True)
    out = sums.amax(other, keepdim=True) if ord > 0 else sums.amin(other, keepdim=True)
    if keepdim:
        return out
    first, second = max(row, col), min(row, col)
    return out.squeeze(first).squeeze(second)


def norm(A, ord=None, dim=None, keepdim=False, *, dtype=None):
    """The norm of a vector, or of matrices if `dim` names two dimensions or `ord` is given for a matrix."""
    if ord is None:
        return vector_norm(A, 2, dim, keepdim, dtype=dtype)
    two = dim is not None and not isinstance(dim, int) and len(dim) == 2
    if two or (dim is None and A.dim() == 2) or isinstance(ord, str):
        return matrix_norm(A, ord, dim or (-2, -1), keepdim, dtype=dtype)
    return vector_norm(A, ord, dim, keepdim, dtype=dtype)


def solve(A, B, *, left=True):
    """`X` with `A @ X = B`, or `X @ A = B`; waits for both."""
    found.check("solve", A)
    if not left:
        return solve(A.mT, B.mT).mT
    vector = B.dim() == 1 or (B.dim() == A.dim() - 1 and tuple(B.shape) == tuple(A.shape[:-1]))
    X = found.Solve.apply(A, B.unsqueeze(-1) if vector else B)
    return X.squeeze(-1) if vector else X


def solve_triangular(A, B, *, upper, left=True, unitriangular=False):
    """`X` with `A @ X = B` of a triangle of `A`; the rest of it is not looked at."""
    found.check("solve_triangular", A)
    triangle = A.triu() if upper else A.tril()
    if unitriangular:
        triangle = triangle - triangle.diagonal(0, -2, -1).diag_embed() + _gt.eye(A.shape[-1], dtype=A.dtype)
    return solve(triangle, B) if left else solve(triangle.mT, B.mT).mT


def inv(A):
    """The inverse; waits for the matrix."""
    found.check("inv", A)
    return found.Inverse.apply(A)


def slogdet(A):
    """The sign of the determinant, and the logarithm of its size; waits for the matrix."""
    found.check("slogdet", A)
    return SignAndLog(*found.SlogDet.apply(A))


def det(A):
    """The determinant; waits for the matrix."""
    sign, size = slogdet(A)
    return sign * size.exp()


def cholesky(A, *, upper=False):
    """`L` with `L @ L.T = A`; waits for the matrix, which is symmetric and positive."""
    found.check("cholesky", A)
    L = found.Cholesky.apply(A)
    return L.mT if upper else L


def eigh(A, UPLO="L"):
    """Eigenvalues and eigenvectors of a symmetric matrix; waits for it."""
    found.check("eigh", A)
    return Eigen(*found.Eigh.apply(A if UPLO == "L" else A.mT))


def eigvalsh(A, UPLO="L"):
    """Eigenvalues of a symmetric matrix; waits for it."""
    return eigh(A, UPLO).eigenvalues


def svd(A, full_matrices=True):
    """Singular values and vectors; waits for the matrix. Vectors without a value have no gradient."""
    found.check("svd", A, square=False)
    if full_matrices and A.shape[-1] != A.shape[-2]:
        import numpy as np

        if A.requires_grad and _gt.is_grad_enabled():
            raise RuntimeError("linalg.svd: full_matrices=True has no gradient: pass full_matrices=False")
        return Singular(*found.host("svd", lambda a: tuple(np.linalg.svd(a)), A))
    return Singular(*found.Svd.apply(A))


def svdvals(A):
    """Singular values, the largest first; waits for the matrix."""
    return svd(A, full_matrices=False).S


def qr(A, mode="reduced"):
    """Columns at right angles and a triangle whose product is the matrix; waits for it."""
    found.check("qr", A, square=False)
    if mode == "reduced" or (mode == "complete" and A.shape[-1] == A.shape[-2]):
        return Factors(*found.Qr.apply(A))
    if mode not in ("complete", "r"):
        raise RuntimeError(f"linalg.qr: expected reduced, complete or r, got {mode!r}")
    import numpy as np

    if A.requires_grad and _gt.is_grad_enabled():
        raise RuntimeError(f"linalg.qr: mode={mode!r} has no gradient: use 'reduced'")
    if mode == "r":
        return Factors(A.new_zeros(0), found.host("qr", lambda a: np.linalg.qr(a, "r"), A))
    return Factors(*found.host("qr", lambda a: tuple(np.linalg.qr(a, "complete")), A))


def _cut(S, shape, rtol, atol):
    """The size below which a singular value counts as zero."""
    rtol = max(shape[-2:]) * _eps(S.dtype) if rtol is None and atol is None else rtol or 0.0
    return (S.amax(-1, keepdim=True) * rtol).clamp(min=atol or 0.0)


def _eps(dtype):
    return 2.0**-52 if dtype == _gt.float64 else 2.0**-23


def matrix_rank(A, *, tol=None, atol=None, rtol=None, hermitian=False):
    """How many singular values are not zero."""
    S = svdvals(A)
    return (S > _cut(S, A.shape, rtol, tol if atol is None else atol)).sum(-1)


def pinv(A, *, rtol=None, atol=None, hermitian=False):
    """The pseudo-inverse."""
    U, S, Vh = svd(A, full_matrices=False)
    small = S <= _cut(S.detach(), A.shape, rtol, atol)
    inverse = _gt.where(small, 0.0, 1 / _gt.where(small, 1.0, S))
    return Vh.mT @ (inverse.unsqueeze(-1) * U.mT)


def lstsq(A, B, rcond=None, *, driver=None):
    """`X` for which `A @ X` is nearest to `B`."""
    X = pinv(A, rtol=rcond) @ B
    rank = matrix_rank(A.detach())
    tall = A.shape[-2] > A.shape[-1] and A.dim() == 2 and int(rank) == A.shape[-1]
    rest = (A @ X - B).square().sum(-2) if tall else A.new_zeros(0)
    return LeastSquares(X, rest, rank, A.new_zeros(0))


def _logdet(input):
    """The logarithm of the determinant; NaN where that is negative."""
    sign, size = slogdet(input)
    return _gt.where(sign < 0, math.nan, size)


def _cholesky_solve(B, L, upper=False):
    """`X` with `A @ X = B`, for the factor of `A` that `cholesky` gives."""
    L = L.mT if upper else L
    return solve_triangular(L.mT, solve_triangular(L, B, upper=False), upper=True)


def _cholesky_inverse(L, upper=False):
    """The inverse of the matrix whose factor `cholesky` gives."""
    return _cholesky_solve(_gt.eye(L.shape[-1], dtype=L.dtype), L, upper)
