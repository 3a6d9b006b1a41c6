"""Functions of layers and losses."""

from gt import _gt
from gt._gt import (
    Tensor,
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cosine_similarity,
    cross_entropy,
    huber_loss,
    kl_div,
    l1_loss,
    layer_norm,
    linear,
    mse_loss,
    nll_loss,
    one_hot,
    relu,
    rms_norm,
    scaled_dot_product_attention,
    silu,
    smooth_l1_loss,
)

__all__ = [
    "bilinear",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "celu",
    "cosine_similarity",
    "cross_entropy",
    "cross_entropy_loss",
    "dropout",
    "elu",
    "embedding",
    "gelu",
    "glu",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "linear",
    "log_softmax",
    "logsigmoid",
    "mish",
    "mse_loss",
    "nll_loss",
    "normalize",
    "one_hot",
    "pad",
    "prelu",
    "relu",
    "relu6",
    "rms_norm",
    "scaled_dot_product_attention",
    "selu",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "softmax",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "tanh",
    "tanhshrink",
    "threshold",
]

# The losses under the names of the prototype.
cross_entropy_loss = cross_entropy

sigmoid = Tensor.sigmoid
tanh = Tensor.tanh
gelu = Tensor.gelu
softplus = Tensor.softplus
softsign = Tensor.softsign
logsigmoid = Tensor.logsigmoid
hardtanh = Tensor.hardtanh
relu6 = Tensor.relu6
hardsigmoid = Tensor.hardsigmoid
hardswish = Tensor.hardswish
pad = Tensor.pad


def mish(input, inplace=False):
    return input.mish()


def leaky_relu(input, negative_slope=0.01, inplace=False):
    return input.leaky_relu(negative_slope)


def elu(input, alpha=1.0, inplace=False):
    return input.elu(alpha)


def selu(input, inplace=False):
    """`elu` with the constants that keep mean and variance through layers."""
    alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    return input.elu(alpha) * scale


def celu(input, alpha=1.0, inplace=False):
    return input.clamp(min=0) + (alpha * (input / alpha).expm1()).clamp(max=0)


def glu(input, dim=-1):
    """The first half, gated by the second."""
    value, gate = input.chunk(2, dim)
    return value * gate.sigmoid()


def prelu(input, weight):
    """A leaky ReLU with a slope for each channel, or one for all."""
    if weight.numel() > 1 and input.dim() > 1:
        weight = weight.view(-1, *[1] * (input.dim() - 2))
    return _gt.where(input >= 0, input, weight * input)


def tanhshrink(input):
    return input - input.tanh()


def softshrink(input, lambd=0.5):
    return _gt.where(input > lambd, input - lambd, _gt.where(input < -lambd, input + lambd, input * 0))


def hardshrink(input, lambd=0.5):
    return input.masked_fill(input.abs() <= lambd, 0)


def threshold(input, threshold, value, inplace=False):
    return input.masked_fill(~(input > threshold), value)


def softmin(input, dim=None, dtype=None):
    """`softmax` of the negated input."""
    return softmax(-input, dim, dtype)


def normalize(input, p=2.0, dim=1, eps=1e-12):
    """Divided by the norm along a dimension."""
    return input / input.norm(p, dim, keepdim=True).clamp(min=eps)


def bilinear(input1, input2, weight, bias=None):
    """`input1 @ weight[k] @ input2 + bias[k]` for each output k."""
    out = _gt.einsum("...i,kij,...j->...k", input1, weight, input2)
    return out if bias is None else out + bias


def _default_dim(input, dim):
    return (0 if input.dim() in (0, 1, 3) else 1) if dim is None else dim


def softmax(input, dim=None, dtype=None):
    """Exponentials along a dimension, divided by their sum."""
    return input.softmax(_default_dim(input, dim), dtype)


def log_softmax(input, dim=None, dtype=None):
    """The logarithm of `softmax`."""
    return input.log_softmax(_default_dim(input, dim), dtype)


def dropout(input, p=0.5, training=True, inplace=False):
    """Zeroes elements at random and scales the others, while training."""
    return input.dropout(p, training)


def embedding(input, weight, padding_idx=None):
    """Rows of `weight`, by index; the row `padding_idx` gets no gradient."""
    if padding_idx is None:
        return _gt.embedding(input, weight)
    rows = _gt.embedding(input, weight)
    skip = (input == padding_idx % weight.shape[0]).unsqueeze(-1)
    return _gt.where(skip, rows.detach(), rows)
