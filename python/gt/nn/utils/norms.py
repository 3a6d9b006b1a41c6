"""Weights that are computed before each call, under PyTorch's older names in saved state (`weight_g`, `weight_orig`).
New programs use `parametrizations`."""

from gt import _gt
from gt.autograd.grad_mode import no_grad
from gt.nn.parameter import Parameter
from gt.nn.utils.parametrizations import _norm_but, _power_iterations, _rows

__all__ = ["remove_spectral_norm", "remove_weight_norm", "spectral_norm", "weight_norm"]


class _Hook:
    """Computes a weight before each call of its module."""

    def __init__(self, name):
        self.name = name

    def __call__(self, module, inputs):
        setattr(module, self.name, self.compute(module))

    def compute(self, module):
        raise NotImplementedError

    @classmethod
    def add(cls, module, name, *settings):
        for hook in module._forward_pre_hooks:
            if isinstance(hook, cls) and hook.name == name:
                raise RuntimeError(f"Cannot register two {cls.said} hooks on the same parameter {name}")
        hook = cls(name, *settings)
        weight = getattr(module, name)
        delattr(module, name)
        hook.begin(module, weight)
        hook.handle = module.register_forward_pre_hook(hook)
        return module

    @classmethod
    def remove(cls, module, name):
        for hook in module._forward_pre_hooks:
            if isinstance(hook, cls) and hook.name == name:
                with no_grad():
                    value = hook.compute(module).detach()
                delattr(module, name)
                hook.end(module)
                hook.handle.remove()
                module.register_parameter(name, Parameter(value.clone()))
                return module
        raise ValueError(f"{cls.said} of '{name}' not found in {module}")


class _WeightNormHook(_Hook):
    said = "weight_norm"

    def __init__(self, name, dim):
        super().__init__(name)
        self.dim = dim

    def begin(self, module, weight):
        module.register_parameter(f"{self.name}_g", Parameter(_norm_but(weight.detach(), self.dim)))
        module.register_parameter(f"{self.name}_v", Parameter(weight.detach()))
        self(module, None)

    def compute(self, module):
        g, v = getattr(module, f"{self.name}_g"), getattr(module, f"{self.name}_v")
        return v * (g / _norm_but(v, self.dim))

    def end(self, module):
        for part in "gv":
            delattr(module, f"{self.name}_{part}")


class _SpectralNormHook(_Hook):
    said = "spectral_norm"

    def __init__(self, name, steps, dim, eps):
        super().__init__(name)
        self.steps, self.dim, self.eps = steps, dim, eps

    def begin(self, module, weight):
        rows = _rows(weight.detach(), self.dim)
        u, v = (_gt.randn(n, dtype=weight.dtype) for n in rows.shape)
        module.register_parameter(f"{self.name}_orig", weight)
        setattr(module, self.name, weight.detach())
        module.register_buffer(f"{self.name}_u", u / u.norm().clamp(min=self.eps))
        module.register_buffer(f"{self.name}_v", v / v.norm().clamp(min=self.eps))

    def compute(self, module):
        weight = getattr(module, f"{self.name}_orig")
        u, v = getattr(module, f"{self.name}_u"), getattr(module, f"{self.name}_v")
        rows = _rows(weight, self.dim)
        if module.training and self.steps:
            # The other vector first, as this form always did.
            _power_iterations(rows.t(), v, u, self.steps, self.eps)
            u, v = u.clone(), v.clone()
        return weight / u.dot(rows.mv(v))

    def end(self, module):
        for part in ("orig", "u", "v"):
            delattr(module, f"{self.name}_{part}")


def weight_norm(module, name="weight", dim=0):
    """Trains the norms of a weight apart from its directions, as `weight_g` and `weight_v`."""
    return _WeightNormHook.add(module, name, dim)


def remove_weight_norm(module, name="weight"):
    """Makes the weight a parameter again, with the value it has."""
    return _WeightNormHook.remove(module, name)


def spectral_norm(module, name="weight", n_power_iterations=1, eps=1e-12, dim=None):
    """Divides a weight by its largest singular value, which each call in training knows a little better."""
    if n_power_iterations <= 0:
        raise ValueError(f"Expected n_power_iterations to be positive, but got n_power_iterations={n_power_iterations}")
    if dim is None:
        dim = 1 if type(module).__name__.startswith("ConvTranspose") else 0
    return _SpectralNormHook.add(module, name, n_power_iterations, dim, eps)


def remove_spectral_norm(module, name="weight"):
    """Makes the weight a parameter again, with the value it has."""
    return _SpectralNormHook.remove(module, name)
