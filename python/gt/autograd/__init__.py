"""Automatic differentiation."""

from gt import _gt, profiler
from gt._gt import Node, backward
from gt._places import places as _places
from gt.autograd import functional
from gt.autograd.function import Function, once_differentiable
from gt.autograd.grad_mode import enable_grad, inference_mode, no_grad, set_grad_enabled
from gt.autograd.gradcheck import gradcheck, gradgradcheck

__all__ = [
    "Function",
    "Node",
    "Variable",
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
    "profiler",
    "set_detect_anomaly",
    "set_grad_enabled",
]


def grad(
    outputs,
    inputs,
    grad_outputs=None,
    retain_graph=None,
    create_graph=False,
    only_inputs=True,
    allow_unused=None,
    is_grads_batched=False,
    materialize_grads=False,
):
    """The gradients of outputs with respect to inputs. With `is_grads_batched`, those for each of several
    `grad_outputs`, which stand along a first dimension; `only_inputs` is taken as it is in PyTorch, where it says
    nothing any more."""
    if isinstance(inputs, (list, tuple)) and not inputs:
        raise RuntimeError("grad: expected inputs to differentiate with respect to, got none")
    options = create_graph, allow_unused, False, materialize_grads
    if not is_grads_batched:
        return _gt.grad(outputs, inputs, grad_outputs, retain_graph, *options)
    many = isinstance(grad_outputs, (list, tuple))
    batches = [g if g is None else g.unbind(0) for g in (grad_outputs if many else [grad_outputs])]
    count = next((len(g) for g in batches if g is not None), 0)
    if not count:
        raise RuntimeError("grad: is_grads_batched needs grad_outputs with one gradient or more along dimension 0")
    every = []
    for i in range(count):
        some = [g if g is None else g[i] for g in batches]
        kept = retain_graph or create_graph or i + 1 < count
        every.append(_gt.grad(outputs, inputs, some if many else some[0], kept, *options))
    return tuple(None if column[0] is None else _gt.stack(column) for column in map(list, zip(*every)))


class _Variables(type):
    def __call__(cls, data, requires_grad=False, volatile=False):
        return data.requires_grad_() if requires_grad else data

    def __instancecheck__(cls, value):
        return isinstance(value, _gt.Tensor)


class Variable(metaclass=_Variables):
    """Old programs wrap tensors in it: it gives the tensor itself."""


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


_places(__name__, {"variable": __name__, "profiler": "gt.profiler"})
