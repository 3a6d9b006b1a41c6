"""Activations under their names with `_`: the result is written where the input was."""

import functools

from gt.nn import drops
from gt.nn import functional as F

__all__ = ["celu_", "elu_", "hardtanh_", "leaky_relu_", "relu_", "rrelu_", "selu_", "threshold_"]


def _written_back(activation):
    @functools.wraps(activation)
    def write(input, *args, **kwargs):
        return activation(input, *args, **kwargs, inplace=True)

    write.__name__ = write.__qualname__ = f"{activation.__name__}_"
    write.__doc__ = f"`{activation.__name__}`, written back."
    return write


celu_, elu_, hardtanh_ = _written_back(F.celu), _written_back(F.elu), _written_back(F.hardtanh)
leaky_relu_, relu_, rrelu_ = _written_back(F.leaky_relu), _written_back(F.relu), _written_back(drops.rrelu)
selu_, threshold_ = _written_back(F.selu), _written_back(F.threshold)
