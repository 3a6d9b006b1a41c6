"""Images in other sizes and with more around them, against PyTorch and against NumPy's repeats and pads."""

import numpy as np
import pytest
from helpers import check, compare, draw, needs_torch, ours

import gt
from gt import nn
from gt.nn import functional as F

MODES = {1: ["nearest", "nearest-exact", "linear", "area"], 2: ["bilinear", "bicubic", "nearest", "nearest-exact"]}
MODES[2] += ["area"]
MODES[3] = ["nearest", "trilinear", "area"]
SIZES = {
    "to sizes": lambda rank: {"size": (7, 3, 5)[:rank]},
    "one size": lambda rank: {"size": 4},
    "doubled": lambda rank: {"scale_factor": 2},
    "factors": lambda rank: {"scale_factor": (1.7, 0.6, 2.3)[:rank]},
    "factors of sizes": lambda rank: {"scale_factor": 1.6, "recompute_scale_factor": True},
}


@needs_torch
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("rank", MODES)
def test_resizing_is_pytorchs(rank, sizes):
    x = draw((2, 3, 5, 6, 4)[: rank + 2], "float64")
    for mode in MODES[rank]:
        corners = (None,) if mode in ("nearest", "nearest-exact", "area") else (None, False, True)
        for align in corners:
            compare(
                lambda T, x, m=mode, a=align: T.nn.functional.interpolate(
                    x, mode=m, align_corners=a, **SIZES[sizes](rank)
                ),
                [x],
            )


@needs_torch
@pytest.mark.filterwarnings("ignore")
def test_resizing_of_other_types():
    for dtype, mode in (
        ("float32", "bicubic"),
        ("float16", "bilinear"),
        ("bfloat16", "bilinear"),
        ("uint8", "nearest"),
    ):
        x = draw((1, 2, 5, 4), dtype)
        if dtype == "bfloat16":
            compare(lambda T, x: T.nn.functional.interpolate(x.bfloat16(), (9, 3), mode="bilinear"), [x], (2e-2, 2e-2))
        else:
            compare(lambda T, x, m=mode: T.nn.functional.interpolate(x, (9, 3), mode=m), [x])
    x = draw((2, 3, 4, 4), "float32")
    for old in (
        lambda T, x: T.nn.functional.upsample(x, scale_factor=2),
        lambda T, x: T.nn.functional.upsample_nearest(x, 6),
        lambda T, x: T.nn.functional.upsample_bilinear(x, 6),
    ):
        compare(old, [x])


def test_the_nearest_elements_by_repeating():
    x = draw((2, 3, 4, 5), "float32")
    check(F.interpolate(ours(x), scale_factor=2), x.repeat(2, 2).repeat(2, 3))
    check(F.interpolate(ours(x), size=(8, 15)), x.repeat(2, 2).repeat(3, 3))
    line = gt.tensor([[[0.0, 4.0, 8.0]]])
    assert F.interpolate(line, 5, mode="linear", align_corners=True).tolist() == [[[0.0, 2.0, 4.0, 6.0, 8.0]]]
    assert F.interpolate(line, scale_factor=2.0, mode="linear").tolist() == [[[0.0, 1.0, 3.0, 5.0, 7.0, 8.0]]]


MODULES = {
    "upsample": lambda nn: nn.Upsample(scale_factor=2, mode="bilinear"),
    "upsample to": lambda nn: nn.Upsample((5, 3)),
    "upsample by": lambda nn: nn.Upsample(scale_factor=(2, 1.5), mode="bicubic", align_corners=True),
    "nearest": lambda nn: nn.UpsamplingNearest2d(scale_factor=3),
    "bilinear": lambda nn: nn.UpsamplingBilinear2d(7),
    "zeros": lambda nn: nn.ZeroPad2d((1, 2, -1, 1)),
    "constant": lambda nn: nn.ConstantPad2d(2, 3.5),
    "reflection": lambda nn: nn.ReflectionPad2d((1, 2, 0, 1)),
    "replication": lambda nn: nn.ReplicationPad2d(3),
    "circular": lambda nn: nn.CircularPad2d((1, 2, 3, 0)),
}
for _kind in ("Zero", "Reflection", "Replication", "Circular"):
    MODULES[f"{_kind} 1"] = lambda nn, kind=_kind: nn.Sequential(nn.Flatten(2), getattr(nn, f"{kind}Pad1d")((2, 1)))
    MODULES[f"{_kind} 3"] = lambda nn, kind=_kind: nn.Sequential(
        nn.Unflatten(1, (1, 3)), getattr(nn, f"{kind}Pad3d")((1, 2, 0, 1, 1, 1))
    )
