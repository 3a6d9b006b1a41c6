"""Helpers for training."""

from gt import _gt
from gt._gt import Tensor
from gt._places import places as _places
from gt.autograd.grad_mode import no_grad
from gt.nn.utils import parametrizations, parametrize, prune, rnn
from gt.nn.utils.norms import remove_spectral_norm, remove_weight_norm, spectral_norm, weight_norm

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "get_total_norm",
    "parametrizations",
    "parametrize",
    "parameters_to_vector",
    "prune",
    "remove_spectral_norm",
    "remove_weight_norm",
    "rnn",
    "skip_init",
    "spectral_norm",
    "vector_to_parameters",
    "weight_norm",
]


def _list(tensors):
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _checked(norm, norm_type, error_if_nonfinite):
    # Only a caller who wants to know waits for the number.
    if error_if_nonfinite and not bool(norm.isfinite()):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it cannot be "
            "clipped. To disable this error and scale the gradients by the non-finite norm anyway, set "
            "`error_if_nonfinite=False`"
        )
    return norm


def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """Scales the gradients so that their common norm is at most `max_norm`; gives the norm they had, without waiting
    for it unless `error_if_nonfinite` asks for a look."""
    parameters = _list(parameters)
    if error_if_nonfinite:
        norm = get_total_norm([p.grad for p in parameters if p.grad is not None], norm_type, True)
        clip_grads_with_norm_(parameters, max_norm, norm)
        return norm
    return _gt.clip_grad_norm_(parameters, float(max_norm), float(norm_type))


@no_grad()
def get_total_norm(tensors, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """The norm of all tensors together."""
    norm_type = float(norm_type)
    norms = [t.detach().norm(norm_type) for t in _list(tensors)]
    total = _gt.stack(norms).norm(norm_type) if norms else _gt.zeros(())
    return _checked(total, norm_type, error_if_nonfinite)


@no_grad()
def clip_grads_with_norm_(parameters, max_norm, total_norm, foreach=None):
    """Scales the gradients by `max_norm / total_norm` where that is below one."""
    scale = (float(max_norm) / (total_norm + 1e-6)).clamp(max=1.0)
    for p in _list(parameters):
        if p.grad is not None:
            p.grad.mul_(scale.to(p.grad.dtype))


def clip_grad_value_(parameters, clip_value, foreach=None):
    """Clamps the gradients of parameters to at most `clip_value` in size."""
    for p in _list(parameters):
        if p.grad is not None:
            p.grad.clamp_(-clip_value, clip_value)


def parameters_to_vector(parameters):
    """All parameters, flattened into one tensor."""
    from gt._gt import cat

    return cat([p.reshape(-1) for p in parameters])


def vector_to_parameters(vector, parameters):
    """Copies parts of one flat tensor into the parameters."""
    at = 0
    for p in parameters:
        p.data.copy_(vector[at : at + p.numel()].view(p.shape))
        at += p.numel()


def skip_init(module_cls, *args, **kwargs):
    """A module whose parameters have no particular values: here, those of its class."""
    return module_cls(*args, **kwargs)


# PyTorch's older name.
clip_grad_norm = clip_grad_norm_


_places(__name__, {"clip_grad": __name__, "convert_parameters": __name__})
