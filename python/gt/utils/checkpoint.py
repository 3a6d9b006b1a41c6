"""Less memory for more work: what is inside is computed again when its gradient is asked for."""

from gt._gt import Tensor, get_rng_state, set_rng_state, zeros
from gt.autograd import backward as run_backward
from gt.autograd.function import Function
from gt.autograd.grad_mode import enable_grad, no_grad
from gt.random import fork_rng

__all__ = ["checkpoint", "checkpoint_sequential"]


class _Again(Function):
    """Keeps the arguments, and runs the function once more for its gradient."""

    @staticmethod
    def forward(ctx, call, state, tracker, *args):
        ctx.call, ctx.state = call, state
        ctx.places = [i for i, x in enumerate(args) if isinstance(x, Tensor)]
        ctx.others = [None if isinstance(x, Tensor) else x for x in args]
        ctx.save_for_backward(*(args[i] for i in ctx.places))
        with no_grad():
            return call(*args)

    @staticmethod
    def backward(ctx, *grads):
        args, leaves = list(ctx.others), []
        for place, saved in zip(ctx.places, ctx.saved_tensors):
            leaf = saved.detach()
            if saved.requires_grad:
                leaf.requires_grad_()
            leaves.append(leaf)
            args[place] = leaf
        with enable_grad(), fork_rng(enabled=ctx.state is not None):
            if ctx.state is not None:
                set_rng_state(ctx.state)
            out = ctx.call(*args)
        outs = out if isinstance(out, tuple) else (out,)
        pairs = [(o, g) for o, g in zip(outs, grads) if isinstance(o, Tensor) and o.requires_grad and g is not None]
        if pairs:
            run_backward([o for o, _ in pairs], [g for _, g in pairs])
        found = [None] * len(args)
        for place, leaf in zip(ctx.places, leaves):
            found[place] = leaf.grad
        return (None, None, None, *found)


def checkpoint(function, *args, use_reentrant=None, preserve_rng_state=True, **kwargs):
    """`function(*args)`, whose values between are not kept for the backward pass but computed again.

    Parameters that the function uses get their gradients in `.grad`, as with PyTorch's reentrant way.
    """
    kwargs.pop("context_fn", None), kwargs.pop("determinism_check", None), kwargs.pop("debug", None)
    state = get_rng_state() if preserve_rng_state else None
    # So that the result is tracked even if only parameters need gradients.
    tracker = zeros(1, requires_grad=True)
    return _Again.apply(lambda *xs: function(*xs, **kwargs), state, tracker, *args)


def checkpoint_sequential(functions, segments, input, use_reentrant=None, preserve_rng_state=True, **kwargs):
    """Modules one after the other, in so many segments; all but the last are checkpointed."""
    modules = list(functions.children()) if hasattr(functions, "children") else list(functions)

    def run(part):
        def call(x):
            for module in part:
                x = module(x)
            return x

        return call

    size = max(1, len(modules) // segments)
    cuts = [i * size for i in range(segments)] + [len(modules)]
    for start, end in zip(cuts[:-2], cuts[1:-1]):
        input = checkpoint(run(modules[start:end]), input, preserve_rng_state=preserve_rng_state)
    return run(modules[cuts[-2] :])(input)
