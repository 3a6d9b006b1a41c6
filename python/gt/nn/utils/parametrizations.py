"""Parametrizations of weights that are often used."""

from gt import _gt
from gt.autograd.grad_mode import no_grad
from gt.nn.module import Module
from gt.nn.utils.parametrize import register_parametrization

__all__ = ["spectral_norm", "weight_norm"]


def _norm_but(weight, dim):
    """The norms of the slices along a dimension, or of the whole."""
    if dim is None or dim == -1:
        return weight.norm()
    return weight.norm(2, [i for i in range(weight.dim()) if i != dim % weight.dim()], keepdim=True)


class _WeightNorm(Module):
    """A weight as its norms, and directions of whatever length."""

    def __init__(self, dim=0):
        super().__init__()
        self.dim = dim

    def forward(self, weight_g, weight_v):
        return weight_v * (weight_g / _norm_but(weight_v, self.dim))

    def right_inverse(self, weight):
        return _norm_but(weight, self.dim), weight


def weight_norm(module, name="weight", dim=0):
    """Trains the norms of a weight, of each slice along `dim` or of all, apart from its directions."""
    register_parametrization(module, name, _WeightNorm(dim), unsafe=True)
    return module


def _rows(weight, dim):
    """A weight as a matrix, with its dimension `dim` first."""
    return (weight.movedim(dim, 0) if dim else weight).flatten(1)


@no_grad()
def _power_iterations(rows, u, v, steps, eps):
    """Turns two vectors towards those of the largest singular value."""
    for _ in range(steps):
        new = rows.mv(v)
        u.copy_(new / new.norm().clamp(min=eps))
        new = rows.t().mv(u)
        v.copy_(new / new.norm().clamp(min=eps))


class _SpectralNorm(Module):
    """A weight divided by its largest singular value."""

    def __init__(self, weight, n_power_iterations=1, dim=0, eps=1e-12):
        super().__init__()
        if not -weight.dim() <= dim < weight.dim():
            raise IndexError(f"spectral_norm: dim must be within {weight.dim()} dimensions, got {dim}")
        if n_power_iterations <= 0:
            raise ValueError(
                f"Expected n_power_iterations to be positive, but got n_power_iterations={n_power_iterations}"
            )
        self.dim, self.eps, self.n_power_iterations = dim % weight.dim(), eps, n_power_iterations
        if weight.dim() > 1:
            rows = _rows(weight.detach(), self.dim)
            u, v = (_gt.randn(n, dtype=weight.dtype) for n in rows.shape)
            self.register_buffer("_u", u / u.norm().clamp(min=eps))
            self.register_buffer("_v", v / v.norm().clamp(min=eps))
            _power_iterations(rows, self._u, self._v, 15, eps)

    def forward(self, weight):
        if weight.dim() == 1:
            return weight / weight.norm().clamp(min=self.eps)
        rows = _rows(weight, self.dim)
        if self.training:
            _power_iterations(rows.detach(), self._u, self._v, self.n_power_iterations, self.eps)
        # Clones: a later call turns the vectors while this one's graph still reads them.
        return weight / self._u.clone().dot(rows.mv(self._v.clone()))

    def right_inverse(self, value):
        return value


def spectral_norm(module, name="weight", n_power_iterations=1, eps=1e-12, dim=None):
    """Divides a weight by its largest singular value, which each use in training knows a little better."""
    weight = getattr(module, name, None)
    if not isinstance(weight, _gt.Tensor):
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    if dim is None:
        dim = 1 if type(module).__name__.startswith("ConvTranspose") else 0
    register_parametrization(module, name, _SpectralNorm(weight, n_power_iterations, dim, eps))
    return module
