"""What stands under windows, as columns: one dimension after another, so that rows are copied where places would be."""

import itertools
import math

from gt._gt import stack
from gt.autograd.function import Function
from gt.nn.depthwise import _padded, _wide


def _keys(kernel, stride, dilation, out):
    """For every place of the window, the slices of what stands there as it slides."""
    for place in itertools.product(*(range(k) for k in kernel)):
        slices = (slice(p * d, p * d + (n - 1) * s + 1, s) for p, d, n, s in zip(place, dilation, out, stride))
        yield (..., *slices)


def _shifted(x, kernel, stride, dilation, out):
    """For every place of the window, the elements that stand there as it slides."""
    return (x[key] for key in _keys(kernel, stride, dilation, out))


def columns(x, kernel, stride, dilation, out):
    """What every place of the window sees of (batch, channels, *sizes): places after the channels, then `out`."""
    if math.prod(kernel) <= 9:
        return stack(list(_shifted(x, kernel, stride, dilation, out)), 2)
    # Of many places, each dimension's own are fewer passes, the last first: the others copy what is in one piece.
    for dim in range(len(kernel) - 1, -1, -1):
        x = _Places.apply(x, dim - len(kernel), kernel[dim], stride[dim], dilation[dim], out[dim])
    return x


class _Places(Function):
    """What the places of a window see along one dimension, as a dimension after the channels."""

    @staticmethod
    def forward(ctx, x, dim, kernel, stride, dilation, out):
        ctx.window = dim, kernel, stride, dilation, x.shape[dim]
        after = (slice(None),) * (-1 - dim)
        ends = [(p * dilation, p * dilation + (out - 1) * stride + 1) for p in range(kernel)]
        return stack([x[(..., slice(a, b, stride), *after)] for a, b in ends], 2)

    @staticmethod
    def backward(ctx, grad):
        dim, kernel, stride, dilation, size = ctx.window
        # Every element takes from places whose distance has its rest by the stride.
        places = [(divmod(p * dilation, stride), p) for p in range(kernel)]
        count, most = -(-size // stride), places[-1][0][0]
        pads = [(most, max(0, count - grad.shape[dim]))] + [(0, 0)] * (-1 - dim)
        around = _padded(grad, pads)
        sums = []
        for rest in range(stride):
            parts = [_wide(around.select(2, p).narrow(dim, most - q, count)) for (q, r), p in places if r == rest]
            sums.append(sum(parts[1:], parts[0]) if parts else None)
        if stride > 1:
            nothing = sums[0].new_zeros(1).expand_as(sums[0])
            total = stack([nothing if part is None else part for part in sums], sums[0].dim() + dim + 1)
            total = total.flatten(dim - 1, dim).narrow(dim, 0, size)
        else:
            total = sums[0]
        return total.to(grad.dtype), None, None, None, None, None
