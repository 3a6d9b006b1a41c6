"""Python objects that hooks and functions hold are seen by the garbage collector (C12)."""

import gc
import weakref

import pytest

import gt


class Twice(gt.autograd.Function):
    """Keeps whatever is put into its box."""

    @staticmethod
    def forward(ctx, x):
        ctx.box = []
        Twice.last = ctx
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


def leaf():
    x = gt.ones(3, requires_grad=True)
    x.register_hook(lambda g: (x, g)[1])
    x.register_hook(lambda g: g * x.shape[0])
    x.sum().backward()
    assert x.grad.tolist() == [3, 3, 3]
    return x


def result():
    x = gt.ones(3, requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: (y, g)[1])
    y.sum().backward()
    return y


def after_accumulation():
    x = gt.ones(3, requires_grad=True)
    seen = []
    x.register_post_accumulate_grad_hook(lambda t: seen.append(x.grad.tolist() == t.grad.tolist()))
    x.sum().backward()
    assert seen == [True]
    return x


def parameter():
    p = gt.nn.Parameter(gt.ones(3))
    p.register_hook(lambda g: (p, g)[1])
    return p


def view():
    x = gt.ones(3, requires_grad=True)
    v = x[1:]
    v.register_hook(lambda g: (v, g)[1])
    return v


def function():
    y = Twice.apply(gt.ones(3, requires_grad=True))
    Twice.last.box.append(y)
    Twice.last = None
    return y


@pytest.mark.parametrize("make", [leaf, result, after_accumulation, parameter, view, function])
def test_a_tensor_that_its_own_hook_holds_is_collected(make):
    gone = weakref.ref(make())
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("make", [leaf, result, after_accumulation, parameter, view])
def test_what_is_in_use_is_not(make):
    x = make()
    hooked = []
    x.register_hook(lambda g: hooked.append((x, g)))
    for _ in range(3):
        gc.collect()
    (x * 2).sum().backward()
    assert len(hooked) == 1


def test_hooks_of_a_graph_outlive_the_tensors_they_were_put_on():
    calls = []

    def make():
        x = gt.ones(3, requires_grad=True)
        y = x * 2
        y.register_hook(lambda g: calls.append((y.shape, g)))
        alias = y.detach()
        return (y + 1).sum(), alias

    loss, _ = make()
    for _ in range(3):
        gc.collect()
    loss.backward()
    assert len(calls) == 1
