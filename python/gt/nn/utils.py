"""Helpers for training."""

from gt._gt import clip_grad_norm_

__all__ = ["clip_grad_norm_", "clip_grad_value_", "parameters_to_vector", "vector_to_parameters"]


def clip_grad_value_(parameters, clip_value):
    """Clamps the gradients of parameters to at most `clip_value` in size."""
    for p in parameters:
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
