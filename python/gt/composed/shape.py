"""Functions that rearrange, join and split tensors."""

from gt import _gt
from gt._gt import Tensor
from gt._size import Size

__all__ = [
    "argwhere",
    "as_strided",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "block_diag",
    "broadcast_shapes",
    "cartesian_prod",
    "column_stack",
    "diag",
    "diag_embed",
    "diagflat",
    "diagonal_scatter",
    "dsplit",
    "dstack",
    "hsplit",
    "index_put",
    "is_nonzero",
    "is_same_size",
    "meshgrid",
    "narrow_copy",
    "put",
    "rot90",
    "select_scatter",
    "slice_scatter",
    "split",
    "split_with_sizes",
    "tensor_split",
    "trace",
    "tril_indices",
    "triu_indices",
    "unravel_index",
    "unsafe_chunk",
    "unsafe_split",
    "unsafe_split_with_sizes",
    "vsplit",
]


def _tensors(tensors):
    return list(tensors[0]) if len(tensors) == 1 and not isinstance(tensors[0], Tensor) else list(tensors)


def _each(fn):
    """A function of one tensor that takes several too, and gives a tuple then."""

    def over(*tensors):
        if len(tensors) == 1 and isinstance(tensors[0], Tensor):
            return fn(tensors[0])
        return tuple(fn(t) for t in _tensors(tensors))

    over.__name__, over.__doc__ = fn.__name__, fn.__doc__
    return over


@_each
def atleast_1d(tensor):
    """With one dimension at least."""
    return tensor.reshape(1) if tensor.dim() == 0 else tensor


@_each
def atleast_2d(tensor):
    """With two dimensions at least; a vector becomes a row."""
    return tensor.reshape(1, -1) if tensor.dim() < 2 else tensor


@_each
def atleast_3d(tensor):
    """With three dimensions at least; new ones stand around a vector and after a matrix."""
    return tensor.unsqueeze(-1) if tensor.dim() == 2 else tensor.reshape(1, -1, 1) if tensor.dim() < 2 else tensor


def _several(name, tensors):
    if isinstance(tensors, Tensor):
        raise TypeError(f"{name}(): argument 'tensors' (position 1) must be tuple of Tensors, not Tensor")
    if not len(tensors):
        raise RuntimeError(f"{name}: expected a non-empty list of tensors")
    return tensors


def column_stack(tensors):
    """Vectors as columns, and matrices, side by side."""
    _several("column_stack", tensors)
    return _gt.cat([t.reshape(-1, 1) if t.dim() < 2 else t for t in tensors], 1)


def dstack(tensors):
    """Joined along the third dimension."""
    _several("dstack", tensors)
    return _gt.cat([atleast_3d(t) for t in tensors], 2)


def block_diag(*tensors):
    """Matrices along the diagonal, zeros elsewhere."""
    blocks = [atleast_2d(t) for t in _tensors(tensors)]
    width, at, rows = sum(b.shape[1] for b in blocks), 0, []
    for block in blocks:
        rows.append(block.pad((at, width - at - block.shape[1])))
        at += block.shape[1]
    return _gt.cat(rows)


def broadcast_shapes(*shapes):
    """The shape that tensors of these shapes have in common."""
    shapes = [(s,) if isinstance(s, int) else tuple(s) for s in shapes]
    rank = max(map(len, shapes), default=0)
    result = []
    for sizes in zip(*([1] * (rank - len(s)) + list(s) for s in shapes)):
        wide = {n for n in sizes if n != 1}
        if len(wide) > 1:
            raise RuntimeError(f"broadcast_shapes: shapes {shapes} do not fit together")
        result.append(wide.pop() if wide else 1)
    return Size(result)


def meshgrid(*tensors, indexing="ij"):
    """Coordinates of a grid: each vector along a dimension of its own, expanded to all."""
    vectors = _tensors(tensors)
    if any(v.dim() > 1 for v in vectors):
        raise RuntimeError(f"meshgrid: expected vectors and numbers, got shapes {[list(v.shape) for v in vectors]}")
    vectors = [v.reshape(-1) for v in vectors]
    if indexing not in ("ij", "xy"):
        raise RuntimeError(f"meshgrid: indexing must be one of 'xy' or 'ij', but received: {indexing}")
    swap = indexing == "xy" and len(vectors) > 1
    if swap:
        vectors[:2] = vectors[1::-1]
    shape = [v.numel() for v in vectors]
    grids = [v.view([-1 if i == d else 1 for i in range(len(shape))]).expand(shape) for d, v in enumerate(vectors)]
    if swap:
        grids = [g.transpose(0, 1) for g in grids]
        grids = [grids[1], grids[0], *grids[2:]]
        grids = [g.transpose(0, 1) for g in grids]
    return tuple(grids)


def cartesian_prod(*tensors):
    """Every combination of elements, one of each vector."""
    vectors = _tensors(tensors)
    if any(v.dim() != 1 for v in vectors):
        raise RuntimeError(f"cartesian_prod: expected vectors, got shapes {[list(v.shape) for v in vectors]}")
    if len(vectors) == 1:
        return vectors[0]
    return _gt.stack([g.reshape(-1) for g in meshgrid(*vectors)], 1)


