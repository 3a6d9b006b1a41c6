"""Printing, as PyTorch prints."""

import re

import numpy as np
import pytest
from helpers import needs_torch, ours, theirs, torch

import gt


def plain(t):
    """The text without what depends on the length of the library's name."""
    return re.sub(r",\s+dtype=", ", dtype=", repr(t)).replace("torch.", "gt.")


GOLDEN = [
    (lambda T: T.tensor(1.5), "tensor(1.5000)"),
    (lambda T: T.tensor([1.0, 2.0]), "tensor([1., 2.])"),
    (lambda T: T.tensor([1, -20]), "tensor([  1, -20])"),
    (lambda T: T.tensor([True, False]), "tensor([ True, False])"),
    (lambda T: T.tensor([1e-5, 1.0]), "tensor([1.0000e-05, 1.0000e+00])"),
    (lambda T: T.tensor([]), "tensor([])"),
    (lambda T: T.zeros(2, 0), "tensor([], size=(2, 0))"),
    (lambda T: T.tensor([1.0, 2.0], requires_grad=True), "tensor([1., 2.], requires_grad=True)"),
    (lambda T: T.ones(2, dtype=T.float64), "tensor([1., 1.], dtype=T.float64)"),
    (lambda T: T.tensor([float("nan"), float("inf"), 1.0]), "tensor([nan, inf, 1.])"),
    (lambda T: T.tensor([float("nan"), -float("inf"), 1.5]), "tensor([   nan,   -inf, 1.5000])"),
    (lambda T: T.arange(2000), "tensor([   0,    1,    2,  ..., 1997, 1998, 1999])"),
    (lambda T: T.tensor(3, dtype=T.uint8), "tensor(3, dtype=T.uint8)"),
]


@pytest.mark.parametrize("make, text", GOLDEN, ids=[g[1][:30] for g in GOLDEN])
def test_golden(make, text):
    assert repr(make(gt)) == text.replace("T.", "gt.")
    assert str(make(gt)) == repr(make(gt))
    if torch is not None:
        assert repr(make(torch)) == text.replace("T.", "torch.")


SHAPES = [
    (),
    (1,),
    (3,),
    (30,),
    (2, 3),
    (3, 40),
    (2, 3, 4),
    (1001,),
    (40, 30),
    (7, 8, 30),
    (2, 600),
    (2, 2, 2, 100),
    (0,),
    (3, 0),
]
SCALES = [1.0, 1e-3, 1e-6, 100.0, 1e5, 1e9]


@needs_torch
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool"])
def test_against_torch(shape, dtype):
    rng = np.random.default_rng(len(shape))
    for scale in SCALES:
        for kind in ("uniform", "whole", "holes"):
            x = np.asarray(rng.standard_normal(shape) * scale, dtype=np.float32)
            if kind == "whole":
                x = np.round(x)
            if kind == "holes" and x.size:
                flat = x.reshape(-1)
                flat[:: max(1, flat.size // 3)] = rng.choice([np.nan, np.inf, -np.inf, 0.0, 1 / 32, -0.0])
            if "float" not in dtype:
                x = np.clip(np.nan_to_num(x), 0 if dtype == "uint8" else -100, 100)
            mine, right = gt.tensor(x).to(dtype), torch.tensor(x).to(getattr(torch, dtype))
            assert plain(mine) == plain(right)


@needs_torch
def test_options():
    x = np.linspace(0, 1, 50)
    for options in ({"precision": 2}, {"linewidth": 40}, {"sci_mode": True}, {"threshold": 10, "edgeitems": 2}):
        gt.set_printoptions(profile="default")
        torch.set_printoptions(profile="default")
        gt.set_printoptions(**options)
        torch.set_printoptions(**options)
        try:
            assert plain(ours(x)) == plain(theirs(x))
        finally:
            gt.set_printoptions(profile="default")
            torch.set_printoptions(profile="default")


def test_suffixes_and_containers():
    x = gt.tensor([1.0], requires_grad=True)
    assert repr(x * 2) == "tensor([2.], grad_fn=<MulBackward0>)"
    assert repr(gt.ones(1, device="cuda:0")) == "tensor([1.], device='cuda:0')"
    assert repr(gt.nn.Parameter(gt.ones(1))) == "Parameter containing:\ntensor([1.], requires_grad=True)"
    assert repr(x.shape) == "gt.Size([1])"
    assert f"{gt.tensor(1.234567):.2f}" == "1.23"
    assert f"{gt.tensor([1.0])}" == "tensor([1.])"
    assert repr(gt.float32) == "gt.float32"
    values, indices = pair = gt.tensor([3.0, 5.0]).max(0)
    assert repr(pair) == "gt.return_types.max(\nvalues=tensor(5.),\nindices=tensor(1))"
    assert (values.item(), indices.item()) == (5.0, 1)
