"""Statistics and sums."""

import math
from collections import namedtuple

from gt import _gt
from gt._gt import Tensor
from gt.composed.search import bucketize

__all__ = [
    "aminmax",
    "bincount",
    "corrcoef",
    "cov",
    "cumulative_trapezoid",
    "diff",
    "dist",
    "gradient",
    "histc",
    "histogram",
    "isin",
    "nanmean",
    "nansum",
    "std_mean",
    "trapezoid",
    "trapz",
    "var_mean",
]

MinMax = namedtuple("MinMax", ["min", "max"])
Histogram = namedtuple("Histogram", ["hist", "bin_edges"])


def var_mean(input, dim=None, unbiased=None, *, correction=None, keepdim=False):
    """The variance and the mean along dimensions."""
    if isinstance(dim, bool):
        # The older form has `unbiased` first.
        dim, unbiased = None, dim
    correction = (1 if unbiased is None else int(unbiased)) if correction is None else correction
    return input.var(dim, correction=correction, keepdim=keepdim), input.mean(dim, keepdim=keepdim)


def std_mean(input, dim=None, unbiased=None, *, correction=None, keepdim=False):
    """The standard deviation and the mean along dimensions."""
    variance, mean = var_mean(input, dim, unbiased, correction=correction, keepdim=keepdim)
    return variance.sqrt(), mean


def aminmax(input, *, dim=None, keepdim=False):
    """The smallest and the largest element, of all or along a dimension."""
    return MinMax(input.amin(dim, keepdim=keepdim), input.amax(dim, keepdim=keepdim))


def nansum(input, dim=None, keepdim=False, *, dtype=None, axis=None, keepdims=False):
    """The sum, with NaN as zero."""
    dim, keepdim = axis if dim is None else dim, keepdim or keepdims
    return input.masked_fill(input.isnan(), 0).sum(dim, keepdim=keepdim, dtype=dtype)


def nanmean(input, dim=None, keepdim=False, *, dtype=None, axis=None, keepdims=False):
    """The mean of what is not NaN."""
    dim, keepdim = axis if dim is None else dim, keepdim or keepdims
    input = input if dtype is None else input.to(dtype)
    count = (~input.isnan()).sum(dim, keepdim=keepdim)
    return nansum(input, dim, keepdim) / count


def dist(input, other, p=2):
    """The norm of the difference."""
    return (input - other).norm(p)


def diff(input, n=1, dim=-1, prepend=None, append=None):
    """Differences of neighbours along a dimension, `n` times."""
    if input.dim() == 0:
        raise RuntimeError("diff: expected a tensor of one dimension at least")
    if n < 0:
        raise RuntimeError(f"diff: expected a number of times that is not negative, got {n}")
    if n == 0:
        return input.clone()
    parts = [t for t in (prepend, input, append) if t is not None]
    out = _gt.cat(parts, dim) if len(parts) > 1 else input
    for _ in range(n):
        length = out.shape[dim]
        left = max(0, length - 1)
        after, before = out.narrow(dim, length - left, left), out.narrow(dim, 0, left)
        out = after ^ before if out.dtype == _gt.bool else after - before
    return out


def _steps(y, x, dx, dim):
    """Areas of the trapezoids between neighbours."""
    n = y.shape[dim]
    left = max(0, n - 1)
    heights = (y.narrow(dim, n - left, left) + y.narrow(dim, 0, left)) / 2
    if x is None:
        return heights * dx
    widths = diff(x, dim=dim if x.dim() > 1 else 0)
    if x.dim() == 1 and y.dim() > 1:
        widths = widths.view([-1 if d == dim % y.dim() else 1 for d in range(y.dim())])
    return heights * widths


def trapezoid(y, x=None, *, dx=1.0, dim=-1):
    """The area under a curve, by trapezoids."""
    return _steps(y, x, dx, dim).sum(dim)


trapz = trapezoid


def cumulative_trapezoid(y, x=None, *, dx=1.0, dim=-1):
    """The area up to each point, by trapezoids."""
    return _steps(y, x, dx, dim).cumsum(dim)


