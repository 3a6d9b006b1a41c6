"""Windows of images as columns, and columns summed to images again."""

import math

from gt._gt import stack
from gt.nn.columns import _keys, _shifted
from gt.nn.module import Module
from gt.nn.windows import _padded, _window_count, each

__all__ = ["fold", "unfold"]


def _blocks(name, size, kernel, dilation, padding, stride):
    out = [_window_count(*of, False) for of in zip(size, kernel, stride, padding, dilation)]
    if any(n < 1 for n in out):
        raise RuntimeError(
            f"{name}: kernel_size={kernel}, dilation={dilation} and padding={padding} make no block of an image of "
            f"{list(size)}"
        )
    return out


def unfold(input, kernel_size, dilation=1, padding=0, stride=1):
    """The windows of images, each as a column."""
    if input.dim() not in (3, 4):
        raise RuntimeError(f"unfold: expected 3D or 4D (batch mode) tensor, got {list(input.shape)}")
    kernel, dilation, padding, stride = (each(given, 2) for given in (kernel_size, dilation, padding, stride))
    out = _blocks("unfold", input.shape[-2:], kernel, dilation, padding, stride)
    x = input if input.dim() == 4 else input.unsqueeze(0)
    parts = list(_shifted(_padded(x, [(p, p) for p in padding]), kernel, stride, dilation, out))
    columns = stack(parts, 2).flatten(1, 2).flatten(2)
    return columns if input.dim() == 4 else columns.squeeze(0)


def fold(input, output_size, kernel_size, dilation=1, padding=0, stride=1):
    """Images in which each element is the sum of the elements of columns that stand there."""
    if input.dim() not in (2, 3):
        raise RuntimeError(f"fold: expected 2D or 3D (batch mode) tensor for input, got {list(input.shape)}")
    size, kernel, dilation = each(output_size, 2), each(kernel_size, 2), each(dilation, 2)
    padding, stride = each(padding, 2), each(stride, 2)
    x = input if input.dim() == 3 else input.unsqueeze(0)
    places = math.prod(kernel)
    if x.shape[1] % places:
        raise RuntimeError(
            "Expected size of input's dimension 1 to be divisible by the product of kernel_size, but got "
            f"input.size(1)={x.shape[1]} and kernel_size={kernel}."
        )
    out = _blocks("fold", size, kernel, dilation, padding, stride)
    if x.shape[2] != math.prod(out):
        raise RuntimeError(
            f"Given output_size={size}, kernel_size={kernel}, dilation={dilation}, padding={padding}, "
            f"stride={stride}, expected size of input's dimension 2 to match the calculated number of sliding blocks "
            f"{out[0]} * {out[1]} = {math.prod(out)}, but got input.size(2)={x.shape[2]}."
        )
    parts = x.reshape(x.shape[0], -1, places, *out)
    image = x.new_zeros(x.shape[0], parts.shape[1], *(n + 2 * p for n, p in zip(size, padding)))
    for place, key in enumerate(_keys(kernel, stride, dilation, out)):
        image[key] += parts[:, :, place]
    image = image[:, :, padding[0] : padding[0] + size[0], padding[1] : padding[1] + size[1]]
    return image if input.dim() == 3 else image.squeeze(0)


class _Folding(Module):
    def __init__(self, kernel_size, dilation=1, padding=0, stride=1):
        super().__init__()
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride

    def extra_repr(self):
        names = ("kernel_size", "dilation", "padding", "stride")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


class Unfold(_Folding):
    """The windows of images, each as a column."""

    def forward(self, input):
        return unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)


class Fold(_Folding):
    """Images in which each element is the sum of the elements of columns that stand there."""

    def __init__(self, output_size, kernel_size, dilation=1, padding=0, stride=1):
        super().__init__(kernel_size, dilation, padding, stride)
        self.output_size = output_size

    def forward(self, input):
        return fold(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self):
        return f"output_size={self.output_size}, {super().extra_repr()}"
