"""Norms, attention, cross entropy and optimizer steps: one instruction each, against NumPy and PyTorch."""

import numpy as np
import pytest
from helpers import FLOATS, check, draw, needs_torch, ours, theirs, torch

import gt

F = gt.nn.functional
NAN = float("nan")


def ops():
    """The names of the ops recorded since the last look."""
    return [line.split(":= ")[1].split()[0] for line in gt._gt._tape()]


def test_layer_norm_and_rms_norm_in_numpy():
    x, w, b = draw((4, 3, 5), "float64"), draw((3, 5), "float64", seed=1), draw((3, 5), "float64", seed=2)
    mean, var = x.mean((1, 2), keepdims=True), x.var((1, 2), keepdims=True)
    right = (x - mean) / np.sqrt(var + 1e-5)
    t = [gt.tensor(a) for a in (x, w, b)]
    np.testing.assert_allclose(F.layer_norm(t[0], (3, 5)).numpy(), right, rtol=1e-9)
    np.testing.assert_allclose(F.layer_norm(t[0], (3, 5), t[1], t[2]).numpy(), right * w + b, rtol=1e-9)
    np.testing.assert_allclose(F.layer_norm(t[0], (3, 5), None, t[2]).numpy(), right + b, rtol=1e-9)
    right = x / np.sqrt((x * x).mean((1, 2), keepdims=True) + 1e-3)
    np.testing.assert_allclose(F.rms_norm(t[0], [3, 5], t[1], eps=1e-3).numpy(), right * w, rtol=1e-9)
    with pytest.raises(RuntimeError, match=r"normalized_shape=\[4\]"):
        F.layer_norm(t[0], (4,))
    with pytest.raises(RuntimeError, match="weight"):
        F.rms_norm(t[0], (5,), t[1])


@needs_torch
@pytest.mark.parametrize("dtype", FLOATS)
def test_norms_and_their_gradients_as_pytorch(dtype):
    arrays = [draw((6, 8), dtype), draw((8,), dtype, seed=1), draw((8,), dtype, seed=2), draw((6, 8), dtype, seed=3)]
    for run in (
        lambda f, x, w, b: f.layer_norm(x, (8,), w, b),
        lambda f, x, w, b: f.layer_norm(x, (8,)) * w + b,
        lambda f, x, w, b: f.rms_norm(x, (8,), w) + b,
        lambda f, x, w, b: f.rms_norm(x, (8,)) * w + b,
    ):
        mine, right = [ours(a, dtype, True) for a in arrays[:3]], [theirs(a, dtype, True) for a in arrays[:3]]
        y, z = run(F, *mine), run(torch.nn.functional, *right)
        loose = (8e-2, 8e-2) if dtype == "bfloat16" else (2e-2, 2e-2) if dtype == "float16" else None
        check(y, z, loose)
        (y * ours(arrays[3], dtype)).sum().backward()
        (z * theirs(arrays[3], dtype)).sum().backward()
        for a, b in zip(mine, right):
            loose = {"bfloat16": (6e-2, 2e-1), "float16": (2e-2, 3e-2), "float32": (1e-4, 1e-4)}.get(dtype)
            check(a.grad, b.grad, loose)


def attend(q, k, v, mask=None, scale=None):
    """Attention in NumPy; a row that sees nothing gives zeros."""
    groups = q.shape[-3] // k.shape[-3]
    k, v = np.repeat(k, groups, -3), np.repeat(v, groups, -3)
    s = q @ k.swapaxes(-1, -2) * (scale or q.shape[-1] ** -0.5)
    if mask is not None:
        s = np.where(mask, s, -np.inf) if mask.dtype == bool else s + mask
    top = s.max(-1, keepdims=True)
    e = np.exp(s - np.where(np.isinf(top), 0, top))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total) @ v