def _slope(f, dim, spacing, edge_order):
    """The slope along a dimension, where neighbours are a number or the numbers of a tensor apart."""
    n = f.shape[dim]
    if n < edge_order + 1:
        raise RuntimeError(
            f"torch.gradient expected each dimension size to be at least edge_order+1, got {n} and {edge_order}"
        )
    apart = spacing
    if isinstance(spacing, Tensor):
        apart = spacing.diff().view([-1 if d == dim else 1 for d in range(f.dim())])

    def at(start, count=1):
        return f.narrow(dim, start % n, count)

    def gap(start, count=1):
        return apart.narrow(dim, start % (n - 1), count) if isinstance(apart, Tensor) else apart

    def edge(first, second, third, near, far, sign):
        if edge_order == 1:
            return (second - first) / near * sign
        both = near + far
        return sign * (
            second * (both / (near * far)) - first * ((near + both) / (near * both)) - third * (near / (far * both))
        )

    parts = [edge(at(0), at(1), at(2) if n > 2 else None, gap(0), gap(1), 1)]
    if n > 2:
        before, after = gap(0, n - 2), gap(1, n - 2)
        left, middle, right = at(0, n - 2), at(1, n - 2), at(2, n - 2)
        if isinstance(apart, Tensor):
            rise = (right - middle) * (before / after) + (middle - left) * (after / before)
            parts.append(rise / (before + after))
        else:
            parts.append((right - left) / (2 * apart))
    parts.append(edge(at(-1), at(-2), at(-3) if n > 2 else None, gap(-1), gap(-2), -1))
    return _gt.cat(parts, dim)


def gradient(input, *, spacing=1, dim=None, edge_order=1):
    """The slope along each dimension, by differences of neighbours that stand so far apart, or at coordinates."""
    if edge_order not in (1, 2):
        raise RuntimeError(f"torch.gradient only supports edge_order=1 and edge_order=2, got {edge_order}")
    dims = list(range(input.dim())) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    spacing = 1 if spacing is None else spacing
    each = list(spacing) if isinstance(spacing, (list, tuple)) else [spacing] * len(dims)
    if len(each) != len(dims):
        raise RuntimeError(f"torch.gradient expected spacing for each of {len(dims)} dimensions, got {len(each)}")
    if any(not -input.dim() <= d < input.dim() for d in dims):
        raise IndexError(f"torch.gradient: dimension out of range, got {dims} of a tensor of {input.dim()} dimensions")
    dims = [d % input.dim() for d in dims]
    if len(set(dims)) < len(dims):
        raise RuntimeError(f"torch.gradient: a dimension appears multiple times in the list of dims, got {dims}")
    return tuple(_slope(input, d, apart, edge_order) for d, apart in zip(dims, each))


def cov(input, *, correction=1, fweights=None, aweights=None):
    """The covariances of variables, which stand in rows."""
    if input.dim() > 2:
        raise RuntimeError(f"cov(): expected input to have two or fewer dimensions, got {list(input.shape)}")
    x = input if input.is_floating_point() else input.to(_gt.get_default_dtype())
    x = x.reshape(1, -1) if x.dim() < 2 else x
    for name, given in (("fweights", fweights), ("aweights", aweights)):
        if given is not None and (given.dim() > 1 or given.numel() != x.shape[1]):
            raise RuntimeError(
                f"cov(): expected {name} to be a vector of {x.shape[1]}, one for each observation, got "
                f"{list(given.shape)}"
            )
    if fweights is not None and fweights.is_floating_point():
        raise RuntimeError(f"cov(): expected fweights to have integral dtype, got {fweights.dtype}")
    weights = None
    if fweights is not None:
        weights = fweights.to(x.dtype)
    if aweights is not None:
        weights = aweights.to(x.dtype) if weights is None else weights * aweights
    count = x.shape[1] if weights is None else weights.sum()
    mean = x.mean(1, keepdim=True) if weights is None else (x * weights).sum(1, keepdim=True) / count
    centred = x - mean
    scale = count - correction
    if aweights is not None and correction:
        scale = count - correction * (weights * aweights).sum() / count
    scale = scale.clamp(min=0) if isinstance(scale, Tensor) else max(scale, 0)
    product = (centred if weights is None else centred * weights) @ centred.T / scale
    return product.squeeze()


