"""Pooling by norms, pooling that is undone, and pooling that tells its places."""

import math

from gt.nn import windows
from gt.nn.module import Module
from gt.nn.windows import each

__all__ = [
    "adaptive_max_pool1d_with_indices",
    "adaptive_max_pool2d_with_indices",
    "adaptive_max_pool3d_with_indices",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "max_pool1d_with_indices",
    "max_pool2d_with_indices",
    "max_pool3d_with_indices",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
]


def _lp_pool(rank, input, norm_type, kernel_size, stride, ceil_mode):
    if norm_type == 0:
        raise ValueError(f"norm_type must be a non-zero value, but got {norm_type}")
    if math.isinf(norm_type):
        pool, sign = getattr(windows, f"max_pool{rank}d"), math.copysign(1, norm_type)
        return sign * pool(sign * input.abs(), kernel_size, stride, 0, 1, ceil_mode)
    mean = getattr(windows, f"avg_pool{rank}d")(input.pow(norm_type), kernel_size, stride, 0, ceil_mode)
    return (mean.sign() * mean.abs().relu() * math.prod(each(kernel_size, rank))).pow(1 / norm_type)


def _unpooled_size(input, kernel, stride, padding, output_size):
    rank = len(kernel)
    default = [(n - 1) * s + k - 2 * p for n, s, k, p in zip(input.shape[-rank:], stride, kernel, padding)]
    if output_size is None:
        return default
    if len(output_size) == rank + 2:
        output_size = output_size[2:]
    if len(output_size) != rank:
        raise ValueError(
            f"output_size should be a sequence containing {rank} or {rank + 2} elements, but it has a length of "
            f"'{len(output_size)}'"
        )
    for d, (n, around, s) in enumerate(zip(output_size, default, stride)):
        if not around - s < n < around + s:
            raise ValueError(
                f'invalid output_size "{output_size}" (dim {d} must be between {around - s} and {around + s})'
            )
    return list(output_size)


def _max_unpool(rank, input, indices, kernel_size, stride, padding, output_size):
    kernel, padding = each(kernel_size, rank), each(padding, rank)
    stride = kernel if stride is None else each(stride, rank)
    size = _unpooled_size(input, kernel, stride, padding, output_size)
    if tuple(input.shape) != tuple(indices.shape):
        raise RuntimeError(
            f"max_unpool{rank}d: expected indices of the shape {list(input.shape)} of the input, got "
            f"{list(indices.shape)}"
        )
    lead = input.shape[:-rank]
    flat = input.new_zeros(*lead, math.prod(size))
    return flat.scatter(-1, indices.flatten(-rank), input.flatten(-rank)).reshape(*lead, *size)


def _made(rank):
    """The functions of one number of spatial dimensions."""
    end = f"{rank}d"
    adaptive, largest = getattr(windows, f"adaptive_max_pool{end}"), getattr(windows, f"max_pool{end}")

    def lp_pool(input, norm_type, kernel_size, stride=None, ceil_mode=False):
        """The norm of each window."""
        return _lp_pool(rank, input, norm_type, kernel_size, stride, ceil_mode)

    def max_unpool(input, indices, kernel_size, stride=None, padding=0, output_size=None):
        """The largest elements where max pooling found them, zeros elsewhere."""
        return _max_unpool(rank, input, indices, kernel_size, stride, padding, output_size)

    def max_pool(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
        """The largest element of each window, and where it stands."""
        return largest(input, kernel_size, stride, padding, dilation, ceil_mode, True)

    def adaptive_max_pool(input, output_size, return_indices=False):
        """The largest elements of so many windows as asked for, and where they stand."""
        return adaptive(input, output_size, True)

    made = {lp_pool: end, max_unpool: end, max_pool: f"{end}_with_indices", adaptive_max_pool: f"{end}_with_indices"}
    for function, ending in made.items():
        function.__name__ = function.__qualname__ = function.__name__ + ending
    return tuple(made)


lp_pool1d, max_unpool1d, max_pool1d_with_indices, adaptive_max_pool1d_with_indices = _made(1)
lp_pool2d, max_unpool2d, max_pool2d_with_indices, adaptive_max_pool2d_with_indices = _made(2)
lp_pool3d, max_unpool3d, max_pool3d_with_indices, adaptive_max_pool3d_with_indices = _made(3)


class LPPool1d(Module):
    """The norm of each window."""

    _rank = 1

    def __init__(self, norm_type, kernel_size, stride=None, ceil_mode=False):
        super().__init__()
        self.norm_type, self.kernel_size, self.stride = norm_type, kernel_size, stride
        self.ceil_mode = ceil_mode

    def forward(self, input):
        return _lp_pool(self._rank, input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)

    def extra_repr(self):
        names = ("norm_type", "kernel_size", "stride", "ceil_mode")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


class LPPool2d(LPPool1d):
    """The norm of each window of images."""

    _rank = 2


class LPPool3d(LPPool1d):
    """The norm of each window of volumes."""

    _rank = 3


class MaxUnpool1d(Module):
    """The largest elements where `MaxPool1d` found them, zeros elsewhere."""

    _rank = 1

    def __init__(self, kernel_size, stride=None, padding=0):
        super().__init__()
        self.kernel_size = each(kernel_size, self._rank)
        self.stride = each(kernel_size if stride is None else stride, self._rank)
        self.padding = each(padding, self._rank)

    def forward(self, input, indices, output_size=None):
        return _max_unpool(self._rank, input, indices, self.kernel_size, self.stride, self.padding, output_size)

    def extra_repr(self):
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool2d(MaxUnpool1d):
    """The largest elements where `MaxPool2d` found them, zeros elsewhere."""

    _rank = 2


class MaxUnpool3d(MaxUnpool1d):
    """The largest elements where `MaxPool3d` found them, zeros elsewhere."""

    _rank = 3
