"""Norms and products under PyTorch's names in `torch.linalg`."""

import math

from gt._gt import Tensor
from gt.composed.products import chain_matmul as multi_dot
from gt.composed.products import cross as _cross
from gt.composed.products import matrix_power

__all__ = ["cross", "diagonal", "matmul", "matrix_norm", "matrix_power", "multi_dot", "norm", "vecdot", "vector_norm"]

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
    size = x.abs()
    if ord == math.inf:
        return size.amax(dims, keepdim=keepdim)
    if ord == -math.inf:
        return size.amin(dims, keepdim=keepdim)
    if ord in (1, 2):
        return x.norm(float(ord), dims, keepdim=keepdim)
    return size.pow(ord).sum(dims, keepdim=keepdim).pow(1.0 / ord)


def matrix_norm(A, ord="fro", dim=(-2, -1), keepdim=False, *, dtype=None):
    """The norm of matrices: Frobenius, or the largest or smallest sum of a row (inf) or column (1)."""
    A = A if dtype is None else A.to(dtype)
    if ord == "fro":
        return vector_norm(A, 2, dim, keepdim)
    if ord not in (1, -1, math.inf, -math.inf):
        raise NotImplementedError(f"matrix_norm: the order {ord!r} needs singular values, which GT does not have")
    row, col = (d % A.dim() for d in dim)
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
