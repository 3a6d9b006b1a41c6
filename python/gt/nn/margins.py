"""Losses of pairs, of several classes at once, and of counts and densities."""

import math

from gt._gt import Tensor, arange, cosine_similarity, full_like, get_default_dtype, where, zeros_like
from gt.autograd.grad_mode import no_grad
from gt.composed.search import pairwise_distance

__all__ = [
    "cosine_embedding_loss",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "margin_ranking_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "poisson_nll_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
]


def said(size_average, reduce, reduction):
    """What becomes of the elements of a loss. The first two arguments are PyTorch's old way to say so."""
    if size_average is None and reduce is None:
        return reduction
    return "none" if reduce is False else "sum" if size_average is False else "mean"


def reduced(loss, size_average, reduce, reduction):
    """The elements, their mean or their sum."""
    reduction = said(size_average, reduce, reduction)
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def margin_ranking_loss(input1, input2, target, margin=0, size_average=None, reduce=None, reduction="mean"):
    """How far the order of two falls short of what the sign of `target` says, with a margin."""
    loss = (-target * (input1 - input2) + margin).clamp(min=0)
    return reduced(loss, size_average, reduce, reduction)


def triplet_margin_loss(
    anchor,
    positive,
    negative,
    margin=1.0,
    p=2,
    eps=1e-6,
    swap=False,
    size_average=None,
    reduce=None,
    reduction="mean",
):
    """How far the distance to what is alike exceeds that to what is not, with a margin."""

    def distance(a, b):
        return pairwise_distance(a, b, p, eps)

    return reduced(_triplet(anchor, positive, negative, distance, margin, swap), size_average, reduce, reduction)


def _triplet(anchor, positive, negative, distance, margin, swap):
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = far.minimum(distance(positive, negative))
    return (near - far + margin).clamp(min=0)


def triplet_margin_with_distance_loss(
    anchor, positive, negative, *, distance_function=None, margin=1.0, swap=False, reduction="mean"
):
    """`triplet_margin_loss` with a distance of the caller's."""
    ranks = anchor.dim(), positive.dim(), negative.dim()
    if len(set(ranks)) > 1:
        raise RuntimeError(
            "The anchor, positive, and negative tensors are expected to have the same number of dimensions, but got: "
            f"anchor {ranks[0]}D, positive {ranks[1]}D, and negative {ranks[2]}D inputs"
        )
    loss = _triplet(anchor, positive, negative, distance_function or pairwise_distance, margin, swap)
    return reduced(loss, None, None, reduction)


def hinge_embedding_loss(input, target, margin=1.0, size_average=None, reduce=None, reduction="mean"):
    """A distance where the target is 1, and how far it falls short of the margin where it is -1."""
    # Targets that are neither count as both.
    loss = where(target != -1, input, 0.0) + where(target != 1, (margin - input).clamp(min=0), 0.0)
    return reduced(loss, size_average, reduce, reduction)


def cosine_embedding_loss(input1, input2, target, margin=0, size_average=None, reduce=None, reduction="mean"):
    """One less the cosine where the target is 1, and the cosine above the margin where it is -1."""
    if not input1.is_floating_point():
        input1, input2 = input1.to(get_default_dtype()), input2.to(get_default_dtype())
    similar = cosine_similarity(input1, input2, -1)
    loss = where(target == 1, 1 - similar, (similar - margin).clamp(min=0))
    return reduced(loss, size_average, reduce, reduction)


def soft_margin_loss(input, target, size_average=None, reduce=None, reduction="mean"):
    """`log(1 + exp(-target * input))`."""
    return reduced((-target * input).softplus(), size_average, reduce, reduction)


