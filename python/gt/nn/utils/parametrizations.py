"""Parametrizations of weights that are often used."""

from gt.nn.module import Module
from gt.nn.utils.parametrize import register_parametrization

__all__ = ["weight_norm"]


class _WeightNorm(Module):
    """A weight as its norms, and directions of whatever length."""

    def __init__(self, dim=0):
        super().__init__()
        self.dim = dim

    def _norm(self, weight):
        if self.dim is None or self.dim == -1:
            return weight.norm()
        return weight.norm(2, [i for i in range(weight.dim()) if i != self.dim % weight.dim()], keepdim=True)

    def forward(self, weight_g, weight_v):
        return weight_v * (weight_g / self._norm(weight_v))

    def right_inverse(self, weight):
        return self._norm(weight), weight


def weight_norm(module, name="weight", dim=0):
    """Trains the norms of a weight, of each slice along `dim` or of all, apart from its directions."""
    register_parametrization(module, name, _WeightNorm(dim), unsafe=True)
    return module
