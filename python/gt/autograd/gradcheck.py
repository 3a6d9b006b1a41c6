"""Gradients compared with finite differences."""

from gt._gt import Tensor, grad
from gt.autograd.grad_mode import no_grad


def _outputs(function, inputs):
    result = function(*inputs)
    results = result if isinstance(result, (tuple, list)) else (result,)
    return [r for r in results if isinstance(r, Tensor) and r.is_floating_point()]


def gradcheck(func, inputs, *, eps=1e-6, atol=1e-5, rtol=1e-3, raise_exception=True):
    """True if the gradients of `func` at `inputs` (float64) agree with finite differences."""
    import numpy as np

    inputs = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    wanted = [t for t in inputs if isinstance(t, Tensor) and t.requires_grad]
    outputs = _outputs(func, inputs)
    rng = np.random.default_rng(0)
    for number, output in enumerate(outputs):
        if not output.requires_grad:
            continue
        seed = rng.standard_normal(tuple(output.shape))
        seed_tensor = _like(output, seed)
        found = grad([output], wanted, [seed_tensor], retain_graph=True, allow_unused=True)
        for i, (t, g) in enumerate(zip(wanted, found)):
            analytic = np.zeros(tuple(t.shape)) if g is None else g.detach().numpy().astype(np.float64)
            numeric = _numeric(func, inputs, t, number, seed, eps)
            if not np.allclose(analytic, numeric, rtol=rtol, atol=atol):
                if raise_exception:
                    raise RuntimeError(
                        f"gradcheck: output {number}, input {i}: expected\n{numeric}\nby finite differences, got\n"
                        f"{analytic}"
                    )
                return False
    return True


def _like(tensor, array):
    import gt

    return gt.tensor(array, dtype=tensor.dtype)


def _numeric(function, inputs, t, number, seed, eps):
    import numpy as np

    base = t.detach().numpy().astype(np.float64)
    out = np.zeros_like(base)
    with no_grad():
        for index in np.ndindex(*base.shape):
            total = 0.0
            for sign in (1.0, -1.0):
                moved = base.copy()
                moved[index] += sign * eps
                t.data.copy_(_like(t, moved))
                value = _outputs(function, inputs)[number].detach().numpy().astype(np.float64)
                total += sign * float((value * seed).sum())
            out[index] = total / (2 * eps)
        t.data.copy_(_like(t, base))
    return out


def gradgradcheck(func, inputs, **options):
    """True if the second derivatives of `func` agree with finite differences of its first."""
    inputs = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)

    def first(*args):
        wanted = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
        total = sum((o * o).sum() for o in _outputs(func, args))
        return grad(total, wanted, create_graph=True)

    from gt.autograd.grad_mode import enable_grad

    return gradcheck(enable_grad()(first), inputs, **options)
