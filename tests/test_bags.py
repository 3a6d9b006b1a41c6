"""Bags of embeddings, against PyTorch and against loops over NumPy arrays."""

import numpy as np
import pytest
from helpers import check, draw, needs_new_torch, needs_torch, ours, theirs, torch

import gt
from gt import nn
from gt.nn import functional as F

INDICES = np.array([1, 4, 4, 0, 2, 4, 3, 1, 0, 2, 2, 4])
# Bags of several lengths, one of them empty.
OFFSETS = np.array([0, 3, 3, 4, 9])
REDUCE = {"sum": np.sum, "mean": np.mean, "max": np.max}


@pytest.mark.parametrize("mode", REDUCE)
def test_bags_by_loops(mode):
    weight = draw((5, 3), "float64")
    mine = F.embedding_bag(ours(INDICES), ours(weight), ours(OFFSETS), mode=mode)
    bags = [INDICES[a:b] for a, b in zip(OFFSETS, [*OFFSETS[1:], len(INDICES)])]
    check(mine, np.stack([REDUCE[mode](weight[bag], 0) if len(bag) else np.zeros(3) for bag in bags]))
    ended = F.embedding_bag(ours(INDICES), ours(weight), ours(OFFSETS), mode=mode, include_last_offset=True)
    check(ended, mine[:4])
    rows = INDICES.reshape(4, 3)
    check(F.embedding_bag(ours(rows), ours(weight), mode=mode), REDUCE[mode](weight[rows], 1))


OPTIONS = {
    "plain": {},
    "padding": {"padding_idx": 4},
    "padding from behind": {"padding_idx": -3},
    "last offset": {"include_last_offset": True},
    "last offset and padding": {"include_last_offset": True, "padding_idx": 1},
    "frequency": {"scale_grad_by_freq": True},
    "norm": {"max_norm": 1.5, "norm_type": 1},
}


@needs_torch
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("mode", REDUCE)
@pytest.mark.parametrize("kind", OPTIONS)
def test_against_torch(kind, mode, rows):
    options = {**OPTIONS[kind], "mode": mode}
    if "scale_grad_by_freq" in options and mode == "max":
        return
    if "scale_grad_by_freq" in options:
        needs_new_torch("gradients by frequency")
    starts = np.append(OFFSETS, len(INDICES)) if "include_last_offset" in options else OFFSETS
    seen = []
    for library, make in ((gt, ours), (torch, theirs)):
        weight, indices, offsets = make(draw((5, 3), "float32"), grad=True), make(INDICES), make(starts)
        given = (indices.view(4, 3), weight) if rows else (indices, weight, offsets)
        out = library.nn.functional.embedding_bag(*given, **options)
        (out * out + out).sum().backward()
        seen.append([out, weight.grad, weight])
    check(*seen)


@needs_torch
def test_weights_of_samples():
    for rows, padding in ((False, None), (True, None), (False, 4), (True, 4)):
        seen = []
        for library, make in ((gt, ours), (torch, theirs)):
            layer = library.nn.EmbeddingBag(
                5, 3, mode="sum", padding_idx=padding, _weight=make(draw((5, 3), "float32"))
            )
            share = make(draw((12,), "float32"), grad=True)
            given = (make(INDICES).view(4, 3),) if rows else (make(INDICES), make(OFFSETS))
            out = layer(*given, per_sample_weights=share.view(4, 3) if rows else share)
            (out * out).sum().backward()
            seen.append([out, layer.weight.grad, share.grad])
        check(*seen)


@needs_torch
def test_the_module_is_pytorchs():
    for make in (
        lambda nn: nn.EmbeddingBag(4, 3),
        lambda nn: nn.EmbeddingBag(4, 3, 1.0, 1.0, True, "sum", padding_idx=-1),
    ):
        assert repr(make(nn)) == repr(make(torch.nn))
    table = gt.arange(6.0).view(3, 2)
    frozen = nn.EmbeddingBag.from_pretrained(table, mode="max")
    assert not frozen.weight.requires_grad and frozen(gt.tensor([[0, 2]])).tolist() == [[4.0, 5.0]]
    assert nn.EmbeddingBag(4, 3, padding_idx=2).weight[2].tolist() == [0.0] * 3


REFUSED = [
    (lambda f, T, i, w, o: f(i, w), ValueError),
    (lambda f, T, i, w, o: f(i.view(4, 3), w, o), ValueError),
    (lambda f, T, i, w, o: f(i, w[0], o), ValueError),
    (lambda f, T, i, w, o: f(i.view(4, 3, 1), w, o), ValueError),
    (lambda f, T, i, w, o: f(i, w, o, mode="median"), ValueError),
    (lambda f, T, i, w, o: f(i, w, o, mode="max", scale_grad_by_freq=True), ValueError),
    (lambda f, T, i, w, o: f(i, w, o, mode="sum", per_sample_weights=T.ones(3)), ValueError),
    (lambda f, T, i, w, o: f(i, w, o, per_sample_weights=T.ones(12)), NotImplementedError),
    (lambda f, T, i, w, o: T.nn.EmbeddingBag(3, 2, padding_idx=3), (ValueError, AssertionError)),
]


@pytest.mark.parametrize("i", range(len(REFUSED)))
def test_what_is_refused(i):
    f, error = REFUSED[i]
    for library, make in ((gt, ours), (torch, theirs)) if torch is not None else ((gt, ours),):
        with pytest.raises(error):
            f(library.nn.functional.embedding_bag, library, make(INDICES), library.ones(5, 3), make(OFFSETS))