def corrcoef(input):
    """The correlations of variables, which stand in rows."""
    product = cov(input)
    if product.dim() == 0:
        return product / product
    deviation = product.diagonal().sqrt()
    return (product / deviation.unsqueeze(1) / deviation).clamp(-1, 1)


def bincount(input, weights=None, minlength=0):
    """How often each number occurs, or the sum of the weights of its occurrences; waits for the largest one."""
    if input.dim() != 1 or input.is_floating_point():
        raise RuntimeError("bincount: expected a vector of integers that are not negative")
    low, high = _gt.stack(input.aminmax()).tolist() if input.numel() else (0, -1)
    if low < 0:
        raise RuntimeError("bincount: expected integers that are not negative")
    size = max(minlength, int(high) + 1)
    if weights is None:
        weights = _gt.ones(input.numel(), dtype=_gt.int64)
    elif not weights.is_floating_point():
        weights = weights.double()
    return _gt.zeros(size, dtype=weights.dtype).index_add(0, input.long(), weights)


def histc(input, bins=100, min=0, max=0):
    """How many elements fall into each of `bins` equal parts of [min, max]; of the whole range if both are equal."""
    x = input.reshape(-1)
    if bins < 1 or max < min:
        raise RuntimeError(f"histc: expected bins above 0 and max not below min, got {bins}, {max} and {min}")
    if min == max and x.numel():
        min, max = x.min().item(), x.max().item()
    if not (math.isfinite(min) and math.isfinite(max)):
        raise RuntimeError(f"histc: expected a finite range, got [{min}, {max}]")
    if min == max:
        min, max = min - 1, max + 1
    inside = (x >= min) & (x <= max)
    # In half precision neighbours of a bound would fall into the part beside it.
    place = (((x.float() if x.element_size() < 4 else x) - min) * (bins / (max - min))).floor().clamp(0, bins - 1)
    place = place.masked_fill(~inside, 0).long()
    return _gt.zeros(bins, dtype=x.dtype).index_add(0, place, inside.to(x.dtype))


def histogram(input, bins, *, range=None, weight=None, density=False):
    """How many elements, or how much of their weights, fall between neighbouring edges: those given, or so many equal
    parts of a range. An element at the last edge falls below it."""
    if not input.is_floating_point():
        raise RuntimeError(f"histogram: expected a floating-point tensor, got {input.dtype}")
    x = input.reshape(-1)
    edges = bins
    if not isinstance(bins, Tensor):
        low, high = range or ((x.min().item(), x.max().item()) if x.numel() else (0.0, 1.0))
        if bins < 1 or low > high or not (math.isfinite(low) and math.isfinite(high)):
            raise RuntimeError(f"histogram: expected bins above 0 and a finite range, got {bins} and {low, high}")
        low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
        edges = _gt.linspace(low, high, bins + 1, dtype=x.dtype)
    elif bins.dim() != 1 or bins.dtype != input.dtype:
        raise RuntimeError(
            f"histogram: expected a vector of edges of {input.dtype}, got {list(bins.shape)} of {bins.dtype}"
        )
    weights = _gt.ones(x.shape, dtype=x.dtype) if weight is None else weight.reshape(-1)
    parts = edges.numel() - 1
    # One place beside the parts is for what falls outside.
    place = bucketize(x.detach(), edges, right=True) - 1
    place = _gt.where(x == edges[-1], parts - 1, place)
    place = _gt.where((x >= edges[0]) & (x <= edges[-1]), place, parts)
    hist = _gt.zeros(parts + 1, dtype=x.dtype).index_add(0, place, weights)[:-1]
    return Histogram(hist / hist.sum() / edges.diff() if density else hist, edges)


def isin(elements, test_elements, *, assume_unique=False, invert=False):
    """Whether each element is among the others."""
    if not isinstance(elements, Tensor):
        elements = _gt.tensor(elements)
    others = test_elements.reshape(-1) if isinstance(test_elements, Tensor) else _gt.tensor([test_elements])
    found = (elements.unsqueeze(-1) == others).any(-1)
    return ~found if invert else found
