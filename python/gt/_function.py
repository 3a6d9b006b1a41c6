"""Methods of tensors as functions: `gt.exp(x)`, `gt.exp(input=x)`, `gt.exp(x, out=y)`."""

from gt._gt import Tensor, is_grad_enabled


def _tracked(tensors):
    return any(isinstance(t, Tensor) and t.requires_grad for t in tensors)


def _put(name, out, result):
    """Writes a result into a tensor of the caller's, which takes its shape."""
    if isinstance(result, tuple):
        for place, part in zip(out, result):
            _put(name, place, part)
        return out
    if is_grad_enabled() and _tracked((out, result)):
        raise RuntimeError(
            f"{name}(): functions with out=... arguments don't support automatic differentiation, but one of the "
            "arguments requires grad: use the result instead, or gt.no_grad()"
        )
    from gt.composed.names import can_cast

    if not can_cast(result.dtype, out.dtype):
        raise RuntimeError(f"{name}(): a result of {result.dtype} can't be cast to the type {out.dtype} of out")
    if out.shape == result.shape:
        return out.copy_(result)
    out.data = result.to(out.dtype)
    return out


def function(method, first="input"):
    """The function that a method is. Its first argument may be given by name, and the result may go to `out`."""
    name = method.__name__

    def call(*args, **kwargs):
        if not kwargs:
            try:
                return method(*args)
            except TypeError:
                _refuse(name, args, first)
                raise
        out = kwargs.pop("out", None)
        if not args and first in kwargs:
            args = (kwargs.pop(first),)
        if args and first is not None and not isinstance(args[0], Tensor):
            _refuse(name, args, first)
        result = method(*args, **kwargs)
        return result if out is None else _put(name, out, result)

    call.__name__ = call.__qualname__ = name
    call.__module__ = "gt"
    call.__doc__ = method.__doc__
    call.__wrapped__ = method
    return call


def _refuse(name, args, first):
    if first is not None and args and not isinstance(args[0], Tensor):
        kind = type(args[0]).__name__
        raise TypeError(f"{name}(): argument '{first}' (position 1) must be Tensor, not {kind}") from None
