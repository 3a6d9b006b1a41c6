"""Norms, products, solvers and decompositions under PyTorch's names in `torch.linalg`."""

import math
from collections import namedtuple

from gt import _decompose as found
from gt import _gt
from gt._decompose import LinAlgError
from gt._function import function as _function
from gt._gt import Tensor
from gt.composed.matrices import matrix_exp
from gt.composed.products import chain_matmul as multi_dot
from gt.composed.products import cross as _cross
from gt.composed.products import matrix_power
from gt.composed.search import vander as _vander

__all__ = [
    "LinAlgError",
    "cholesky",
    "cholesky_ex",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "inv_ex",
    "lstsq",
    "lu",
    "lu_factor",
    "lu_solve",
    "matmul",
    "matrix_exp",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "multi_dot",
    "norm",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_ex",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensorinv",
    "tensorsolve",
    "vander",
    "vecdot",
    "vector_norm",
]

PackedFactors = namedtuple("PackedFactors", ["LU", "pivots"])
PackedAndInfo = namedtuple("PackedAndInfo", ["LU", "pivots", "info"])
Triangles = namedtuple("Triangles", ["P", "L", "U"])
Eigen = namedtuple("Eigen", ["eigenvalues", "eigenvectors"])
Singular = namedtuple("Singular", ["U", "S", "Vh"])
SignAndLog = namedtuple("SignAndLog", ["sign", "logabsdet"])
Factors = namedtuple("Factors", ["Q", "R"])
InverseAndInfo = namedtuple("InverseAndInfo", ["inverse", "info"])
FactorAndInfo = namedtuple("FactorAndInfo", ["L", "info"])
SolutionAndInfo = namedtuple("SolutionAndInfo", ["result", "info"])
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


def tensorsolve(A, B, dims=None):
    """`X` with `tensordot(A, X, X.dim()) == B`; waits for both."""
    if dims is not None:
        A = A.movedim([d % A.dim() for d in dims], list(range(A.dim() - len(dims), A.dim())))
    shape = A.shape[B.dim() :]
    if math.prod(shape) != B.numel():
        raise RuntimeError(
            f"linalg.tensorsolve: expected the sizes of A to have as many elements before as after dimension "
            f"{B.dim()}, got {list(A.shape)} for {list(B.shape)}"
        )
    return solve(A.reshape(B.numel(), -1), B.reshape(-1)).reshape(shape)


def tensorinv(A, ind=2):
    """The inverse with regard to `tensordot` over `ind` dimensions; waits for the tensor."""
    if ind <= 0:
        raise RuntimeError(f"linalg.tensorinv: expected a strictly positive integer for 'ind', got {ind}")
    left, right = A.shape[:ind], A.shape[ind:]
    if math.prod(left) != math.prod(right):
        raise RuntimeError(
            f"linalg.tensorinv: expected as many elements before as after dimension {ind}, got {list(A.shape)}"
        )
    return inv(A.reshape(math.prod(left), -1)).reshape(*right, *left)


def vander(x, *, N=None):
    """Powers of each number from 0 on, one row each."""
    if N is not None and N <= 1:
        raise RuntimeError(f"N must be greater than 1, got {N}")
    return _vander(x if x.dim() else x.reshape(1), N, True)


def cond(A, p=None):
    """How much errors grow in a solution: the norm of a matrix times that of its inverse."""
    if p in (None, 2, -2):
        S = svdvals(A)
        return S[..., -1] / S[..., 0] if p == -2 else S[..., 0] / S[..., -1]
    inverse, info = inv_ex(A)
    out = matrix_norm(A, p) * matrix_norm(inverse, p)
    return _gt.where(info == 0, out, math.inf)


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


def inv_ex(A, *, check_errors=False):
    """The inverse, and for each matrix 0, or another number where there is none; waits for the matrix."""
    found.check("inv_ex", A)
    return InverseAndInfo(*_with_info(A, inv, check_errors))


def cholesky_ex(A, *, upper=False, check_errors=False):
    """`cholesky`, and for each matrix 0, or another number where it is not positive; waits for the matrix."""
    found.check("cholesky_ex", A)
    return FactorAndInfo(*_with_info(A, lambda a: cholesky(a, upper=upper), check_errors))