def test_attention_in_numpy():
    q, k, v = draw((2, 4, 5, 3), "float64"), draw((2, 2, 6, 3), "float64"), draw((2, 2, 6, 7), "float64")
    t = [gt.tensor(a) for a in (q, k, v)]
    sdpa = F.scaled_dot_product_attention
    close = lambda mine, right: np.testing.assert_allclose(mine.numpy(), right, rtol=1e-9, atol=1e-12)  # noqa: E731
    close(sdpa(*t, enable_gqa=True), attend(q, k, v))
    close(sdpa(*t, enable_gqa=True, scale=0.3), attend(q, k, v, scale=0.3))
    causal = np.tril(np.ones((5, 6), bool))
    close(sdpa(*t, is_causal=True, enable_gqa=True), attend(q, k, v, causal))
    mask = draw((2, 1, 5, 6), "float64")
    close(sdpa(*t, gt.tensor(mask), enable_gqa=True), attend(q, k, v, mask))
    mask = draw((5, 6), "bool")
    mask[2] = False
    out = sdpa(*t, gt.tensor(mask), enable_gqa=True)
    close(out, attend(q, k, v, mask))
    assert (out.numpy()[:, :, 2] == 0).all()
    close(sdpa(t[0][0, 0], t[1][0, 0], t[2][0, 0]), attend(q[:, :1], k[:, :1], v[:, :1])[0, 0])
    close(sdpa(t[0], t[1][:, :1], t[2][:, :1]), attend(q, k[:, :1], v[:, :1]))


def test_attention_is_one_instruction_each_way():
    q, k, v = (gt.randn(2, 3, 4, 5, requires_grad=True) for _ in range(3))
    gt.synchronize()
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert ops() == ["ATTENTION"]
    out.backward(gt.ones(2, 3, 4, 5))
    assert ops() == ["ATTENTION", "FULL", "ATTENTIONGRAD"]
    gt.synchronize()


def test_attention_refuses_what_does_not_fit():
    q, k = gt.randn(2, 4, 3, 5), gt.randn(2, 2, 3, 5)
    sdpa = F.scaled_dot_product_attention
    with pytest.raises(RuntimeError, match="enable_gqa"):
        sdpa(q, k, k)
    with pytest.raises(RuntimeError, match="same dtype"):
        sdpa(q, q.double(), q)
    with pytest.raises(RuntimeError, match="2 dimensional"):
        sdpa(gt.randn(5), gt.randn(5), gt.randn(5))
    with pytest.raises(RuntimeError, match="is_causal"):
        sdpa(q, q, q, gt.ones(3, 3, dtype=gt.bool), is_causal=True)
    with pytest.raises(RuntimeError, match="attn_mask dtype"):
        sdpa(q, q, q, gt.ones(3, 3, dtype=gt.float64))
    with pytest.raises(RuntimeError, match="mask"):
        sdpa(q, q, q, gt.ones(2, 3, dtype=gt.bool))


def test_dropout_drops_weights_and_keeps_the_mean():
    q, k, v = gt.zeros(1, 1, 4, 8), gt.zeros(1, 2, 64, 8)[:, :1], gt.ones(1, 1, 64, 8)
    gt.manual_seed(0)
    out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5).numpy()
    assert abs(out.mean() - 1) < 0.2 and out.std() > 0.01
    k = gt.zeros(1, 2, 6, 8)
    assert F.scaled_dot_product_attention(gt.zeros(1, 4, 3, 8), k, k, dropout_p=0.5, enable_gqa=True).shape == (
        1,
        4,
        3,
        8,
    )


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("case", ["plain", "causal", "bool", "float", "gqa"])
def test_attention_and_its_gradients_as_pytorch(dtype, case):
    heads = 2 if case == "gqa" else 4
    shapes = [(2, 4, 5, 8), (2, heads, 5, 8), (2, heads, 5, 8), (2, 4, 5, 8)]
    arrays = [draw(s, dtype, -1.5, 1.5, seed=i) for i, s in enumerate(shapes)]
    options = {"is_causal": case == "causal", "enable_gqa": case == "gqa"}
    mask = None
    if case == "bool":
        mask = draw((5, 5), "bool")
        mask[1] = False
    if case == "float":
        mask = draw((2, 1, 5, 5), dtype)
    results = []
    for make, f in ((ours, F), (theirs, torch.nn.functional)):
        args = [make(a, dtype, True) for a in arrays[:3]]
        m = None if mask is None else make(mask, "bool" if case == "bool" else dtype, case == "float")
        out = f.scaled_dot_product_attention(*args, attn_mask=m, **options)
        (out * make(arrays[3], dtype)).sum().backward()
        results.append([out, *(a.grad for a in args), *([m.grad] if case == "float" else [])])
    loose = {"bfloat16": (5e-2, 5e-2), "float32": (1e-4, 1e-5)}.get(dtype)
    for mine, right in zip(*results):
        check(mine, right, loose)


