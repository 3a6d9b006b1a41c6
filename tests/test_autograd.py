"""Differentiation: the engine, modes, hooks, functions of one's own."""

import gc
import weakref

import numpy as np
import pytest
from helpers import check, draw, needs_torch, ours, theirs, torch

import gt


def leaf(*shape, seed=0):
    return ours(draw(shape, "float64", 0.5, 2.0, seed), grad=True)


def test_prototype_example():
    a = gt.tensor([1, 2, 3], requires_grad=True)
    (a * 2).sum().backward()
    assert a.grad.data.numpy().tolist() == [2, 2, 2]


def test_accumulation_and_zeroing():
    x = leaf(3)
    for k in (1, 2, 3):
        (x * 2).sum().backward()
        check(x.grad, np.full(3, 2.0 * k))
    x.grad.zero_()
    check(x.grad, np.zeros(3))
    x.grad = None
    assert x.grad is None
    x.grad = gt.ones(3, dtype="float64")
    (x * 1).sum().backward()
    check(x.grad, np.full(3, 2.0))
    with pytest.raises(RuntimeError, match="size"):
        x.grad = gt.ones(2, dtype="float64")


# Slices of rows and columns: side by side, with gaps, overlapping, across each other, and of every second column.
SLICES = [
    [np.s_[:, 0:4], np.s_[:, 4:8], np.s_[:, 8:12]],
    [np.s_[:, 8:12], np.s_[:, 0:3]],
    [np.s_[:, 0:4], np.s_[:, 6:9], np.s_[:, 2:7]],
    [np.s_[:, 0:4], np.s_[:, 0:4]],
    [np.s_[:, 0:4], np.s_[1:3, :], np.s_[:, 5:9]],
    [np.s_[:, 0:6:2], np.s_[:, 1:3], np.s_[:, 6:9]],
]


@pytest.mark.parametrize("whole", ["none", "before", "after"])
def test_gradients_of_slices_add_up(whole):
    for turn in range(3):
        for k, slices in enumerate(SLICES):
            base = leaf(4, 12, seed=k)
            x, want = base * 2.0, np.zeros((4, 12))
            total = (x * 3.0).sum() if whole == "before" else 0.0
            for i, at in enumerate(slices):
                weight = draw(want[at].shape, "float64", -1.0, 1.0, 10 * turn + i)
                total = total + (x[at] * ours(weight)).sum()
                want[at] += weight
            if whole == "after":
                total = total + (x * 3.0).sum()
            total.backward()
            check(base.grad, 2.0 * (want + (3.0 if whole != "none" else 0.0)))


def test_backward_arguments():
    x = leaf(3)
    y = x * x
    with pytest.raises(RuntimeError, match="scalar"):
        y.backward()
    y.backward(gt.tensor([1.0, 2.0, 3.0], dtype="float64"), retain_graph=True)
    check(x.grad, 2 * x.detach().numpy() * [1, 2, 3])
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        gt.ones(1).backward()
    a, b = leaf(2), leaf(2, seed=1)
    (a * b).sum().backward(inputs=[a])
    assert b.grad is None and a.grad is not None


def test_grad():
    x, y = leaf(2, 2), leaf(2, seed=1)
    z = (x * y).sum() + (y**3).sum()
    gx, gy = gt.autograd.grad(z, [x, y], retain_graph=True)
    check(gx, np.broadcast_to(y.detach().numpy(), (2, 2)))
    check(gy, x.detach().numpy().sum(0) + 3 * y.detach().numpy() ** 2)
    assert x.grad is None
    other = leaf(1)
    with pytest.raises(RuntimeError, match="allow_unused"):
        gt.autograd.grad(z, other, retain_graph=True)
    assert gt.autograd.grad(z, other, retain_graph=True, allow_unused=True) == (None,)
    assert gt.autograd.grad(z, other, materialize_grads=True)[0].tolist() == [0]
    for nothing in ([], ()):
        with pytest.raises(RuntimeError, match="got none"):
            gt.autograd.grad(z, nothing)
    middle = x * 2
    (g,) = gt.autograd.grad((middle**2).sum(), middle)
    check(g, 2 * middle.detach().numpy())


FUNCTIONS = [
    lambda x: (x * x * x).sum(),
    lambda x: x.exp().sin().sum(),
    lambda x: (x @ x.T).tanh().sum(),
    lambda x: x.softmax(-1).log().sum(),
    lambda x: (x.sigmoid() / (1 + x**2)).sum(),
    lambda x: x.var(0).sqrt().sum() if x.dim() else x,
    lambda x: (x[0] * x[:, 1:2]).sum(),
    lambda x: x.logsumexp(0).pow(2).sum(),
    lambda x: x.gelu().sum() if hasattr(x, "gelu") else torch.nn.functional.gelu(x).sum(),
    lambda x: (x.max(0)[0] * x.norm()).sum(),
    lambda x: x.cumsum(1).prod(1).sum(),
]