def tril_indices(row, col, offset=0, *, dtype=None, device=None):
    """Rows and columns of the lower triangle of a matrix."""
    pairs = [(i, j) for i in range(row) for j in range(max(0, min(col, i + offset + 1)))]
    return _pairs(pairs, dtype)


def triu_indices(row, col, offset=0, *, dtype=None, device=None):
    """Rows and columns of the upper triangle of a matrix."""
    pairs = [(i, j) for i in range(row) for j in range(max(0, i + offset), col)]
    return _pairs(pairs, dtype)


def _pairs(pairs, dtype):
    dtype = dtype or _gt.int64
    return _gt.tensor(pairs, dtype=dtype).T.contiguous() if pairs else _gt.empty(2, 0, dtype=dtype)


def diag_embed(input, offset=0, dim1=-2, dim2=-1):
    """Matrices with the last dimension along a diagonal."""
    n = input.shape[-1] + abs(offset)
    square = input.new_zeros(*input.shape[:-1], n, n)
    return diagonal_scatter(square, input, offset, -2, -1).movedim((-2, -1), (dim1, dim2))


def diag(input, diagonal=0):
    """The diagonal of a matrix, or a matrix with the given diagonal."""
    if input.dim() == 1:
        return diag_embed(input, diagonal)
    if input.dim() != 2:
        raise RuntimeError(f"diag: expected a vector or a matrix, got {input.dim()} dimensions")
    return input.diagonal(diagonal).clone()


def diagflat(input, offset=0):
    """A matrix with all elements along a diagonal."""
    return diag_embed(input.reshape(-1), offset)


def trace(input):
    """The sum of the diagonal of a matrix."""
    if input.dim() != 2:
        raise RuntimeError(f"trace: expected a matrix, got {input.dim()} dimensions")
    return input.diagonal().sum()


def diagonal_scatter(input, src, offset=0, dim1=0, dim2=1):
    """A copy with `src` as its diagonal."""
    out = input.clone()
    out.diagonal(offset, dim1, dim2).copy_(src)
    return out


def select_scatter(input, src, dim, index):
    """A copy with `src` at an index of a dimension."""
    out = input.clone()
    out.select(dim, index).copy_(src)
    return out


def slice_scatter(input, src, dim=0, start=None, end=None, step=1):
    """A copy with `src` in a slice of a dimension."""
    out = input.clone()
    key = [slice(None)] * input.dim()
    key[dim] = slice(start, end, step)
    out[tuple(key)] = src
    return out


def index_put(input, indices, values, accumulate=False):
    """A copy with `values` at the indices."""
    return input.clone().index_put_(indices, values, accumulate)


def put(input, index, source, accumulate=False):
    """A copy with the elements of `source` at places of the whole, counted in rows."""
    if index.is_floating_point() or index.numel() != source.numel():
        raise RuntimeError(
            f"put: expected as many integers as elements of the source, got {list(index.shape)} of {index.dtype} and "
            f"{list(source.shape)}"
        )
    flat = input.reshape(-1).clone()
    return flat.index_put_((index.reshape(-1).long(),), source.reshape(-1), accumulate).reshape(input.shape)


def unravel_index(indices, shape):
    """The index in each dimension of places of the whole, counted in rows."""
    if indices.is_floating_point() or indices.dtype == _gt.bool:
        raise ValueError(f"expected 'indices' to be integer dtype, but got {indices.dtype}")
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(n < 0 for n in sizes):
        raise ValueError(f"'shape' cannot have negative values, but got {sizes}")
    found, rest = [], indices.long()
    for n in reversed(sizes):
        found.append(rest % n)
        rest = rest // n
    return tuple(found[::-1])


def fill_diagonal_(self, fill_value, wrap=False):
    """Writes a number along the main diagonal."""
    if wrap:
        raise NotImplementedError("fill_diagonal_: wrap=True is not supported")
    size = min(self.shape)
    if self.dim() == 2:
        self.diagonal().fill_(fill_value)
    else:
        index = _gt.arange(size)
        self[(index,) * self.dim()] = fill_value
    return self


def rot90(input, k=1, dims=(0, 1)):
    """Turned by 90 degrees, `k` times, from the first towards the second dimension."""
    if len(dims) != 2 or input.dim() < 2 or (dims[0] - dims[1]) % input.dim() == 0:
        raise RuntimeError(f"rot90: expected two different dimensions, got {tuple(dims)} of {input.dim()}")
    a, b = dims
    k %= 4
    if k == 0:
        return input.clone()
    if k == 2:
        return input.flip(a, b)
    return input.flip(b).transpose(a, b) if k == 1 else input.flip(a).transpose(a, b)


