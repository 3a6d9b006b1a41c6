"""Writing in place: aliasing, versions, autograd through it."""

import numpy as np
import pytest
from helpers import check, needs_torch, torch

import gt

METHODS = {
    "add_": lambda x: x.add_(2),
    "add_ alpha": lambda x: x.add_(x.clone(), alpha=3),
    "sub_": lambda x: x.sub_(0.5),
    "mul_": lambda x: x.mul_(x.clone()),
    "div_": lambda x: x.div_(4),
    "pow_": lambda x: x.pow_(2),
    "exp_": lambda x: x.exp_(),
    "sqrt_": lambda x: x.sqrt_(),
    "neg_": lambda x: x.neg_(),
    "relu_": lambda x: x.relu_(),
    "clamp_": lambda x: x.clamp_(0.6, 2),
    "fill_": lambda x: x.fill_(3),
    "zero_": lambda x: x.zero_(),
    "copy_": lambda x: x.copy_(x.flip(0) if hasattr(x, "flip") else x),
    "masked_fill_": lambda x: x.masked_fill_(x > 1, -1),
    "tril_": lambda x: x.tril_(),
    "lerp_": lambda x: x.lerp_(x * 2, 0.5),
    "addcmul_": lambda x: x.addcmul_(x.clone(), x.clone(), value=0.5),
    "scatter_": lambda x: x.scatter_(1, (x[:, :1] * 0).long(), 5.0),
    "index_fill_": lambda x: x.index_fill_(0, (x[:1, 0] * 0).long(), 8.0),
}
TARGETS = {
    "whole": lambda x: x,
    "row": lambda x: x[1:2],
    "columns": lambda x: x[:, 1:3],
    "transposed": lambda x: x.T,
    "view": lambda x: x.view(3, 4),
    "strided": lambda x: x[::2, ::2],
    "data": lambda x: x.data,
    "detached": lambda x: x.detach(),
}


@needs_torch
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("target", TARGETS)
def test_against_torch(method, target):
    start = np.linspace(0.5, 3, 12, dtype="float64").reshape(4, 3)
    results = []
    for library in (gt, torch):
        x = library.tensor(start)
        part = TARGETS[target](x)
        out = METHODS[method](part)
        assert out is part
        results.append((x, part))
    check(results[0][0], results[1][0])
    check(results[0][1], results[1][1])


@needs_torch
@pytest.mark.parametrize(
    "method", ["add_", "mul_", "div_", "exp_", "relu_", "clamp_", "fill_", "masked_fill_", "copy_"]
)
@pytest.mark.parametrize("target", ["whole", "row", "columns", "transposed"])
def test_gradients_through_it(method, target):
    start = np.linspace(0.5, 3, 12, dtype="float64").reshape(4, 3)
    grads = []
    for library in (gt, torch):
        x = library.tensor(start, requires_grad=True)
        y = x * 1.0
        METHODS[method](TARGETS[target](y))
        (y * y).sum().backward()
        grads.append(x.grad)
    check(*grads)


def test_leaf_needs_no_grad():
    x = gt.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf"):
        x.add_(1)
    with pytest.raises(RuntimeError, match="leaf"):
        x[0] = 1
    with gt.no_grad():
        x.add_(1)
    check(x, np.full(2, 2, dtype="float32"))


def test_augmented_assignment_of_a_leaf_is_untracked():
    p = gt.ones(2, requires_grad=True)
    (p * 3).sum().backward()
    before = p
    p -= 0.1 * p.grad
    assert p is before and p.is_leaf and p.requires_grad
    check(p, np.full(2, 0.7, dtype="float32"))
    with pytest.raises(RuntimeError):
        p -= p * 2


def test_saved_values_are_guarded():
    x = gt.ones(3, requires_grad=True)
    y = x * 2
    z = y * y
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()
    y = x.exp()
    y.data.add_(1)
    y.sum().backward()
    check(x.grad, np.full(3, np.e), (1e-5, 1e-5), dtype=False)


def test_versions():
    x = gt.zeros(3)
    assert x._version == 0
    x.add_(1)
    x[0] = 2
    assert x._version == 2
    x.data.add_(1)
    assert x._version == 2
    assert x[1:]._version == 2


def test_expanded_tensors_refuse():
    with pytest.raises(RuntimeError, match="single memory location"):
        gt.ones(1).expand(3).add_(1)


def test_type_does_not_change():
    x = gt.ones(2, dtype=gt.int64)
    with pytest.raises(RuntimeError, match="can't be cast"):
        x.add_(0.5)
    with pytest.raises(RuntimeError):
        x /= 2
    with pytest.raises(RuntimeError, match="shape"):
        gt.ones(2).add_(gt.ones(3, 2))


def test_state_dict_and_data_write_through():
    layer = gt.nn.Linear(2, 2)
    layer.state_dict()["weight"].copy_(gt.eye(2))
    check(layer.weight, np.eye(2, dtype="float32"))
    layer.weight.data.copy_(gt.zeros(2, 2))
    check(layer.weight, np.zeros((2, 2), dtype="float32"))
    layer.weight.data = gt.ones(2, 2)
    check(layer.weight, np.ones((2, 2), dtype="float32"))


def test_rows_of_a_buffer():
    buffer, right = gt.zeros(50, 4), np.zeros((50, 4), dtype="float32")
    for i in range(50):
        row = gt.full((4,), float(i))
        buffer[i] = row
        right[i] = i
    check(buffer, right)


