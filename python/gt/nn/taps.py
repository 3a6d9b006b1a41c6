"""What modules show their backward hooks: taps that see gradients pass."""

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
    """Taps the tensors among `values`; the others stay as they are."""
    at = [i for i, v in enumerate(values) if isinstance(v, Tensor)]
    values = list(values)
    for i, t in zip(at, _Tap.apply(see, *(values[i] for i in at))):
        values[i] = t
    return tuple(values)


class BackwardTaps:
    """Shows a module's backward hooks the gradients of one call: `inputs`, then `outputs`."""

    def __init__(self, module):
        self.module, self.grad_output, self.taps_inputs, self.count = module, (), False, 0

    def inputs(self, args):
        """The arguments, tapped where they carry gradients."""
        self.count = len(args)
        if not any(isinstance(a, Tensor) and a.requires_grad for a in args):
            return args
        self.taps_inputs = True
        self.at = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        return _tapped(args, self._see_inputs)

    def outputs(self, result):
        """The result, tapped."""
        if isinstance(result, Tensor):
            return _tapped((result,), self._see_outputs)[0] if result.requires_grad else result
        if isinstance(result, tuple) and any(isinstance(r, Tensor) and r.requires_grad for r in result):
            return _tapped(result, self._see_outputs)
        return result

    def _see_outputs(self, grads):
        for hook in self.module._backward_pre_hooks:
            changed = hook(self.module, grads)
            if changed is not None:
                grads = changed if isinstance(changed, tuple) else (changed,)
        self.grad_output = grads
        if not self.taps_inputs:
            self._call((None,) * self.count)
        return grads

    def _see_inputs(self, grads):
        whole = [None] * self.count
        for i, grad in zip(self.at, grads):
            whole[i] = grad
        whole = self._call(tuple(whole))
        self.grad_output = ()
        return tuple(whole[i] for i in self.at)

    def _call(self, grad_input):
        for hook in self.module._backward_hooks:
            changed = hook(self.module, grad_input, self.grad_output)
            if changed is not None:
                grad_input = changed if isinstance(changed, tuple) else (changed,)
        return grad_input
