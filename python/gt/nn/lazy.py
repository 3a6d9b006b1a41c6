"""Layers that learn the size of their input from the first one they see, and become plain layers then."""

from gt._gt import empty, tensor
from gt.autograd.grad_mode import no_grad
from gt.nn import norms, windowed
from gt.nn.layers import Linear
from gt.nn.parameter import Buffer, Parameter


class UninitializedParameter(Parameter):
    """A parameter whose shape is not known yet."""

    def __new__(cls, requires_grad=True, device=None, dtype=None):
        return Parameter.__new__(cls, empty(0, device=device, dtype=dtype), requires_grad)

    def __init__(self, requires_grad=True, device=None, dtype=None):
        pass

    @property
    def shape(self):  # type: ignore[override]
        raise RuntimeError(
            "Can't access the shape of an uninitialized parameter or buffer. This error usually happens in "
            "`load_state_dict` when trying to load an uninitialized parameter into an initialized one: call `forward` "
            "to initialize the parameters before."
        )

    def materialize(self, shape, device=None, dtype=None):
        """Gives it a shape, with values that mean nothing."""
        materialize(self, Parameter, shape, device, dtype)

    def __repr__(self):
        return f"<{type(self).__name__}>"


class UninitializedBuffer(Buffer):
    """A buffer whose shape is not known yet."""

    def __new__(cls, requires_grad=False, device=None, dtype=None, persistent=True):
        self = Buffer.__new__(cls, empty(0, device=device, dtype=dtype), persistent=persistent)
        self.requires_grad = requires_grad
        return self

    def __init__(self, requires_grad=False, device=None, dtype=None, persistent=True):
        pass

    shape = UninitializedParameter.shape  # type: ignore[assignment]
    __repr__ = UninitializedParameter.__repr__

    def materialize(self, shape, device=None, dtype=None):
        """Gives it a shape, with values that mean nothing."""
        materialize(self, Buffer, shape, device, dtype)


def materialize(self, kind, shape, device, dtype):
    """Makes a plain parameter or buffer of one without a shape; whoever holds it holds that."""
    self.data = empty(tuple(shape), device=device or self.device, dtype=dtype or self.dtype)
    self.__class__ = kind


def is_lazy(value):
    """Whether a parameter or a buffer has no shape yet."""
    return isinstance(value, (UninitializedParameter, UninitializedBuffer))


class LazyModuleMixin:
    """Of a module with parameters without shapes: the first call gives them some and makes it what it is to become."""

    cls_to_become: type | None = None

    def initialize_parameters(self, *args, **kwargs):
        """Gives every parameter its shape, seeing the arguments of the first call."""
        raise NotImplementedError(f"initialize_parameters is not implemented for {type(self).__name__}")

    def has_uninitialized_params(self):
        """Whether a parameter or a buffer has no shape yet."""
        return any(map(is_lazy, (*self._parameters.values(), *self._buffers.values())))

    def __call__(self, *args, **kwargs):
        if getattr(self, "_seen", False):
            return super().__call__(*args, **kwargs)
        self.initialize_parameters(*args, **kwargs)
        if self.has_uninitialized_params():
            raise RuntimeError(f"module {type(self).__name__} has not been fully initialized")
        self._seen = True
        if self.cls_to_become is not None:
            del self._seen
            self.__class__ = self.cls_to_become
        return self(*args, **kwargs)

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination.update((prefix + name, value) for name, value in self._own_state() if is_lazy(value))

    def _load_one(self, name, target, key, value, problems):
        if is_lazy(target) and is_lazy(value):
            return
        if is_lazy(target) and hasattr(value, "shape"):
            target.materialize(value.shape)
        super()._load_one(name, target, key, value, problems)


def _maybe(made, options):
    return UninitializedParameter(**options) if made else None


class LazyLinear(LazyModuleMixin, Linear):
    """`Linear`, with the features of its first input."""

    cls_to_become = Linear

    def __init__(self, out_features, bias=True, device=None, dtype=None):
        options = {"device": device, "dtype": dtype}
        super().__init__(0, 0, False, **options)
        self.out_features = out_features
        self.weight, self.bias = UninitializedParameter(**options), _maybe(bias, options)

    def reset_parameters(self):
        if self.in_features and not self.has_uninitialized_params():
            super().reset_parameters()

    @no_grad()
    def initialize_parameters(self, input):
        lazy, self.in_features = self.has_uninitialized_params(), input.shape[-1]
        if lazy:
            self.weight.materialize((self.out_features, self.in_features))
            if self.bias is not None:
                self.bias.materialize((self.out_features,))
            self.reset_parameters()


