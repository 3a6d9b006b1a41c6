"""Functions of `gt.nn.functional` that PyTorch has beside tensors too, some of them with other arguments."""

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_max_pool1d",
    "alpha_dropout",
    "avg_pool1d",
    "batch_norm",
    "bilinear",
    "binary_cross_entropy_with_logits",
    "celu",
    "celu_",
    "channel_shuffle",
    "constant_pad_nd",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cosine_embedding_loss",
    "ctc_loss",
    "embedding",
    "feature_alpha_dropout",
    "feature_dropout",
    "group_norm",
    "hinge_embedding_loss",
    "instance_norm",
    "kl_div",
    "margin_ranking_loss",
    "max_pool1d",
    "max_pool1d_with_indices",
    "max_pool2d",
    "max_pool3d",
    "pixel_shuffle",
    "pixel_unshuffle",
    "poisson_nll_loss",
    "prelu",
    "rrelu",
    "rrelu_",
    "selu",
    "selu_",
    "triplet_margin_loss",
]


def _functional():
    # Not imported before it is needed: `import gt` would take longer.
    from gt.nn import functional

    return functional


def _same(name):
    """The function of that name in `gt.nn.functional`."""

    def call(*args, **kwargs):
        return getattr(_functional(), name)(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"`gt.nn.functional.{name}`."
    return call


conv1d, conv2d, conv3d = _same("conv1d"), _same("conv2d"), _same("conv3d")
conv_transpose1d, conv_transpose2d = _same("conv_transpose1d"), _same("conv_transpose2d")
conv_transpose3d, adaptive_avg_pool1d = _same("conv_transpose3d"), _same("adaptive_avg_pool1d")
max_pool1d, max_pool2d, max_pool3d = _same("max_pool1d"), _same("max_pool2d"), _same("max_pool3d")
max_pool1d_with_indices, avg_pool1d = _same("max_pool1d_with_indices"), _same("avg_pool1d")
bilinear, channel_shuffle = _same("bilinear"), _same("channel_shuffle")
pixel_shuffle, pixel_unshuffle = _same("pixel_shuffle"), _same("pixel_unshuffle")
prelu, selu, selu_, celu, celu_ = _same("prelu"), _same("selu"), _same("selu_"), _same("celu"), _same("celu_")
rrelu, rrelu_ = _same("rrelu"), _same("rrelu_")


def adaptive_max_pool1d(input, output_size):
    """The largest elements of so many windows as asked for, and where they stand."""
    return _functional().adaptive_max_pool1d(input, output_size, True)


def constant_pad_nd(input, pad, value=0):
    """More elements of one value at both ends of the last dimensions."""
    return _functional().pad(input, pad, "constant", value)


def embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    """Rows of `weight`, by index."""
    skip = None if padding_idx < 0 else padding_idx
    return _functional().embedding(indices, weight, skip, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)


def alpha_dropout(input, p, train):
    """`gt.nn.functional.alpha_dropout`."""
    return _functional().alpha_dropout(input, p, train)


def feature_alpha_dropout(input, p, train):
    """`gt.nn.functional.feature_alpha_dropout`."""
    return _functional().feature_alpha_dropout(input, p, train)


def feature_dropout(input, p, train):
    """Zeroes channels at random and scales the others, while training."""
    from gt.nn import drops

    return drops._drop_channels(input, p, train)


def batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled=True):
    """Zero mean and unit variance of each channel."""
    return _functional().batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def instance_norm(input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn_enabled=True):
    """Zero mean and unit variance of each channel of each sample."""
    moments = running_mean, running_var
    return _functional().instance_norm(input, *moments, weight, bias, use_input_stats, momentum, eps)


def group_norm(input, num_groups, weight=None, bias=None, eps=1e-5, cudnn_enabled=True):
    """Zero mean and unit variance of each group of channels of each sample."""
    return _functional().group_norm(input, num_groups, weight, bias, eps)


def _said(reduction):
    """What becomes of the elements of a loss: PyTorch counts the ways here, and keeps the elements unless told."""
    return reduction if isinstance(reduction, str) else ("none", "mean", "sum")[reduction]


def binary_cross_entropy_with_logits(input, target, weight=None, pos_weight=None, reduction=0):
    """The cross entropy of two classes, of scores before the sigmoid."""
    loss = _functional().binary_cross_entropy_with_logits
    return loss(input, target, weight, reduction=_said(reduction), pos_weight=pos_weight)


def cosine_embedding_loss(input1, input2, target, margin=0.0, reduction=0):
    """One less the cosine where the target is 1, and the cosine above the margin where it is -1."""
    return _functional().cosine_embedding_loss(input1, input2, target, margin, reduction=_said(reduction))


def hinge_embedding_loss(input, target, margin=1.0, reduction=0):
    """A distance where the target is 1, and how far it falls short of the margin where it is -1."""
    return _functional().hinge_embedding_loss(input, target, margin, reduction=_said(reduction))


def kl_div(input, target, reduction=0, *, log_target=False):
    """The divergence of one distribution from another."""
    return _functional().kl_div(input, target, reduction=_said(reduction), log_target=log_target)


def margin_ranking_loss(input1, input2, target, margin=0.0, reduction=0):
    """How far the order of two falls short of what the sign of `target` says, with a margin."""
    return _functional().margin_ranking_loss(input1, input2, target, margin, reduction=_said(reduction))


def triplet_margin_loss(anchor, positive, negative, margin=1.0, p=2.0, eps=1e-6, swap=False, reduction=0):
    """How far the distance to what is alike exceeds that to what is not, with a margin."""
    loss = _functional().triplet_margin_loss
    return loss(anchor, positive, negative, margin, p, eps, swap, reduction=_said(reduction))


def poisson_nll_loss(input, target, log_input, full, eps, reduction):
    """The negative logarithm of a Poisson probability."""
    return _functional().poisson_nll_loss(input, target, log_input, full, eps=eps, reduction=_said(reduction))


def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction=0, zero_infinity=False):
    """The negative logarithm of the probability that a sequence says its target, in whatever alignment."""
    given = log_probs, targets, input_lengths, target_lengths, blank
    return _functional().ctc_loss(*given, _said(reduction), zero_infinity)
