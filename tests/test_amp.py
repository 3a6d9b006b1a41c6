"""Mixed precision: what is cast, gradients in the types of the parameters, and the scale of float16."""

import math

import numpy as np
import pytest
from helpers import needs_torch, torch

import gt
from gt import nn

BF16 = gt.bfloat16


def cases(T):
    """Functions by name, each of a float32 matrix."""
    F = T.nn.functional
    w, b, ids = T.ones(4, 4), T.ones(4), T.tensor([0, 1, 2])
    q = T.ones(1, 2, 3, 4)
    return {
        "matmul": lambda x: x @ w,
        "mm": lambda x: T.mm(x, w),
        "bmm": lambda x: T.bmm(x.unsqueeze(0), w.unsqueeze(0)),
        "linear": lambda x: F.linear(x, w, b),
        "addmm": lambda x: T.addmm(b, x, w),
        "einsum": lambda x: T.einsum("ij,jk->ik", x, w),
        "attention": lambda x: F.scaled_dot_product_attention(q + x.sum() * 0, q, q),
        "conv": lambda x: F.conv1d(x.unsqueeze(0), T.ones(2, 3, 2), T.ones(2)),
        "add": lambda x: x + 1,
        "relu of a product": lambda x: F.relu(x @ w),
        "product and single": lambda x: (x @ w) + x,
        "softmax": lambda x: F.softmax(x @ w, -1),
        "layer norm": lambda x: F.layer_norm(x @ w, (4,)),
        "sum": lambda x: (x @ w).sum(),
        "exp": lambda x: (x @ w).exp(),
        "square": lambda x: (x @ w) ** 2,
        "cross entropy": lambda x: F.cross_entropy(x @ w, ids),
        "mse": lambda x: F.mse_loss(x @ w, x),
        "double": lambda x: x.double() @ w.double(),
        "whole": lambda x: x.to(T.int64) @ w.to(T.int64),
    }


WIDE = {"cross entropy", "mse", "add", "product and single"}
# What is done in float32 for GPUs too.
CAREFUL = {"softmax", "layer norm", "sum", "exp", "square"}


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
@pytest.mark.parametrize("name", sorted(cases(gt)))
def test_products_are_narrow_and_what_loses_by_that_is_not(name, device_type):
    wide = WIDE | CAREFUL if device_type == "cuda" else WIDE
    want = {"double": "float64", "whole": "int64"}.get(name, "float32" if name in wide else "bfloat16")
    with gt.autocast(device_type, dtype=BF16):
        got = cases(gt)[name](gt.ones(3, 4))
    assert got.dtype.name == want


@needs_torch
@pytest.mark.parametrize("name", sorted(cases(gt)))
def test_types_are_pytorchs(name):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        want = str(cases(torch)[name](torch.ones(3, 4)).dtype).removeprefix("torch.")
    with gt.autocast("cpu", dtype=BF16):
        assert cases(gt)[name](gt.ones(3, 4)).dtype.name == want


def model():
    gt.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))


@pytest.mark.parametrize("dtype", [gt.float16, BF16])
def test_training_comes_close_to_that_in_single_precision(dtype):
    rng = np.random.default_rng(0)
    x, y = gt.tensor(rng.normal(size=(32, 8)).astype("f4")), gt.tensor(rng.integers(0, 4, 32))

    def losses(mixed):
        net = model()
        optimizer = gt.optim.SGD(net.parameters(), lr=0.1)
        out = []
        for _ in range(5):
            with gt.autocast("cuda", dtype=dtype, enabled=mixed):
                logits = net(x)
                assert logits.dtype is (dtype if mixed else gt.float32)
                loss = nn.functional.cross_entropy(logits, y)
            assert loss.dtype is gt.float32
            optimizer.zero_grad()
            loss.backward()
            assert all(p.grad.dtype is gt.float32 for p in net.parameters())
            optimizer.step()
            out.append(loss.item())
        return out

    np.testing.assert_allclose(losses(True), losses(False), rtol=0.02)


def test_modes_nest_end_with_errors_and_decorate():
    x = gt.ones(2, 2)
    assert not gt.is_autocast_enabled()
    with gt.autocast("cpu"):
        assert gt.is_autocast_enabled() and gt.get_autocast_dtype("cpu") is BF16
        assert gt.is_autocast_enabled("cpu") and not gt.is_autocast_enabled("cuda")
        with gt.autocast("cuda"):
            assert (x @ x).dtype is gt.float16 and gt.is_autocast_enabled("cuda")
            with gt.autocast("cpu", enabled=False):
                assert (x @ x).dtype is gt.float32
        assert (x @ x).dtype is BF16
    with pytest.raises(ZeroDivisionError), gt.autocast("cpu"):
        math.sqrt(1 / (x.numel() - 4))
    assert (x @ x).dtype is gt.float32

    @gt.autocast("cpu", dtype=gt.float16)
    def product():
        return x @ x

    assert product().dtype is gt.float16 and (x @ x).dtype is gt.float32
    with gt.cuda.amp.autocast():
        assert (x @ x).dtype is gt.float16


def test_what_autocast_refuses():
    with pytest.raises(RuntimeError, match="expected the device type 'cuda' or 'cpu', got 'tpu'"):
        gt.autocast("tpu")
    with pytest.raises(ValueError, match="Expected `device_type` of type `str`"):
        gt.autocast(gt.float16)
    with pytest.warns(UserWarning, match="nothing will be cast"), gt.autocast("cpu", dtype=gt.float32):
        assert (gt.ones(2, 2) @ gt.ones(2, 2)).dtype is gt.float32


def test_the_scaler_takes_the_scale_out_again():
    p = nn.Parameter(gt.tensor([1.0, 2.0]))
    optimizer = gt.optim.SGD([p], lr=0.5)
    scaler = gt.amp.GradScaler(init_scale=1024.0, growth_interval=2)
    for step in range(2):
        optimizer.zero_grad()
        scaler.scale((p * p).sum()).backward()
        scaler.unscale_(optimizer)
        with pytest.raises(RuntimeError, match="already been called"):
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        with pytest.raises(RuntimeError, match="step\\(\\) has already been called"):
            scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == (1024.0 if step == 0 else 2048.0)
    assert p.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_step_with_bad_gradients_is_left_out(bad):
    p = nn.Parameter(gt.tensor([1.0, 2.0]))
    optimizer = gt.optim.SGD([p], lr=0.5)
    scaler = gt.amp.GradScaler()
    p.grad = gt.tensor([1.0, bad])
    scaler.step(optimizer)
    scaler.update()
    assert p.tolist() == [1.0, 2.0] and scaler.get_scale() == 32768.0
    saved = scaler.state_dict()
    other = gt.amp.GradScaler()
    other.load_state_dict(saved)
    assert other.state_dict() == saved
    with pytest.raises(RuntimeError, match="No inf checks"):
        scaler.update()


def test_a_scaler_that_is_off_does_nothing():
    p = nn.Parameter(gt.tensor([1.0]))
    optimizer = gt.optim.SGD([p], lr=0.5)
    scaler = gt.cuda.amp.GradScaler(enabled=False)
    scaler.scale(p.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert p.tolist() == [0.5] and scaler.get_scale() == 1.0 and scaler.state_dict() == {}