class _LazyConv(LazyModuleMixin):
    """What convolutions without a number of input channels share."""

    def __init__(
        self,
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
    ):
        options = {"device": device, "dtype": dtype}
        super().__init__(0, 0, kernel_size, stride, padding, dilation, groups, False, padding_mode, **options)
        self._leave_open(out_channels, bias, options)

    def _leave_open(self, out_channels, bias, options):
        self.out_channels = out_channels
        self.weight, self.bias = UninitializedParameter(**options), _maybe(bias, options)

    def reset_parameters(self):
        if self.in_channels and not self.has_uninitialized_params():
            super().reset_parameters()

    @no_grad()
    def initialize_parameters(self, input, *args, **kwargs):
        if input.dim() not in (self._rank + 1, self._rank + 2):
            raise RuntimeError(
                f"Expected {self._rank + 1}D (unbatched) or {self._rank + 2}D (batched) input to "
                f"{type(self).__name__}, but got input of size: {list(input.shape)}"
            )
        lazy, self.in_channels = self.has_uninitialized_params(), input.shape[-self._rank - 1]
        if self.in_channels % self.groups:
            raise ValueError("in_channels must be divisible by groups")
        if lazy:
            across = self.out_channels // self.groups, self.in_channels // self.groups
            shape = (self.in_channels, across[0]) if self._turned else (self.out_channels, across[1])
            self.weight.materialize((*shape, *self.kernel_size))
            if self.bias is not None:
                self.bias.materialize((self.out_channels,))
            self.reset_parameters()


class LazyConv1d(_LazyConv, windowed.Conv1d):
    """`Conv1d`, with the channels of its first input."""

    cls_to_become = windowed.Conv1d


class LazyConv2d(_LazyConv, windowed.Conv2d):
    """`Conv2d`, with the channels of its first input."""

    cls_to_become = windowed.Conv2d


class LazyConv3d(_LazyConv, windowed.Conv3d):
    """`Conv3d`, with the channels of its first input."""

    cls_to_become = windowed.Conv3d


class _LazyConvTranspose(_LazyConv):
    def __init__(
        self,
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
        options = {"device": device, "dtype": dtype}
        sizes = stride, padding, output_padding, groups, False, dilation
        super(_LazyConv, self).__init__(0, 0, kernel_size, *sizes, padding_mode, **options)
        self._leave_open(out_channels, bias, options)


class LazyConvTranspose1d(_LazyConvTranspose, windowed.ConvTranspose1d):
    """`ConvTranspose1d`, with the channels of its first input."""

    cls_to_become = windowed.ConvTranspose1d


class LazyConvTranspose2d(_LazyConvTranspose, windowed.ConvTranspose2d):
    """`ConvTranspose2d`, with the channels of its first input."""

    cls_to_become = windowed.ConvTranspose2d


class LazyConvTranspose3d(_LazyConvTranspose, windowed.ConvTranspose3d):
    """`ConvTranspose3d`, with the channels of its first input."""

    cls_to_become = windowed.ConvTranspose3d


class _LazyNorm(LazyModuleMixin):
    """What norms without a number of channels share."""

    def __init__(
        self,
        eps=1e-5,
        momentum=0.1,
        affine=True,
        track_running_stats=True,
        device=None,
        dtype=None,
        *,
        bias=True,
    ):
        options = {"device": device, "dtype": dtype}
        super().__init__(0, eps, momentum, False, False, **options)
        self.affine, self.track_running_stats = affine, track_running_stats
        self.weight, self.bias = _maybe(affine, options), _maybe(affine and bias, options)
        if track_running_stats:
            self.running_mean, self.running_var = UninitializedBuffer(**options), UninitializedBuffer(**options)
            self.num_batches_tracked = tensor(0)

    def reset_parameters(self):
        if self.num_features and not self.has_uninitialized_params():
            super().reset_parameters()

    @no_grad()
    def initialize_parameters(self, input):
        self._check(input)
        lazy, self.num_features = self.has_uninitialized_params(), input.shape[1]
        if lazy:
            for value in (self.weight, self.bias, self.running_mean, self.running_var):
                if value is not None:
                    value.materialize((self.num_features,))
            self.reset_parameters()


class LazyBatchNorm1d(_LazyNorm, norms.BatchNorm1d):
    """`BatchNorm1d`, with the channels of its first input."""

    cls_to_become = norms.BatchNorm1d


class LazyBatchNorm2d(_LazyNorm, norms.BatchNorm2d):
    """`BatchNorm2d`, with the channels of its first input."""

    cls_to_become = norms.BatchNorm2d


class LazyBatchNorm3d(_LazyNorm, norms.BatchNorm3d):
    """`BatchNorm3d`, with the channels of its first input."""

    cls_to_become = norms.BatchNorm3d


class LazyInstanceNorm1d(_LazyNorm, norms.InstanceNorm1d):
    """`InstanceNorm1d`, with the channels of its first input."""

    cls_to_become = norms.InstanceNorm1d


class LazyInstanceNorm2d(_LazyNorm, norms.InstanceNorm2d):
    """`InstanceNorm2d`, with the channels of its first input."""

    cls_to_become = norms.InstanceNorm2d


class LazyInstanceNorm3d(_LazyNorm, norms.InstanceNorm3d):
    """`InstanceNorm3d`, with the channels of its first input."""

    cls_to_become = norms.InstanceNorm3d
