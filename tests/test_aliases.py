"""What PyTorch has beside tensors though it belongs to layers or to linear algebra, with its arguments there."""

import numpy as np
import pytest
from helpers import check, compare, draw, needs_torch, ours, torch

import gt

# x (2, 4, 6, 7), w (4, 4, 3, 3), s (2, 4, 9), v (4)
CASES = {
    "conv": lambda T, x, w, s, v: (
        T.conv2d(x, w, None, 2, 1), T.conv1d(s, w[..., 0], v), T.conv3d(x[None], w[None, :2, :2])
    ),
    "conv_transpose": lambda T, x, w, s, v: (T.conv_transpose2d(x, w, stride=2), T.conv_transpose1d(s, w[..., 0])),
    "conv_transpose3d": lambda T, x, w, s, v: T.conv_transpose3d(x[:, :, None], w[:, :, None]),
    "max_pool": lambda T, x, w, s, v: (T.max_pool1d(s, 2), T.max_pool2d(x, 3, 2), T.max_pool3d(x, (2, 3, 3))),
    "indices": lambda T, x, w, s, v: (*T.max_pool1d_with_indices(s, 3), *T.adaptive_max_pool1d(s, 4)),
    "avg_pool": lambda T, x, w, s, v: (T.avg_pool1d(s, 3, 2, 1), T.adaptive_avg_pool1d(s, 4)),
    "norms": lambda T, x, w, s, v: (
        T.batch_norm(x, v, v * 2, None, None, True, 0.1, 1e-5, True),
        T.batch_norm(x, None, None, v.detach(), v.detach().abs(), False, 0.1, 1e-5, False),
        T.group_norm(x, 2, v, v),
        T.instance_norm(x, v, None, None, None, True, 0.1, 1e-5, False),
    ),
    "embedding": lambda T, x, w, s, v: (
        T.embedding(s[0], T.tensor([[0, 3], [1, 1]])),
        T.embedding(s[0], T.tensor([0, 3]), 3),
    ),
    "bilinear": lambda T, x, w, s, v: T.bilinear(s[..., :3], s[..., 3:6], w[0], v),
    "pixels": lambda T, x, w, s, v: (T.pixel_shuffle(x, 2), T.pixel_unshuffle(x[..., :6], 2), T.channel_shuffle(x, 2)),
    "activations": lambda T, x, w, s, v: (
        T.prelu(x, v), T.selu(x), T.celu(x, 0.5), T.rrelu(x), T.selu_(x * 1), T.celu_(x * 1, 2.0), T.rrelu_(x * 1)
    ),
    "pad": lambda T, x, w, s, v: (T.constant_pad_nd(x, (1, 2, -1, 0), 3.0), T.constant_pad_nd(s, [2, 1])),
    "losses": lambda T, x, w, s, v: (
        T.cosine_embedding_loss(s[0], s[1], T.tensor([1, -1, 1, -1]), 0.1, 2),
        T.hinge_embedding_loss(v, T.tensor([1, -1, 1, -1]), 1.0, 0),
        T.kl_div(s[0].log_softmax(-1), s[1].softmax(-1), 2),
        T.kl_div(s[0].log_softmax(-1), s[1].log_softmax(-1), 0, log_target=True),
        T.margin_ranking_loss(s[0], s[1], T.ones(4, 9).double(), 0.5, 1),
        T.triplet_margin_loss(s[0], s[1], s[0] * 2, 1.0, 2.0, 1e-6, True, 0),
        T.poisson_nll_loss(s[0], s[1].abs(), True, False, 1e-8, 1),
        T.binary_cross_entropy_with_logits(s[0], s[1].sigmoid(), None, s[0].detach().abs()),
        T.ctc_loss(s.permute(2, 0, 1).log_softmax(-1), T.tensor([[1, 2], [3, 3]]), [9, 9], [2, 2], 0, 2),
    ),
    "not training": lambda T, x, w, s, v: (T.alpha_dropout(x, 0.5, False), T.feature_dropout(x, 0.5, False)),
}  # fmt: skip


@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CASES)
def test_layers_against_torch(kind):
    compare(CASES[kind], [draw(shape, "float64") for shape in ((2, 4, 6, 7), (4, 4, 3, 3), (2, 4, 9), (4,))])


def square(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, n)) + n * np.eye(n)


MATRICES = {
    "det": lambda T, a: (T.det(a), a.det(), a.logdet(), T.logdet(a), *a.slogdet()),
    "inverse": lambda T, a: (a.inverse(), T.inverse(a), a[:3].pinverse(), T.pinverse(a, 1e-10)),
    "cholesky_solve": lambda T, a: (
        a[:, :1].cholesky_solve(T.linalg.cholesky(a @ a.T)), T.linalg.cholesky(a @ a.T).cholesky_inverse()
    ),
    "matrix_exp": lambda T, a: (T.matrix_exp(a), (a / 50).matrix_exp(), (a[:3, :3] - 9 * a[1:, 1:]).matrix_exp()),
    "matrix_exp of many": lambda T, a: T.matrix_exp(T.stack([a, a * 0, a.triu(1) * 20])),
}  # fmt: skip


@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", MATRICES)
def test_matrices_against_torch(kind):
    compare(MATRICES[kind], [square(4)], (1e-8, 1e-8))


def test_matrices_by_what_they_promise():
    a = square(4)
    t = ours(a)
    U, S, V = gt.svd(t[:3])
    check(U @ S.diag() @ V.T, a[:3])
    check(t.svd().S, np.linalg.svd(a)[1])
    assert [tuple(part.shape) for part in gt.svd(t[:3], some=False)] == [(3, 3), (3,), (4, 4)]
    assert [bool(part.any()) for part in t.svd(compute_uv=False)] == [False, True, False]
    Q, R = t.qr()
    check(Q @ R, a)
    check(gt.matrix_exp(t - t.T) @ gt.matrix_exp(t.T - t), np.eye(4))
    check(gt.matrix_exp(gt.tensor([[0.0, 1e3], [0.0, 0.0]])), np.array([[1, 1e3], [0, 1]], dtype=np.float32))


def test_dropout_by_other_names():
    x = gt.ones(200, 50, 3)
    for drop in (gt.alpha_dropout, gt.feature_alpha_dropout, gt.feature_dropout):
        assert drop(x, 0.5, False) is x and not bool((drop(x, 0.5, True) == x).all())
    dropped = gt.feature_dropout(x, 0.5, True)
    assert set(dropped.unique().tolist()) == {0.0, 2.0} and bool((dropped[..., 0] == dropped[..., 2]).all())


@needs_torch
def test_what_is_not_there():
    # Names that would be there by chance, with other arguments than PyTorch's.
    for name in ("dropout1d", "interpolate", "fold", "relu6"):
        assert not hasattr(gt, name) and not hasattr(torch, name)
