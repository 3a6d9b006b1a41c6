"""Looking things up: places in sorted rows, quantiles, groups, distances."""

from collections import namedtuple

from gt import _gt
from gt._function import function
from gt._gt import Tensor

__all__ = [
    "bucketize",
    "cdist",
    "combinations",
    "cummax",
    "cummin",
    "index_reduce",
    "logcumsumexp",
    "mode",
    "nanmedian",
    "nanquantile",
    "pairwise_distance",
    "pdist",
    "quantile",
    "repeat_interleave",
    "scatter",
    "scatter_reduce",
    "searchsorted",
    "unique",
    "unique_consecutive",
    "vander",
]

Found = namedtuple("Found", ["values", "indices"])


def _numbers(data, like):
    return data if isinstance(data, Tensor) else _gt.tensor(data, dtype=like.dtype)


def searchsorted(sorted_sequence, input, *, out_int32=False, right=False, side=None, sorter=None):
    """Where each number would stand in a sorted row, so that it stays sorted: before its equals, or after them."""
    if side not in (None, "left", "right") or (right and side == "left"):
        raise RuntimeError(f"searchsorted: expected side to be left or right, and to agree with right, got {side!r}")
    after = right or side == "right"
    rows = sorted_sequence if sorter is None else sorted_sequence.gather(-1, sorter)
    x = _numbers(input, rows)
    if rows.dim() == 0 or (rows.dim() > 1 and (x.dim() == 0 or rows.shape[:-1] != x.shape[:-1])):
        raise RuntimeError(
            "searchsorted: expected a sorted vector, or rows for all but the last dimension of what is looked up, got "
            f"{list(rows.shape)} and {list(x.shape)}"
        )
    rows, x = rows.detach(), x.detach()
    found = _halved(rows, x, after) if rows.shape[-1] * x.numel() >= HALVED else _counted(rows, x, after)
    return found.to(_gt.int32 if out_int32 else _gt.int64)


# As many comparisons of all with all take longer than looking by halves.
HALVED = 1 << 20


def _before(rows, x, after):
    before = rows <= x if after else rows < x
    # NaN stands after every number.
    return before | (x.isnan() & ~rows.isnan()) if rows.is_floating_point() else before


def _counted(rows, x, after):
    """How many elements of its row stand before each number."""
    rows = rows.unsqueeze(-2) if rows.dim() > 1 else rows
    return _before(rows, x.unsqueeze(-1), after).sum(-1)


def _halved(rows, x, after):
    """The same in as many steps as the length of a row has bits."""
    n = rows.shape[-1]
    step = 1 << (n.bit_length() - 1)
    found = _gt.zeros(x.shape, dtype=_gt.int64)
    while step:
        last = found + (step - 1)
        inside = last.clamp(max=n - 1)
        there = rows[inside] if rows.dim() == 1 else rows.gather(-1, inside)
        found = _gt.where(_before(there, x, after) & (last < n), last + 1, found)
        step //= 2
    return found


def bucketize(input, boundaries, *, out_int32=False, right=False):
    """The interval between boundaries that each number lies in."""
    if boundaries.dim() != 1:
        raise RuntimeError(f"bucketize: expected a vector of boundaries, got {boundaries.dim()} dimensions")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def _sorted_rows(input, dim):
    x = input.reshape(-1) if dim is None else input.movedim(dim, -1)
    return x.sort(-1)[0]


def _between(rows, place, interpolation):
    """The values at fractional places of sorted rows."""
    low, high = place.floor(), place.ceil()
    if interpolation == "nearest":
        low = high = place.round()
    elif interpolation == "lower":
        high = low
    elif interpolation == "higher":
        low = high
    below, above = rows.gather(-1, low.long()), rows.gather(-1, high.long())
    if interpolation == "midpoint":
        return (below + above) / 2
    return below.lerp(above, place - low)


