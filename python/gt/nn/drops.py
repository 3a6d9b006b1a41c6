"""What is drawn at random while training: dropout of whole channels, dropout that keeps mean and variance, slopes."""

import math
import warnings

from gt._gt import where
from gt.nn.functional import _also_in_place
from gt.nn.layers import Dropout

__all__ = ["alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout", "rrelu"]

# What SELU tends to far below zero.
_LOWEST = -1.7580993408473766


def _check(p):
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def _channels(input):
    """A shape with one element for each channel of each sample."""
    if input.dim() < 2:
        raise RuntimeError("Feature dropout requires at least 2 dimensions in the input")
    return (*input.shape[:2], *[1] * (input.dim() - 2))


def _drop_channels(input, p, training):
    _check(p)
    if not training or p == 0:
        return input
    return input * input.new_ones(_channels(input)).dropout(p, True)


@_also_in_place
def dropout1d(input, p=0.5, training=True):
    """Zeroes channels of one dimension at random and scales the others, while training."""
    _check(p)
    if input.dim() not in (2, 3):
        raise RuntimeError(f"dropout1d: Expected 2D or 3D input, but received a {input.dim()}D input")
    return _drop_batched(input, 1, p, training)


def _drop_batched(input, rank, p, training):
    if input.dim() == rank + 2:
        return _drop_channels(input, p, training)
    return _drop_channels(input.unsqueeze(0), p, training).squeeze(0)


@_also_in_place
def dropout2d(input, p=0.5, training=True):
    """Zeroes channels of images at random and scales the others, while training."""
    if input.dim() not in (3, 4):
        warnings.warn(f"dropout2d: expected images (3D or 4D), got a {input.dim()}-D input: use dropout", stacklevel=3)
    if input.dim() == 3:
        warnings.warn(
            "dropout2d: a 3D input is taken as (N, C, L), as PyTorch takes it: use dropout1d to say so", stacklevel=3
        )
    return _drop_channels(input, p, training)


@_also_in_place
def dropout3d(input, p=0.5, training=True):
    """Zeroes channels of volumes at random and scales the others, while training."""
    if input.dim() not in (4, 5):
        warnings.warn(f"dropout3d: expected volumes (4D or 5D), got a {input.dim()}-D input: use dropout", stacklevel=3)
    return _drop_batched(input, 3, p, training)


def _drop_to_lowest(input, shape, p, training):
    _check(p)
    if not training or p == 0 or not input.numel():
        return input
    if p == 1:
        return input * 0
    kept = input.new_full(shape, 1 - p).bernoulli()
    scale = 1 / math.sqrt((_LOWEST**2 * p + 1) * (1 - p))
    return input * (kept * scale) + ((1 - kept) * (_LOWEST * scale) - _LOWEST * scale * p)


@_also_in_place
def alpha_dropout(input, p=0.5, training=False):
    """Elements that become what SELU tends to below zero, so that mean and variance stay."""
    return _drop_to_lowest(input, input.shape, p, training)


@_also_in_place
def feature_alpha_dropout(input, p=0.5, training=False):
    """Channels that become what SELU tends to below zero, so that mean and variance stay."""
    return _drop_to_lowest(input, _channels(input) if training else None, p, training)


@_also_in_place
def rrelu(input, lower=1 / 8, upper=1 / 3, training=False):
    """A leaky ReLU whose slope is drawn for each element while training, and the mean of its bounds otherwise."""
    if lower > upper:
        raise RuntimeError("Lower bound should be less than or equal to the upper bound")
    if not training:
        return input.leaky_relu((lower + upper) / 2)
    return where(input <= 0, input * input.detach().new_empty(input.shape).uniform_(lower, upper), input)


class Dropout1d(Dropout):
    """Zeroes channels of one dimension at random while training."""

    def forward(self, input):
        return dropout1d(input, self.p, self.training, self.inplace)


class Dropout2d(Dropout):
    """Zeroes channels of images at random while training."""

    def forward(self, input):
        return dropout2d(input, self.p, self.training, self.inplace)


class Dropout3d(Dropout):
    """Zeroes channels of volumes at random while training."""

    def forward(self, input):
        return dropout3d(input, self.p, self.training, self.inplace)


class AlphaDropout(Dropout):
    """Dropout that keeps mean and variance, for networks of SELU."""

    def forward(self, input):
        return alpha_dropout(input, self.p, self.training)


class FeatureAlphaDropout(Dropout):
    """Dropout of channels that keeps mean and variance, for networks of SELU."""

    def forward(self, input):
        return feature_alpha_dropout(input, self.p, self.training)
