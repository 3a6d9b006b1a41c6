"""Products of vectors and matrices."""

from string import ascii_letters

from gt import _gt
from gt._gt import Tensor

__all__ = [
    "addbmm",
    "addmv",
    "addr",
    "chain_matmul",
    "cross",
    "einsum",
    "ger",
    "inner",
    "kron",
    "matrix_power",
    "renorm",
    "vdot",
]

ger = Tensor.outer
vdot = Tensor.dot


def _letters(places):
    for n in places:
        if n is not Ellipsis and not 0 <= n < 52:
            raise ValueError(f"einsum: expected indices within the range [0, 52), got {n}")
    # In the order of the alphabet, in which a result without indices of its own has its dimensions.
    return "".join("..." if n is Ellipsis else ascii_letters[(n + 26) % 52] for n in places)


def einsum(equation, *operands):
    """Sums of products, by an equation such as `ij,jk->ik`, or by tensors each with a list of its indices."""
    if not isinstance(equation, Tensor):
        return _gt.einsum(equation, *operands)
    parts = (equation, *operands)
    result = "->" + _letters(parts[-1]) if len(parts) % 2 else ""
    tensors, places = parts[0 : len(parts) // 2 * 2 : 2], parts[1::2]
    return _gt.einsum(",".join(_letters(p) for p in places) + result, *tensors)


def inner(input, other):
    """The sum of products over the last dimension of both."""
    if input.dim() == 0 or other.dim() == 0:
        return input * other
    return _gt.tensordot(input, other, [[-1], [-1]])


def kron(input, other):
    """The Kronecker product."""
    rank = max(input.dim(), other.dim())
    a = input.reshape([1] * (rank - input.dim()) + list(input.shape))
    b = other.reshape([1] * (rank - other.dim()) + list(other.shape))
    shape = [m * n for m, n in zip(a.shape, b.shape)]
    a = a.reshape([size for n in a.shape for size in (n, 1)])
    b = b.reshape([size for n in b.shape for size in (1, n)])
    return (a * b).reshape(shape)


def cross(input, other, dim=None):
    """The cross product along a dimension of size 3."""
    if dim is None:
        dim = next((i for i, n in enumerate(input.shape) if n == 3), None)
        if dim is None:
            raise RuntimeError(f"cross: expected a dimension of size 3, got {list(input.shape)}")
    a, b = _gt.broadcast_tensors(input, other)
    if a.shape[dim] != 3:
        raise RuntimeError(f"cross: expected size 3 in dim {dim}, got {list(a.shape)}")
    # The products of the next and the one after, along the dimension.
    return (a.roll(-1, dim) * b.roll(-2, dim)) - (a.roll(-2, dim) * b.roll(-1, dim))


def addmv(input, mat, vec, *, beta=1, alpha=1):
    """`beta * input + alpha * (mat @ vec)`."""
    product = mat.mv(vec) * alpha
    return product if beta == 0 else input * beta + product


def addr(input, vec1, vec2, *, beta=1, alpha=1):
    """`beta * input + alpha * outer(vec1, vec2)`."""
    if input.dtype == vec1.dtype == vec2.dtype == _gt.bool:
        product = vec1.outer(vec2) & bool(alpha)
        return product if not beta else input | product
    product = vec1.outer(vec2) * alpha
    return product if beta == 0 else input * beta + product


def addbmm(input, batch1, batch2, *, beta=1, alpha=1):
    """`beta * input + alpha * sum(batch1 @ batch2)` over the batch."""
    if batch1.dim() != 3 or batch2.dim() != 3 or batch1.shape[::2] != batch2.shape[:2]:
        raise RuntimeError(
            "addbmm: expected two stacks of as many matrices that can be multiplied, got "
            f"{list(batch1.shape)} and {list(batch2.shape)}"
        )
    # One product sums over the batch, too.
    inner = batch1.shape[0] * batch1.shape[2]
    left = batch1.transpose(0, 1).reshape(batch1.shape[1], inner)
    return input.addmm(left, batch2.reshape(inner, batch2.shape[2]), beta=beta, alpha=alpha)


def matrix_power(input, n):
    """A square matrix multiplied with itself, `n` factors of it, or of its inverse if `n` is negative."""
    if n < 0:
        from gt import linalg

        return matrix_power(linalg.inv(input), -n)
    size = input.shape[-1]
    result, square = None, input
    while n:
        if n & 1:
            result = square if result is None else result @ square
        n >>= 1
        if n:
            square = square @ square
    if result is None:
        result = _gt.eye(size, dtype=input.dtype).expand(input.shape).clone()
    return result


def chain_matmul(*matrices):
    """The product of matrices, in the order that needs the fewest multiplications."""
    matrices = list(matrices[0]) if len(matrices) == 1 and not isinstance(matrices[0], Tensor) else list(matrices)
    sizes = [matrices[0].shape[0], *(m.shape[1] for m in matrices)]
    count = len(matrices)
    cost = [[0] * count for _ in range(count)]
    cut = [[0] * count for _ in range(count)]
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            cost[i][j], cut[i][j] = min(
                (cost[i][k] + cost[k + 1][j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)
            )

    def product(i, j):
        return matrices[i] if i == j else product(i, cut[i][j]) @ product(cut[i][j] + 1, j)

    return product(0, count - 1)


def renorm(input, p, dim, maxnorm):
    """With the parts along a dimension shortened whose norm is more than `maxnorm`."""
    if maxnorm < 0:
        raise RuntimeError(f"renorm: expected maxnorm to be >= 0 but got {maxnorm}")
    if input.dim() < 2:
        raise RuntimeError(f"renorm: input needs at least 2 dimensions, got {input.dim()} dimensions")
    dim %= input.dim()
    size = input.norm(p, [d for d in range(input.dim()) if d != dim], keepdim=True)
    return input * _gt.where(size > maxnorm, maxnorm / (size + 1e-7), 1.0)
