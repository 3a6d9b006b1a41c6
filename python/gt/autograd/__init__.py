"""Automatic differentiation."""

import functools

from gt import _gt
from gt._gt import Node, backward
from gt.autograd import functional
from gt.autograd.function import Function, once_differentiable
from gt.autograd.grad_mode import enable_grad, inference_mode, no_grad, set_grad_enabled
from gt.autograd.gradcheck import gradcheck, gradgradcheck

__all__ = [
    "Function",
    "Node",
    "backward",
    "detect_anomaly",
    "enable_grad",
    "functional",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "inference_mode",
    "no_grad",
    "once_differentiable",
    "set_detect_anomaly",
    "set_grad_enabled",
]


@functools.wraps(_gt.grad)
def grad(outputs, inputs, *args, **kwargs):
    if isinstance(inputs, (list, tuple)) and not inputs:
        raise RuntimeError("grad: expected inputs to differentiate with respect to, got none")
    return _gt.grad(outputs, inputs, *args, **kwargs)


class set_detect_anomaly:
    """Taken as PyTorch programs give it, with a warning: the backward pass does not look for NaN."""

    def __init__(self, mode, check_nan=True):
        self.mode = mode
        if mode:
            import warnings

            warnings.warn("detect_anomaly: GT does not look for NaN in the backward pass", stacklevel=2)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


class detect_anomaly(set_detect_anomaly):
    """`set_detect_anomaly(True)` as a context."""

    def __init__(self, check_nan=True):
        super().__init__(True, check_nan)
