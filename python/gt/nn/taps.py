"""What modules show their backward hooks: taps that see gradients pass."""

import warnings

from gt._gt import Tensor
from gt.autograd.function import Function


class _Tap(Function):
    """Passes tensors through and shows their gradients to `see`, which may replace them."""

    @staticmethod
    def forward(ctx, see, *tensors):
        ctx.set_materialize_grads(False)
        ctx.see = see
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx, *grads):
        return (None, *ctx.see(grads))


def _tapped(values, see):
    """Taps the tensors among `values`, a tuple; the others stay as they are."""
    at = [i for i, v in enumerate(values) if isinstance(v, Tensor)]
    kind, values = type(values), list(values)
    for i, t in zip(at, _Tap.apply(see, *(values[i] for i in at))):
        values[i] = t
    return tuple(values) if kind is tuple else kind(*values)


def _tensors(values):
    """Which of them are tensors."""
    return [isinstance(v, Tensor) for v in values]


def _spread(grads, tensors):
    """Gradients of tensors, with None between them for the other values."""
    grads = iter(grads)
    return tuple(next(grads) if tensor else None for tensor in tensors)


def _of_tensors(grads, tensors):
    return tuple(grad for grad, tensor in zip(grads, tensors) if tensor)


def _replaced(grads, changed, what):
    """The gradients after a hook returned `changed` for them."""
    changed = (changed,) if isinstance(changed, Tensor) else tuple(changed)
    if len(changed) != len(grads):
        raise RuntimeError(f"{what}, got {len(changed)}, but expected {len(grads)}")
    return changed


class BackwardTaps:
    """Shows a module's backward hooks the gradients of one call: `inputs`, then `outputs`."""

    def __init__(self, module):
        self.module, self.grad_output, self.taps_inputs = module, None, False

    def inputs(self, args):
        """The arguments, tapped where they carry gradients."""
        self.into = _tensors(args)
        self.taps_inputs = any(isinstance(a, Tensor) and a.requires_grad for a in args)
        return _tapped(args, self._see_inputs) if self.taps_inputs else args

    def outputs(self, result):
        """The result, tapped."""
        if isinstance(result, Tensor):
            return self.outputs((result,))[0]
        if not isinstance(result, tuple):
            warnings.warn(
                "For backward hooks to be called, module output should be a Tensor or a tuple of Tensors but received "
                f"{type(result)}",
                stacklevel=4,
            )
        elif any(isinstance(r, Tensor) and r.requires_grad for r in result):
            self.out_of = _tensors(result)
            return _tapped(result, self._see_outputs)
        return result

    def _see_outputs(self, grads):
        grads = _spread(grads, self.out_of)
        for hook in self.module._backward_pre_hooks:
            changed = hook(self.module, grads)
            if changed is not None:
                grads = _replaced(grads, changed, "Backward pre hook returned an invalid number of grad_output")
        self.grad_output = grads
        if not self.taps_inputs:
            if any(g is not None for g in self._call((None,) * len(self.into))):
                raise RuntimeError(
                    "Backward hook for Modules where no input requires gradient should always return None or None for "
                    "all gradients."
                )
            self.grad_output = None
        return _of_tensors(grads, self.out_of)

    def _see_inputs(self, grads):
        # Gradients may come past the output, as those of a second derivative do.
        if self.grad_output is None:
            return grads
        grads = self._call(_spread(grads, self.into))
        self.grad_output = None
        return _of_tensors(grads, self.into)

    def _call(self, grad_input):
        for hook in self.module._backward_hooks:
            changed = hook(self.module, grad_input, self.grad_output)
            if changed is not None:
                what = "Backward hook returned an invalid number of grad_input"
                grad_input = _replaced(grad_input, changed, what)
        return grad_input