def _quantile(input, q, dim, keepdim, interpolation, skip_nan):
    if interpolation not in ("linear", "lower", "higher", "midpoint", "nearest"):
        raise RuntimeError(f"quantile: expected linear, lower, higher, midpoint or nearest, got {interpolation!r}")
    if not input.is_floating_point():
        raise RuntimeError(f"quantile: expected a floating-point tensor, got {input.dtype}")
    if not isinstance(q, Tensor) and not 0 <= q <= 1:
        raise RuntimeError(f"quantile: q must be in the range [0, 1], got {q}")
    if input.dim() == 0:
        found = _quantile(input.reshape(1), q, None, False, interpolation, skip_nan)
        return found if dim is None or not keepdim else found
    share = q.to(input.dtype) if isinstance(q, Tensor) else _gt.tensor(q, dtype=input.dtype)
    rows = _sorted_rows(input, dim)
    bad = rows.isnan()
    count = (~bad).sum(-1, keepdim=True) if skip_nan else _gt.full((*rows.shape[:-1], 1), rows.shape[-1])
    place = share.reshape(-1) * (count - 1).clamp(min=0).to(rows.dtype)
    out = _between(rows, place, interpolation)
    if not skip_nan:
        out = out.masked_fill(bad.any(-1, keepdim=True), float("nan"))
    out = out.movedim(-1, 0)
    if keepdim:
        out = out.reshape(-1, *[1] * input.dim()) if dim is None else out.unsqueeze(dim % input.dim() + 1)
    return out if share.dim() else out.squeeze(0)


def quantile(input, q, dim=None, keepdim=False, *, interpolation="linear"):
    """The values below which shares `q` of the elements lie."""
    return _quantile(input, q, dim, keepdim, interpolation, False)


def nanquantile(input, q, dim=None, keepdim=False, *, interpolation="linear"):
    """`quantile` of what is not NaN."""
    return _quantile(input, q, dim, keepdim, interpolation, True)


def nanmedian(input, dim=None, keepdim=False):
    """The median of what is not NaN; the lower of two."""
    if dim is None and not input.numel():
        return input.median()
    x = input.reshape(-1) if dim is None else input
    along = 0 if dim is None else dim
    values, order = x.sort(along)
    middle = ((~values.isnan()).sum(along, keepdim=True) - 1).clamp(min=0) // 2
    found, place = values.gather(along, middle), order.gather(along, middle)
    if dim is None:
        return found.squeeze(0)
    return Found(found, place) if keepdim else Found(found.squeeze(dim), place.squeeze(dim))


def mode(input, dim=-1, keepdim=False):
    """The value that occurs most often along a dimension, the smallest of several, and where it stands last."""
    if input.dim() == 0:
        return Found(input.clone(), _gt.zeros((), dtype=_gt.int64))
    x = input.movedim(dim, -1)
    equal = x.unsqueeze(-1) == x.unsqueeze(-2)
    count = equal.sum(-1)
    most = count == count.amax(-1, keepdim=True)
    # Among the most frequent the smallest: places in sorted order decide.
    rank = x.argsort(-1).argsort(-1).masked_fill(~most, x.shape[-1])
    value = x.gather(-1, rank.argmin(-1, keepdim=True))
    place = _gt.arange(x.shape[-1]).masked_fill(x != value, -1).amax(-1, keepdim=True)
    value, place = value.movedim(-1, dim), place.movedim(-1, dim)
    return Found(value, place) if keepdim else Found(value.squeeze(dim), place.squeeze(dim))


