"""Images read at places that a grid says, and grids of affine maps."""

import itertools
import math
import warnings

from gt._gt import arange, ones, stack, where
from gt.nn.resize import cubic_weights

__all__ = ["affine_grid", "grid_sample"]


def _corners(name, align_corners):
    if align_corners is None:
        warnings.warn(
            f"{name}: align_corners=False is the default since PyTorch 1.3.0: say align_corners=True for what was the "
            "default before",
            stacklevel=3,
        )
    return bool(align_corners)


def affine_grid(theta, size, align_corners=None):
    """Where an affine map of each sample finds the elements of an image of this size, for `grid_sample`."""
    align_corners = _corners("affine_grid", align_corners)
    if not theta.is_floating_point():
        raise ValueError(f"Expected theta to have floating point type, but got {theta.dtype}")
    if len(size) not in (4, 5):
        raise NotImplementedError(
            "affine_grid only supports 4D and 5D sizes, for 2D and 3D affine transforms, respectively. "
            f"Got size {size}."
        )
    rank = len(size) - 2
    if theta.dim() != 3 or tuple(theta.shape[1:]) != (rank, rank + 1):
        raise ValueError(
            f"Expected a batch of {rank}D affine matrices of shape Nx{rank}x{rank + 1} for size {size}. "
            f"Got {theta.shape}."
        )
    if min(size) <= 0:
        raise ValueError(f"Expected non-zero, positive output size. Got {size}")
    places = []
    for axis, n in enumerate(size[2:]):
        place = (2 * arange(n, dtype=theta.dtype) - (n - 1)) / max(1, n - 1 if align_corners else n)
        places.insert(0, place.view([-1 if d == axis else 1 for d in range(rank)]).expand(size[2:]))
    points = stack([*places, ones(size[2:], dtype=theta.dtype)], -1).reshape(1, -1, rank + 1)
    return (points @ theta.mT).reshape(size[0], *size[2:], rank)


def _reflected(x, twice_low, twice_high):
    """Turned back at both bounds, of which the doubles are given, as often as needed."""
    if twice_low == twice_high:
        return x * 0
    low, span = twice_low / 2, (twice_high - twice_low) / 2
    away = (x - low).abs()
    flips, rest = (away / span).floor(), away.fmod(span)
    return where(flips % 2 == 0, rest + low, span - rest + low)


def _place(x, n, padding_mode, align_corners):
    """The index in a dimension of `n` elements that a coordinate from -1 to 1 means."""
    x = (x + 1) / 2 * (n - 1) if align_corners else ((x + 1) * n - 1) / 2
    return _inside(x, n, padding_mode, align_corners)


def _inside(x, n, padding_mode, align_corners):
    if padding_mode == "reflection":
        x = _reflected(x, 0, 2 * (n - 1)) if align_corners else _reflected(x, -1, 2 * n - 1)
    return x if padding_mode == "zeros" else x.clamp(0, n - 1)


def _read(flat, sizes, indices, weight):
    """The elements at whole indices times a weight, zero outside of the image."""
    inside, place = True, 0
    for index, n in zip(indices, sizes):
        inside = inside & (index >= 0) & (index <= n - 1)
        # What is not a number is outside.
        place = place * n + where((index >= 0) & (index <= n - 1), index, 0.0).long()
    found = flat.gather(2, place.flatten(1).unsqueeze(1).expand(-1, flat.shape[1], -1))
    # Outside of the image a weight need not be a number.
    return found * where(inside, weight, 0.0).to(flat.dtype).flatten(1).unsqueeze(1)


def _nearest(flat, sizes, places):
    return _read(flat, sizes, [place.round() for place in places], 1.0)


def _linear(flat, sizes, places):
    first = [place.detach().floor() for place in places]
    total = 0
    for corner in itertools.product((0, 1), repeat=len(sizes)):
        weight = 1
        for place, start, step in zip(places, first, corner):
            weight = weight * (place - start if step else start + 1 - place)
        total = total + _read(flat, sizes, [start + step for start, step in zip(first, corner)], weight)
    return total


def _cubic(flat, sizes, places, padding_mode, align_corners):
    first = [place.detach().floor() for place in places]
    weights = [cubic_weights(place - start) for place, start in zip(places, first)]
    total = 0
    for corner in itertools.product(range(4), repeat=len(sizes)):
        indices = [
            _inside(start + (step - 1), n, padding_mode, align_corners) for start, step, n in zip(first, corner, sizes)
        ]
        total = total + _read(flat, sizes, indices, math.prod(w[step] for w, step in zip(weights, corner)))
    return total


def grid_sample(input, grid, mode="bilinear", padding_mode="zeros", align_corners=None):
    """The elements of images at the places that a grid says, from -1 to 1 along each dimension, the last one first."""
    if mode not in ("bilinear", "nearest", "bicubic"):
        raise ValueError(
            f"nn.functional.grid_sample(): expected mode to be 'bilinear', 'nearest' or 'bicubic', but got: '{mode}'"
        )
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ValueError(
            "nn.functional.grid_sample(): expected padding_mode to be 'zeros', 'border', or 'reflection', but got: "
            f"'{padding_mode}'"
        )
    align_corners = _corners("grid_sample", align_corners)
    rank = input.dim() - 2
    if rank not in (2, 3) or grid.dim() != rank + 2:
        raise RuntimeError(
            f"grid_sampler(): expected 4D or 5D input and grid with same number of dimensions, but got input with "
            f"sizes {list(input.shape)} and grid with sizes {list(grid.shape)}"
        )
    if grid.shape[-1] != rank or grid.shape[0] != input.shape[0]:
        raise RuntimeError(
            f"grid_sampler(): expected grid to have size {rank} in last dimension and the batch size of the input, "
            f"but got input with sizes {list(input.shape)} and grid with sizes {list(grid.shape)}"
        )
    if mode == "bicubic" and rank == 3:
        raise RuntimeError("grid_sampler(): bicubic interpolation only supports 4D input")
    flat, sizes = input.flatten(2), input.shape[2:]
    coordinates = list(zip(reversed(grid.unbind(-1)), sizes))
    if mode == "bicubic":
        places = [_place(x, n, "zeros", align_corners) for x, n in coordinates]
        found = _cubic(flat, sizes, places, padding_mode, align_corners)
    else:
        places = [_place(x, n, padding_mode, align_corners) for x, n in coordinates]
        found = (_nearest if mode == "nearest" else _linear)(flat, sizes, places)
    return found.reshape(*input.shape[:2], *grid.shape[1:-1])
