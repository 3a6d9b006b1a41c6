"""Convolutions, pooling and losses of pairs, against loops over NumPy arrays and against PyTorch."""

import itertools

import numpy as np
import pytest
from helpers import check, draw, flat, needs_new_torch, needs_torch, ours, theirs, torch

import gt
from gt import nn
from gt.nn import functional as F

INF = float("inf")


def convolved(x, weight, bias, stride, padding, dilation, groups):
    """A convolution as it is defined, over (batch, channels, height, width)."""
    x = np.pad(x, [(0, 0), (0, 0), (padding, padding), (padding, padding)])
    k, each = weight.shape[2:], weight.shape[0] // groups
    size = [(n - dilation * (w - 1) - 1) // stride + 1 for n, w in zip(x.shape[2:], k)]
    out = np.zeros((x.shape[0], weight.shape[0], *size))
    for n, f, i, j in itertools.product(*map(range, out.shape)):
        first = f // each * weight.shape[1]
        rows = slice(i * stride, i * stride + dilation * (k[0] - 1) + 1, dilation)
        columns = slice(j * stride, j * stride + dilation * (k[1] - 1) + 1, dilation)
        window = x[n, first : first + weight.shape[1], rows, columns]
        out[n, f, i, j] = (window * weight[f]).sum() + bias[f]
    return out


@pytest.mark.parametrize("options", [(1, 0, 1, 1), (2, 1, 1, 2), (1, 2, 2, 4)], ids=str)
def test_convolution_by_its_definition(options):
    stride, padding, dilation, groups = options
    x, bias = draw((2, 4, 6, 7), "float64"), draw((8,), "float64")
    weight = draw((8, 4 // groups, 3, 2), "float64")
    mine = F.conv2d(ours(x), ours(weight), ours(bias), stride, padding, dilation, groups)
    check(mine, convolved(x, weight, bias, stride, padding, dilation, groups))


def test_pooling_by_its_definition():
    x = draw((2, 3, 6, 8), "float64")
    windows = x.reshape(2, 3, 3, 2, 4, 2)
    check(F.max_pool2d(ours(x), 2), windows.max((3, 5)))
    check(F.avg_pool2d(ours(x), 2), windows.mean((3, 5)))
    check(F.adaptive_avg_pool2d(ours(x), 1), x.mean((2, 3), keepdims=True))
    values, places = F.max_pool2d(ours(x), 2, return_indices=True)
    check(ours(x).flatten(2).gather(2, places.flatten(2)).view(values.shape), values.numpy())


# What each library makes of x (2, 4, 6, 7), w (4, 4, 3, 3), v (4, 2, 2, 3), s (2, 4, 9)
CASES = {
    "conv": lambda F, x, w, v, s: F.conv2d(x, w, stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
    "conv same": lambda F, x, w, v, s: F.conv2d(x, w, padding="same"),
    "conv groups": lambda F, x, w, v, s: F.conv2d(x, v, groups=2, padding=1),
    "conv of every channel": lambda F, x, w, v, s: (
        F.conv2d(x, w[:, :1], v[:, 0, 0, 0], padding=1, groups=4),
        F.conv2d(x, v[:, :1], padding=(1, 2), dilation=(2, 1), stride=(1, 2), groups=4),
        F.conv2d(x[0], w[:, :1], padding="same", groups=4),
        F.conv1d(s, w[:, :1, 0], padding=4, groups=4),
        F.conv3d(x.view(2, 2, 2, 6, 7), w[:2, :1, None], groups=2),
        F.conv_transpose2d(x, v[:, :1], stride=2, padding=1, groups=4),
    ),
    "conv with many places": lambda F, x, w, v, s: (
        F.conv2d(x, w.reshape(2, 4, 6, 3), stride=(1, 2), padding=2, dilation=(1, 3)),
        F.conv2d(x, w.reshape(2, 4, 3, 6), stride=(4, 1), padding=(3, 0), dilation=(2, 1)),
        F.conv2d(x, w.reshape(4, 2, 3, 6), stride=(3, 6), padding=(0, 3), groups=2),
        F.conv3d(x.view(2, 2, 2, 6, 7), w.reshape(4, 2, 2, 3, 3), stride=(1, 2, 3), padding=1),
        F.conv1d(s, w.reshape(2, 4, 18)[..., :12], stride=5, padding=4),
    ),
    "conv1d": lambda F, x, w, v, s: F.conv1d(s, w[:, :, 0], stride=2, padding=1),
    "conv without a batch": lambda F, x, w, v, s: F.conv2d(x[0], w),
    "transposed": lambda F, x, w, v, s: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
    "transposed groups": lambda F, x, w, v, s: F.conv_transpose2d(x, v, groups=2, dilation=2),
    "max": lambda F, x, w, v, s: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "max indices": lambda F, x, w, v, s: F.max_pool2d(x, (2, 3), (1, 2), (1, 1), return_indices=True),
    "max1d": lambda F, x, w, v, s: F.max_pool1d(s, 3, dilation=2),
    "avg": lambda F, x, w, v, s: F.avg_pool2d(x, 3, 2, 1),
    "avg ceil": lambda F, x, w, v, s: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "avg inside": lambda F, x, w, v, s: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "adaptive": lambda F, x, w, v, s: (F.adaptive_avg_pool2d(x, (4, 3)), F.adaptive_max_pool2d(x, (None, 2))),
    "shuffle": lambda F, x, w, v, s: (F.pixel_shuffle(x, 2), F.pixel_unshuffle(x[..., :6], 2)),
    "adaptive indices": lambda F, x, w, v, s: (
        *F.adaptive_max_pool2d(x, (4, 3), return_indices=True),
        *F.adaptive_max_pool1d(s, 3, True),
        *F.adaptive_max_pool3d(x.view(2, 2, 2, 6, 7), (1, 4, 7), True),
    ),
    "adaptive even": lambda F, x, w, v, s: (
        F.adaptive_avg_pool2d(x[0], (2, 1)),
        F.adaptive_avg_pool2d(x[..., :6], (3, 6)),
        F.adaptive_avg_pool1d(s, 3),
        F.adaptive_avg_pool3d(x.view(2, 2, 2, 6, 7), (1, 3, 3)),
        *F.adaptive_max_pool2d(x[0].round(), 1, True),
        F.adaptive_max_pool1d(s, 1),
    ),
    "adaptive ties": lambda F, x, w, v, s: F.adaptive_max_pool2d(x.round(), (3, 2)) + 0 * x.sum(),
    "indices by name": lambda F, x, w, v, s: (
        *F.max_pool2d_with_indices(x, 3, 2),
        *F.adaptive_max_pool2d_with_indices(x, 2),
    ),
    "adaptive volumes": lambda F, x, w, v, s: (
        F.adaptive_avg_pool3d(x.view(2, 2, 2, 6, 7), (1, 4, 3)),
        F.adaptive_max_pool3d(x.view(2, 2, 2, 6, 7), (None, 2, 3)),
    ),
    "unpool": lambda F, x, w, v, s: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=(6, 7)),
    "unpool1d": lambda F, x, w, v, s: (
        F.max_unpool1d(*F.max_pool1d(s, 3, return_indices=True), 3),
        F.max_unpool1d(*F.max_pool1d(s[0], 3, 2, 1, return_indices=True), 3, 2, 1),
    ),
    "unpool3d": lambda F, x, w, v, s: F.max_unpool3d(
        *F.max_pool3d(x.view(2, 2, 2, 6, 7), (1, 2, 2), return_indices=True), (1, 2, 2), output_size=(2, 2, 2, 6, 7)
    ),
    "lp": lambda F, x, w, v, s: (
        F.lp_pool2d(x, 2, (2, 3), ceil_mode=True),
        F.lp_pool1d(s.abs(), 1.5, 3, 2),
        F.lp_pool3d(x.view(2, 2, 2, 6, 7), 2, 2),
        F.lp_pool2d(x, INF, 2),
        F.lp_pool2d(x, -INF, 2),
    ),
    "unfold": lambda F, x, w, v, s: (
        F.unfold(x, (2, 3)),
        F.unfold(x[0], 3, dilation=(1, 2), padding=(2, 1), stride=(2, 1)),
    ),
    "fold": lambda F, x, w, v, s: (
        F.fold(F.unfold(x, (2, 3), padding=1, stride=2), (6, 7), (2, 3), padding=1, stride=2),
        F.fold(s, (4, 4), 2),
        F.fold(w.reshape(36, 4), (4, 4), 3, dilation=1),
        F.fold(w.reshape(36, 4), (6, 6), 3, dilation=2),
    ),
    "response norm": lambda F, x, w, v, s: (
        F.local_response_norm(x, 3, 0.1, 0.6, 2.0),
        F.local_response_norm(s, 2, 0.5),
        F.local_response_norm(x.view(2, 2, 2, 6, 7), 4, 0.5),
    ),
    "triplet": lambda F, x, w, v, s: F.triplet_margin_loss(s[0], s[1], s[0] * 0.5, swap=True),
    "cosine": lambda F, x, w, v, s: F.cosine_embedding_loss(s[0], s[1], (s[0, :, 0] > 0) * 2 - 1, margin=0.1),
    "ranking": lambda F, x, w, v, s: F.margin_ranking_loss(s[0], s[1], (s[0] > 0) * 2.0 - 1, margin=0.5),
    "gaussian": lambda F, x, w, v, s: F.gaussian_nll_loss(s[0], s[1], s[1].abs() + 0.1, full=True),
    "poisson": lambda F, x, w, v, s: F.poisson_nll_loss(s[0], s[1].detach().abs() * 3, full=True, reduction="sum"),
    "hinge": lambda F, x, w, v, s: F.hinge_embedding_loss(s[0], (s[1] > 0) * 2 - 1),
    "soft margin": lambda F, x, w, v, s: F.soft_margin_loss(s[0], (s[1] > 0) * 2.0 - 1),
}


@needs_torch
@pytest.mark.parametrize("kind", CASES)
def test_against_torch(kind):
    if kind == "lp":
        needs_new_torch("pooling by a norm without an end")
    seen = []
    for functions, make in ((F, ours), (torch.nn.functional, theirs)):
        shapes = [(2, 4, 6, 7), (4, 4, 3, 3), (4, 2, 2, 3), (2, 4, 9)]
        leaves = [make(draw(shape, "float64"), grad=True) for shape in shapes]
        outs = flat(CASES[kind](functions, *leaves))
        sum((o * o + o).sum() for o in outs if o.is_floating_point()).backward()
        seen.append([outs, [x.grad for x in leaves if x.grad is not None]])
    check(*seen)


MODULES = [
    lambda nn: nn.Unfold(2, padding=1),
    lambda nn: nn.Fold((4, 5), (2, 1), stride=(1, 2)),
    lambda nn: nn.LocalResponseNorm(3),
    lambda nn: nn.LPPool2d(2, 3, ceil_mode=True),
    lambda nn: nn.MaxUnpool2d(2, 3),
    lambda nn: nn.MaxUnpool1d(2, padding=1),
    lambda nn: nn.AdaptiveAvgPool3d((1, None, 2)),
    lambda nn: nn.AdaptiveMaxPool3d(2),
]


@needs_torch
@pytest.mark.parametrize("i", range(len(MODULES)))
def test_modules_print_as_in_pytorch(i):
    assert repr(MODULES[i](nn)) == repr(MODULES[i](torch.nn))


def test_modules_do_what_their_functions_do():
    x = ours(draw((2, 4, 6, 6), "float32"))
    check(nn.Fold((6, 6), 3)(nn.Unfold(3)(x)), F.fold(F.unfold(x, 3), (6, 6), 3))
    values, places = nn.MaxPool2d(2, return_indices=True)(x)
    back = nn.MaxUnpool2d(2)(values, places)
    assert back.shape == x.shape and (back != 0).sum().item() == values.numel()
    check(back.sum(), values.sum())
    check(nn.LPPool2d(2, 2)(x), F.lp_pool2d(x, 2.0, 2))
    check(nn.AdaptiveMaxPool3d(2)(x), F.adaptive_max_pool3d(x, 2))
    values, places = nn.AdaptiveMaxPool2d(3, return_indices=True)(x)
    check(x.flatten(2).gather(2, places.flatten(2)).view(values.shape), values)


def test_folding_counts_the_windows():
    ones = gt.ones(1, 1, 4, 4)
    counts = F.fold(F.unfold(ones, 3), (4, 4), 3)
    assert counts[0, 0].tolist() == [[1, 2, 2, 1], [2, 4, 4, 2], [2, 4, 4, 2], [1, 2, 2, 1]]


@needs_torch
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_convolutions_have_second_derivatives(groups):
    seen = []
    for functions, make, library in ((F, ours, gt), (torch.nn.functional, theirs, torch)):
        x, w = make(draw((2, 4, 6, 7), "float64"), grad=True), make(draw((4, 4 // groups, 3, 2), "float64"), grad=True)
        out = functions.conv2d(x, w, padding=(2, 1), dilation=(1, 2), groups=groups)
        grads = library.autograd.grad((out**3).sum(), (x, w), create_graph=True)
        seen.append(library.autograd.grad(sum((g * g).sum() for g in grads), (x, w)))
    check(*seen)


def test_gradients_of_convolutions_are_no_narrower_inside_autocast():
    x, w = ours(draw((2, 4, 6, 7), "float32"), grad=True), ours(draw((4, 4, 3, 3), "float32"), grad=True)
    out = F.conv2d(x, w)
    right = gt.autograd.grad((out * out).sum(), (x, w), retain_graph=True)
    with gt.autocast("cpu"):
        grads = gt.autograd.grad((out * out).sum(), (x, w))
    assert [g.dtype for g in grads] == [gt.float32] * 2
    check(grads, right)


def test_convolutions_of_every_channel_round_halves_once():
    x, w = ours(draw((2, 4, 6, 7), "float32")).half(), ours(draw((4, 1, 3, 3), "float32")).half()
    out = F.conv2d(x, w, padding=1, groups=4)
    assert out.dtype == gt.float16 and out.is_contiguous()
    check(out, F.conv2d(x.float(), w.float(), padding=1, groups=4).half())


def test_adaptive_means_round_once():
    x = ours(draw((2, 3, 32, 32), "float32")).half()
    check(F.adaptive_avg_pool2d(x, 1).flatten(1), x.flatten(2).mean(2))
    with pytest.raises(RuntimeError, match="output_size must be greater than or equal to 0"):
        F.adaptive_avg_pool2d(x, (-1, 2))
    assert F.adaptive_max_pool2d(x, (0, 2)).shape == (2, 3, 0, 2) == F.adaptive_avg_pool2d(x, (0, 2)).shape


def test_a_small_network_learns():
    images = np.zeros((32, 1, 8, 8), dtype=np.float32)
    labels = np.arange(32) % 2
    for i, label in enumerate(labels):
        images[i, 0, i % 8 if label else slice(None), slice(None) if label else i % 8] = 1
    gt.manual_seed(0)
    model = gt.nn.Sequential(
        gt.nn.Conv2d(1, 8, 3, padding=1),
        gt.nn.BatchNorm2d(8),
        gt.nn.ReLU(),
        gt.nn.MaxPool2d(2),
        gt.nn.Conv2d(8, 8, 3),
        gt.nn.ReLU(),
        gt.nn.AdaptiveAvgPool2d(1),
        gt.nn.Flatten(),
        gt.nn.Linear(8, 2),
    )
    optimizer = gt.optim.Adam(model.parameters(), lr=0.02)
    x, y = gt.tensor(images), gt.tensor(labels)
    for _ in range(40):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


def test_what_is_refused():
    x = gt.zeros(1, 3, 4, 4)
    with pytest.raises(RuntimeError, match="to have 2 channels, but got 3"):
        F.conv2d(x, gt.zeros(4, 2, 3, 3))
    with pytest.raises(RuntimeError, match="can't be larger"):
        F.conv2d(x, gt.zeros(4, 3, 9, 9))
    with pytest.raises(RuntimeError, match="at most half"):
        F.max_pool2d(x, 2, padding=2)
    with pytest.raises(RuntimeError, match="strided"):
        F.conv2d(x, gt.zeros(4, 3, 3, 3), stride=2, padding="same")
    with pytest.raises(RuntimeError, match="divisible by the product of kernel_size"):
        F.fold(gt.zeros(1, 3, 9), (4, 4), 2)
    with pytest.raises(RuntimeError, match="number of sliding blocks 3 . 3 = 9"):
        F.fold(gt.zeros(1, 4, 8), (4, 4), 2)
    with pytest.raises(RuntimeError, match="make no block"):
        F.unfold(x, 5)
    with pytest.raises(ValueError, match="must be between"):
        F.max_unpool2d(x, gt.zeros(1, 3, 4, 4, dtype=gt.int64), 2, output_size=(11, 8))
    with pytest.raises(ValueError, match="non-zero"):
        F.lp_pool2d(x, 0, 2)
    with pytest.raises(ValueError, match="3D or higher"):
        F.local_response_norm(x[0, 0], 2)
