"""Methods of tensors as functions: `gt.exp(x)`, `gt.exp(input=x)`, `gt.exp(x, out=y)`."""

from gt._gt import Tensor, full, is_grad_enabled, result_type


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
            except (TypeError, AttributeError):
                operands = _operands(name, args, first)
                if operands is args:
                    raise
                return method(*operands)
        out = kwargs.pop("out", None)
        if not args and first in kwargs:
            args = (kwargs.pop(first),)
        result = method(*_operands(name, args, first), **kwargs)
        return result if out is None else _put(name, out, result)

    call.__name__ = call.__qualname__ = name
    call.__module__ = "gt"
    call.__doc__ = method.__doc__
    call.__wrapped__ = method
    return call


# Functions of two operands of which the first may be the number.
_NUMBER_FIRST = frozenset("add sub mul div floor_divide remainder bitwise_and bitwise_or bitwise_xor".split())


def _operands(name, args, first):
    """The arguments, the first of which must be a tensor: a number before one becomes a tensor of the result's type."""
    if first is None or not args or isinstance(args[0], Tensor):
        return args
    if name in _NUMBER_FIRST and len(args) == 2 and isinstance(args[0], (int, float)) and isinstance(args[1], Tensor):
        return full((), args[0], dtype=result_type(*args)), args[1]
    kind = type(args[0]).__name__
    raise TypeError(f"{name}(): argument '{first}' (position 1) must be Tensor, not {kind}") from None