def _cumulative(input, dim, at_least):
    """The best of each prefix, and the last place where it stands."""
    if input.dim() == 0:
        return Found(input.clone(), _gt.zeros((), dtype=_gt.int64))
    x = input.detach().movedim(dim, -1)
    n = x.shape[-1]
    place = _gt.arange(n).expand(x.shape)
    step = 1
    while step < n:
        # Each place looks at the best of the `step` places before it.
        before = _gt.cat([x[..., :step], x[..., :-step]], -1)
        where = _gt.cat([place[..., :step], place[..., :-step]], -1)
        keep = at_least(x, before) | x.isnan() if x.is_floating_point() else at_least(x, before)
        keep = keep & ~(before.isnan() & ~x.isnan()) if x.is_floating_point() else keep
        x, place = _gt.where(keep, x, before), _gt.where(keep, place, where)
        step *= 2
    place = place.movedim(-1, dim)
    return Found(input.gather(dim, place), place)


def cummax(input, dim):
    """The largest of each prefix along a dimension, and where it stands."""
    return _cumulative(input, dim, Tensor.ge)


def cummin(input, dim):
    """The smallest of each prefix along a dimension, and where it stands."""
    return _cumulative(input, dim, Tensor.le)


def logcumsumexp(input, dim):
    """The logarithm of the sums of exponentials of each prefix."""
    if input.dim() == 0:
        return input.clone()
    top = cummax(input.detach(), dim).values
    safe = _gt.where(top.isinf(), 0.0, top)
    # Sums of exponentials against the largest of the whole: small prefixes would vanish, so each has its own.
    x = input.movedim(dim, -1)
    n = x.shape[-1]
    shifted = x.unsqueeze(-2) - safe.movedim(dim, -1).unsqueeze(-1)
    inside = _gt.ones(n, n, dtype=_gt.bool).tril()
    total = shifted.masked_fill(~inside, float("-inf")).logsumexp(-1)
    return (total + safe.movedim(dim, -1)).movedim(-1, dim)


def _host_unique(rows, consecutive):
    """Numbers of the groups of equal rows, in order of their first element or sorted: (first, inverse, counts)."""
    import numpy as np

    if consecutive:
        starts = np.ones(len(rows), dtype=bool)
        starts[1:] = (rows[1:] != rows[:-1]).any(tuple(range(1, rows.ndim)))
        inverse = np.cumsum(starts) - 1
        first = np.flatnonzero(starts)
        return first, inverse, np.diff(np.append(first, len(rows)))
    _, first, inverse, counts = np.unique(rows, axis=0, return_index=True, return_inverse=True, return_counts=True)
    return first, inverse.reshape(-1), counts


def _grouped(input, dim, consecutive, return_inverse, return_counts):
    x = input.reshape(-1) if dim is None else input.movedim(dim, 0)
    if 0 in x.shape[1:]:
        raise RuntimeError(f"unique: expected slices with elements along dim {dim}, got {list(input.shape)}")
    host = x.detach()
    host = (host.float() if host.dtype == _gt.bfloat16 else host).numpy()
    first, inverse, counts = _host_unique(host, consecutive)
    values = x.index_select(0, _gt.tensor(first))
    out = [values if dim is None else values.movedim(0, dim)]
    if return_inverse:
        inverse = _gt.tensor(inverse)
        out.append(inverse.reshape(input.shape) if dim is None else inverse)
    if return_counts:
        out.append(_gt.tensor(counts))
    return out[0] if len(out) == 1 else tuple(out)


def unique(input, sorted=True, return_inverse=False, return_counts=False, dim=None):
    """The distinct elements, or the distinct slices along a dimension; waits for their number."""
    if dim is None:
        return input._unique(return_inverse, return_counts)
    return _grouped(input, dim, False, return_inverse, return_counts)


def unique_consecutive(input, return_inverse=False, return_counts=False, dim=None):
    """The first of each run of equal elements or slices; waits for their number."""
    return _grouped(input, dim, True, return_inverse, return_counts)