def solve_ex(A, B, *, left=True, check_errors=False):
    """`solve`, and for each matrix 0, or another number where there is no solution; waits for both."""
    return SolutionAndInfo(*_with_info(A, lambda a: solve(a, B, left=left), check_errors))


def _with_info(A, find, check_errors):
    """What is found, and whether. Where it is not, each matrix is tried alone, and gives NaN."""
    lead = A.shape[:-2]
    try:
        return find(A), _gt.zeros(lead, dtype=_gt.int32)
    except LinAlgError:
        if check_errors:
            raise
    if not lead:
        return A.new_full(tuple(A.shape), math.nan), _gt.ones((), dtype=_gt.int32)
    parts = [_with_info(a, find, False) for a in A]
    return tuple(_gt.stack([part[i] for part in parts]) for i in (0, 1))


def det(A):
    """The determinant; waits for the matrix."""
    sign, size = slogdet(A)
    return sign * size.exp()


def cholesky(A, *, upper=False):
    """`L` with `L @ L.T = A`; waits for the matrix, which is symmetric and positive."""
    found.check("cholesky", A)
    L = found.Cholesky.apply(A)
    return L.mT if upper else L


def _pivoting(name, pivot):
    if not pivot:
        raise RuntimeError(f"linalg.{name}: LU without pivoting is not implemented")


def lu_factor(A, *, pivot=True):
    """`L` and `U` of `lu` in one matrix, and the row that each row changes places with, counted from 1."""
    found.check("lu_factor", A, square=False)
    _pivoting("lu_factor", pivot)
    factors, _, pivots = found.Lu.apply(A)
    return PackedFactors(factors, pivots)


def lu(A, *, pivot=True):
    """A lower and an upper triangle whose product is `A` with its rows in another order; waits for the matrix."""
    found.check("lu", A, square=False)
    _pivoting("lu", pivot)
    factors, order, _ = found.Lu.apply(A)
    return Triangles(_placed(order, A.dtype), *_triangles(factors))


def _placed(order, dtype):
    """The matrix that brings rows in an order back."""
    return (order.unsqueeze(-2) == _gt.arange(order.shape[-1]).unsqueeze(-1)).to(dtype)


def _triangles(factors):
    rows, columns = factors.shape[-2:]
    k = min(rows, columns)
    return factors[..., :k].tril(-1) + _gt.eye(rows, k, dtype=factors.dtype), factors[..., :k, :].triu()


def _row_order(pivots, rows):
    return _gt.tensor(found._order(pivots.numpy() - 1, rows), dtype=_gt.int64)


def lu_solve(LU, pivots, B, *, left=True, adjoint=False):
    """`X` with `A @ X = B`, or `X @ A = B`, for what `lu_factor` gives of `A`, or of its transpose."""
    if not left:
        return lu_solve(LU, pivots, B.mT, adjoint=not adjoint).mT
    L, U = _triangles(LU)
    P = _placed(_row_order(pivots, LU.shape[-1]), LU.dtype)
    if adjoint:
        return P @ solve_triangular(L.mT, solve_triangular(U.mT, B, upper=False), upper=True)
    return solve_triangular(U, solve_triangular(L, P.mT @ B, upper=False), upper=True)


def eigh(A, UPLO="L"):
    """Eigenvalues and eigenvectors of a symmetric matrix; waits for it."""
    found.check("eigh", A)
    if UPLO not in ("L", "l", "U", "u"):
        raise RuntimeError(f"Expected UPLO argument to be 'L' or 'U', but got {UPLO}")
    return Eigen(*found.Eigh.apply(A if UPLO in "Ll" else A.mT))


def eigvalsh(A, UPLO="L"):
    """Eigenvalues of a symmetric matrix; waits for it."""
    return eigh(A, UPLO).eigenvalues


def svd(A, full_matrices=True):
    """Singular values and vectors; waits for the matrix. Vectors without a value have no gradient."""
    found.check("svd", A, square=False)
    return Singular(*found.Svd.apply(A, full_matrices))


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


def _number(x):
    """A tolerance for each matrix, as it is compared with singular values."""
    return x.unsqueeze(-1) if isinstance(x, Tensor) else x


