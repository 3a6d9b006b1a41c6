"""Solvers and decompositions: what they promise, gradients against finite differences and against PyTorch."""

import numpy as np
import pytest
from helpers import check, compare, draw, needs_torch, ours, theirs, torch

import gt
from gt import linalg


def positive(n, batch=()):
    a = draw((*batch, n, n), "float64")
    return a @ a.swapaxes(-1, -2) + np.eye(n)


def test_solutions_and_inverses():
    a, b = positive(4, (2,)), draw((2, 4, 3), "float64")
    A, B = ours(a), ours(b)
    check(A @ linalg.solve(A, B), b)
    check(linalg.solve(A, B.mT, left=False) @ A, b.swapaxes(-1, -2))
    check(A[0] @ linalg.solve(A[0], B[0, :, 0]), b[0, :, 0])
    check(linalg.inv(A) @ A, np.broadcast_to(np.eye(4), (2, 4, 4)))
    check(gt.det(A), np.linalg.det(a))
    check(gt.logdet(A), np.log(np.linalg.det(a)))
    check(A @ gt.cholesky_solve(B, gt.cholesky(A)), b)
    check(A.tril() @ linalg.solve_triangular(A, B, upper=False), b)


def test_decompositions_multiply_back():
    a = draw((5, 3), "float64")
    A = ours(a)
    U, S, Vh = linalg.svd(A, full_matrices=False)
    check(U * S @ Vh, a)
    check(U.mT @ U, np.eye(3))
    assert linalg.svd(A).U.shape == (5, 5)
    Q, R = linalg.qr(A)
    check(Q @ R, a)
    check(R, R.triu().numpy())
    P = ours(positive(4))
    values, vectors = linalg.eigh(P)
    check(vectors * values @ vectors.mT, P.numpy())
    L = linalg.cholesky(P)
    check(L @ L.mT, P.numpy())
    check(linalg.pinv(A) @ A, np.eye(3))
    check(linalg.lstsq(A, ours(draw((5, 2), "float64"))).solution, np.linalg.lstsq(a, draw((5, 2), "float64"))[0])
    assert linalg.matrix_rank(ours(np.outer(a[:, 0], a[0]))).item() == 1
    check(linalg.norm(A, 2), np.array(np.linalg.norm(a, 2)))
    check(linalg.matrix_norm(A, "nuc"), np.array(np.linalg.norm(a, "nuc")))


GRADIENTS = {
    "solve": lambda L, A, B: L.solve(A, B),
    "inv": lambda L, A, B: L.inv(A),
    "det": lambda L, A, B: L.det(A),
    "slogdet": lambda L, A, B: L.slogdet(A)[1],
    "cholesky": lambda L, A, B: L.cholesky(A + A.mT),
    "eigh": lambda L, A, B: L.eigh(A + A.mT)[0],
    "eigenvectors": lambda L, A, B: L.eigh(A + A.mT)[1] ** 2,
    "svd": lambda L, A, B: L.svd(B, full_matrices=False)[0] ** 2 @ B[:2] + L.svdvals(B).sum(),
    "qr": lambda L, A, B: L.qr(B)[1] ** 2,
    "pinv": lambda L, A, B: L.pinv(B),
}


@pytest.mark.parametrize("kind", GRADIENTS)
def test_gradients(kind):
    A, B = ours(positive(3), grad=True), ours(draw((3, 2), "float64"), grad=True)
    assert gt.autograd.gradcheck(lambda A, B: GRADIENTS[kind](linalg, A, B), (A, B), atol=1e-4)


@needs_torch
@pytest.mark.parametrize("kind", GRADIENTS)
def test_gradients_are_pytorchs(kind):
    seen = []
    for library, make in ((gt, ours), (torch, theirs)):
        A, B = make(positive(3), grad=True), make(draw((3, 2), "float64"), grad=True)
        out = GRADIENTS[kind](library.linalg, A, B)
        (out * out + out).sum().backward()
        seen.append([out, [x.grad for x in (A, B) if x.grad is not None]])
    check(*seen, tolerance=(1e-7, 1e-7))


def test_what_is_refused():
    with pytest.raises(linalg.LinAlgError, match="ingular"):
        linalg.inv(gt.zeros(2, 2))
    with pytest.raises(RuntimeError, match="not positive definite"):
        linalg.cholesky(-gt.eye(2))
    with pytest.raises(RuntimeError, match="square"):
        linalg.det(gt.zeros(2, 3))
    with pytest.raises(RuntimeError, match="float32 or float64"):
        linalg.inv(gt.eye(2).long())
    with pytest.raises(RuntimeError, match="driver"):
        linalg.lstsq(gt.ones(3, 2), gt.ones(3, 1), driver="gel")
    with pytest.raises(RuntimeError, match="UPLO"):
        linalg.eigh(gt.eye(2), "X")


def low_rank(A, B):
    return B @ B[:2].mT


