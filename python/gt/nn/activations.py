"""Activations as modules: each is a function of `gt.nn.functional` with its settings kept."""

from gt._gt import full
from gt.nn import functional as F
from gt.nn.module import Module
from gt.nn.parameter import Parameter


class _Activation(Module):
    """An activation without settings other than `inplace`."""

    def __init__(self, inplace=False):
        super().__init__()
        self.inplace = inplace

    def extra_repr(self):
        return "inplace=True" if self.inplace else ""

    def _also_inplace(self, text):
        return f"{text}, inplace=True" if self.inplace else text


class ReLU(_Activation):
    def forward(self, input):
        return F.relu(input, self.inplace)


class ReLU6(_Activation):
    def forward(self, input):
        return F.relu6(input, self.inplace)


class SiLU(_Activation):
    def forward(self, input):
        return F.silu(input, self.inplace)


class Mish(_Activation):
    def forward(self, input):
        return F.mish(input, self.inplace)


class Hardsigmoid(_Activation):
    def forward(self, input):
        return F.hardsigmoid(input, self.inplace)

    def extra_repr(self):
        return ""


class Hardswish(Hardsigmoid):
    def forward(self, input):
        return F.hardswish(input, self.inplace)


class SELU(_Activation):
    def forward(self, input):
        return F.selu(input, self.inplace)


class CELU(_Activation):
    def __init__(self, alpha=1.0, inplace=False):
        super().__init__(inplace)
        self.alpha = alpha

    def forward(self, input):
        return F.celu(input, self.alpha, self.inplace)

    def extra_repr(self):
        return self._also_inplace(f"alpha={self.alpha}")


class ELU(CELU):
    def forward(self, input):
        return F.elu(input, self.alpha, self.inplace)


class LeakyReLU(_Activation):
    def __init__(self, negative_slope=0.01, inplace=False):
        super().__init__(inplace)
        self.negative_slope = negative_slope

    def forward(self, input):
        return F.leaky_relu(input, self.negative_slope, self.inplace)

    def extra_repr(self):
        return self._also_inplace(f"negative_slope={self.negative_slope}")


class Hardtanh(_Activation):
    def __init__(self, min_val=-1.0, max_val=1.0, inplace=False):
        super().__init__(inplace)
        self.min_val, self.max_val = min_val, max_val

    def forward(self, input):
        return F.hardtanh(input, self.min_val, self.max_val, self.inplace)

    def extra_repr(self):
        return self._also_inplace(f"min_val={self.min_val}, max_val={self.max_val}")


class Threshold(_Activation):
    def __init__(self, threshold, value, inplace=False):
        super().__init__(inplace)
        self.threshold, self.value = threshold, value

    def forward(self, input):
        return F.threshold(input, self.threshold, self.value, self.inplace)

    def extra_repr(self):
        return self._also_inplace(f"threshold={self.threshold}, value={self.value}")


class RReLU(_Activation):
    """A leaky ReLU with slopes drawn at random while training."""

    def __init__(self, lower=1 / 8, upper=1 / 3, inplace=False):
        super().__init__(inplace)
        self.lower, self.upper = lower, upper

    def forward(self, input):
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)

    def extra_repr(self):
        return self._also_inplace(f"lower={self.lower}, upper={self.upper}")


class PReLU(Module):
    """A leaky ReLU whose slope is learnt."""

    def __init__(self, num_parameters=1, init=0.25, device=None, dtype=None):
        super().__init__()
        self.num_parameters = num_parameters
        self.weight = Parameter(full((num_parameters,), init, device=device, dtype=dtype))

    def forward(self, input):
        return F.prelu(input, self.weight)

    def extra_repr(self):
        return f"num_parameters={self.num_parameters}"


class Sigmoid(Module):
    def forward(self, input):
        return input.sigmoid()


class Tanh(Module):
    def forward(self, input):
        return input.tanh()


class LogSigmoid(Module):
    def forward(self, input):
        return F.logsigmoid(input)


class Softsign(Module):
    def forward(self, input):
        return F.softsign(input)


class Tanhshrink(Module):
    def forward(self, input):
        return F.tanhshrink(input)


class Softshrink(Module):
    def __init__(self, lambd=0.5):
        super().__init__()
        self.lambd = lambd

    def forward(self, input):
        return F.softshrink(input, self.lambd)

    def extra_repr(self):
        return str(self.lambd)


class Hardshrink(Softshrink):
    def forward(self, input):
        return F.hardshrink(input, self.lambd)


class GELU(Module):
    def __init__(self, approximate="none"):
        super().__init__()
        self.approximate = approximate

    def forward(self, input):
        return F.gelu(input, approximate=self.approximate)

    def extra_repr(self):
        return f"approximate={self.approximate!r}"


class Softplus(Module):
    def __init__(self, beta=1.0, threshold=20.0):
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def forward(self, input):
        return F.softplus(input, self.beta, self.threshold)

    def extra_repr(self):
        return f"beta={self.beta}, threshold={self.threshold}"


class _AlongDim(Module):
    def __init__(self, dim=None):
        super().__init__()
        if dim is not None and not isinstance(dim, int):
            raise TypeError(f"dim must be an int or None, got: {type(dim).__name__}")
        self.dim = dim

    def extra_repr(self):
        return f"dim={self.dim}"


class GLU(_AlongDim):
    def __init__(self, dim=-1):
        super().__init__(dim)

    def forward(self, input):
        return F.glu(input, self.dim)


class Softmax(_AlongDim):
    def forward(self, input):
        return F.softmax(input, self.dim)


class Softmin(_AlongDim):
    def forward(self, input):
        return F.softmin(input, self.dim)


class LogSoftmax(_AlongDim):
    def forward(self, input):
        return F.log_softmax(input, self.dim)


class Softmax2d(Module):
    """`Softmax` over the channels of images."""

    def forward(self, input):
        if input.dim() not in (3, 4):
            raise ValueError(f"Softmax2d: expected input to be 3D or 4D, got {input.dim()}D instead")
        return F.softmax(input, -3)
