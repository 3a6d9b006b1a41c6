"""Dropout of channels, dropout for SELU, random slopes: what is kept, how often, and by how much it is scaled."""

import numpy as np
import pytest
from helpers import check, compare, draw, needs_torch

import gt
from gt import nn
from gt.nn import functional as F


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_channels_are_dropped_whole(rank):
    drop = getattr(F, f"dropout{rank}d")
    x = gt.ones(100, 30, *[4] * rank, requires_grad=True)
    out = drop(x, 0.2)
    channels = out.flatten(2)
    assert bool((channels == channels[..., :1]).all())
    assert set(out.unique().tolist()) == {0.0, 1.25}
    assert abs(out.mean().item() - 1) < 0.05
    out.sum().backward()
    check(x.grad, out.detach())
    assert drop(x, 0.2, False) is x
    assert getattr(nn, f"Dropout{rank}d")(1.0)(x).abs().sum().item() == 0
    alone = drop(x[0], 0.5) if rank != 2 else x[0]
    assert alone.shape == x.shape[1:]
    y = gt.ones(2, 3, *[4] * rank)
    assert drop(y, 0.5, True, True) is y and set(y.unique().tolist()) <= {0.0, 2.0}


def test_images_without_a_batch_are_taken_as_pytorch_takes_them():
    with pytest.warns(UserWarning, match="dropout1d"):
        out = F.dropout2d(gt.ones(50, 20, 4), 0.5)
    assert bool((out == out[..., :1]).all()) and len(out[:, :, 0].unique()) == 2


@pytest.mark.parametrize("kind", ["alpha_dropout", "feature_alpha_dropout"])
def test_mean_and_variance_stay(kind):
    drop = getattr(F, kind)
    x = gt.randn(400, 100, 5)
    out = drop(x, 0.3, True)
    assert abs(out.mean().item()) < 0.05 and abs(out.std().item() - 1) < 0.05
    scale = ((1.7580993408473766**2 * 0.3 + 1) * 0.7) ** -0.5
    kept = np.abs(out.numpy() - (x.numpy() + 1.7580993408473766 * 0.3) * scale) < 1e-4
    assert abs(kept.mean() - 0.7) < 0.02
    lowest = -1.7580993408473766 * scale * 0.7
    np.testing.assert_allclose(out.numpy()[~kept], lowest, rtol=1e-4)
    assert drop(x, 0.3) is x and not drop(x, 1.0, True).any()
    module = nn.AlphaDropout(0.3) if kind == "alpha_dropout" else nn.FeatureAlphaDropout(0.3)
    assert module.eval()(x) is x and not bool((module.train()(x) == x).all())


def test_slopes_are_drawn_while_training():
    x = gt.full((20_000,), -1.0, requires_grad=True)
    out = F.rrelu(x, 0.1, 0.5, True)
    assert -0.5 <= out.min().item() < -0.49 and -0.11 < out.max().item() <= -0.1
    assert abs(out.mean().item() + 0.3) < 0.01
    out.sum().backward()
    check(x.grad, -out.detach())
    assert nn.RReLU()(gt.ones(3)).tolist() == [1.0] * 3
    y = gt.full((3,), -8.0)
    assert F.rrelu_(y) is y and np.allclose(y.numpy(), -8 * (1 / 8 + 1 / 3) / 2)


CASES = {
    "rrelu": lambda T, x: T.nn.RReLU(0.1, 0.4).eval()(x),
    "softmax2d": lambda T, x: (T.nn.Softmax2d()(x), T.nn.Softmax2d()(x[0])),
    "unshuffle": lambda T, x: T.nn.PixelUnshuffle(2)(x),
    "channel shuffle": lambda T, x: (T.nn.ChannelShuffle(2)(x), T.nn.functional.channel_shuffle(x, 4)),
}
for _name, _settings in {
    "relu": (), "elu": (0.7,), "leaky_relu": (0.2,), "celu": (1.5,), "selu": (), "hardtanh": (-0.5, 2.0),
    "threshold": (0.1, -3.0), "rrelu": (0.2, 0.4),
}.items():  # fmt: skip
    CASES[f"{_name}_"] = lambda T, x, name=f"{_name}_", settings=_settings: getattr(T.nn.functional, name)(
        x * 1, *settings
    )


@needs_torch
@pytest.mark.parametrize("kind", CASES)
def test_against_torch(kind):
    compare(CASES[kind], [draw((2, 4, 6, 8), "float64")])


@needs_torch
def test_they_print_as_in_pytorch():
    import torch

    for make in (
        lambda nn: nn.Dropout1d(0.3, True),
        lambda nn: nn.AlphaDropout(),
        lambda nn: nn.RReLU(0.1, 0.2, True),
        lambda nn: nn.RReLU(),
        lambda nn: nn.Softmax2d(),
        lambda nn: nn.PixelUnshuffle(2),
        lambda nn: nn.ChannelShuffle(2),
    ):
        assert repr(make(nn)) == repr(make(torch.nn))


REFUSED = [
    (lambda T: T.nn.functional.dropout1d(T.ones(2, 3, 4, 5)), RuntimeError),
    (lambda T: T.nn.functional.alpha_dropout(T.ones(2), 1.5), ValueError),
    (lambda T: T.nn.functional.dropout2d(T.ones(2, 3, 4, 4), -0.1), ValueError),
    (lambda T: T.nn.Dropout3d(2.0), ValueError),
    (lambda T: T.nn.functional.feature_alpha_dropout(T.ones(2), 0.5, True), RuntimeError),
    (lambda T: T.nn.functional.rrelu(T.ones(2), 0.5, 0.1, True), RuntimeError),
    (lambda T: T.nn.Softmax2d()(T.ones(2)), ValueError),
    (lambda T: T.nn.functional.channel_shuffle(T.ones(1, 3, 2, 2), 2), RuntimeError),
]


@pytest.mark.parametrize("i", range(len(REFUSED)))
def test_what_is_refused(i):
    from helpers import torch

    f, error = REFUSED[i]
    for library in (gt, torch) if torch is not None else (gt,):
        with pytest.raises(error):
            f(library)
