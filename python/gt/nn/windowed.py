"""Convolutions and pooling as modules."""

import math

from gt._gt import empty
from gt.nn import functional as F
from gt.nn import init, windows
from gt.nn.module import Module
from gt.nn.parameter import Parameter


class _Conv(Module):
    """What convolutions share."""

    _rank = 1
    _turned = False

    def __init__(
        self,
        in_channels,
        out_channels,
        kernel_size,
        stride=1,
        padding=0,
        dilation=1,
        groups=1,
        bias=True,
        padding_mode="zeros",
        device=None,
        dtype=None,
        output_padding=0,
    ):
        super().__init__()
        if in_channels % groups or out_channels % groups:
            raise ValueError("in_channels and out_channels must be divisible by groups")
        if padding_mode not in ("zeros", "reflect", "replicate", "circular"):
            raise ValueError(f"padding_mode: expected zeros, reflect, replicate or circular, got {padding_mode!r}")
        rank = self._rank
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride = windows.each(kernel_size, rank), windows.each(stride, rank)
        self.padding = padding if isinstance(padding, str) else windows.each(padding, rank)
        self.dilation, self.output_padding = windows.each(dilation, rank), windows.each(output_padding, rank)
        self.padding_mode = padding_mode
        shape = (in_channels, out_channels // groups) if self._turned else (out_channels, in_channels // groups)
        options = {"device": device, "dtype": dtype}
        self.weight = Parameter(empty(*shape, *self.kernel_size, **options))
        self.register_parameter("bias", Parameter(empty(out_channels, **options)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self):
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in = self.weight.shape[1] * math.prod(self.kernel_size)
            bound = 1 / math.sqrt(fan_in) if fan_in else 0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input):
        conv, padding = getattr(windows, f"conv{self._rank}d"), self.padding
        if self.padding_mode != "zeros":
            if isinstance(padding, str):
                totals = [d * (k - 1) for k, d in zip(self.kernel_size, self.dilation)]
                pairs = [(t // 2, t - t // 2) for t in totals] if padding == "same" else []
            else:
                pairs = [(p, p) for p in padding]
            input = F.pad(input, [n for pair in reversed(pairs) for n in pair], mode=self.padding_mode)
            padding = 0
        return conv(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def extra_repr(self):
        rank = self._rank
        said = [f"{self.in_channels}, {self.out_channels}"]
        said += [f"kernel_size={self.kernel_size}", f"stride={self.stride}"]
        if self.padding != (0,) * rank:
            said.append(f"padding={self.padding}")
        if self.dilation != (1,) * rank:
            said.append(f"dilation={self.dilation}")
        if self.output_padding != (0,) * rank:
            said.append(f"output_padding={self.output_padding}")
        if self.groups != 1:
            said.append(f"groups={self.groups}")
        if self.bias is None:
            said.append("bias=False")
        if self.padding_mode != "zeros":
            said.append(f"padding_mode={self.padding_mode}")
        return ", ".join(said)


class Conv1d(_Conv):
    """Filters that slide along one dimension."""


class Conv2d(_Conv):
    """Filters that slide over images."""

    _rank = 2


class Conv3d(_Conv):
    """Filters that slide through volumes."""

    _rank = 3


class _ConvTranspose(_Conv):
    _turned = True

    def __init__(
        self,
        in_channels,
        out_channels,
        kernel_size,
        stride=1,
        padding=0,
        output_padding=0,
        groups=1,
        bias=True,
        dilation=1,
        padding_mode="zeros",
        device=None,
        dtype=None,
    ):
        if padding_mode != "zeros":
            raise ValueError(f'Only "zeros" padding mode is supported for {type(self).__name__}')
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
            output_padding,
        )

    def forward(self, input):
        conv = getattr(windows, f"conv_transpose{self._rank}d")
        sizes = self.stride, self.padding, self.output_padding, self.groups, self.dilation
        return conv(input, self.weight, self.bias, *sizes)


class ConvTranspose1d(_ConvTranspose):
    """The gradient of `Conv1d` by its input, as a layer."""


class ConvTranspose2d(_ConvTranspose):
    """The gradient of `Conv2d` by its input, as a layer."""

    _rank = 2


class ConvTranspose3d(_ConvTranspose):
    """The gradient of `Conv3d` by its input, as a layer."""

    _rank = 3


class _MaxPool(Module):
    _rank = 1

    def __init__(self, kernel_size, stride=None, padding=0, dilation=1, return_indices=False, ceil_mode=False):
        super().__init__()
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.dilation = padding, dilation
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def forward(self, input):
        pool = getattr(windows, f"max_pool{self._rank}d")
        sizes = self.kernel_size, self.stride, self.padding, self.dilation
        return pool(input, *sizes, self.ceil_mode, self.return_indices)

    def extra_repr(self):
        names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


class MaxPool1d(_MaxPool):
    """The largest of each window."""


class MaxPool2d(_MaxPool):
    """The largest of each window of images."""

    _rank = 2


class MaxPool3d(_MaxPool):
    """The largest of each window of volumes."""

    _rank = 3


class _AvgPool(Module):
    _rank = 1

    def __init__(
        self,
        kernel_size,
        stride=None,
        padding=0,
        ceil_mode=False,
        count_include_pad=True,
        divisor_override=None,
    ):
        super().__init__()
        alone = self._rank == 1
        self.kernel_size = windows.each(kernel_size, 1) if alone else kernel_size
        stride = kernel_size if stride is None else stride
        self.stride = windows.each(stride, 1) if alone else stride
        self.padding = windows.each(padding, 1) if alone else padding
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad
        self.divisor_override = divisor_override

    def forward(self, input):
        pool = getattr(windows, f"avg_pool{self._rank}d")
        options = self.ceil_mode, self.count_include_pad, self.divisor_override
        return pool(input, self.kernel_size, self.stride, self.padding, *options)

    def extra_repr(self):
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool1d(_AvgPool):
    """The mean of each window."""


class AvgPool2d(_AvgPool):
    """The mean of each window of images."""

    _rank = 2


class AvgPool3d(_AvgPool):
    """The mean of each window of volumes."""

    _rank = 3


class _Adaptive(Module):
    _function = ""

    def __init__(self, output_size, return_indices=False):
        super().__init__()
        self.output_size, self.return_indices = output_size, return_indices

    def forward(self, input):
        pool = getattr(windows, self._function)
        return pool(input, self.output_size, True) if self.return_indices else pool(input, self.output_size)

    def extra_repr(self):
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_Adaptive):
    _function = "adaptive_avg_pool1d"


class AdaptiveAvgPool2d(_Adaptive):
    _function = "adaptive_avg_pool2d"


class AdaptiveAvgPool3d(_Adaptive):
    _function = "adaptive_avg_pool3d"


class AdaptiveMaxPool1d(_Adaptive):
    _function = "adaptive_max_pool1d"


class AdaptiveMaxPool2d(_Adaptive):
    _function = "adaptive_max_pool2d"


class AdaptiveMaxPool3d(_Adaptive):
    _function = "adaptive_max_pool3d"


class PixelShuffle(Module):
    """Channels as pixels of a finer image."""

    def __init__(self, upscale_factor):
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input):
        return windows.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self):
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """Pixels of an image as channels of a coarser one."""

    def __init__(self, downscale_factor):
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input):
        return windows.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self):
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """Channels in groups, taken in turn from each."""

    def __init__(self, groups):
        super().__init__()
        self.groups = groups

    def forward(self, input):
        return windows.channel_shuffle(input, self.groups)

    def extra_repr(self):
        return f"groups={self.groups}"