def test_a_tracked_tensor_stays_tracked_when_all_of_it_is_overwritten():
    x = gt.ones(3, requires_grad=True)
    for write in (lambda y: y.copy_(gt.zeros(3)), lambda y: y.eq_(2), lambda y: y[...].copy_(gt.zeros(3))):
        y = x * 2
        write(y)
        assert y.requires_grad and not y.is_leaf
        x.grad = None
        y.sum().backward()
        check(x.grad, np.zeros(3, dtype="float32"))


def test_only_what_a_gradient_reads_is_guarded():
    x = gt.ones(2, 2, requires_grad=True)
    weight = gt.full((2, 2), 3.0)
    for function in (lambda y: y * 2, lambda y: y / 4, lambda y: y * weight, lambda y: y @ weight, lambda y: y % 2):
        y = x + 0
        z = function(y)
        y.add_(1)
        z.sum().backward()
    y = x + 0
    z = weight * y * y
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_views_of_data_count_no_version():
    x = gt.ones(4, requires_grad=True)
    y = x * x
    x.data[1:].mul_(2)
    x.data.view(2, 2).add_(1)
    assert x._version == 0
    y.sum().backward()


def test_shifts_write_in_place():
    x = gt.tensor([1, 2, 3])
    tail = x[1:]
    tail <<= 3
    x >>= 1
    assert x.tolist() == [0, 8, 12] and tail.tolist() == [8, 12]


def test_an_empty_part_of_a_part_with_steps():
    x = gt.zeros(4)
    x[::3][2:].fill_(1)
    x[1::2].narrow(0, 2, 0).add_(1)
    assert x[::3][2:].tolist() == []
    check(x, np.zeros(4, dtype="float32"))


def test_the_diagonal_of_a_transposed_matrix_is_a_view():
    x = gt.zeros(2, 3)
    x.T.diagonal(-1).fill_(1)
    check(x, np.eye(2, 3, 1, dtype="float32"))


DIAGONALS = {
    "corner": lambda x: x[:3, :3].diagonal(),
    "behind": lambda x: x[1:, 1:].diagonal(),
    "columns": lambda x: x[:, 1:4].diagonal(1),
    "rows apart": lambda x: x[::2].diagonal(-1),
    "turned": lambda x: x[1:, :3].T.diagonal(),
    "of blocks": lambda x: x.view(2, 2, 5)[:, :, 1:4].diagonal(0, 1, 2),
    "none": lambda x: x[:2, :2].diagonal(4),
}


@pytest.mark.parametrize("case", DIAGONALS)
def test_a_diagonal_is_a_view(case):
    """Of any view: what is written to it arrives, and gradients go through."""
    start = np.arange(20, dtype="float64").reshape(4, 5)
    places = DIAGONALS[case](gt.tensor(start).clone())
    right, factor = start.copy(), np.ones((4, 5))
    for at in places.numpy().ravel().astype(int):
        right.flat[at] *= 3
        factor.flat[at] = 3
    leaf = gt.tensor(start, requires_grad=True)
    x = leaf * 1
    picked = DIAGONALS[case](x)
    picked.mul_(3)
    check(x.detach(), right)
    check(picked.detach(), places.numpy() * 3)
    x.sum().backward()
    check(leaf.grad, factor)
    assert picked.storage_offset() + 0.0 == (places.numpy().ravel()[:1].sum() if picked.numel() else 0.0)
    if picked.dim() == 1 and picked.numel() > 1:
        assert picked.stride() == (int(np.diff(places.numpy())[0]),)


def test_filling_the_diagonal_of_a_part():
    x = gt.zeros(4, 4)
    x[:3, :3].fill_diagonal_(9)
    check(x, np.diag([9, 9, 9, 0]).astype("float32"))


def test_what_is_overwritten_has_a_gradient_of_zeros():
    for write in (lambda y, v: y.copy_(v), lambda y, v: y.__setitem__(slice(None), v)):
        x, v = gt.ones(2, requires_grad=True), gt.ones(2, requires_grad=True)
        y = x * 1
        write(y, v * 3)
        first, second = gt.autograd.grad(y.sum(), [x, v])
        check(first, np.zeros(2, dtype="float32"))
        check(second, np.full(2, 3.0, dtype="float32"))


def test_logits_may_be_written_after_their_loss():
    start, classes = gt.tensor([[1.0, 2.0], [0.0, 3.0]]), gt.tensor([0, 1])
    found = []
    for write in (False, True):
        x = start.clone().requires_grad_()
        y = x * 1
        loss = gt.nn.functional.cross_entropy(y, classes)
        if write:
            y.div_(2.0)
        loss.backward()
        found.append(x.grad.numpy())
    np.testing.assert_array_equal(*found)


def test_results_are_views_of_nothing():
    x = gt.arange(12.0).reshape(3, 4).requires_grad_()
    v = gt.ones(4)
    made = [x @ v, gt.ones(3) @ x, v @ v, gt.nn.functional.linear(v, x), x.max(1)[0], x.min(1)[1], x.median(1)[0]]
    made += [x.kthvalue(2, 1)[0], x.kthvalue(2, 1, keepdim=True)[1]]
    assert not any(t._is_view() for t in made)
    # So a view that was made before such a result was overwritten is a function of the result, as in PyTorch.
    y = x @ v
    part = y[...]
    y[...] = gt.tensor([1.0, 2.0, 3.0])
    check(gt.autograd.grad((part * part).sum(), y)[0], np.array([2.0, 4.0, 6.0], dtype="float32"))