MODULES["constant 1"] = lambda nn: nn.ConstantPad1d((1, 0), -2)
MODULES["constant 3"] = lambda nn: nn.ConstantPad3d(1, 0.25)


@needs_torch
@pytest.mark.parametrize("kind", MODULES)
def test_modules_are_pytorchs(kind):
    import torch

    make = MODULES[kind]
    compare(lambda T, x: make(T.nn)(x), [draw((2, 3, 4, 5), "float64")])
    assert repr(make(gt.nn)) == repr(make(torch.nn))


def test_pads_by_numpy():
    x = draw((2, 3, 4), "float32")
    for module, mode in (
        (nn.ZeroPad1d, "constant"),
        (nn.ReflectionPad1d, "reflect"),
        (nn.ReplicationPad1d, "edge"),
        (nn.CircularPad1d, "wrap"),
    ):
        check(module((2, 1))(ours(x)), np.pad(x, [(0, 0), (0, 0), (2, 1)], mode=mode))


REFUSED = [
    (lambda T, x: T.nn.functional.interpolate(x), ValueError),
    (lambda T, x: T.nn.functional.interpolate(x, 2, 2), ValueError),
    (lambda T, x: T.nn.functional.interpolate(x, (2, 2, 2)), ValueError),
    (lambda T, x: T.nn.functional.interpolate(x, scale_factor=(2, 2, 2)), ValueError),
    (lambda T, x: T.nn.functional.interpolate(x, 2.5), TypeError),
    (lambda T, x: T.nn.functional.interpolate(x, 2, align_corners=True), ValueError),
    (lambda T, x: T.nn.functional.interpolate(x, 2, recompute_scale_factor=True), ValueError),
    (lambda T, x: T.nn.functional.interpolate(x, 2, mode="linear"), NotImplementedError),
    (lambda T, x: T.nn.functional.interpolate(x, 2, mode="best"), NotImplementedError),
    (lambda T, x: T.nn.functional.interpolate(x[0, 0], 2), (NotImplementedError, ValueError)),
    (lambda T, x: T.nn.functional.interpolate(x, 2, antialias=True), ValueError),
    (lambda T, x: T.nn.functional.interpolate(x, 0), RuntimeError),
    (lambda T, x: T.nn.functional.interpolate(x.long(), 2, mode="bilinear"), RuntimeError),
    (lambda T, x: T.nn.ReflectionPad2d(4)(x), RuntimeError),
    (lambda T, x: T.nn.CircularPad1d(1)(x), ValueError),
]


@pytest.mark.parametrize("i", range(len(REFUSED)))
def test_what_is_refused(i):
    f, error = REFUSED[i]
    libraries = [gt] + [T for T in [__import__("helpers").torch] if T is not None]
    for library in libraries:
        with pytest.raises(error):
            f(library, library.zeros(1, 2, 4, 4))


@needs_torch
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_means_of_what_shrinks_are_pytorchs(mode, align):
    x = draw((2, 3, 11, 14), "float64")
    for options in ({"size": (4, 3)}, {"size": (20, 5)}, {"scale_factor": (0.37, 1.4)}):
        compare(
            lambda T, x, o=options: T.nn.functional.interpolate(x, mode=mode, align_corners=align, antialias=True, **o),
            [x],
        )


@needs_torch
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_images_of_bytes(mode, antialias):
    import torch

    x = np.random.default_rng(0).integers(0, 256, (1, 3, 17, 23), dtype=np.uint8)
    for size in ((8, 9), (30, 31)):
        mine, right = (
            T.nn.functional.interpolate(t, size, mode=mode, antialias=antialias)
            for T, t in ((gt, ours(x)), (torch, torch.tensor(x)))
        )
        assert mine.dtype == gt.uint8
        # PyTorch's weights are fixed-point numbers: what lies between two bytes may fall to either side.
        away = np.abs(mine.numpy().astype(int) - right.numpy().astype(int))
        assert away.max() <= 1 and away.mean() < 0.05


def test_antialias_keeps_the_mean():
    x = draw((1, 1, 12, 12), "float64")
    check(F.interpolate(ours(x), (4, 3), mode="bilinear", antialias=True).mean(), x.mean(), (0.05, 0.05))
    flat = F.interpolate(gt.full((1, 1, 9, 9), 3.0), 4, mode="bicubic", antialias=True)
    check(flat, np.full((1, 1, 4, 4), 3, np.float32), (1e-6, 1e-6))
