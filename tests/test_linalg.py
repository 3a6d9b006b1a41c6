"""Solvers and decompositions: what they promise, gradients against finite differences and against PyTorch."""

import numpy as np
import pytest
from helpers import check, draw, needs_torch, ours, theirs, torch

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
    with pytest.raises(RuntimeError, match="full_matrices=False"):
        linalg.svd(gt.zeros(2, 3, requires_grad=True))