@pytest.mark.parametrize("i", range(len(FUNCTIONS)))
def test_finite_differences(i):
    assert gt.autograd.gradcheck(FUNCTIONS[i], (leaf(3, 3),))
    assert gt.autograd.gradgradcheck(FUNCTIONS[i], (leaf(2, 2),), atol=1e-4)


@needs_torch
@pytest.mark.parametrize("i", range(len(FUNCTIONS)))
def test_second_derivatives(i):
    x = draw((3, 3), "float64", 0.5, 2.0)
    results = []
    for library, t in ((gt, ours(x, grad=True)), (torch, theirs(x, grad=True))):
        (g,) = library.autograd.grad(FUNCTIONS[i](t), t, create_graph=True)
        (g**2).sum().backward()
        results.append((g, t.grad))
    check(results[0], results[1], (1e-7, 1e-7))


def test_create_graph_accumulates():
    x = leaf(2)
    (x**3).sum().backward(create_graph=True)
    g = x.grad
    assert g.requires_grad
    (second,) = gt.autograd.grad(g.sum(), x)
    check(second, 6 * x.detach().numpy())


def test_modes():
    x = leaf(2)
    assert gt.is_grad_enabled()
    with gt.no_grad():
        assert not (x * 2).requires_grad and not gt.is_grad_enabled()
        with gt.enable_grad():
            assert (x * 2).requires_grad
    with gt.set_grad_enabled(False):
        assert not (x * 2).requires_grad
    assert (x * 2).requires_grad
    gt.set_grad_enabled(False)
    assert not gt.is_grad_enabled()
    gt.set_grad_enabled(True)
    with gt.inference_mode():
        assert not (x * 2).requires_grad and gt.is_inference_mode_enabled()
    assert not gt.is_inference_mode_enabled() and gt.is_grad_enabled()
    with pytest.raises(ZeroDivisionError), gt.no_grad():
        raise ZeroDivisionError
    assert gt.is_grad_enabled()


def test_modes_as_decorators():
    x = leaf(2)

    @gt.no_grad()
    def one():
        return x * 2

    @gt.no_grad
    def two():
        return x * 2

    @gt.inference_mode()
    def three():
        return x * 2

    @gt.set_grad_enabled(False)
    def four():
        return x * 2

    for f in (one, two, three, four):
        assert not f().requires_grad and gt.is_grad_enabled()

    @gt.no_grad()
    def generator():
        sent = yield gt.is_grad_enabled()
        yield sent, gt.is_grad_enabled()
        return 5

    g = generator()
    assert next(g) is False and gt.is_grad_enabled()
    assert g.send("hello") == ("hello", False) and gt.is_grad_enabled()
    with pytest.raises(StopIteration) as end:
        next(g)
    assert end.value.value == 5

    @gt.no_grad()
    async def coroutine():
        return gt.is_grad_enabled()

    import asyncio

    assert asyncio.run(coroutine()) is False


def test_leaves_and_detaching():
    x = leaf(2)
    y = x * 2
    assert x.is_leaf and not y.is_leaf and x.grad_fn is None and y.grad_fn.name() == "MulBackward0"
    assert not y.detach().requires_grad and y.detach().is_leaf
    y.retain_grad()
    (y * 3).sum().backward()
    check(y.grad, np.full(2, 3.0))
    assert y.retains_grad
    with pytest.raises(RuntimeError, match="leaf"):
        y.requires_grad_(False)
    y.detach_()
    assert y.is_leaf and not y.requires_grad
    x.requires_grad = False
    assert not (x * 2).requires_grad
    d = leaf(2).detach()
    d.requires_grad_()
    assert d.is_leaf and d.requires_grad
    with pytest.raises(RuntimeError, match="detach"):
        leaf(2).numpy()


def test_hooks():
    x = leaf(2)
    seen = []
    y = x * 2
    handle = y.register_hook(lambda g: seen.append(g.tolist()))
    doubled = x.register_hook(lambda g: g * 10)
    (y * 3).sum().backward(retain_graph=True)
    assert seen == [[3, 3]]
    check(x.grad, np.full(2, 60.0))
    handle.remove()
    doubled.remove()
    x.grad = None
    (y * 3).sum().backward()
    assert seen == [[3, 3]]
    check(x.grad, np.full(2, 6.0))

    def fails(g):
        raise KeyError("from the hook")

    z = x * 2
    z.register_hook(fails)
    with pytest.raises(KeyError, match="from the hook"):
        z.sum().backward()
    after = []
    x.register_post_accumulate_grad_hook(lambda p: after.append(p.grad.tolist()))
    x.grad = None
    x.sum().backward()
    assert after == [[1, 1]]
    with pytest.raises(RuntimeError):
        gt.ones(1).register_hook(print)


