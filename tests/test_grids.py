"""Images read at the places of a grid, against PyTorch and against images that are turned and moved."""

import numpy as np
import pytest
from helpers import check, compare, draw, needs_torch, ours, torch

import gt
from gt.nn import functional as F


def grid(shape, rank):
    """Places inside and outside of the image, none of them where an element begins to count or ends to."""
    return np.round(draw((*shape, rank), "float64", -1.9, 1.9), 3) + 0.00017


MODES = [(m, p) for m in ("bilinear", "nearest", "bicubic") for p in ("zeros", "border", "reflection")]


@needs_torch
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("mode, padding", MODES)
def test_reading_is_pytorchs(mode, padding, align):
    def read(T, x, g):
        return T.nn.functional.grid_sample(x, g, mode, padding, align)

    compare(read, [draw((2, 3, 5, 4), "float64"), grid((2, 3, 6), 2)])
    if mode != "bicubic":
        compare(read, [draw((2, 2, 3, 5, 4), "float64"), grid((2, 2, 3, 4), 3)])
    compare(read, [draw((1, 1, 1, 1), "float32"), grid((1, 2, 2), 2).astype(np.float32)])


@needs_torch
@pytest.mark.parametrize("align", [False, True])
def test_affine_grids_are_pytorchs(align):
    compare(lambda T, m: T.nn.functional.affine_grid(m, (2, 1, 4, 5), align), [draw((2, 2, 3), "float64")])
    compare(lambda T, m: T.nn.functional.affine_grid(m, (2, 1, 3, 4, 2), align), [draw((2, 3, 4), "float64")])


def test_images_are_turned():
    x = draw((1, 2, 4, 4), "float64")
    turn = gt.tensor([[[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]]], dtype=gt.float64)
    for align in (False, True):
        for mode in ("bilinear", "nearest", "bicubic"):
            turned = F.grid_sample(ours(x), F.affine_grid(turn, (1, 2, 4, 4), align), mode, align_corners=align)
            check(turned, np.rot90(x, -1, (2, 3)).copy(), (1e-9, 1e-9))
    same = gt.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]], dtype=gt.float64)
    check(F.grid_sample(ours(x), F.affine_grid(same, (1, 2, 4, 4), False), align_corners=False), x)


def test_places_that_are_no_numbers_are_outside():
    places = gt.tensor([[[[float("nan"), 0.0], [float("inf"), 0.0], [0.0, 0.0]]]])
    assert F.grid_sample(gt.ones(1, 1, 3, 3), places, "nearest", align_corners=True).tolist() == [[[[0.0, 0.0, 1.0]]]]
    x = gt.ones(1, 1, 3, 3, requires_grad=True)
    read = F.grid_sample(x, places, align_corners=True)
    read.sum().backward()
    assert read.tolist() == [[[[0.0, 0.0, 1.0]]]] and x.grad.sum().item() == 1
    with pytest.warns(UserWarning, match="align_corners"):
        F.grid_sample(gt.ones(1, 1, 3, 3), places)


REFUSED = [
    (lambda f, T, x, g: f.grid_sample(x, g, "trilinear", align_corners=True), ValueError),
    (lambda f, T, x, g: f.grid_sample(x, g, padding_mode="ones", align_corners=True), ValueError),
    (lambda f, T, x, g: f.grid_sample(x[0], g, align_corners=True), RuntimeError),
    (lambda f, T, x, g: f.grid_sample(x, g[..., :1], align_corners=True), RuntimeError),
    (lambda f, T, x, g: f.grid_sample(T.ones(2, 1, 3, 3), g, align_corners=True), RuntimeError),
    (lambda f, T, x, g: f.affine_grid(T.ones(1, 2, 3), (1, 2, 3), True), NotImplementedError),
    (lambda f, T, x, g: f.affine_grid(T.ones(1, 2, 3), (1, 1, 2, 2, 2), True), ValueError),
    (lambda f, T, x, g: f.affine_grid(T.ones(1, 2, 3).long(), (1, 1, 2, 2), True), ValueError),
]


@pytest.mark.parametrize("i", range(len(REFUSED)))
def test_what_is_refused(i):
    f, error = REFUSED[i]
    for T in (gt, torch) if torch is not None else (gt,):
        with pytest.raises(error):
            f(T.nn.functional, T, T.ones(1, 1, 3, 3), T.zeros(1, 2, 2, 2))
