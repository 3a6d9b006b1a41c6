"""Functions of layers and losses."""

import functools
import warnings

from gt import _gt
from gt._function import function
from gt._gt import (
    Tensor,
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cosine_similarity,
    huber_loss,
    kl_div,
    l1_loss,
    layer_norm,
    linear,
    one_hot,
    relu,
    rms_norm,
    scaled_dot_product_attention,
    silu,
    smooth_l1_loss,
)
from gt.autograd.grad_mode import no_grad
from gt.composed.pointwise import hardshrink
from gt.composed.search import pairwise_distance, pdist
from gt.nn.margins import said

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
    "gumbel_softmax",
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
    "pairwise_distance",
    "pdist",
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

sigmoid = function(Tensor.sigmoid)
tanh = function(Tensor.tanh)
gelu = function(Tensor.gelu)
softplus = function(Tensor.softplus)
softsign = function(Tensor.softsign)
logsigmoid = function(Tensor.logsigmoid)


def _also_in_place(activation):
    """An activation of its first argument that can write its result there."""

    @functools.wraps(activation)
    def either(input, *args, inplace=False, **kwargs):
        if len(args) == settings:
            *args, inplace = args
        if not inplace:
            return activation(input, *args, **kwargs)
        # A clone costs nothing, and what it saves for the backward pass is not what is written here.
        return input.copy_(activation(input.clone(), *args, **kwargs))

    settings = activation.__code__.co_argcount
    return either


@_also_in_place
def relu6(input):
    return input.relu6()


@_also_in_place
def hardsigmoid(input):
    return input.hardsigmoid()


@_also_in_place
def hardswish(input):
    return input.hardswish()


@_also_in_place
def hardtanh(input, min_val=-1.0, max_val=1.0):
    return input.hardtanh(min_val, max_val)


@_also_in_place
def mish(input):
    return input.mish()


@_also_in_place
def leaky_relu(input, negative_slope=0.01):
    return input.leaky_relu(negative_slope)


@_also_in_place
def elu(input, alpha=1.0):
    return input.elu(alpha)


@_also_in_place
def selu(input):
    """`elu` with the constants that keep mean and variance through layers."""
    alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    return input.elu(alpha) * scale


@_also_in_place
def celu(input, alpha=1.0):
    positive = input > 0
    return _gt.where(positive, input, alpha * (input.masked_fill(positive, 0) / alpha).expm1())


def cross_entropy(
    input,
    target,
    weight=None,
    size_average=None,
    ignore_index=-100,
    reduce=None,
    reduction="mean",
    label_smoothing=0.0,
):
    """Cross entropy of logits and class indices, or probabilities in the shape of the logits."""
    if ignore_index >= 0 and target.is_floating_point():
        raise RuntimeError("ignore_index is not supported for floating point target")
    reduction = said(size_average, reduce, reduction)
    return _gt.cross_entropy(
        input, target, weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
    )


# Under the name of the prototype.
cross_entropy_loss = cross_entropy


