"""What stands under windows, as columns: one dimension after another, so that rows are copied where places would be."""

from gt._gt import stack
from gt.autograd.function import Function
from gt.nn.depthwise import _padded, _wide


def columns(x, kernel, stride, dilation, out):
    """(batch, channels, *kernel, *out) of (batch, channels, *sizes): what every place of the window sees."""
    # The last dimension first: what is copied for the others is in one piece then.
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