class Cube(gt.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x**3 * scale

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        assert ctx.needs_input_grad == (True, False)
        return 3 * x**2 * ctx.scale * g, None


class Exp(gt.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return ctx.saved_tensors[0] * g


class Both(gt.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        index = (a > b).long()
        ctx.mark_non_differentiable(index)
        ctx.save_for_backward(a, b)
        return a * b, a + b, index

    @staticmethod
    def backward(ctx, g_mul, g_add, g_index):
        a, b = ctx.saved_tensors
        return g_mul * b + g_add, g_mul * a + g_add


def test_function():
    x = leaf(3)
    y = Cube.apply(x, 2.0)
    assert y.grad_fn.name() == "CubeBackward"
    y.sum().backward()
    check(x.grad, 6 * x.detach().numpy() ** 2)
    assert not Cube.apply(x.detach(), 2.0).requires_grad
    assert gt.autograd.gradcheck(lambda t: Cube.apply(t, 2.0), leaf(3))
    assert gt.autograd.gradgradcheck(lambda t: Cube.apply(t, 2.0), leaf(3))
    assert gt.autograd.gradcheck(Exp.apply, leaf(3))
    assert gt.autograd.gradgradcheck(Exp.apply, leaf(3))
    a, b = leaf(2), leaf(2, seed=1)
    mul, add, index = Both.apply(a, b)
    assert index.dtype is gt.int64 and not index.requires_grad
    (mul * 2).sum().backward()
    check(a.grad, 2 * b.detach().numpy())
    y = Cube.apply(x, 1.0)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


def test_function_errors():
    class Wrong(gt.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g, g

    with pytest.raises(RuntimeError, match="number of gradients"):
        Wrong.apply(leaf(2)).sum().backward()

    class Raises(Wrong):
        @staticmethod
        def backward(ctx, g):
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        Raises.apply(leaf(2)).sum().backward()

    class Saves(Wrong):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(None, 5)
            return x * 2

    with pytest.raises(TypeError, match="got int as argument 1"):
        Saves.apply(leaf(2))

    class Changes(gt.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x.mul_(2))
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 2

    with pytest.raises(RuntimeError, match="leaf"):
        Changes.apply(leaf(2))
    x = leaf(2)
    Changes.apply(x * 3).sum().backward()
    assert x.grad.tolist() == [6, 6]


def test_a_function_may_give_no_tensors():
    class Counts(gt.autograd.Function):
        @staticmethod
        def forward(ctx, x, many):
            return (x.numel(), None) if many else x.numel()

    assert Counts.apply(leaf(2), False) == 2 and Counts.apply(leaf(2), True) == (2, None)


def test_nothing_stays_alive():
    class Marker:
        pass

    marker = Marker()
    ref = weakref.ref(marker)
    x = leaf(2)
    y = x * 2
    y.register_hook(lambda g, kept=marker: None)
    del marker
    assert ref() is not None
    del y
    gc.collect()
    assert ref() is None
    y = Exp.apply(x)
    ref = weakref.ref(y)
    del y
    gc.collect()
    assert ref() is None


@needs_torch
def test_a_network_trains_alike():
    rng = np.random.default_rng(0)
    w1, w2 = rng.standard_normal((8, 4)) * 0.5, rng.standard_normal((1, 8)) * 0.5
    x, y = rng.standard_normal((16, 4)), rng.standard_normal((16, 1))
    losses = []
    for T in (gt, torch):
        a, b = T.tensor(w1, requires_grad=True), T.tensor(w2, requires_grad=True)
        data, target = T.tensor(x), T.tensor(y)
        run = []
        for _ in range(20):
            loss = ((T.tanh(data @ a.T) @ b.T - target) ** 2).mean()
            loss.backward()
            with T.no_grad():
                for p in (a, b):
                    p -= 0.1 * p.grad
                    p.grad = None
            run.append(loss.item())
        losses.append(run)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-9)


def test_checkpoints_compute_again():
    from gt.utils.checkpoint import checkpoint, checkpoint_sequential

    model = gt.nn.Sequential(gt.nn.Linear(3, 4), gt.nn.Tanh(), gt.nn.Dropout(0.5), gt.nn.Linear(4, 3))
    calls = []
    model[1].register_forward_hook(lambda *_: calls.append(gt.is_grad_enabled()))
    x = gt.tensor(np.ones((2, 3), dtype=np.float32), requires_grad=True)
    found = []
    for run in (model, lambda x: checkpoint(model, x), lambda x: checkpoint_sequential(model, 2, x)):
        model.zero_grad()
        x.grad = None
        gt.manual_seed(0)
        (run(x) ** 2).sum().backward()
        found.append([x.grad.numpy(), *(p.grad.numpy() for p in model.parameters())])
    # On several workers, what is computed again may be divided otherwise.
    for again in found[1:]:
        for mine, right in zip(again, found[0], strict=True):
            np.testing.assert_allclose(mine, right, rtol=1e-6, atol=1e-7)
    assert calls == [True, False, True, False, True]
    # Parameters alone may need the gradient.
    model.zero_grad()
    checkpoint(model, gt.ones(2, 3)).sum().backward()
    assert model[0].weight.grad is not None


def test_gradients_have_the_type_of_what_they_belong_to():
    w = gt.ones(2, requires_grad=True)
    (w * 1).backward(gt.ones(2, dtype=gt.float64))
    (w * 2).sum().backward()
    check(w.grad, np.full(2, 3.0, dtype="float32"))

    class Wide(gt.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.double()

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    w.grad = None
    Wide.apply(w).sum().backward()
    check(w.grad, np.full(2, 2.0, dtype="float32"))
    y = w * 1
    y.register_hook(lambda grad: grad.double())
    with pytest.raises(RuntimeError, match="has changed the type of value"):
        y.sum().backward()
    y = w * 1
    y.register_hook(lambda grad: grad[:1])
    with pytest.raises(RuntimeError, match="has changed the size of value"):
        y.sum().backward()


def test_what_is_kept_is_what_hooks_have_made():
    def run(ask):
        x = gt.tensor([1.0, 2.0], requires_grad=True)
        y = x * 2
        y.retain_grad()
        y.register_hook(lambda grad: grad * 2)
        y.register_hook(lambda grad: grad + 1)
        found = gt.autograd.grad(y.sum(), [{"x": x, "y": y}[name] for name in ask])
        return [g.tolist()[0] for g in found], y.grad.tolist()[0]

    # Asked for beside what it goes on to, a gradient is taken before its hooks: as in PyTorch.
    assert run("y") == ([3.0], 3.0)
    assert run("x") == ([6.0], 3.0)
    assert run("yx") == ([1.0, 6.0], 3.0)


def test_a_function_that_saves_nothing_goes_back_again():
    class Double(gt.autograd.Function):
        @staticmethod
        def forward(ctx, x, save):
            if save:
                ctx.save_for_backward(x)
            ctx.save = save
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2 * (ctx.saved_tensors[0] if ctx.save else 1), None

    x = gt.ones(2, requires_grad=True)
    y = Double.apply(x, False)
    y.sum().backward()
    (y * 3).sum().backward()
    check(x.grad, np.full(2, 8.0, dtype="float32"))
    y = Double.apply(x, True)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        (y * 3).sum().backward()


def test_anomaly_mode_names_the_operation_that_made_a_nan():
    def broken(x):
        y = x * 2
        return (y.sqrt() * 0).sum() + x.sum()

    x = gt.tensor([0.0, 1.0], requires_grad=True)
    broken(x).backward()
    assert np.isnan(x.grad.tolist()[0])
    line = broken.__code__.co_firstlineno + 2
    with pytest.warns(UserWarning, match="Anomaly Detection"), gt.autograd.detect_anomaly():
        loss = broken(x)
        with pytest.raises(RuntimeError, match=f"'SqrtBackward0' returned nan values in its 0th output.(?s:.*):{line}"):
            loss.backward()
    broken(x).backward()
    with gt.autograd.set_detect_anomaly(True, check_nan=False):
        broken(x).backward()
    gt.autograd.set_detect_anomaly(True)
    try:
        with pytest.raises(RuntimeError, match="nan"):
            gt.autograd.grad(broken(x), x)
        fine = gt.tensor([4.0], requires_grad=True)
        for _ in range(3):
            fine.grad = None
            fine.sqrt().sum().backward()
        assert fine.grad.tolist() == [0.25]

        class Bad(gt.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 1

            @staticmethod
            def backward(ctx, g):
                return g * float("nan")

        with pytest.raises(RuntimeError, match="'BadBackward' returned nan"):
            Bad.apply(fine).sum().backward()
    finally:
        gt.autograd.set_detect_anomaly(False)
