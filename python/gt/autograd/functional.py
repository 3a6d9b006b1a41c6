"""Derivatives of functions: Jacobians, Hessians, and their products with vectors."""

from gt._gt import Tensor, grad, stack, zeros, zeros_like
from gt.autograd.grad_mode import enable_grad

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]


def _tuple(x):
    return (x, False) if isinstance(x, tuple) else (tuple(x), False) if isinstance(x, list) else ((x,), True)


def _leaves(inputs, create_graph):
    """The inputs as tensors to differentiate by; still joined to their history if a graph is wanted."""
    return tuple(
        (x.view_as(x) if x.requires_grad else x.detach().requires_grad_())
        if create_graph
        else x.detach().requires_grad_()
        for x in inputs
    )


def _called(func, inputs, create_graph):
    inputs, one_in = _tuple(inputs)
    with enable_grad():
        leaves = _leaves(inputs, create_graph)
        outputs, one_out = _tuple(func(*leaves))
    for out in outputs:
        if not isinstance(out, Tensor):
            raise TypeError(f"the function should give tensors, got {type(out).__name__}")
    return leaves, one_in, outputs, one_out


def _grads(out, leaves, vector, create_graph, strict):
    if not out.requires_grad:
        found = [None] * len(leaves)
    else:
        with enable_grad():
            found = grad([out], leaves, [vector], retain_graph=True, create_graph=create_graph, allow_unused=True)
    if strict and any(g is None for g in found):
        raise RuntimeError("an output is independent of an input: this is not allowed in strict mode")
    return [zeros_like(x) if g is None else g for g, x in zip(found, leaves)]


def jacobian(func, inputs, create_graph=False, strict=False, vectorize=False, strategy="reverse-mode"):
    """All derivatives of all outputs by all inputs."""
    leaves, one_in, outputs, one_out = _called(func, inputs, create_graph)
    rows = []
    for out in outputs:
        flat = out.reshape(-1)
        per_element = []
        for i in range(flat.numel()):
            one = zeros(flat.numel(), dtype=out.dtype)
            one[i] = 1
            per_element.append(_grads(out, leaves, one.view(out.shape), create_graph, strict))
        row = []
        for k, leaf in enumerate(leaves):
            shape = (*out.shape, *leaf.shape)
            parts = [g[k] for g in per_element]
            row.append(stack(parts).view(shape) if parts else leaf.new_zeros(shape))
        rows.append(row[0] if one_in else tuple(row))
    return rows[0] if one_out else tuple(rows)


def hessian(func, inputs, create_graph=False, strict=False, vectorize=False, outer_jacobian_strategy="reverse-mode"):
    """All second derivatives of a function with one number as its result."""
    _, one_in = _tuple(inputs)

    def slopes(*xs):
        out = func(*xs)
        if not isinstance(out, Tensor) or out.numel() != 1:
            raise RuntimeError("hessian: the function should give a tensor with a single element")
        return jacobian_of(out, xs)

    def jacobian_of(out, xs):
        found = _grads(out, xs, zeros_like(out) + 1, True, strict)
        return found[0] if one_in else tuple(found)

    return jacobian(slopes, inputs, create_graph, strict)


def vjp(func, inputs, v=None, create_graph=False, strict=False):
    """The outputs, and a vector times the Jacobian."""
    leaves, one_in, outputs, one_out = _called(func, inputs, create_graph)
    vectors = _tuple(v)[0] if v is not None else tuple(zeros_like(out) + 1 for out in outputs)
    with enable_grad():
        found = grad(
            list(outputs), leaves, list(vectors), retain_graph=True, create_graph=create_graph, allow_unused=True
        )
    found = [zeros_like(x) if g is None else g for g, x in zip(found, leaves)]
    outputs = outputs if create_graph else tuple(out.detach() for out in outputs)
    return outputs[0] if one_out else outputs, found[0] if one_in else tuple(found)


def jvp(func, inputs, v=None, create_graph=False, strict=False):
    """The outputs, and the Jacobian times a vector: two backward passes."""
    leaves, one_in, outputs, one_out = _called(func, inputs, True)
    vectors = _tuple(v)[0] if v is not None else tuple(zeros_like(x) + 1 for x in leaves)
    results = []
    for out in outputs:
        probe = zeros_like(out).requires_grad_()
        # The gradient is linear in the probe: its derivative by the probe is the other product.
        with enable_grad():
            slopes = _grads(out, leaves, probe, True, strict)
            total = sum((g * x.detach()).sum() for g, x in zip(slopes, vectors))
        results.append(_grads(total, (probe,), zeros_like(total) + 1, create_graph, False)[0])
    outputs = outputs if create_graph else tuple(out.detach() for out in outputs)
    return outputs[0] if one_out else outputs, results[0] if one_out else tuple(results)


def vhp(func, inputs, v=None, create_graph=False, strict=False):
    """The output, and a vector times the Hessian, which is symmetric."""
    leaves, one_in, outputs, _ = _called(func, inputs, True)
    vectors = _tuple(v)[0] if v is not None else tuple(zeros_like(x) + 1 for x in leaves)
    with enable_grad():
        slopes = _grads(outputs[0], leaves, zeros_like(outputs[0]) + 1, True, strict)
        total = sum((g * x.detach()).sum() for g, x in zip(slopes, vectors))
    found = _grads(total, leaves, zeros_like(total) + 1, create_graph, False)
    return outputs[0] if create_graph else outputs[0].detach(), found[0] if one_in else tuple(found)


hvp = vhp
