"""Solvers and decompositions of `gt.linalg` as methods, and what PyTorch has beside them."""

from collections import namedtuple

from gt._gt import randn, where

__all__ = ["matrix_exp", "pca_lowrank", "pinverse", "svd", "svd_lowrank"]

Singular = namedtuple("Singular", ["U", "S", "V"])


def _linalg():
    # Not imported before it is needed: `import gt` would take longer.
    from gt import linalg

    return linalg


def pinverse(input, rcond=1e-15):
    """The pseudo-inverse; waits for the matrix."""
    return _linalg().pinv(input, rtol=rcond)


def svd(input, some=True, compute_uv=True):
    """Singular values and vectors, `input = U @ S.diag() @ V.T`; waits for the matrix."""
    if not compute_uv:
        S = _linalg().svdvals(input)
        rows, columns = input.shape[-2:]
        lead = input.shape[:-2]
        return Singular(input.new_zeros(*lead, rows, rows), S, input.new_zeros(*lead, columns, columns))
    U, S, Vh = _linalg().svd(input, full_matrices=not some)
    return Singular(U, S, Vh.mT)


def _basis(A, q, niter):
    """Columns at right angles that nearly span what `A` gives, by random products."""
    Q = _linalg().qr(A @ randn(A.shape[-1], q, dtype=A.dtype)).Q
    for _ in range(niter):
        Q = _linalg().qr(A.mT @ Q).Q
        Q = _linalg().qr(A @ Q).Q
    return Q


def svd_lowrank(A, q=6, niter=2, M=None):
    """The largest `q` singular values and their vectors, nearly, of `A - M`; waits for the matrix."""
    A = A if M is None else A - M
    wide = A.shape[-2] < A.shape[-1]
    A = A.mT if wide else A
    Q = _basis(A, 6 if q is None else q, 2 if niter is None else niter)
    U, S, Vh = _linalg().svd(Q.mT @ A, full_matrices=False)
    U, V = Q @ U, Vh.mT
    return (V, S, U) if wide else (U, S, V)


def pca_lowrank(A, q=None, center=True, niter=2):
    """The largest `q` principal components, nearly, of rows; waits for the matrix."""
    most = min(A.shape[-2:])
    q = min(6, most) if q is None else q
    if not 0 <= q <= most:
        raise ValueError(f"pca_lowrank: expected q between 0 and {most}, the smaller size of the matrix, got {q}")
    if niter < 0:
        raise ValueError(f"pca_lowrank: niter must be non-negative, got {niter}")
    return svd_lowrank(A - A.mean(-2, keepdim=True) if center else A, q, niter)


# Halvings that bring a matrix to a norm of one at most, as far as its exponential is a number at all.
_HALVINGS = 16
# Terms of the series after which what is left is below the precision of doubles.
_TERMS = 18


def matrix_exp(input):
    """The sum of `A**k / k!` over all k."""
    if input.dim() < 2 or input.shape[-1] != input.shape[-2] or not input.is_floating_point():
        raise RuntimeError(
            f"linalg.matrix_exp: expected square matrices of floating-point numbers, got {list(input.shape)} of "
            f"{input.dtype}"
        )
    norm = input.detach().abs().sum(-2, keepdim=True).amax(-1, keepdim=True)
    halvings = norm.clamp(min=1).log2().ceil().clamp(max=_HALVINGS)
    A = input / 2**halvings
    total = eye = input.new_ones(input.shape[-1]).diag().expand(input.shape)
    for k in range(_TERMS, 0, -1):
        total = eye + A @ total / k
    for step in range(_HALVINGS):
        left = halvings > step
        # Squares of what is done would overflow, and their gradients with them.
        base = where(left, total, 0.0)
        total = where(left, base @ base, total)
    return total


def _method(name):
    def method(self, *args, **kwargs):
        return getattr(_linalg(), name)(self, *args, **kwargs)

    method.__name__ = method.__qualname__ = name.strip("_")
    method.__doc__ = f"`gt.{name.strip('_')}`; waits for the matrix."
    return method


METHODS = {
    **{name: _method(name) for name in ("det", "qr", "slogdet")},
    **{name: _method(f"_{name}") for name in ("logdet", "cholesky_solve", "cholesky_inverse")},
    "inverse": _method("inv"),
    "matrix_exp": matrix_exp,
    "pinverse": pinverse,
    "svd": svd,
}
METHODS["inverse"].__name__, METHODS["inverse"].__doc__ = "inverse", "`gt.inverse`; waits for the matrix."