def _cut(S, shape, rtol, atol):
    """The size below which a singular value counts as zero. The relative one is only for who gives none."""
    if rtol is None:
        rtol = max(shape[-2:]) * _eps(S.dtype)
        if isinstance(atol, Tensor):
            rtol = _gt.where(atol > 0, 0.0, rtol)
        elif atol:
            rtol = 0.0
    rtol, atol = _number(rtol), _number(0.0 if atol is None else atol)
    top = S.amax(-1, keepdim=True) if S.shape[-1] else S.new_zeros(*S.shape[:-1], 1)
    return (top * rtol).maximum(atol if isinstance(atol, Tensor) else _gt.tensor(atol, dtype=S.dtype))


def _eps(dtype):
    return 2.0**-52 if dtype == _gt.float64 else 2.0**-23


def _sizes(A, hermitian):
    """Singular values; those of symmetric matrices are the sizes of their eigenvalues."""
    return eigvalsh(A).abs() if hermitian else svdvals(A)


def matrix_rank(A, tol=None, hermitian=False, *, atol=None, rtol=None):
    """How many singular values are not zero."""
    S = _sizes(A.detach(), hermitian)
    if tol is not None:
        atol, rtol = tol, 0.0
    return (S > _cut(S, A.shape, rtol, atol)).sum(-1)


def pinv(A, rcond=None, hermitian=False, *, atol=None, rtol=None):
    """The pseudo-inverse; waits for the matrix."""
    found.check("pinv", A, square=hermitian)
    S = _sizes(A.detach(), hermitian)
    return found.PseudoInverse.apply(A, _cut(S, A.shape, rcond if rtol is None else rtol, atol), hermitian)


_DRIVERS = ("gels", "gelsy", "gelsd", "gelss")


def lstsq(A, B, rcond=None, *, driver=None):
    """`X` for which `A @ X` is nearest to `B`. The driver says what is told beside it, as LAPACK's does."""
    driver = driver or "gelsy"
    if driver not in _DRIVERS:
        raise RuntimeError(f"torch.linalg.lstsq: parameter `driver` should be one of {_DRIVERS}, got {driver!r}")
    vector = B.dim() == A.dim() - 1
    X = pinv(A, rcond) @ (B.unsqueeze(-1) if vector else B)
    X = X.squeeze(-1) if vector else X
    S = svdvals(A.detach()) if driver != "gels" else A.new_zeros(0)
    rank = A.new_zeros(0, dtype=_gt.int64) if driver == "gels" else (S > _cut(S, A.shape, rcond, None)).sum(-1)
    tall = A.shape[-2] > A.shape[-1] and driver != "gelsy"
    rest = A.new_zeros(0)
    if tall and (driver == "gels" or bool((rank == A.shape[-1]).all())):
        rest = (A @ X.unsqueeze(-1) - B.unsqueeze(-1) if vector else A @ X - B).square().sum(-2)
    return LeastSquares(X, rest, rank, S if driver in ("gelss", "gelsd") else A.new_zeros(0))


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


def _lu(A, pivot=True, get_infos=False):
    """`linalg.lu_factor`, with zeros beside it if asked for information."""
    found = lu_factor(A, pivot=pivot)
    return PackedAndInfo(*found, _gt.zeros(A.shape[:-2], dtype=_gt.int32)) if get_infos else found


def _lu_solve(b, LU_data, LU_pivots):
    """`X` with `A @ X = b`, for what `lu` gives of `A`."""
    return lu_solve(LU_data, LU_pivots, b)


def _lu_unpack(LU_data, LU_pivots, unpack_data=True, unpack_pivots=True):
    """The triangles in one matrix, and the matrix that brings the rows back; empty where not asked for."""
    none = LU_data.new_zeros(0)
    L, U = _triangles(LU_data) if unpack_data else (none, none)
    rows = LU_data.shape[-2]
    return Triangles(_placed(_row_order(LU_pivots, rows), LU_data.dtype) if unpack_pivots else none, L, U)


# Results may go to `out`.
for _name in __all__:
    if _name not in ("LinAlgError", "multi_dot"):
        globals()[_name] = _function(globals()[_name], None)
