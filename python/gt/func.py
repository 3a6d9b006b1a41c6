"""Functions that make functions: gradients, Jacobians, and calls over batches and with other parameters."""

import functools
import threading
from contextlib import contextmanager

from gt import _gt, autograd
from gt._gt import Tensor
from gt.autograd import functional
from gt.autograd.grad_mode import enable_grad

__all__ = [
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "stack_module_state",
    "vjp",
    "vmap",
]

_inside = threading.local()


@contextmanager
def _deeper():
    """Gradients taken inside another function of this module are differentiable."""
    depth = getattr(_inside, "depth", 0)
    _inside.depth = depth + 1
    try:
        with enable_grad():
            yield depth > 0
    finally:
        _inside.depth = depth


def _tensors(tree):
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        return [t for value in tree.values() for t in _tensors(value)]
    return [t for value in tree for t in _tensors(value)] if isinstance(tree, (list, tuple)) else []


def _map(change, tree):
    """A change made to all tensors in lists, tuples and dictionaries."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return type(tree)((key, _map(change, value)) for key, value in tree.items())
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(_map(change, value) for value in tree))
    return type(tree)(_map(change, value) for value in tree) if isinstance(tree, (list, tuple)) else tree


def _fresh(t):
    # What asks for gradients already goes on to be reached by them.
    return t.view_as(t) if t.requires_grad else t.detach().requires_grad_()


def _numbers(argnums, args):
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    for n in numbers:
        if not -len(args) <= n < len(args):
            raise RuntimeError(f"argnums: there is no argument {n}, got {len(args)} positional arguments")
    return [n % len(args) for n in numbers]


def grad_and_value(func, argnums=0, has_aux=False):
    """A function that gives the gradients of `func`, with respect to the arguments at `argnums`, and its value."""

    @functools.wraps(func)
    def made(*args, **kwargs):
        numbers, keep = _numbers(argnums, args), any(t.requires_grad for t in _tensors([args, kwargs]))
        with _deeper() as inside:
            keep = keep or inside
            args = list(args)
            for n in numbers:
                args[n] = _map(_fresh, args[n])
            out = func(*args, **kwargs)
            value, aux = out if has_aux else (out, None)
            if not isinstance(value, Tensor) or value.dim():
                raise RuntimeError(
                    "grad_and_value(f)(*args): Expected f(*args) to return a scalar tensor, got "
                    + (f"tensor with {value.dim()} dims" if isinstance(value, Tensor) else type(value).__name__)
                )
            leaves = _tensors([args[n] for n in numbers])
            if value.requires_grad:
                grads = autograd.grad(value, leaves, create_graph=keep, allow_unused=True)
            else:
                grads = [None] * len(leaves)
        grads = iter([_gt.zeros_like(x) if g is None else g for g, x in zip(grads, leaves)])
        found = tuple(_map(lambda _: next(grads), args[n]) for n in numbers)
        if not keep:
            value, aux = value.detach(), _map(Tensor.detach, aux)
        found = found[0] if isinstance(argnums, int) else found
        return (found, (value, aux)) if has_aux else (found, value)

    return made


def grad(func, argnums=0, has_aux=False):
    """A function that gives the gradients of `func` with respect to the arguments at `argnums`."""
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def made(*args, **kwargs):
        found, value = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return made


def vjp(func, *primals, has_aux=False):
    """The value of `func`, and a function from the gradients of the value to those of the arguments."""
    keep = any(t.requires_grad for t in _tensors(primals))
    with _deeper() as inside:
        keep = keep or inside
        primals = _map(_fresh, primals)
        out = func(*primals)
        out, aux = out if has_aux else (out, None)
    leaves, outs = _tensors(primals), _tensors(out)

    def pull(*cotangents):
        given = _tensors(cotangents)
        if [t.shape for t in given] != [t.shape for t in outs]:
            raise RuntimeError(
                f"vjp: expected gradients of shapes {[list(t.shape) for t in outs]}, got "
                f"{[list(t.shape) for t in given]}"
            )
        grads = autograd.grad(outs, leaves, given, retain_graph=True, create_graph=keep, allow_unused=True)
        grads = iter([_gt.zeros_like(x) if g is None else g for g, x in zip(grads, leaves)])
        return _map(lambda _: next(grads), primals)

    value = out if keep else _map(Tensor.detach, out)
    return (value, pull, aux) if has_aux else (value, pull)


def jvp(func, primals, tangents, *, strict=False, has_aux=False):
    """The value of `func`, and how it changes along `tangents`."""
    seen = []

    def called(*args):
        out = func(*args)
        if has_aux:
            out, aux = out
            seen.append(aux)
        return out

    with _deeper() as inside:
        out, change = functional.jvp(called, tuple(primals), tuple(tangents), create_graph=inside, strict=strict)
    return (out, change, _map(Tensor.detach, seen[-1])) if has_aux else (out, change)


def jacrev(func, argnums=0, has_aux=False, *, chunk_size=None):
    """A function that gives the derivatives of all results of `func`, with respect to the arguments at `argnums`."""

    @functools.wraps(func)
    def made(*args, **kwargs):
        numbers, seen = _numbers(argnums, args), []

        def called(*some):
            every = list(args)
            for n, value in zip(numbers, some):
                every[n] = value
            out = func(*every, **kwargs)
            if has_aux:
                out, aux = out
                seen.append(aux)
            return out

        with _deeper() as inside:
            keep = inside or any(t.requires_grad for t in _tensors([args, kwargs]))
            found = functional.jacobian(called, tuple(args[n] for n in numbers), create_graph=keep)
        if isinstance(argnums, int):
            # One argument: no tuple of one, for each of several results neither.
            found = tuple(f[0] for f in found) if isinstance(found[0], tuple) else found[0]
        return (found, _map(Tensor.detach, seen[-1])) if has_aux else found

    return made


jacfwd = jacrev


def hessian(func, argnums=0):
    """A function that gives the second derivatives of `func`."""
    return jacrev(jacrev(func, argnums), argnums)


def _picked(value, dim, i):
    """Sample `i` of an argument."""
    if dim is None:
        return value
    if isinstance(value, Tensor):
        return value.select(dim, i)
    if isinstance(value, dict):
        return {key: _picked(v, dim[key] if isinstance(dim, dict) else dim, i) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        dims = dim if isinstance(dim, (list, tuple)) else [dim] * len(value)
        return type(value)(_picked(v, d, i) for v, d in zip(value, dims))
    raise ValueError(f"vmap: in_dims says that an argument has samples along {dim}, but it is no tensor: {value!r}")


def _sizes(value, dim):
    if dim is None:
        return set()
    if isinstance(value, Tensor):
        if not -value.dim() <= dim < value.dim():
            raise ValueError(f"vmap: got in_dim {dim} for an input of {value.dim()} dimensions")
        return {value.shape[dim]}
    if isinstance(value, dict):
        pairs = [(v, dim[key] if isinstance(dim, dict) else dim) for key, v in value.items()]
    elif isinstance(value, (list, tuple)):
        pairs = list(zip(value, dim if isinstance(dim, (list, tuple)) else [dim] * len(value)))
    else:
        pairs = []
    return {n for v, d in pairs for n in _sizes(v, d)}


def _stacked(parts, dim):
    first = parts[0]
    if isinstance(first, Tensor):
        return first if dim is None else _gt.stack(parts, dim)
    if isinstance(first, dict):
        return {key: _stacked([p[key] for p in parts], dim[key] if isinstance(dim, dict) else dim) for key in first}
    if isinstance(first, (list, tuple)):
        dims = dim if isinstance(dim, (list, tuple)) else [dim] * len(first)
        columns = [_stacked(list(column), d) for column, d in zip(zip(*parts), dims)]
        return type(first)(*columns) if hasattr(first, "_fields") else type(first)(columns)
    raise ValueError(f"vmap: expected the function to return tensors, got {type(first).__name__}")


def vmap(func, in_dims=0, out_dims=0, randomness="error", *, chunk_size=None):
    """A function that calls `func` for each sample along `in_dims` and stacks the results along `out_dims`. What is
    called once per sample is recorded once per sample: results are right, and large batches take their time."""

    @functools.wraps(func)
    def made(*args, **kwargs):
        dims = in_dims if isinstance(in_dims, (list, tuple)) else (in_dims,) * len(args)
        if len(dims) != len(args):
            raise ValueError(f"vmap: got in_dims for {len(dims)} arguments, but {len(args)} were given")
        sizes = {n for value, dim in zip(args, dims) for n in _sizes(value, dim)} | _sizes(kwargs, 0)
        if not sizes:
            raise ValueError("vmap: at least one argument must have samples: all of in_dims are None")
        if len(sizes) > 1:
            raise ValueError(f"vmap: expected all tensors to have the same number of samples, got {sorted(sizes)}")
        parts = []
        for i in range(sizes.pop()):
            some = [_picked(value, dim, i) for value, dim in zip(args, dims)]
            parts.append(func(*some, **_picked(kwargs, 0, i)))
        if not parts:
            raise RuntimeError("vmap: expected one sample or more, got none")
        return _stacked(parts, out_dims)

    return made


@contextmanager
def _holding(module, values, tie_weights):
    """A module with other tensors under some of its names, which may be tied to more."""
    homes = {}
    for home in ("_parameters", "_buffers"):
        for path, inner in module.named_modules(remove_duplicate=False):
            for name, value in inner.__dict__[home].items():
                homes[f"{path}.{name}" if path else name] = inner, name, value
    swaps = dict(values)
    if tie_weights:
        tied = {id(homes[n][2]): v for n, v in values.items() if n in homes and homes[n][2] is not None}
        swaps = {**{n: tied[id(old)] for n, (_, _, old) in homes.items() if id(old) in tied}, **swaps}
    done = []
    try:
        for name, value in swaps.items():
            if name not in homes:
                raise AttributeError(f"functional_call: {type(module).__name__} has no parameter or buffer '{name}'")
            inner, short, old = homes[name]
            done.append((inner, short, old))
            inner.__dict__[short] = value
        yield
    finally:
        for inner, short, old in reversed(done):
            inner.__dict__[short] = old


def functional_call(module, parameter_and_buffer_dicts, args=None, kwargs=None, *, tie_weights=True, strict=False):
    """Calls a module with other parameters and buffers, by their names; the rest are its own."""
    dicts = parameter_and_buffer_dicts
    values: dict = {}
    for some in [dicts] if isinstance(dicts, dict) else dicts:
        for name, value in some.items():
            if name in values:
                raise ValueError(f"functional_call: {name} appears in several of the dictionaries")
            values[name] = value
    if strict:
        own = {n for n, _ in module.named_parameters()} | {n for n, _ in module.named_buffers()}
        if own != set(values):
            raise RuntimeError(
                f"functional_call: missing keys {sorted(own - set(values))}, "
                f"unexpected keys {sorted(set(values) - own)}"
            )
    args = () if args is None else args if isinstance(args, tuple) else (args,)
    with _holding(module, values, tie_weights):
        return module(*args, **(kwargs or {}))


def stack_module_state(models):
    """The parameters of models that are alike, stacked by name, and their buffers."""
    models = list(models)
    if not models:
        raise RuntimeError("stack_module_state: Expected at least one model, got 0.")
    if len({type(m) for m in models}) > 1:
        raise RuntimeError("stack_module_state: Expected all models to be of the same class.")

    def stacked(named):
        every = [dict(getattr(m, named)()) for m in models]
        return {name: _gt.stack([e[name].detach() for e in every]) for name in every[0]}

    params = {name: p.requires_grad_() for name, p in stacked("named_parameters").items()}
    return params, stacked("named_buffers")
