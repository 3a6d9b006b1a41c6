"""Images in other sizes: each dimension for itself, as weighted sums of the elements nearest to a place."""

import warnings

from gt._gt import arange, float32, float64, where
from gt.nn import windows
from gt.nn.module import Module

__all__ = ["interpolate", "upsample", "upsample_bilinear", "upsample_nearest"]

# Modes that are linear in each dimension, and the dimensions of their inputs.
_LINEAR = {"linear": 3, "bilinear": 4, "trilinear": 5}
_NEAREST = ("nearest", "nearest-exact")
_MODES = "nearest | linear | bilinear | bicubic | trilinear | area | nearest-exact"


def _place(out, scale, align_corners, dtype):
    """Where in the input each element of the output stands."""
    place = arange(out, dtype=dtype)
    return place * scale if align_corners else (place + 0.5) * scale - 0.5


def _linear_taps(n, place):
    place = place.clamp(min=0)
    first = place.floor().clamp(max=n - 1)
    share = (place - first).clamp(0, 1)
    return [(first, 1 - share), ((first + 1).clamp(max=n - 1), share)]


def cubic_weights(t):
    """How much the two elements before a place and the two after it count."""
    a = -0.75

    def near(x):
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x):
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return far(t + 1), near(t), near(1 - t), far(2 - t)


def _cubic_taps(n, place):
    first = place.floor().clamp(max=n - 1)
    weights = cubic_weights((place - first).clamp(0, 1))
    return [((first + i).clamp(0, n - 1), w) for i, w in enumerate(weights, -1)]


def _nearest(x, dim, out, scale, exact, dtype):
    n = x.shape[dim]
    times = out // n
    if scale == n / out and out == n * times and times & (times - 1) == 0:
        # Halves and quarters are exact, so that elements are only repeated.
        shape = list(x.shape)
        return x.unsqueeze(dim + 1).expand(*shape[: dim + 1], times, *shape[dim + 1 :]).flatten(dim, dim + 1)
    place = (arange(out, dtype=dtype) + 0.5 * exact) * scale
    return x.index_select(dim, place.floor().clamp(max=n - 1).long())


def _weighted(x, dim, taps):
    shape = [-1 if d == dim else 1 for d in range(x.dim())]
    return sum(x.index_select(dim, place.long()) * weight.view(shape) for place, weight in taps)


def _smoothed(x, dim, out, scale, cubic):
    """Each element as a mean of all that it covers, which smaller images need against moire."""
    n, wide, dtype = x.shape[dim], max(scale, 1.0), x.dtype
    centre = ((arange(out, dtype=dtype) + 0.5) * scale).unsqueeze(1)
    reach, places = (2 if cubic else 1) * wide, arange(n, dtype=dtype)
    covered = (places >= (centre - reach + 0.5).floor()) & (places < (centre + reach + 0.5).floor())
    away = ((places - centre + 0.5) / wide).abs()
    if cubic:
        a = -0.5
        near, far = ((a + 2) * away - (a + 3)) * away * away + 1, (((away - 5) * away + 8) * away - 4) * a
        weights = where(away < 1, near, far.masked_fill(away >= 2, 0.0))
    else:
        weights = (1 - away).clamp(min=0)
    weights = weights.masked_fill(~covered, 0.0)
    weights = weights / weights.sum(1, keepdim=True)
    return (x.movedim(dim, -1) @ weights.T).movedim(-1, dim)


def _resized(input, sizes, factors, mode, align_corners, antialias=False):
    # Places are found in the type in which PyTorch finds them: a rounding decides which element is the nearest.
    dtype = float64 if input.dtype == float64 else float32
    x = input.to(dtype) if input.is_floating_point() and mode not in _NEAREST else input
    for dim, (out, factor) in enumerate(zip(sizes, factors), 2):
        n = x.shape[dim]
        if align_corners:
            scale = (n - 1) / (out - 1) if out > 1 else 0.0
        else:
            scale = 1 / factor if factor else n / out
        if out == n and scale == 1:
            continue
        if antialias:
            x = _smoothed(x, dim, out, scale, mode == "bicubic")
        elif mode in _NEAREST:
            x = _nearest(x, dim, out, scale, mode == "nearest-exact", dtype)
        else:
            taps = _cubic_taps if mode == "bicubic" else _linear_taps
            x = _weighted(x, dim, taps(n, _place(out, scale, align_corners, dtype)))
    return x.to(input.dtype)


def _each(name, given, input):
    """A number for each spatial dimension."""
    rank = input.dim() - 2
    if not isinstance(given, (list, tuple)):
        return [given] * rank
    if len(given) != rank:
        raise ValueError(
            f"interpolate: {name} must have a number for each of the {rank} spatial dimensions of the input "
            f"(N, C, d1, d2, ...), got {name}={given} for the shape {list(input.shape)}"
        )
    return list(given)