def unfold(self, dimension, size, step):
    """Windows of `size` elements along a dimension, each `step` after the one before, as a new last dimension."""
    if self.dim() == 0:
        return unfold(self.reshape(1), dimension, size, step).squeeze(0)
    dimension %= self.dim()
    length = self.shape[dimension]
    if size > length or step <= 0:
        raise RuntimeError(f"unfold: expected windows of at most {length} and a positive step, got {size} and {step}")
    starts = _gt.arange(0, length - size + 1, step)
    index = starts.unsqueeze(1) + _gt.arange(size)
    windows = self.index_select(dimension, index.reshape(-1)).unflatten(dimension, tuple(index.shape))
    return windows.movedim(dimension + 1, -1)


def as_strided(input, size, stride, storage_offset=None):
    """Elements that lie so many places of the storage apart along each dimension, as a copy."""
    if not input.is_contiguous():
        raise RuntimeError(
            f"as_strided: expected a contiguous tensor, got strides {list(input.stride())}: call contiguous()"
        )
    size, stride = tuple(size), tuple(stride)
    if len(size) != len(stride) or min((*size, *stride), default=0) < 0:
        raise RuntimeError(f"as_strided: expected as many strides as sizes, none negative, got {size} and {stride}")
    offset = 0 if storage_offset is None else storage_offset - input.storage_offset()
    last = offset + sum((n - 1) * step for n, step in zip(size, stride))
    if 0 not in size and not 0 <= offset <= last < input.numel():
        raise RuntimeError(
            f"as_strided: sizes {list(size)} with strides {list(stride)} from {offset} on lead out of {input.numel()} "
            "elements"
        )
    place = _gt.full((), offset, dtype=_gt.int64)
    for n, step in zip(size, stride):
        place = place.unsqueeze(-1) + _gt.arange(n) * step
    return input.reshape(-1).index_select(0, place.reshape(-1)).reshape(size)


def argwhere(input):
    """The indices of all elements that are not zero, one row each; waits for their number."""
    return input.nonzero()


def is_nonzero(input):
    """Whether the only element is not zero; waits for it."""
    if input.numel() != 1:
        raise RuntimeError(f"is_nonzero: expected one element, got {input.numel()}: use any() or all()")
    return bool(input != 0)


def is_same_size(input, other):
    """Whether two tensors have the same shape."""
    return tuple(input.shape) == tuple(other.shape)


def sum_to_size(self, *size):
    """Summed over the dimensions that broadcasting to this tensor's shape had made."""
    size = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
    extra = self.dim() - len(size)
    dims = [*range(extra), *(extra + i for i, n in enumerate(size) if n == 1 and self.shape[extra + i] != 1)]
    out = self.sum(dims, keepdim=True) if dims else self
    return out.reshape(size)


def split(tensor, split_size_or_sections, dim=0):
    """Parts of a size, or of the given sizes."""
    return tensor.split(split_size_or_sections, dim)


def narrow_copy(input, dim, start, length):
    """A copy of a part of a dimension."""
    return input.narrow(dim, start, length).clone()


def unsafe_chunk(input, chunks, dim=0):
    """`chunk`, which is safe here."""
    return input.chunk(chunks, dim)


def unsafe_split(input, split_size, dim=0):
    """`split`, which is safe here."""
    return input.split(split_size, dim)


def unsafe_split_with_sizes(input, split_sizes, dim=0):
    """`split_with_sizes`, which is safe here."""
    return input.split(split_sizes, dim)


def split_with_sizes(input, split_sizes, dim=0):
    """Parts of the given sizes."""
    return input.split(split_sizes, dim)


def tensor_split(input, indices_or_sections, dim=0):
    """Parts before, between and after the indices, or so many parts of nearly equal size."""
    length, given = input.shape[dim], indices_or_sections
    if isinstance(given, Tensor):
        given = given.tolist()
    if isinstance(given, int):
        if given < 1:
            raise RuntimeError(f"tensor_split: expected at least one section, got {given}")
        small, larger = divmod(length, given)
        cuts = [i * small + min(i, larger) for i in range(given + 1)]
    else:
        bounded = [max(0, min(length, i + length if i < 0 else i)) for i in given]
        cuts = [0, *bounded, length]
    return tuple(input.narrow(dim, a, max(0, b - a)) for a, b in zip(cuts, cuts[1:]))


def _split_along(name, dim, rank):
    def split(input, indices_or_sections):
        if input.dim() < rank:
            raise RuntimeError(f"{name}: expected at least {rank} dimensions, got {input.dim()}")
        at = 0 if name == "hsplit" and input.dim() == 1 else dim
        parts = indices_or_sections
        if isinstance(parts, int) and (parts < 1 or input.shape[at] % parts):
            raise RuntimeError(f"{name}: {input.shape[at]} elements do not make {indices_or_sections} equal parts")
        return tensor_split(input, indices_or_sections, at)

    split.__name__ = split.__qualname__ = name
    split.__doc__ = f"Parts along dimension {dim}."
    return split


hsplit = _split_along("hsplit", 1, 1)
vsplit = _split_along("vsplit", 0, 2)
dsplit = _split_along("dsplit", 2, 3)