@needs_torch
def test_attention_has_second_derivatives():
    arrays = [draw((1, 2, 3, 4), "float64", -1, 1, seed=i) for i in range(4)]
    found = []
    for make, lib in ((ours, gt), (theirs, torch)):
        q, k, v = (make(a, "float64", True) for a in arrays[:3])
        # PyTorch's own attention has no second derivative on a cpu.
        if lib is gt:
            out = F.scaled_dot_product_attention(q, k, v)
        else:
            out = (q @ k.transpose(-1, -2) * 0.5).softmax(-1) @ v
        (dq,) = lib.autograd.grad((out * make(arrays[3], "float64")).sum(), [q], create_graph=True)
        found.append(lib.autograd.grad((dq * dq).sum(), [q, k, v]))
    for mine, right in zip(*found):
        check(mine, right)


def test_cross_entropy_in_numpy():
    x = draw((6, 5), "float64")
    t = np.array([0, 4, -100, 2, 2, 1])
    logp = x - np.log(np.exp(x).sum(1, keepdims=True))
    kept = t != -100
    right = np.where(kept, -logp[np.arange(6), np.where(kept, t, 0)], 0)
    mine = lambda **how: F.cross_entropy(gt.tensor(x), gt.tensor(t), **how).numpy()  # noqa: E731
    np.testing.assert_allclose(mine(reduction="none"), right, rtol=1e-9)
    np.testing.assert_allclose(mine(), right.sum() / kept.sum(), rtol=1e-9)
    np.testing.assert_allclose(mine(reduction="sum"), right.sum(), rtol=1e-9)


def test_cross_entropy_checks_its_classes():
    x = gt.randn(3, 5)
    for bad in (5, -1):
        loss = F.cross_entropy(x, gt.tensor([0, bad, 2]))
        with pytest.raises(IndexError, match=f"index {bad} is out of bounds"):
            loss.item()
    assert np.isfinite(F.cross_entropy(x, gt.tensor([0, -1, 2]), ignore_index=-1).item())


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(5,), (6, 5), (2, 5, 3), (2, 5, 3, 2)])
def test_cross_entropy_and_its_gradient_as_pytorch(dtype, shape):
    x = draw(shape, dtype)
    target = draw(shape[:1] + shape[2:] if len(shape) > 1 else (), "int64", 0, 4)
    if target.size > 2:
        target.flat[1] = 3
    for how in ({}, {"reduction": "sum"}, {"reduction": "none"}, {"ignore_index": 3}, {"label_smoothing": 0.1}):
        if "ignore_index" in how and target.size == 1:
            continue
        a, b = ours(x, dtype, True), theirs(x, dtype, True)
        mine = F.cross_entropy(a, gt.tensor(target), **how)
        right = torch.nn.functional.cross_entropy(b, torch.tensor(target), **how)
        loose = (6e-2, 6e-2) if dtype == "bfloat16" else None
        check(mine, right, loose)
        mine.sum().backward()
        right.sum().backward()
        check(a.grad, b.grad, loose)


def settings():
    yield "SGD", {"lr": 0.1}
    yield "SGD", {"lr": 0.1, "momentum": 0.9}
    yield "SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1, "maximize": True}
    yield "SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}
    yield "Adam", {"lr": 0.1}
    yield "Adam", {"lr": 0.1, "amsgrad": True, "weight_decay": 0.1}
    yield "AdamW", {"lr": 0.1, "weight_decay": 0.1, "maximize": True}


@needs_torch
@pytest.mark.parametrize("name, options", list(settings()))
def test_optimizers_follow_pytorch(name, options):
    shapes = [(3, 4), (), (5,)]
    arrays = [draw(s, "float32", seed=i) for i, s in enumerate(shapes)]
    a, b = [ours(x, "float32", True) for x in arrays], [theirs(x, "float32", True) for x in arrays]
    first, second = getattr(gt.optim, name)(a, **options), getattr(torch.optim, name)(b, **options)
    for k in range(4):
        for i in range(3):
            # The last parameter joins late, with a state of its own.
            if i < 2 or k > 0:
                g = draw(shapes[i], "float32", seed=10 * k + i)
                a[i].grad, b[i].grad = gt.tensor(g), torch.tensor(g)
        first.step()
        second.step()
    for mine, right in zip(a, b):
        check(mine, right)


def test_an_optimizer_step_is_one_instruction():
    params = [gt.ones(3, requires_grad=True), gt.ones(2, 2, requires_grad=True)]
    optimizer = gt.optim.AdamW(params)
    for _ in range(2):
        for p in params:
            p.grad = gt.ones_like(p)
        gt.synchronize()
        optimizer.step()
        steps = [op for op in ops() if op != "FULL"]
        assert steps == ["ADAM"], steps
    gt.synchronize()
