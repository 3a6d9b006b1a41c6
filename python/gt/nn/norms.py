"""Normalisation over batches and groups of channels, which stand in dimension 1."""

import math

from gt._gt import empty, is_grad_enabled, ones, tensor, zeros
from gt.autograd.function import Function
from gt.autograd.grad_mode import no_grad
from gt.nn import init
from gt.nn.module import Module
from gt.nn.parameter import Parameter

__all__ = ["batch_norm", "group_norm", "instance_norm", "local_response_norm"]


def _per_channel(t, rank):
    return t.view(1, -1, *[1] * (rank - 2))


def _wide(input):
    """Half types are normalised in single precision."""
    return input.float() if input.element_size() < 4 else input


def _scaled(x, weight, bias, dtype):
    if weight is not None:
        x = x * _per_channel(weight, x.dim())
    if bias is not None:
        x = x + _per_channel(bias, x.dim())
    return x.to(dtype)


def batch_norm(input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    """Zero mean and unit variance of each channel: of this batch while training, which moves the running ones."""
    x = _wide(input)
    dims = [0, *range(2, x.dim())]
    count = x.numel() // max(1, x.shape[1])
    if eps <= 0.0:
        raise ValueError(f"batch_norm eps must be positive, but got {eps}")
    if training:
        if count == 1:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {input.shape}")
        mean, var = x.mean(dims), x.var(dims, correction=0)
        with no_grad():
            # An empty batch moves nothing.
            if running_mean is not None and count:
                running_mean.lerp_(mean.detach().to(running_mean.dtype), momentum)
            if running_var is not None and count:
                whole = var.detach() * (count / (count - 1))
                running_var.lerp_(whole.to(running_var.dtype), momentum)
    else:
        mean, var = running_mean, running_var
    rank = x.dim()
    centred = x - _per_channel(mean, rank)
    return _scaled(centred * _per_channel((var + eps).rsqrt(), rank), weight, bias, input.dtype)


def group_norm(input, num_groups, weight=None, bias=None, eps=1e-5):
    """Zero mean and unit variance of each group of channels of each sample."""
    if input.dim() < 2 or input.shape[1] % num_groups:
        raise RuntimeError(
            f"group_norm: expected the channels to be divisible by num_groups, got shape {list(input.shape)} and "
            f"{num_groups}"
        )
    if not input.numel() and 0 in input.shape[1:]:
        raise RuntimeError(f"group_norm: expected channels, and elements in each, got shape {list(input.shape)}")
    x = _wide(input)
    weight, bias = (None if t is None else t.to(x.dtype) for t in (weight, bias))
    return _Groups.apply(x, weight, bias, num_groups, eps).to(input.dtype)


class _Groups(Function):
    """`group_norm` with its gradient in two passes: sums for each channel, and what these make of every element."""

    @staticmethod
    def forward(ctx, x, weight, bias, groups, eps):
        ctx.sizes, ctx.eps = (x.shape[0], groups, x.shape[1] // groups, math.prod(x.shape[2:])), eps
        mean, rate, centred = _standard(x.reshape(ctx.sizes), eps)
        ctx.save_for_backward(x, weight, mean, rate)
        out = centred * rate
        if weight is not None:
            out = out * weight.view(*ctx.sizes[1:3], 1)
        if bias is not None:
            out = out + bias.view(*ctx.sizes[1:3], 1)
        return out.reshape(x.shape)

    @staticmethod
    def backward(ctx, grad):
        x, weight, mean, rate = ctx.saved_tensors
        sizes, grouped, grad = ctx.sizes, x.reshape(ctx.sizes), grad.reshape(ctx.sizes)
        if is_grad_enabled():
            # To be differentiated again, they come from the input.
            mean, rate, centred = _standard(grouped, ctx.eps)
        else:
            centred = grouped - mean
        alone, along = grad.sum(3, keepdim=True), (grad * centred).sum(3, keepdim=True)
        for_x = for_weight = for_bias = None
        if ctx.needs_input_grad[0]:
            scale = 1.0 if weight is None else weight.view(*sizes[1:3], 1)
            count = sizes[2] * sizes[3]
            level = (alone * scale).sum(2, keepdim=True) * rate / count
            slope = (along * scale).sum(2, keepdim=True) * rate * rate * rate / count
            for_x = (grad * (rate * scale) - centred * slope - level).reshape(x.shape)
        if ctx.needs_input_grad[1]:
            for_weight = (along * rate).sum((0, 3)).flatten()
        if ctx.needs_input_grad[2]:
            for_bias = alone.sum((0, 3)).flatten()
        return for_x, for_weight, for_bias, None, None


def _standard(grouped, eps):
    """Mean, one by the deviation, and what is left without the mean, of each group."""
    mean = grouped.mean((2, 3), keepdim=True)
    centred = grouped - mean
    return mean, ((centred * centred).mean((2, 3), keepdim=True) + eps).rsqrt(), centred


def instance_norm(
    input,
    running_mean=None,
    running_var=None,
    weight=None,
    bias=None,
    use_input_stats=True,
    momentum=0.1,
    eps=1e-5,
):
    """Zero mean and unit variance of each channel of each sample."""
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if running_mean is not None:
        x = _wide(input).detach().flatten(2)
        with no_grad():
            running_mean.lerp_(x.mean(-1).mean(0).to(running_mean.dtype), momentum)
            running_var.lerp_(x.var(-1).mean(0).to(running_var.dtype), momentum)
    return group_norm(input, input.shape[1], weight, bias, eps)


def local_response_norm(input, size, alpha=1e-4, beta=0.75, k=1.0):
    """Divided by a power of the mean square of the channels around each."""
    if input.dim() < 3:
        raise ValueError(f"Expected 3D or higher dimensionality input (got {input.dim()} dimensions)")
    square = input.square().pad([0, 0] * (input.dim() - 2) + [size // 2, (size - 1) // 2])
    around = sum(square.narrow(1, i, input.shape[1]) for i in range(size))
    return input / (around / size * alpha + k).pow(beta)


def _reset(norm):
    if norm.weight is not None:
        init.ones_(norm.weight)
    if norm.bias is not None:
        init.zeros_(norm.bias)


class _RunningNorm(Module):
    """What norms with running statistics share."""

    _version = 2
    # The numbers of dimensions an input may have, and whether a batch dimension may be missing.
    _ranks: tuple = ()

    def __init__(self, num_features, eps, momentum, affine, track_running_stats, device, dtype, bias):
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        options = {"device": device, "dtype": dtype}
        for name, there in (("weight", affine), ("bias", affine and bias)):
            self.register_parameter(name, Parameter(empty(num_features, **options)) if there else None)
        self.register_buffer("running_mean", zeros(num_features, **options) if track_running_stats else None)
        self.register_buffer("running_var", ones(num_features, **options) if track_running_stats else None)
        self.register_buffer("num_batches_tracked", tensor(0) if track_running_stats else None)
        self.reset_parameters()

    def reset_running_stats(self):
        if self.track_running_stats:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self):
        self.reset_running_stats()
        _reset(self)

    def _check(self, input):
        if input.dim() not in self._ranks:
            wanted = " or ".join(f"{rank}D" for rank in self._ranks)
            raise ValueError(f"expected {wanted} input (got {input.dim()}D input)")

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *rest):
        key = prefix + "num_batches_tracked"
        if local_metadata.get("version", 1) < 2 and self.track_running_stats:
            # Older states do not count batches.
            state_dict.setdefault(key, self.num_batches_tracked)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)

    def extra_repr(self):
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_RunningNorm):
    """Zero mean and unit variance of each channel over the batch; running ones where it is not training."""

    def __init__(
        self,
        num_features,
        eps=1e-5,
        momentum=0.1,
        affine=True,
        track_running_stats=True,
        device=None,
        dtype=None,
        *,
        bias=True,
    ):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias)

    def forward(self, input):
        self._check(input)
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / self.num_batches_tracked.item()
        batch = self.training or self.running_mean is None
        moved = self.training and self.track_running_stats
        mean, var = self.running_mean, self.running_var
        if batch and not moved:
            mean = var = None
        return batch_norm(input, mean, var, self.weight, self.bias, batch, momentum, self.eps)


