"""Losses of pairs and of several classes, and of sequences without alignment."""

import itertools
import math

import numpy as np
import pytest
from helpers import check, compare, draw, needs_torch, ours, theirs, torch

import gt
from gt import nn
from gt.nn import functional as F

CLASSES = np.array([2, 0, 4])
LABELS = np.array([[3, 0, -1, 1, 2], [-1, 2, 2, 2, 2], [4, 1, 0, 2, 3]])
TRUE = (np.arange(15).reshape(3, 5) % 2).astype(np.float64)
REDUCTIONS = ("none", "mean", "sum")


def of(T, array):
    return ours(array) if T is gt else theirs(array)


CASES = {
    "multi margin": lambda T, F, x, w, **how: F.multi_margin_loss(x, of(T, CLASSES), **how),
    "multi margin squared": lambda T, F, x, w, **how: F.multi_margin_loss(x, of(T, CLASSES), 2, 0.5, w.detach(), **how),
    "multi margin of one": lambda T, F, x, w, **how: F.multi_margin_loss(x[0], of(T, CLASSES)[0], **how),
    "labels": lambda T, F, x, w, **how: F.multilabel_margin_loss(x, of(T, LABELS), **how),
    "labels of one": lambda T, F, x, w, **how: F.multilabel_margin_loss(x[0], of(T, LABELS)[0], **how),
    "soft labels": lambda T, F, x, w, **how: F.multilabel_soft_margin_loss(x, of(T, TRUE), **how),
    "soft labels weighted": lambda T, F, x, w, **how: F.multilabel_soft_margin_loss(x, of(T, TRUE), w, **how),
    "triplet": lambda T, F, x, w, **how: F.triplet_margin_with_distance_loss(x, x.flip(0), x * w, swap=True, **how),
    "triplet of cosines": lambda T, F, x, w, **how: F.triplet_margin_with_distance_loss(
        x, x.flip(0), x * w, margin=2.0, distance_function=lambda a, b: 1 - F.cosine_similarity(a, b), **how
    ),
}


@needs_torch
@pytest.mark.parametrize("kind", CASES)
def test_against_torch(kind):
    for how in REDUCTIONS:
        compare(
            lambda T, x, w, how=how: CASES[kind](T, T.nn.functional, x, w, reduction=how),
            [draw((3, 5), "float64"), draw((5,), "float64", 0.1, 2.0)],
        )


@needs_torch
@pytest.mark.filterwarnings("ignore")
def test_the_old_way_to_reduce():
    x = draw((3, 5), "float64")
    for old in ({"size_average": False}, {"reduce": False}, {"size_average": True}):
        for f in (
            lambda T, x, old=old: T.nn.functional.multi_margin_loss(x, of(T, CLASSES), **old),
            lambda T, x, old=old: T.nn.functional.soft_margin_loss(x, of(T, TRUE), **old),
            lambda T, x, old=old: T.nn.functional.margin_ranking_loss(x, x * 2, of(T, TRUE), 0.1, *old.values()),
            lambda T, x, old=old: T.nn.MultiLabelMarginLoss(**old)(x, of(T, LABELS)),
        ):
            compare(f, [x])


def test_margins_by_loops():
    x = draw((3, 5), "float64")
    rows = [sum(max(0, 1 - row[y] + row[i]) for i in range(5) if i != y) / 5 for row, y in zip(x, CLASSES)]
    check(F.multi_margin_loss(ours(x), ours(CLASSES), reduction="none"), np.array(rows))
    rows = []
    for row, labels in zip(x, LABELS):
        right = list(itertools.takewhile(lambda y: y >= 0, labels))
        rest = [i for i in range(5) if i not in right]
        rows.append(sum(max(0, 1 - (row[y] - row[i])) for y in right for i in rest) / 5)
    check(F.multilabel_margin_loss(ours(x), ours(LABELS), reduction="none"), np.array(rows))


def said(path, blank):
    """What an alignment says: repetitions joined, blanks left out."""
    return [k for k, _ in itertools.groupby(path) if k != blank]


@pytest.mark.parametrize("blank", [0, 2])
def test_ctc_by_all_alignments(blank):
    logits = draw((5, 3, 3), "float64")
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    symbols = [k for k in range(3) if k != blank]
    targets = np.array([[symbols[0], symbols[1]], [symbols[1], symbols[1]], [symbols[1], 99]])
    inputs, lengths = [5, 4, 3], [2, 2, 1]
    right = []
    for n in range(3):
        paths = itertools.product(range(3), repeat=inputs[n])
        wanted = targets[n, : lengths[n]].tolist()
        fits = [sum(logs[t, n, k] for t, k in enumerate(p)) for p in paths if said(p, blank) == wanted]
        right.append(-math.log(sum(map(math.exp, fits))))
    mine = F.ctc_loss(ours(logs), ours(targets), inputs, lengths, blank, "none")
    check(mine, np.array(right))


