"""Convolutions and pooling as products and reductions of shifted views: every place of a window is a strided slice."""

import math

from gt._gt import arange, stack
from gt._gt import bool as bool_
from gt.amp import _narrow
from gt.composed.info import iinfo
from gt.nn.columns import _shifted, columns
from gt.nn.convolution import Convolution, product
from gt.nn.depthwise import Depthwise, _padded

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "channel_shuffle",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "pixel_shuffle",
    "pixel_unshuffle",
]


def each(value, rank):
    """A size for each spatial dimension; one may stand for all."""
    sizes = (value,) if isinstance(value, int) else tuple(value)
    if len(sizes) not in (1, rank):
        raise RuntimeError(f"expected one size or {rank}, one for each spatial dimension, got {sizes}")
    return sizes * rank if len(sizes) == 1 else sizes


def _with_batch(name, x, rank):
    if x.dim() not in (rank + 1, rank + 2):
        raise RuntimeError(f"{name}: expected {rank + 1}D (unbatched) or {rank + 2}D (batched) input, got {x.dim()}D")
    return x.unsqueeze(0) if x.dim() == rank + 1 else x


def _same_pads(kernel, stride, dilation):
    if any(s != 1 for s in stride):
        raise RuntimeError("padding='same' is not supported for strided convolutions")
    totals = [d * (k - 1) for k, d in zip(kernel, dilation)]
    return [(t // 2, t - t // 2) for t in totals]


def _conv(name, rank, input, weight, bias, stride, padding, dilation, groups):
    input, weight, bias = _narrow(input, weight, bias)
    x = _with_batch(name, input, rank)
    kernel, stride, dilation = tuple(weight.shape[2:]), each(stride, rank), each(dilation, rank)
    if weight.dim() != rank + 2:
        raise RuntimeError(f"{name}: expected a {rank + 2}D weight, got {weight.dim()}D")
    if x.shape[1] != weight.shape[1] * groups:
        raise RuntimeError(
            f"Given groups={groups}, weight of size {list(weight.shape)}, expected input{list(x.shape)} to have "
            f"{weight.shape[1] * groups} channels, but got {x.shape[1]} channels instead"
        )
    if padding == "same":
        pads = _same_pads(kernel, stride, dilation)
    else:
        pads = [(p, p) for p in each(0 if padding == "valid" else padding, rank)]
    sizes = [n + sum(pair) for n, pair in zip(x.shape[2:], pads)]
    out = [(n - d * (k - 1) - 1) // s + 1 for n, k, d, s in zip(sizes, kernel, dilation, stride)]
    if any(n < 1 for n in out):
        raise RuntimeError(f"{name}: the kernel {list(kernel)} can't be larger than the input {sizes}")
    channels, filters = x.shape[1], weight.shape[0]
    alike = x.dtype == weight.dtype and x.is_floating_point()
    if groups == channels == filters and alike and math.prod(stride) <= 4:
        # The few places that strides pass over are cheaper than columns.
        result = Depthwise.apply(x, weight, pads, dilation)
        if any(s != 1 for s in stride):
            result = result[(..., *(slice(None, None, s) for s in stride))].contiguous()
        return _finished(result, bias, input)
    if filters <= channels and alike and math.prod(stride) == 1 < math.prod(kernel):
        return _finished(Convolution.apply(x, weight, pads, dilation, groups), bias, input)
    seen = columns(_padded(x, pads), kernel, stride, dilation, out)
    return _finished(product(weight, seen, groups), bias, input)


def _finished(result, bias, input):
    if bias is not None:
        result = result + bias.view(-1, *[1] * (result.dim() - 2))
    return result.squeeze(0) if input.dim() < result.dim() else result


def _spread(x, stride):
    """With `stride - 1` zeros between neighbours."""
    if all(s == 1 for s in stride):
        return x
    sizes = [(n - 1) * s + 1 for n, s in zip(x.shape[2:], stride)]
    out = x.new_zeros(*x.shape[:2], *sizes)
    out[(..., *(slice(None, None, s) for s in stride))] = x
    return out


def _conv_transpose(name, rank, input, weight, bias, stride, padding, output_padding, groups, dilation):
    x = _with_batch(name, input, rank)
    stride, dilation = each(stride, rank), each(dilation, rank)
    padding, more, kernel = each(padding, rank), each(output_padding, rank), tuple(weight.shape[2:])
    pads = [(d * (k - 1) - p, d * (k - 1) - p + extra) for k, d, p, extra in zip(kernel, dilation, padding, more)]
    inner, per_group = weight.shape[0] // groups, weight.shape[1]
    turned = weight.flip(*range(2, rank + 2)).reshape(groups, inner, per_group, *kernel)
    turned = turned.transpose(1, 2).reshape(groups * per_group, inner, *kernel)
    result = _conv(name, rank, _padded(_spread(x, stride), pads), turned, bias, 1, 0, dilation, groups)
    return result.squeeze(0) if input.dim() == rank + 1 else result


def _window_count(n, kernel, stride, pad, dilation, ceil_mode):
    span = n + 2 * pad - dilation * (kernel - 1) - 1
    count = (-(-span // stride) if ceil_mode else span // stride) + 1
    # The last window begins inside the input or its left padding.
    return count - 1 if ceil_mode and (count - 1) * stride >= n + pad else count


def _pool_sizes(name, x, rank, kernel_size, stride, padding, dilation, ceil_mode):
    kernel, pads, dilation = each(kernel_size, rank), each(padding, rank), each(dilation, rank)
    stride = kernel if stride is None or (not isinstance(stride, int) and not len(stride)) else each(stride, rank)
    for what, given in (("kernel_size", kernel), ("stride", stride), ("dilation", dilation)):
        if any(n < 1 for n in given):
            raise RuntimeError(f"{name}() {what} must be greater than zero, but got {given}")
    if any(p < 0 for p in pads):
        raise RuntimeError(f"{name}() padding must be non-negative, but got {pads}")
    if 0 in x.shape[1:]:
        raise RuntimeError(f"{name}: expected elements in all dimensions but the first, got {list(x.shape)}")
    if any(2 * p > k for p, k in zip(pads, kernel)):
        raise RuntimeError(f"{name}: pad should be at most half of effective kernel size, got {pads} and {kernel}")
    sizes = zip(x.shape[2:], kernel, stride, pads, dilation)
    out = [_window_count(*size, ceil_mode) for size in sizes]
    if any(n < 1 for n in out):
        raise RuntimeError(f"{name}: output size {out} is too small for input {list(x.shape)}")
    # So many more at the end as the last window needs.
    need = [(n - 1) * s + d * (k - 1) + 1 for n, s, d, k in zip(out, stride, dilation, kernel)]
    around = [(p, max(p, w - n - p)) for p, w, n in zip(pads, need, x.shape[2:])]
    return kernel, stride, dilation, out, around


def _max_pool(name, rank, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices):
    x = _with_batch(name, input, rank)
    kernel, stride, dilation, out, around = _pool_sizes(
        name, x, rank, kernel_size, stride, padding, dilation, ceil_mode
    )
    lowest = float("-inf") if x.is_floating_point() else False if x.dtype == bool_ else iinfo(x.dtype).min
    parts = stack(list(_shifted(_padded(x, around, lowest), kernel, stride, dilation, out)), 2)
    alone = input.dim() == rank + 1
    values, places = parts.max(2)
    if not return_indices:
        return values.squeeze(0) if alone else values
    numbers = stack(list(_shifted(_padded(_numbers(x), around, -1), kernel, stride, dilation, out)), 2)
    found = numbers.gather(2, places.unsqueeze(2)).squeeze(2)
    return (values.squeeze(0), found.squeeze(0)) if alone else (values, found)


def _avg_pool(name, rank, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    x = _with_batch(name, input, rank)
    kernel, stride, dilation, out, around = _pool_sizes(name, x, rank, kernel_size, stride, padding, 1, ceil_mode)
    # Half types are summed in single precision.
    wide = x.float() if x.is_floating_point() and x.element_size() < 4 else x
    total = sum(_shifted(_padded(wide, around), kernel, stride, dilation, out))
    if divisor_override is not None:
        if divisor_override == 0:
            raise RuntimeError(f"{name}: divisor must be not zero")
        result = total / divisor_override
    else:
        pads = each(padding, rank)
        counted = wide.new_zeros(1, 1, *x.shape[2:]) + 1
        if count_include_pad:
            # Padding counts, what a last window needs beyond it does not.
            counted = _padded(counted, [(p, p) for p in pads], 1.0)
            rest = [(0, after - p) for (_, after), p in zip(around, pads)]
            counted = _padded(counted, rest)
        else:
            counted = _padded(counted, around)
        result = total / sum(_shifted(counted, kernel, stride, dilation, out))
    if not x.is_floating_point():
        result = result.trunc()
    result = result.to(x.dtype)
    return result.squeeze(0) if input.dim() == rank + 1 else result


def _adaptive(name, rank, input, output_size, reduce, numbered=False):
    """Windows whose sizes differ by one at most, so that there are as many as asked for."""
    x = _with_batch(name, input, rank)
    output_size = each(output_size, rank)
    if any(n is not None and n < 0 for n in output_size):
        raise RuntimeError(f"{name}: output_size must be greater than or equal to 0, got {output_size}")
    wanted = [n if want is None else want for n, want in zip(x.shape[2:], output_size)]
    if wanted == list(x.shape[2:]):
        # What comes out may be written to.
        x = x.clone()
    if reduce is _mean:
        x = _even_means(x, wanted)
    elif all(want == 1 for want in wanted) and 0 not in x.shape[2:]:
        # Each channel is one window, where an element has the number of its place.
        rows = x.flatten(2).max(2)
        parts = tuple(part.reshape(*input.shape[:-rank], *[1] * rank) for part in rows)
        return parts if numbered else parts[0]
    parts = (x, _numbers(x)) if numbered else (x,)
    # The last dimension first, so that of equal elements the first one counts.
    for dim in range(rank + 1, 1, -1):
        n, want = x.shape[dim], wanted[dim - 2]
        if want == n:
            continue
        if want and n % want == 0:
            parts = reduce(dim + 1, *(part.unflatten(dim, (want, n // want)) for part in parts))
            continue
        if want == 0:
            parts = tuple(part.narrow(dim, 0, 0) for part in parts)
            continue
        cuts = [(i * n // want, -(-(i + 1) * n // want)) for i in range(want)]
        pieces = [reduce(dim, *(part.narrow(dim, a, b - a) for part in parts)) for a, b in cuts]
        parts = tuple(stack(list(of), dim) for of in zip(*pieces))
    if input.dim() == rank + 1:
        parts = tuple(part.squeeze(0) for part in parts)
    return parts if numbered else parts[0]


def _even_means(x, wanted):
    """With the means, in one pass, of all dimensions that windows of one size divide."""
    sizes, within = [], []
    for n, want in zip(x.shape[2:], wanted):
        even = want not in (0, n) and n % want == 0
        sizes += [want, n // want] if even else [n]
        within += [len(sizes) + 1] if even else []
    return x.reshape(*x.shape[:2], *sizes).mean(within) if within else x


def _numbers(x):
    """The number of each element in its channel."""
    return arange(math.prod(x.shape[2:])).reshape(1, 1, *x.shape[2:]).expand(x.shape)


def _mean(dim, x):
    return (x.mean(dim),)


def _largest(dim, x, *numbers):
    values, places = x.max(dim)
    return values, *(n.gather(dim, places.unsqueeze(dim)).squeeze(dim) for n in numbers)


def _made(rank):
    """The functions of one number of spatial dimensions."""
    end = f"{rank}d"

    def conv(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        """Sums of products of windows with filters."""
        return _conv(f"conv{end}", rank, input, weight, bias, stride, padding, dilation, groups)

    def conv_transpose(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
        """The gradient of a convolution by its input, as a function."""
        name = f"conv_transpose{end}"
        return _conv_transpose(name, rank, input, weight, bias, stride, padding, output_padding, groups, dilation)

    def max_pool(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
        """The largest element of each window."""
        name = f"max_pool{end}"
        return _max_pool(name, rank, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)

    def avg_pool(
        input,
        kernel_size,
        stride=None,
        padding=0,
        ceil_mode=False,
        count_include_pad=True,
        divisor_override=None,
    ):
        """The mean of each window."""
        options = ceil_mode, count_include_pad, divisor_override
        return _avg_pool(f"avg_pool{end}", rank, input, kernel_size, stride, padding, *options)

    def adaptive_avg_pool(input, output_size):
        """The means of so many windows as asked for."""
        return _adaptive(f"adaptive_avg_pool{end}", rank, input, output_size, _mean)

    def adaptive_max_pool(input, output_size, return_indices=False):
        """The largest elements of so many windows as asked for."""
        return _adaptive(f"adaptive_max_pool{end}", rank, input, output_size, _largest, return_indices)

    made = (conv, conv_transpose, max_pool, avg_pool, adaptive_avg_pool, adaptive_max_pool)
    for function in made:
        function.__name__ = function.__qualname__ = function.__name__ + end
    return made


conv1d, conv_transpose1d, max_pool1d, avg_pool1d, adaptive_avg_pool1d, adaptive_max_pool1d = _made(1)
conv2d, conv_transpose2d, max_pool2d, avg_pool2d, adaptive_avg_pool2d, adaptive_max_pool2d = _made(2)
conv3d, conv_transpose3d, max_pool3d, avg_pool3d, adaptive_avg_pool3d, adaptive_max_pool3d = _made(3)


def pixel_shuffle(input, upscale_factor):
    """Channels as pixels of a finer image."""
    r = upscale_factor
    *lead, c, h, w = input.shape
    x = input.reshape(*lead, c // (r * r), r, r, h, w)
    k = len(lead)
    order = [*range(k + 1), k + 3, k + 1, k + 4, k + 2]
    return x.permute(order).reshape(*lead, c // (r * r), h * r, w * r)


def pixel_unshuffle(input, downscale_factor):
    """Pixels of an image as channels of a coarser one."""
    r = downscale_factor
    *lead, c, h, w = input.shape
    x = input.reshape(*lead, c, h // r, r, w // r, r)
    k = len(lead)
    order = [*range(k + 1), k + 2, k + 4, k + 1, k + 3]
    return x.permute(order).reshape(*lead, c * r * r, h // r, w // r)


def channel_shuffle(input, groups):
    """Channels in groups, taken in turn from each."""
    if input.dim() < 3:
        raise RuntimeError(f"channel_shuffle expects input with > 2 dims, but got input with sizes {list(input.shape)}")
    if groups < 1 or input.shape[1] % groups:
        raise RuntimeError(f"Number of channels must be divisible by groups. Got {input.shape[1]} and {groups}")
    return input.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)