class BatchNorm1d(_BatchNorm):
    _ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    _ranks = (4,)


class BatchNorm3d(_BatchNorm):
    _ranks = (5,)


class SyncBatchNorm(_BatchNorm):
    """Batch norm of any rank. Every batch norm is over the whole batch here, however the dispatcher divides it."""

    _ranks = (2, 3, 4, 5)

    @classmethod
    def convert_sync_batchnorm(cls, module, process_group=None):
        """A network with its batch norms as these, with the same parameters."""
        new = module
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            new = cls.__new__(cls)
            new.__setstate__(dict(module.__dict__))
        for name, child in module.named_children():
            new.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return new


class _InstanceNorm(_RunningNorm):
    """Zero mean and unit variance of each channel of each sample."""

    def __init__(
        self,
        num_features,
        eps=1e-5,
        momentum=0.1,
        affine=False,
        track_running_stats=False,
        device=None,
        dtype=None,
        *,
        bias=True,
    ):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias)

    def forward(self, input):
        self._check(input)
        alone = input.dim() == self._ranks[0]
        x = input.unsqueeze(0) if alone else input
        own = self.training or not self.track_running_stats
        out = instance_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, own, self.momentum or 0.0, self.eps
        )
        return out.squeeze(0) if alone else out


class InstanceNorm1d(_InstanceNorm):
    _ranks = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    _ranks = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    _ranks = (4, 5)


class GroupNorm(Module):
    """Zero mean and unit variance of each group of channels of each sample."""

    def __init__(self, num_groups, num_channels, eps=1e-5, affine=True, device=None, dtype=None, *, bias=True):
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(f"num_channels ({num_channels}) must be divisible by num_groups ({num_groups})")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        for name, there in (("weight", affine), ("bias", affine and bias)):
            made = Parameter(empty(num_channels, device=device, dtype=dtype)) if there else None
            self.register_parameter(name, made)
        self.reset_parameters()

    def reset_parameters(self):
        _reset(self)

    def forward(self, input):
        return group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self):
        affine, bias = self.affine, self.bias is not None
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={affine}, bias={bias}"


class LocalResponseNorm(Module):
    """Divided by a power of the mean square of the channels around each."""

    def __init__(self, size, alpha=1e-4, beta=0.75, k=1.0):
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input):
        return local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self):
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
