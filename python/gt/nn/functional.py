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
    rms_norm,
    scaled_dot_product_attention,
    smooth_l1_loss,
)

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_similarity",
    "cross_entropy",
    "cross_entropy_loss",
    "dropout",
    "elu",
    "embedding",
    "gelu",
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
    "one_hot",
    "pad",
    "relu",
    "relu6",
    "rms_norm",
    "scaled_dot_product_attention",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "softmax",
    "softplus",
    "softsign",
    "tanh",
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
pad = Tensor.pad


def relu(input, inplace=False):
    return input.relu_() if inplace else input.relu()


def silu(input, inplace=False):
    return input.silu_() if inplace else input.silu()


def mish(input, inplace=False):
    return input.mish()


def leaky_relu(input, negative_slope=0.01, inplace=False):
    return input.leaky_relu(negative_slope)


def elu(input, alpha=1.0, inplace=False):
    return input.elu(alpha)


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