CTC = {
    "padded": lambda T, x, targets: (x, targets, [6, 5, 4, 6], [3, 2, 0, 3]),
    "tensors": lambda T, x, targets: (x, targets, T.tensor([6, 5, 4, 6]), T.tensor([3, 2, 1, 3])),
    "concatenated": lambda T, x, targets: (x, targets.reshape(-1)[:7], (6, 5, 6, 6), (3, 1, 0, 3)),
    "concatenated tensors": lambda T, x, targets: (
        x,
        targets.reshape(-1)[:6],
        T.tensor([6] * 4),
        T.tensor([1, 1, 1, 3]),
    ),
    "alone": lambda T, x, targets: (x[:, 0], targets[0], T.tensor(6), T.tensor(3)),
    "never": lambda T, x, targets: (x, targets, [6, 5, 2, 6], [3, 2, 3, 3]),
    "nothing said": lambda T, x, targets: (x, targets[:, :0], [6, 5, 4, 6], [0, 0, 0, 0]),
}


@needs_torch
@pytest.mark.parametrize("kind", CTC)
def test_ctc_against_torch(kind):
    x = draw((6, 4, 5), "float64")
    targets = np.array([[1, 2, 2], [3, 3, 1], [4, 1, 4], [2, 3, 2]])
    for how in REDUCTIONS:
        for soft in (True, False):

            def case(T, x, how=how, soft=soft):
                logs = x.log_softmax(-1) if soft else x - 2
                given = CTC[kind](T, logs, of(T, targets))
                return T.nn.functional.ctc_loss(*given, reduction=how, zero_infinity=kind == "never")

            compare(case, [x])


def test_ctc_of_what_can_not_be_said():
    logs = gt.zeros(2, 1, 3).log_softmax(-1)
    loss = F.ctc_loss(logs, gt.tensor([[1, 1]]), [2], [2], reduction="none")
    assert loss.tolist() == [math.inf]
    assert nn.CTCLoss(reduction="sum", zero_infinity=True)(logs, gt.tensor([[1, 1]]), [2], [2]).item() == 0
    # A probability of zero leaves no trace in the gradient of others.
    x = gt.tensor([[[0.0, -math.inf, 0.0]]], requires_grad=True)
    F.ctc_loss(x, gt.tensor([[2]]), [1], [1]).backward()
    assert bool(x.grad.isfinite().all())


@needs_torch
def test_modules_are_pytorchs():
    x = draw((3, 5), "float64")
    for make in (
        lambda nn: nn.MultiMarginLoss(2, 0.5),
        lambda nn: nn.MultiLabelMarginLoss(reduction="sum"),
        lambda nn: nn.MultiLabelSoftMarginLoss(),
        lambda nn: nn.TripletMarginWithDistanceLoss(margin=2.0),
        lambda nn: nn.CTCLoss(2),
    ):
        assert repr(make(nn)) == repr(make(torch.nn))
    compare(lambda T, x: T.nn.MultiMarginLoss(2, 0.5)(x, of(T, CLASSES)), [x])
    compare(lambda T, x: T.nn.MultiLabelSoftMarginLoss(reduction="none")(x, of(T, TRUE)), [x])
    compare(lambda T, x: T.nn.TripletMarginWithDistanceLoss(swap=True)(x, x * 2, x.flip(0)), [x])


REFUSED = [
    (lambda T, x, y: T.nn.functional.multi_margin_loss(x, y, 3), ValueError),
    (lambda T, x, y: T.nn.functional.multi_margin_loss(x, y, weight=x), ValueError),
    (lambda T, x, y: T.nn.functional.multi_margin_loss(x, y[:2]), RuntimeError),
    (lambda T, x, y: T.nn.functional.multi_margin_loss(x, y, reduction="all"), ValueError),
    (lambda T, x, y: T.nn.functional.multilabel_margin_loss(x, y), RuntimeError),
    (lambda T, x, y: T.nn.functional.triplet_margin_with_distance_loss(x, x, x[0]), RuntimeError),
    (lambda T, x, y: T.nn.functional.triplet_margin_with_distance_loss(x, x, x, margin=0), ValueError),
    (lambda T, x, y: T.nn.TripletMarginWithDistanceLoss(margin=-1), ValueError),
    (lambda T, x, y: T.nn.MultiMarginLoss(p=3), ValueError),
    (lambda T, x, y: T.nn.functional.ctc_loss(x.view(3, 1, 5), y[:1].view(1, 1), [4], [1]), RuntimeError),
    (lambda T, x, y: T.nn.functional.ctc_loss(x.view(3, 1, 5), y[:1].view(1, 1), [3], [1], 5), RuntimeError),
    (lambda T, x, y: T.nn.functional.ctc_loss(x.view(3, 1, 5), y[:1].view(1, 1), [3, 3], [1]), RuntimeError),
]


@pytest.mark.parametrize("i", range(len(REFUSED)))
def test_what_is_refused(i):
    f, error = REFUSED[i]
    for library in (gt, torch) if torch is not None else (gt,):
        with pytest.raises(error):
            f(library, library.ones(3, 5), of(library, CLASSES))