def repeat_interleave(input, repeats=None, dim=None, *, output_size=None, axis=None):
    """Each element several times: as often for all, or as a tensor says, which waits for it. Of a tensor alone: each
    of its places, as often as its element says."""
    dim = axis if dim is None else dim
    if repeats is None:
        return repeat_interleave(_gt.arange(input.numel(), dtype=input.dtype), input, output_size=output_size)
    kind = repeats.dtype if isinstance(repeats, Tensor) else None
    if kind is not None and (kind.is_floating_point or kind == _gt.bool):
        raise RuntimeError(f"repeat_interleave: repeats must be integers, got {kind}")
    out = _repeat_interleave(input, repeats, dim)
    size = out.shape[0 if dim is None else dim]
    if output_size is not None and output_size != size:
        raise RuntimeError(f"repeat_interleave: invalid output_size, expected {size} but got {output_size}")
    return out


def _repeat_interleave(input, repeats, dim):
    if not isinstance(repeats, (Tensor, list, tuple)) or (isinstance(repeats, Tensor) and repeats.numel() == 1):
        return input._repeat_interleave(int(repeats), dim)
    import numpy as np

    counts = repeats.numpy() if isinstance(repeats, Tensor) else np.asarray(repeats)
    x, along = (input.reshape(-1), 0) if dim is None else (input, dim)
    if counts.ndim != 1 or len(counts) != x.shape[along]:
        raise RuntimeError(
            f"repeat_interleave: repeats must have the same size as input along dim, got {list(counts.shape)} for "
            f"{x.shape[along]}"
        )
    if (counts < 0).any():
        raise RuntimeError("repeat_interleave: repeats can not be negative")
    return x.index_select(along, _gt.tensor(np.repeat(np.arange(len(counts)), counts)))


def _limit(dtype, upper):
    """The largest or smallest number of a type."""
    if dtype.is_floating_point:
        return float("inf") if upper else float("-inf")
    if dtype == _gt.bool:
        return upper
    from gt.composed.info import iinfo

    return iinfo(dtype).max if upper else iinfo(dtype).min


def _extreme(input, dim, index, src, largest, include_self):
    """The largest or smallest of all that goes to a place. The gradient is shared by those that are it."""
    worst = _limit(input.dtype, not largest)
    touched = _gt.zeros(input.shape, dtype=_gt.bool).scatter(dim, index, _gt.ones(index.shape, dtype=_gt.bool))
    start = input if include_self else input.masked_fill(touched, worst)
    floats = input.is_floating_point()
    # The complement turns the order of integers round and has no overflow.
    order = (lambda t: t) if largest else (lambda t: -t) if floats else (lambda t: ~t)
    data, source = order(start.detach()), order(src.detach())
    # Sorted upwards, the last of those that go to one place stands.
    rows, places = source.sort(dim)
    targets = index.gather(dim, places)
    count = targets.shape[dim]
    value = data
    for k in range(count):
        here = targets.narrow(dim, k, 1)
        value = value.scatter(dim, here, value.gather(dim, here).maximum(rows.narrow(dim, k, 1)))
    value = order(value)
    if not floats:
        return value
    picked = (src.detach() == value.gather(dim, index)).to(src.dtype)
    own = (start.detach() == value).to(input.dtype)
    share = own.scatter_add(dim, index, picked).clamp(min=1)
    parts = (input * own).scatter_add(dim, index, src * picked) / share
    return value + (parts - parts.detach()) if parts.requires_grad else value


_core_scatter = Tensor.scatter


@function
def scatter(input, dim, index, src=None, *, value=None, reduce=None):
    """A copy with elements, or a number, at the indices; with `reduce`, added to or multiplied with what is there."""
    src = value if src is None else src
    if reduce not in ("add", "multiply"):
        return _core_scatter(input, dim, index, src, reduce=reduce)
    if not isinstance(src, Tensor):
        src = input.new_full(tuple(index.shape), src)
    return scatter_reduce(input, dim, index, src, "sum" if reduce == "add" else "prod")


