"""Convolutions of every channel by a filter of its own, as sums of shifted rows.

With the padding that its lines have, an image is one row, and what stands under a place of the filter is that row some
elements further on: one pass reads long rows, where columns would be written and multiplied one vector at a time.
"""

import itertools
import math

from gt._gt import bfloat16, float16, float32, stack
from gt.autograd.function import Function


def _padded(x, pads, value=0.0):
    """With (before, after) more elements in each spatial dimension, or fewer where that is negative."""
    if not any(n for pair in pads for n in pair):
        return x
    return x.pad([n for pair in reversed(pads) for n in pair], "constant", value)


def _wide(x):
    """Sums of halves are rounded once."""
    return x.to(float32) if x.dtype in (float16, bfloat16) else x


def _row(x, kernel, pads):
    """Each channel as one row, and the sizes of its lines."""
    if any(k > 1 for k in kernel[1:]):
        # Shifted to the last place of its lines, the last row reads beyond them.
        pads = [(pads[0][0], pads[0][1] + 1), *pads[1:]]
    x = _padded(x, pads)
    return x.flatten(2), x.shape[3:]


def _shifts(kernel, dilation, lines):
    """How far on each place of the filter lies."""
    steps = [d * math.prod(lines[i:]) for i, d in enumerate(dilation)]
    return [sum(p * s for p, s in zip(place, steps)) for place in itertools.product(*(range(k) for k in kernel))]


class Depthwise(Function):
    """The convolution of every channel with its filter, without strides."""

    @staticmethod
    def forward(ctx, x, weight, pads, dilation):
        ctx.save_for_backward(x, weight)
        ctx.pads, ctx.dilation = pads, dilation
        kernel = weight.shape[2:]
        out = [n + sum(p) - d * (k - 1) for n, p, d, k in zip(x.shape[2:], pads, dilation, kernel)]
        row, lines = _row(x, kernel, pads)
        length, total = out[0] * math.prod(lines), None
        filters = _wide(weight).reshape(weight.shape[0], -1, 1).unbind(1)
        for shift, tap in zip(_shifts(kernel, dilation, lines), filters):
            part = _wide(row.narrow(2, shift, length)) * tap
            total = part if total is None else total + part
        total = total.to(x.dtype).unflatten(2, (out[0], *lines))
        return total[(..., *(slice(n) for n in out))].contiguous()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        kernel, pads, dilation = weight.shape[2:], ctx.pads, ctx.dilation
        for_x = for_weight = None
        if ctx.needs_input_grad[0]:
            around = [(d * (k - 1) - a, d * (k - 1) - b) for k, d, (a, b) in zip(kernel, dilation, pads)]
            for_x = Depthwise.apply(grad, weight.flip(*range(2, weight.dim())), around, dilation)
        if ctx.needs_input_grad[1]:
            row, lines = _row(x, kernel, pads)
            rest = [(0, n - out) for n, out in zip(lines, grad.shape[3:])]
            grads = _wide(_padded(grad, [(0, 0), *rest]).flatten(2))
            shifted = (_wide(row.narrow(2, shift, grads.shape[2])) for shift in _shifts(kernel, dilation, lines))
            sums = stack([(part * grads).sum(2) for part in shifted])
            for_weight = sums.sum(1).t().reshape(weight.shape).to(weight.dtype)
        return for_x, for_weight, None, None