# Of A (positive, 3 x 3) and B (3 x 2).
CORNERS = {
    "svd of all vectors": lambda L, A, B: (L.svd(B)[1], L.svd(B)[0][:, :2] ** 2),
    "qr of wide ones": lambda L, A, B: L.qr(B.mT),
    "pinv of a lower rank": lambda L, A, B: L.pinv(low_rank(A, B) @ low_rank(A, B).mT, rtol=1e-6),
    "pinv of symmetric ones": lambda L, A, B: L.pinv(A + A.mT, hermitian=True),
    "equal values": lambda L, A, B: (
        L.svdvals(A * 0 + A.new_ones(3).diag()),
        L.eigvalsh(A * 0 + 2 * A.new_ones(3).diag()),
    ),
    "nuclear norm of nothing": lambda L, A, B: L.matrix_norm(A * 0, "nuc"),
    "negative powers": lambda L, A, B: L.matrix_power(A, -2),
    "with info": lambda L, A, B: (*L.inv_ex(A), *L.cholesky_ex(A + A.mT), *L.solve_ex(A, B)),
    "tensors": lambda L, A, B: (L.tensorinv(A.reshape(3, 3, 1), ind=1), L.tensorsolve(A, B[:, 0])),
    "vander": lambda L, A, B: (L.vander(A), L.vander(A[0], N=4)),
    "lu": lambda L, A, B: (*L.lu(A), *L.lu(B), *L.lu(B.mT), *L.lu(A.expand(2, 3, 3).contiguous())),
    "lu_factor": lambda L, A, B: (*L.lu_factor(B[::2]), L.lu_solve(*L.lu_factor(A @ A.flip(0)), B)),
    "lu_solve": lambda L, A, B: (
        L.lu_solve(*L.lu_factor(A.flip(0)), B.mT, left=False),
        L.lu_solve(*L.lu_factor(A.flip(0)), B, adjoint=True),
    ),
    "cond": lambda L, A, B: (L.cond(A), *(L.cond(A.detach(), p) for p in (2, -2, 1, "fro", "nuc"))),
}


@needs_torch
@pytest.mark.parametrize("kind", CORNERS)
def test_corners_are_pytorchs(kind):
    compare(lambda T, A, B: CORNERS[kind](T.linalg, A, B), [positive(3), draw((3, 2), "float64")], (1e-6, 1e-7))


@needs_torch
@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd", "gelss"])
@pytest.mark.parametrize("shape", [(4, 3), (3, 3), (2, 3), (2, 4, 3)], ids=str)
def test_least_squares_tell_what_the_driver_does(driver, shape):
    a, b = draw(shape, "float64"), draw((*shape[:-1], 2), "float64")
    check(linalg.lstsq(ours(a), ours(b), driver=driver), torch.linalg.lstsq(theirs(a), theirs(b), driver=driver))


@needs_torch
def test_ranks_by_tolerances():
    a = np.stack([np.diag([1.0, 1e-3, 0.0]), np.diag([2.0, 1.0, 1e-9])])
    for options in (
        {},
        {"tol": 0.5},
        {"atol": 0.5},
        {"rtol": 1e-2},
        {"atol": torch.tensor([0.0, 1.5]).double()},
        {"rtol": torch.tensor([1e-5, 1e-2]).double(), "atol": torch.tensor(1e-4).double()},
        {"hermitian": True},
    ):
        mine = {k: ours(v.numpy()) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
        check(linalg.matrix_rank(ours(a), **mine), torch.linalg.matrix_rank(theirs(a), **options))
    for shape in ((0, 0), (0, 3), (2, 0, 0), (0, 2, 2)):
        check(linalg.matrix_rank(gt.zeros(shape)), torch.linalg.matrix_rank(torch.zeros(shape)))
        check(linalg.pinv(gt.zeros(shape)), torch.linalg.pinv(torch.zeros(shape)))


@needs_torch
def test_lu_beside_linalg():
    a = draw((2, 3, 4), "float64")
    mine, right = gt.lu(ours(a), get_infos=True), torch.lu(theirs(a), get_infos=True)
    check(mine, right)
    check(gt.lu_unpack(*mine[:2]), torch.lu_unpack(*right[:2]))
    check(gt.lu_unpack(*mine[:2], unpack_data=False).P, torch.lu_unpack(*right[:2], unpack_data=False).P)
    square, b = draw((2, 3, 3), "float64"), draw((2, 3, 2), "float64")
    check(gt.lu_solve(ours(b), *gt.lu(ours(square))), np.linalg.solve(square, b))
    for shape in ((0, 3, 3), (0, 4, 5), (2, 0, 0)):
        check(linalg.lu(gt.zeros(shape)), torch.linalg.lu(torch.zeros(shape)))


def test_what_is_singular_is_told():
    a = gt.tensor([[[1.0, 0.0], [0.0, 2.0]], [[1.0, 1.0], [1.0, 1.0]]])
    inverse, info = linalg.inv_ex(a)
    assert [n == 0 for n in info.tolist()] == [True, False]
    assert inverse[0].tolist() == [[1.0, 0.0], [0.0, 0.5]]
    assert linalg.cholesky_ex(-gt.eye(2)).info.item() != 0
    with pytest.raises(linalg.LinAlgError):
        linalg.cholesky_ex(-gt.eye(2), check_errors=True)


def test_few_singular_values_of_large_matrices():
    gt.manual_seed(0)
    a = draw((30, 4), "float64") @ draw((4, 20), "float64")
    for A in (ours(a), ours(a.T)):
        U, S, V = gt.svd_lowrank(A, 4)
        check(U * S @ V.mT, A.numpy())
        check(S, np.linalg.svd(a)[1][:4])
        U, S, V = gt.pca_lowrank(A, 4)
        check(U * S @ V.mT, (A - A.mean(0)).numpy())
    with pytest.raises(ValueError, match="q between"):
        gt.pca_lowrank(ours(a), 21)