def nll_loss(input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean"):
    """Negative log likelihood of class indices."""
    reduction = said(size_average, reduce, reduction)
    return _gt.nll_loss(input, target, weight, ignore_index=ignore_index, reduction=reduction)


def mse_loss(input, target, size_average=None, reduce=None, reduction="mean", weight=None):
    """The square of the difference; with weights, the mean is by their sum."""
    reduction = said(size_average, reduce, reduction)
    if input.shape != target.shape:
        warnings.warn(
            f"Using a target size ({target.shape}) that is different to the input size ({input.shape}). This will "
            "likely lead to incorrect results due to broadcasting. Please ensure they have the same size.",
            stacklevel=2,
        )
    if weight is None:
        return _gt.mse_loss(input, target, reduction=reduction)
    if tuple(weight.shape) != tuple(input.shape):
        raise ValueError(f"mse_loss: weights must have the shape of the input, got {list(weight.shape)}")
    loss = _gt.mse_loss(input, target, reduction="none") * weight
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / weight.sum()


def glu(input, dim=-1):
    """The first half, gated by the second."""
    if input.shape[dim] % 2:
        raise RuntimeError(f"glu: expected an even size to be halved, got {input.shape[dim]} in dimension {dim}")
    value, gate = input.chunk(2, dim)
    return value * gate.sigmoid()


def prelu(input, weight):
    """A leaky ReLU with a slope for each channel, or one for all."""
    if weight.numel() == 1:
        weight = weight.view(())
    elif input.dim() > 1:
        weight = weight.view(-1, *[1] * (input.dim() - 2))
    return _gt.where(input >= 0, input, weight * input)


def tanhshrink(input):
    return input - input.tanh()


def softshrink(input, lambd=0.5):
    return _gt.where(input > lambd, input - lambd, _gt.where(input < -lambd, input + lambd, input * 0))


@_also_in_place
def threshold(input, threshold, value):
    return input.masked_fill(input <= threshold, value)


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


@_also_in_place
def dropout(input, p=0.5, training=True):
    """Zeroes elements at random and scales the others, while training."""
    return input.dropout(p, training)


def embedding(
    input,
    weight,
    padding_idx=None,
    max_norm=None,
    norm_type=2.0,
    scale_grad_by_freq=False,
    sparse=False,
):
    """Rows of `weight`, by index. The row `padding_idx` gets no gradient; rows longer than `max_norm` are shortened
    in place first; `scale_grad_by_freq` divides the gradient of a row by how often it is used."""
    if max_norm is not None:
        _shorten_rows(input, weight, max_norm, norm_type)
    rows = _gt.embedding(input, weight)
    if scale_grad_by_freq:
        counts = _gt.zeros(weight.shape[0]).index_add(0, input.reshape(-1).long(), _gt.ones(input.numel()))
        scaled = rows / counts[input].unsqueeze(-1).to(rows.dtype)
        rows = rows.detach() + (scaled - scaled.detach())
    if padding_idx is None:
        return rows
    skip = (input == padding_idx % weight.shape[0]).unsqueeze(-1)
    return _gt.where(skip, rows.detach(), rows)


@no_grad()
def _shorten_rows(input, weight, max_norm, norm_type):
    used = _gt.zeros(weight.shape[0], dtype=_gt.bool).index_fill(0, input.reshape(-1).long(), True)
    norm = weight.norm(norm_type, 1, keepdim=True)
    longer = used.unsqueeze(1) & (norm > max_norm)
    weight.copy_(_gt.where(longer, weight * (max_norm / (norm + 1e-7)), weight))


def _edge_index(length, before, after, mode):
    """Which element stands at each place of a padded dimension."""
    place = _gt.arange(-before, length + after)
    if mode == "replicate":
        return place.clamp(0, length - 1)
    if mode == "circular":
        return place % length
    turned = place % (2 * (length - 1)) if length > 1 else place * 0
    return length - 1 - (turned - (length - 1)).abs()


def pad(input, pad, mode="constant", value=None):
    """More elements at both ends of the last dimensions: a value, or what `reflect`, `replicate` and `circular`
    find in the tensor."""
    if mode == "constant":
        return input.pad(pad, mode, value)
    if mode not in ("reflect", "replicate", "circular"):
        raise NotImplementedError(f"pad: expected constant, reflect, replicate or circular, got {mode!r}")
    if value:
        raise RuntimeError(f"pad: {mode!r} takes no value, got {value}")
    for i in range(len(pad) // 2):
        before, after = pad[2 * i : 2 * i + 2]
        dim = input.dim() - 1 - i
        if mode == "circular" and min(before, after) < 0:
            # What is cut off does not come back at the other end.
            input = input.narrow(dim, max(0, -before), input.shape[dim] + min(before, 0) + min(after, 0))
            before, after = max(before, 0), max(after, 0)
        length = input.shape[dim]
        most = length - 1 if mode == "reflect" else length
        if mode != "replicate" and max(before, after) > most:
            raise RuntimeError(f"pad: at most {most} on each side of dimension {dim} with {mode!r}, got {pad}")
        if before or after:
            input = input.index_select(dim, _edge_index(length, before, after, mode))
    return input


def gumbel_softmax(logits, tau=1, hard=False, eps=1e-10, dim=-1):
    """A softmax of logits with Gumbel noise: nearly one of them; with `hard` exactly one, with the gradient of that."""
    noise = -_gt.empty_like(logits).exponential_().log()
    soft = ((logits + noise) / tau).softmax(dim)
    if not hard:
        return soft
    one = _gt.zeros_like(soft).scatter(dim, soft.detach().argmax(dim, keepdim=True), 1.0)
    return one - soft.detach() + soft


# Functions that have homes of their own, which import this one.
_HOMES = (
    "bags",
    "ctc",
    "drops",
    "folds",
    "grids",
    "heads",
    "inplace",
    "margins",
    "norms",
    "pools",
    "resize",
    "windows",
)
TYPE_CHECKING = False
if TYPE_CHECKING:
    from gt.nn.bags import *  # noqa: F403
    from gt.nn.ctc import *  # noqa: F403
    from gt.nn.drops import *  # noqa: F403
    from gt.nn.folds import *  # noqa: F403
    from gt.nn.grids import *  # noqa: F403
    from gt.nn.heads import *  # noqa: F403
    from gt.nn.inplace import *  # noqa: F403
    from gt.nn.margins import *  # noqa: F403
    from gt.nn.norms import *  # noqa: F403
    from gt.nn.pools import *  # noqa: F403
    from gt.nn.resize import *  # noqa: F403
    from gt.nn.windows import *  # noqa: F403


def _gather():
    """Offers the functions of those homes too, once they are there."""
    from importlib import import_module

    for home in _HOMES:
        module = import_module(f"gt.nn.{home}")
        globals().update((name, getattr(module, name)) for name in module.__all__)
        __all__.extend(module.__all__)