def scatter_reduce(input, dim, index, src, reduce, *, include_self=True):
    """Joins elements of `src` to those at the indices: their sum, mean, largest, smallest or product."""
    if input.dim() == 0:
        parts = (t.reshape(-1) for t in (input, index, src))
        first, index, src = parts
        return scatter_reduce(first, dim, index, src, reduce, include_self=include_self).reshape(())
    part = src[tuple(slice(0, n) for n in index.shape)]
    ones = _gt.ones(index.shape, dtype=input.dtype)
    if reduce in ("amax", "amin"):
        return _extreme(input, dim, index, part, reduce == "amax", include_self)
    if reduce == "prod":
        return _product(input, dim, index, part, include_self)
    if reduce not in ("sum", "mean"):
        raise RuntimeError(f"scatter_reduce: expected sum, prod, mean, amax or amin, got {reduce!r}")
    count = _gt.zeros(input.shape, dtype=input.dtype).scatter_add(dim, index, ones)
    start = input if include_self else input.masked_fill(count > 0, 0)
    total = start.scatter_add(dim, index, part)
    if reduce == "sum":
        return total
    count = (count + 1 if include_self else count).clamp(min=1)
    return total / count if input.is_floating_point() else total.div(count, rounding_mode="floor")


def index_reduce(input, dim, index, source, reduce, *, include_self=True):
    """Joins slices of `source` to those at the indices: their product, mean, largest or smallest."""
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise RuntimeError(f"index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got {reduce}.")
    shape = [-1 if d == dim % max(1, source.dim()) else 1 for d in range(source.dim())]
    places = index.long().reshape(shape).expand(source.shape)
    return scatter_reduce(input, dim, places, source, reduce, include_self=include_self)


def _product(input, dim, index, src, include_self):
    out = input
    if not include_self:
        touched = _gt.zeros(input.shape, dtype=_gt.bool).scatter(dim, index, _gt.ones(index.shape, dtype=_gt.bool))
        out = input.masked_fill(touched, 1)
    for k in range(index.shape[dim]):
        here = index.narrow(dim, k, 1)
        out = out.scatter(dim, here, out.gather(dim, here) * src.narrow(dim, k, 1))
    return out


def cdist(x1, x2, p=2.0, compute_mode=None):
    """Distances of all rows of one to all rows of the other."""
    return _length(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, -1)


def _length(difference, p, dim, keepdim=False):
    if p == 2:
        square = difference.square().sum(dim, keepdim=keepdim)
        # The root has no slope at zero; equal rows get none.
        zero = square == 0
        return _gt.where(zero, 0.0, _gt.where(zero, 1.0, square).sqrt())
    return difference.norm(p, dim, keepdim=keepdim)


def pdist(input, p=2.0):
    """Distances of every two rows."""
    n = input.shape[0]
    first, second = [i for i in range(n) for _ in range(i + 1, n)], [j for i in range(n) for j in range(i + 1, n)]
    return _length(input[first] - input[second], p, -1) if first else input.reshape(-1)[:0]


def pairwise_distance(x1, x2, p=2.0, eps=1e-6, keepdim=False):
    """Distances of rows that stand at the same place."""
    return (x1 - x2 + eps).norm(p, -1, keepdim=keepdim)


def combinations(input, r=2, with_replacement=False):
    """All choices of `r` elements, one a row."""
    import itertools

    if input.dim() != 1 or r < 0:
        raise RuntimeError(
            f"combinations: expected a vector and a number that is not negative, got {list(input.shape)} and {r}"
        )
    if r == 0:
        return input.new_zeros(0)

    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = list(choose(range(input.numel()), r))
    return input[_gt.tensor(places)] if places else input[:0].unsqueeze(1).expand(0, r)


def vander(x, N=None, increasing=False):
    """Powers of each number, one row each."""
    n = x.shape[-1] if N is None else N
    powers = _gt.arange(n) if increasing else _gt.arange(n - 1, -1, -1)
    return x.unsqueeze(-1) ** powers


METHODS = (
    "cummax cummin index_reduce logcumsumexp mode nanmedian nanquantile quantile repeat_interleave scatter "
    "scatter_reduce unique unique_consecutive"
).split()
