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
    """Looks for NaN in the gradients that each operation of a backward pass makes, and names the first that makes one,
    with the line that recorded it. Sets this at once; as a context, until its end. Slow: every gradient is waited for.
    """

    def __init__(self, mode, check_nan=True):
        self._before = _gt._set_anomaly(bool(mode), bool(check_nan))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        _gt._set_anomaly(*self._before)


class detect_anomaly:
    """`set_detect_anomaly(True)` inside a context."""

    def __init__(self, check_nan=True):
        import warnings

        self._check_nan = bool(check_nan)
        warnings.warn(
            "Anomaly Detection has been enabled. This mode will increase the runtime and should only be enabled for "
            "debugging.",
            stacklevel=2,
        )

    def __enter__(self):
        self._before = _gt._set_anomaly(True, self._check_nan)
        return self

    def __exit__(self, *error):
        _gt._set_anomaly(*self._before)