def _sizes(input, size, scale_factor, recompute):
    """The sizes of the output, and the factors that are taken as they are said."""
    if size is not None and scale_factor is not None:
        raise ValueError("only one of size or scale_factor should be defined")
    if size is None and scale_factor is None:
        raise ValueError("either size or scale_factor should be defined")
    if size is not None:
        if recompute:
            raise ValueError("recompute_scale_factor is not meaningful with an explicit size.")
        sizes = _each("size", size, input)
        if not all(isinstance(n, int) for n in sizes):
            raise TypeError(f"interpolate: expected size to be integers, got {size}")
        return sizes, [None] * len(sizes)
    factors = _each("scale_factor", scale_factor, input)
    sizes = [int(n * factor) for n, factor in zip(input.shape[2:], factors)]
    return sizes, [None] * len(sizes) if recompute else factors


def _check(input, mode, align_corners, antialias):
    if mode in (*_NEAREST, "area"):
        if align_corners is not None:
            raise ValueError(
                "align_corners option can only be set with the interpolating modes: "
                "linear | bilinear | bicubic | trilinear"
            )
    if antialias:
        if mode not in ("bilinear", "bicubic") or input.dim() != 4:
            raise ValueError("Anti-alias option is restricted to bilinear and bicubic modes and requires a 4-D tensor")
    wanted = _LINEAR.get(mode, 4 if mode == "bicubic" else None)
    if wanted is not None and input.dim() in (3, 4, 5) and input.dim() != wanted:
        raise NotImplementedError(f"Got {input.dim()}D input, but {mode} mode needs {wanted}D input")
    if input.dim() not in (3, 4, 5) or (wanted is None and mode not in (*_NEAREST, "area")):
        raise NotImplementedError(
            f"Input Error: Only 3D, 4D and 5D input Tensors supported (got {input.dim()}D) for the modes: {_MODES} "
            f"(got {mode})"
        )
    if mode not in _NEAREST and not input.is_floating_point():
        raise RuntimeError(f"interpolate: {mode} needs a floating-point tensor, got {input.dtype}")


def interpolate(
    input,
    size=None,
    scale_factor=None,
    mode="nearest",
    align_corners=None,
    recompute_scale_factor=None,
    antialias=False,
):
    """The spatial dimensions in other sizes: with the nearest element, or one that lies between its neighbours."""
    _check(input, mode, align_corners, antialias)
    sizes, factors = _sizes(input, size, scale_factor, recompute_scale_factor)
    if any(n < 1 for n in (*sizes, *input.shape[1:])):
        raise RuntimeError(
            f"Input and output sizes should be greater than 0, but got input {list(input.shape)} and output {sizes}"
        )
    if mode == "area":
        return getattr(windows, f"adaptive_avg_pool{input.dim() - 2}d")(input, sizes)
    return _resized(input, sizes, factors, mode, bool(align_corners), antialias)


def _deprecated(name):
    message = f"`nn.functional.{name}` is deprecated. Use `nn.functional.interpolate` instead."
    warnings.warn(message, stacklevel=3)


def upsample(input, size=None, scale_factor=None, mode="nearest", align_corners=None):
    """`interpolate` under its old name."""
    _deprecated("upsample")
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input, size=None, scale_factor=None):
    """`interpolate` with the nearest element."""
    _deprecated("upsample_nearest")
    return interpolate(input, size, scale_factor)


def upsample_bilinear(input, size=None, scale_factor=None):
    """`interpolate` between the corners of images."""
    _deprecated("upsample_bilinear")
    return interpolate(input, size, scale_factor, "bilinear", True)


class Upsample(Module):
    """The spatial dimensions in other sizes."""

    def __init__(self, size=None, scale_factor=None, mode="nearest", align_corners=None, recompute_scale_factor=None):
        super().__init__()
        self.name, self.size, self.mode = type(self).__name__, size, mode
        if isinstance(scale_factor, tuple):
            self.scale_factor = tuple(float(factor) for factor in scale_factor)
        else:
            self.scale_factor = float(scale_factor) if scale_factor else None
        self.align_corners, self.recompute_scale_factor = align_corners, recompute_scale_factor

    def forward(self, input):
        return interpolate(
            input, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor
        )

    def extra_repr(self):
        name = "size" if self.scale_factor is None else "scale_factor"
        return f"{name}={getattr(self, name)!r}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Images in other sizes, of the nearest elements."""

    def __init__(self, size=None, scale_factor=None):
        super().__init__(size, scale_factor, mode="nearest")


class UpsamplingBilinear2d(Upsample):
    """Images in other sizes, between their corners."""

    def __init__(self, size=None, scale_factor=None):
        super().__init__(size, scale_factor, mode="bilinear", align_corners=True)
