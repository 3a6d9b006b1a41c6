"""Convolutions as products of filters with columns."""

import math

from gt._gt import is_grad_enabled
from gt.amp import autocast
from gt.autograd.function import Function
from gt.nn.columns import columns
from gt.nn.depthwise import _padded


def product(weight, seen, groups):
    """(batch, filters, *out) of filters and columns."""
    batch, out = seen.shape[0], seen.shape[2 - weight.dim() :]
    rows = _rows(seen, weight.shape[2:], groups)
    result = weight.reshape(groups, weight.shape[0] // groups, rows.shape[2]) @ rows
    return result.reshape(batch, weight.shape[0], *out)


def _rows(seen, kernel, groups):
    depth = seen.shape[1] // groups * math.prod(kernel)
    return seen.reshape(seen.shape[0], groups, depth, math.prod(seen.shape[-len(kernel) :]))


def _seen(x, kernel, pads, dilation):
    out = [n + sum(pair) - d * (k - 1) for n, pair, d, k in zip(x.shape[2:], pads, dilation, kernel)]
    return columns(_padded(x, pads), kernel, [1] * len(kernel), dilation, out)


class Convolution(Function):
    """A convolution without strides, whose gradient by the input is one too: that copies columns of gradients, where
    those of the input would be added up place by place."""

    @staticmethod
    def forward(ctx, x, weight, pads, dilation, groups):
        seen = _seen(x, weight.shape[2:], pads, dilation)
        ctx.save_for_backward(x, weight, seen if ctx.needs_input_grad[1] else None)
        ctx.options = pads, dilation, groups
        return product(weight, seen, groups)

    @staticmethod
    def backward(ctx, grad):
        x, weight, seen = ctx.saved_tensors
        pads, dilation, groups = ctx.options
        kernel = weight.shape[2:]
        for_x = for_weight = None
        with autocast("cpu", enabled=False):
            if ctx.needs_input_grad[0]:
                around = [(d * (k - 1) - a, d * (k - 1) - b) for k, d, (a, b) in zip(kernel, dilation, pads)]
                turned = weight.flip(*range(2, weight.dim())).unflatten(0, (groups, -1)).transpose(1, 2)
                for_x = Convolution.apply(grad, turned.flatten(0, 1), around, dilation, groups)
            if ctx.needs_input_grad[1]:
                if is_grad_enabled():
                    # To be differentiated again, they come from the input.
                    seen = _seen(x, kernel, pads, dilation)
                grads = grad.reshape(grad.shape[0], groups, weight.shape[0] // groups, math.prod(grad.shape[2:]))
                for_weight = (grads @ _rows(seen, kernel, groups).transpose(2, 3)).sum(0).reshape(weight.shape)
        return for_x, for_weight, None, None, None