def _rows(name, input, target, same):
    """Input and target as rows, one for each sample."""
    if input.dim() == 0:
        rows, target = _rows(name, input.reshape(1), target.reshape(1) if same else target, same)
        return rows, target
    if input.dim() not in (1, 2) or not input.shape[-1]:
        raise RuntimeError(f"{name}: expected a vector or a matrix with classes, got {list(input.shape)}")
    wanted = tuple(input.shape) if same else tuple(input.shape[:-1])
    if tuple(target.shape) != wanted and (same or target.numel() != math.prod(wanted) or target.dim() > 1):
        raise RuntimeError(f"{name}: inconsistent target size, expected {list(wanted)}, got {list(target.shape)}")
    rows = input.reshape(-1, input.shape[-1])
    return rows, target.reshape(rows.shape) if same else target.reshape(-1)


def multi_margin_loss(input, target, p=1, margin=1.0, weight=None, size_average=None, reduce=None, reduction="mean"):
    """How far the scores of the other classes come near that of the right one, with a margin."""
    if p not in (1, 2):
        raise ValueError("only p == 1 and p == 2 supported")
    if weight is not None and weight.dim() != 1:
        raise ValueError("weight must be one-dimensional")
    x, right = _rows("multi_margin_loss", input, target, False)
    place = right.unsqueeze(1)
    short = (margin - x.gather(1, place) + x).clamp(min=0).pow(p)
    if weight is not None:
        short = short * weight.gather(0, right).unsqueeze(1)
    loss = short.masked_fill(arange(x.shape[1]) == place, 0).mean(1)
    return reduced(loss.reshape(target.shape), size_average, reduce, reduction)


def multilabel_margin_loss(input, target, size_average=None, reduce=None, reduction="mean"):
    """How far the scores of other classes come near those of the right ones, which stand before the first -1."""
    x, classes = _rows("multilabel_margin_loss", input, target, True)
    given = (classes >= 0).long().cumprod(1) > 0
    place = where(given, classes, 0)
    right = zeros_like(place).scatter_add(1, place, given.long()) > 0
    short = (1 - x.gather(1, place).unsqueeze(2) + x.unsqueeze(1)).clamp(min=0)
    short = short.masked_fill(~given.unsqueeze(2) | right.unsqueeze(1), 0)
    loss = short.sum((1, 2)) / x.shape[1]
    return reduced(loss.reshape(input.shape[:-1]), size_average, reduce, reduction)


def multilabel_soft_margin_loss(input, target, weight=None, size_average=None, reduce=None, reduction="mean"):
    """The mean over classes of the cross entropy of each being there or not."""
    loss = -(target * input.logsigmoid() + (1 - target) * (-input).logsigmoid())
    loss = loss if weight is None else loss * weight
    return reduced(loss.mean(-1), size_average, reduce, reduction)


def poisson_nll_loss(
    input, target, log_input=True, full=False, size_average=None, eps=1e-8, reduce=None, reduction="mean"
):
    """The negative logarithm of a Poisson probability."""
    loss = input.exp() - target * input if log_input else input - target * (input + eps).log()
    if full:
        rough = target * target.log() - target + 0.5 * (2 * math.pi * target).log()
        loss = loss + where(target > 1, rough, 0.0)
    return reduced(loss, size_average, reduce, reduction)


def gaussian_nll_loss(input, target, var, full=False, eps=1e-6, reduction="mean"):
    """The negative logarithm of a normal density."""
    var = var if isinstance(var, Tensor) else full_like(input, var)
    if var.dim() == input.dim() - 1 and tuple(input.shape[:-1]) == tuple(var.shape):
        var = var.unsqueeze(-1)
    elif var.dim() != input.dim() or sum(n for m, n in zip(input.shape, var.shape) if m != n) > 1:
        raise ValueError(f"gaussian_nll_loss: var is of incorrect size, got {list(var.shape)} for {list(input.shape)}")
    with no_grad():
        bounded = var.clamp(min=eps)
    # The bound moves values, and no gradients.
    var = var + (bounded - var).detach()
    loss = 0.5 * (var.log() + (input - target) ** 2 / var)
    return reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, None, None, reduction)
