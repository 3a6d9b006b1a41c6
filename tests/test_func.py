"""Functions that make functions, against PyTorch's."""

import pytest
from helpers import check, needs_torch, torch

import gt


def data(T):
    x = T.tensor([[0.3, -0.7, 1.1], [0.2, 0.9, -1.0]], dtype=T.float64)
    return x, T.tensor([0.5, -0.4, 0.8], dtype=T.float64)


def loss(params, x):
    return ((x @ params["w"] + params["b"]) ** 2).sum()


MAKES = {
    "grad": lambda F, x, w: F.grad(lambda a: (a.sin() * w).sum())(x),
    "grad of two": lambda F, x, w: F.grad(lambda a, b: (a @ b).sum(), argnums=(0, 1))(x, w),
    "grad of a dictionary": lambda F, x, w: list(F.grad(loss)({"w": w, "b": w[0]}, x).values()),
    "grad and value": lambda F, x, w: F.grad_and_value(lambda a: ((a**2).sum(), a * 2), has_aux=True)(x)[1],
    "grad of grad": lambda F, x, w: F.grad(lambda a: F.grad(lambda b: (b**3).sum())(a).sum())(w),
    "grad of grad inside": lambda F, x, w: F.grad(lambda a: F.grad(lambda b: a * b**2)(w[1]) * a)(w[0]),
    "vjp": lambda F, x, w: F.vjp(lambda a, b: a * b, x, w)[1](x),
    "jvp": lambda F, x, w: F.jvp(lambda a: a.exp(), (x,), (x * 2,)),
    "jacrev": lambda F, x, w: F.jacrev(lambda a: a**2)(w),
    "jacrev of two": lambda F, x, w: F.jacrev(lambda a, b: a @ b, argnums=(0, 1))(x, w),
    "jacfwd": lambda F, x, w: F.jacfwd(lambda a: a.sin())(w),
    "hessian": lambda F, x, w: F.hessian(lambda a: (a**3).sum())(w),
    "vmap": lambda F, x, w: F.vmap(lambda a, b: a @ b, in_dims=(0, None))(x, w),
    "vmap of dims": lambda F, x, w: F.vmap(lambda a: (a * 2, a.sum()), in_dims=1, out_dims=(1, 0))(x),
    "vmap of vmap": lambda F, x, w: F.vmap(F.vmap(lambda a, b: a * b, (0, None)), (None, 0))(x, w[:2]),
    "gradients per sample": lambda F, x, w: list(F.vmap(F.grad(loss), (None, 0))({"w": w, "b": w[0]}, x).values()),
}


@needs_torch
@pytest.mark.parametrize("kind", MAKES)
def test_against_torch(kind):
    check(*[MAKES[kind](T.func, *data(T)) for T in (gt, torch)])


def test_gradients_of_what_is_not_asked_stay_out():
    x, w = data(gt)
    assert not gt.func.grad(lambda a: (a**2).sum())(x).requires_grad
    w.requires_grad_()
    # What asks for gradients gets them through the gradient.
    gt.func.grad(lambda a: (a**3).sum())(w).sum().backward()
    check(w.grad, (6 * w.detach()).numpy(), (1e-12, 1e-12))


def test_calls_with_other_parameters():
    net = gt.nn.Sequential(gt.nn.Linear(2, 2), gt.nn.BatchNorm1d(2))
    before = net[0].weight
    params = {name: p.detach() * 2 for name, p in net.named_parameters()}
    x = gt.randn(4, 2)
    out = gt.func.functional_call(net, params, (x,))
    twin = gt.nn.Sequential(gt.nn.Linear(2, 2), gt.nn.BatchNorm1d(2))
    twin.load_state_dict({**net.state_dict(), **params})
    twin[1].reset_running_stats()
    check(out, twin(x).detach().numpy(), (1e-6, 1e-6))
    assert net[0].weight is before
    with pytest.raises(AttributeError, match="no parameter or buffer 'nothing'"):
        gt.func.functional_call(net, {"nothing": x}, x)
    with pytest.raises(RuntimeError, match="missing keys"):
        gt.func.functional_call(net, params, x, strict=True)
    tied = gt.nn.ModuleDict({"a": gt.nn.Linear(2, 2, bias=False), "b": gt.nn.Linear(2, 2, bias=False)})
    tied["b"].weight = tied["a"].weight
    tied.forward = lambda x: tied["b"](tied["a"](x))
    check(gt.func.functional_call(tied, {"a.weight": gt.eye(2) * 3}, x), (x * 9).numpy(), (1e-6, 1e-6))


def test_ensembles():
    nets = [gt.nn.Linear(3, 2) for _ in range(4)]
    params, buffers = gt.func.stack_module_state(nets)
    x = gt.randn(5, 3)
    out = gt.vmap(lambda p, b, x: gt.func.functional_call(nets[0], (p, b), (x,)), in_dims=(0, 0, None))(
        params, buffers, x
    )
    check(out, gt.stack([net(x) for net in nets]).detach().numpy(), (1e-6, 1e-6))
    out.sum().backward()
    assert params["weight"].grad.shape == (4, 2, 3)


def test_what_vmap_refuses():
    x, w = data(gt)
    with pytest.raises(ValueError, match="same number of samples"):
        gt.vmap(lambda a, b: a)(x, w)
    with pytest.raises(ValueError, match="in_dims for 2 arguments"):
        gt.vmap(lambda a: a, in_dims=(0, 0))(x)
    with pytest.raises(ValueError, match="all of in_dims are None"):
        gt.vmap(lambda a: a, in_dims=None)(x)
    with pytest.raises(RuntimeError, match="scalar"):
        gt.func.grad(lambda a: a)(x)
