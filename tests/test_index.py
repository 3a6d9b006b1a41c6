"""Indexing: reading and assigning, against NumPy and PyTorch."""

import numpy as np
import pytest
from helpers import check, draw, needs_torch, ours, theirs, torch

import gt

# An index as a function of a maker of integer or bool arrays.
INDICES = {
    "int": lambda a: 1,
    "negative": lambda a: -1,
    "ints": lambda a: (1, 2, 0),
    "slice": lambda a: slice(1, None),
    "slices": lambda a: (slice(None), slice(0, 2), slice(1, 4, 2)),
    "empty slice": lambda a: slice(2, 1),
    "far slice": lambda a: (slice(None), slice(-100, 100)),
    "none": lambda a: (None, slice(None), None),
    "ellipsis": lambda a: (..., 1),
    "ellipsis mid": lambda a: (0, ..., slice(1, 3)),
    "all": lambda a: (),
    "dots": lambda a: ...,
    "ints array": lambda a: a([1, 0, 1]),
    "negative array": lambda a: a([-1, 0]),
    "2d array": lambda a: a([[0, 1], [1, 1]]),
    "two arrays": lambda a: (a([0, 1]), a([2, 0])),
    "arrays broadcast": lambda a: (a([[0], [1]]), a([2, 0, 1])),
    "arrays apart": lambda a: (a([0, 1]), slice(None), a([3, 0])),
    "array middle": lambda a: (slice(None), a([2, 0])),
    "array and int": lambda a: (a([0, 1]), 1),
    "array and slice": lambda a: (slice(0, 1), a([2, 1]), slice(1, 3)),
    "array and none": lambda a: (None, a([0, 1])),
    "empty array": lambda a: a(np.zeros(0, dtype="int64")),
    "mask full": lambda a: a(np.arange(24).reshape(2, 3, 4) % 3 == 0),
    "mask rows": lambda a: a([True, False]),
    "mask 2d": lambda a: a([[True, False, True], [False, False, True]]),
    "mask none": lambda a: a(np.zeros((2, 3, 4), dtype=bool)),
    "mask middle": lambda a: (slice(None), a([True, False, True])),
    "list": lambda a: [1, 0],
}


def of(library):
    return {np: np.array, gt: gt.tensor, torch: lambda x: torch.tensor(x)}[library]


@pytest.mark.parametrize("kind", INDICES)
def test_read(kind):
    x = draw((2, 3, 4), "float32")
    check(ours(x)[INDICES[kind](of(gt))], x[INDICES[kind](of(np))])


@pytest.mark.parametrize("kind", INDICES)
@pytest.mark.parametrize("value", ["number", "tensor", "row"])
def test_assign(kind, value):
    x = draw((2, 3, 4), "float32")
    mine, right = ours(x), x.copy()
    shape = right[INDICES[kind](of(np))].shape
    if value == "row" and (not shape or kind.startswith("mask")):
        return
    new = {"number": 7.0, "tensor": draw(shape, "float32", seed=3), "row": draw(shape[-1:], "float32", seed=4)}[value]
    right[INDICES[kind](of(np))] = new
    mine[INDICES[kind](of(gt))] = new if value == "number" else ours(new)
    check(mine, right)


@needs_torch
@pytest.mark.parametrize("kind", INDICES)
def test_gradients(kind):
    x = draw((2, 3, 4), "float64")
    a, b = ours(x, grad=True), theirs(x, grad=True)
    for t, library in ((a, gt), (b, torch)):
        y = t * 2
        y[INDICES[kind](of(library))] *= 3
        (y[INDICES[kind](of(library))] ** 2).sum().backward()
    check(a.grad, b.grad)


@pytest.mark.parametrize("dtype", ["int64", "int32", "bool", "float64", "float16"])
def test_dtypes(dtype):
    x = draw((3, 4), dtype)
    check(ours(x)[1:, gt.tensor([0, 2])], x[1:, [0, 2]])
    mine, right = ours(x), x.copy()
    mine[0] = 1
    right[0] = 1
    check(mine, right)


def test_views_share_storage():
    x = gt.zeros(4, 4)
    row, column, block, flat = x[1], x[:, 2], x[1:3, 1:3], x.view(-1)
    row += 1
    column.fill_(5)
    block[0, 0] = 9
    flat[-1] = -1
    x[3, 0] = 7
    right = np.zeros((4, 4), dtype="float32")
    right[1] += 1
    right[:, 2] = 5
    right[1, 1] = 9
    right[3, 3] = -1
    right[3, 0] = 7
    check(x, right)
    check(flat, right.reshape(-1))
    check(block, right[1:3, 1:3])
    check(x.T[2], right.T[2])


def test_copies_do_not():
    x = gt.zeros(4)
    for y in (x[gt.tensor([0, 1, 2, 3])], x[x == 0], x.clone(), gt.tensor(x), x + 0, x.to(gt.float64)):
        y.fill_(1)
    check(x, np.zeros(4, dtype="float32"))


def test_augmented_assignment_through_index():
    x = gt.ones(3, 3)
    x[1] += 2
    x[:, 0] *= 5
    x[gt.tensor([0, 0])] -= 1
    right = np.ones((3, 3), dtype="float32")
    right[1] += 2
    right[:, 0] *= 5
    right[[0, 0]] -= 1
    check(x, right)


def test_bad_index_values_fail_when_looked_at():
    x = gt.ones(3)
    y = gt.zeros(3)
    gt.synchronize()  # a program fails as a whole: what it made is lost, what was there before stays
    with pytest.raises((IndexError, RuntimeError), match=r"index|range|bounds"):
        x[gt.tensor([5])].numpy()
    check(x, np.ones(3, dtype="float32"))
    with pytest.raises((IndexError, RuntimeError)):
        y[gt.tensor([7])] = 1.0
        y.numpy()
    check(y, np.zeros(3, dtype="float32"))


def test_iteration_and_containers():
    x = gt.arange(6).reshape(2, 3)
    assert [row.tolist() for row in x] == [[0, 1, 2], [3, 4, 5]]
    assert len(x) == 2
    a, b = x
    assert b[2].item() == 5
    assert 4 in x and 9 not in x
    assert list(range(10))[gt.tensor(3)] == 3
    assert x.nonzero().tolist() == np.argwhere(x.numpy()).tolist()


# What is done to a tensor of shape (3, 4) through an index that is a number on the device.
THROUGH = {
    "add": lambda x, i: x[i].add_(1),
    "item": lambda x, i: x[i].__setitem__(1, 7),
    "fill": lambda x, i: x[i, :].fill_(5),
    "column": lambda x, i: x[:, i].mul_(3),
    "element": lambda x, i: x[i, i].zero_(),
    "part": lambda x, i: x[1:][i - 1, ::2].add_(10),
    "of a part": lambda x, i: x[i][1:][i].sub_(4),
    "transposed": lambda x, i: x.T[i].copy_(x[0, :3] * 2),
    "from the end": lambda x, i: x[-i].view(2, 2)[0].fill_(9),
    "twice": lambda x, i: (x[i].add_(1), x[i].mul_(2)),
    "new axis": lambda x, i: x[None, i].add_(1),
}


@pytest.mark.parametrize("case", THROUGH)
def test_what_a_tensor_picks_is_a_view(case):
    """As with the number itself, in values and gradients."""
    start = draw((3, 4), "float64", 0.5, 2.0)
    found = []
    for i in (gt.tensor(1), 1):
        leaf = ours(start, grad=True)
        x = leaf * 1
        THROUGH[case](x, i)
        (x * x).sum().backward()
        found.append((x.detach().numpy(), leaf.grad.numpy()))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_what_a_tensor_picks_follows_its_base():
    x = gt.zeros(3, 2)
    for i in gt.tensor([0, 2]):
        x[i].add_(1)
    check(x, np.array([[1, 1], [0, 0], [1, 1]], dtype="float32"))
    row = x[gt.tensor([5, 1, 3]).argmin()]
    x[1, 0] = 5
    check(row, np.array([5, 0], dtype="float32"))
    row += 100
    check(x[1], np.array([105, 100], dtype="float32"))
    # The place is that of the moment at which it was picked.
    i = gt.tensor(0)
    first = x[i]
    i.add_(1)
    first.zero_()
    check(x, np.array([[0, 0], [105, 100], [1, 1]], dtype="float32"))
    assert row._is_view() and first.shape == (2,) and x[i, i].shape == () and x.T[i].stride() == (2,)
    with gt.no_grad():
        w = gt.ones(2, requires_grad=True)
        w[gt.tensor(1)].mul_(3)
    check(w.detach(), np.array([1, 3], dtype="float32"))


def test_what_a_tensor_picks_of_a_detached_tensor():
    leaf, weight = gt.ones(4, 2, requires_grad=True), gt.ones(2, requires_grad=True)
    apart = (leaf * 1)[1:].detach()
    apart[gt.tensor(1)].mul_(weight * 2)
    assert apart.requires_grad
    apart.sum().backward()
    check(weight.grad, np.full(2, 2.0, dtype="float32"))
    assert leaf.grad is None
    with pytest.raises(RuntimeError, match="leaf"):
        leaf[gt.tensor(0)].add_(1)


def test_a_picked_place_out_of_range():
    with pytest.raises(IndexError, match="out of bounds for dimension 0 with size 3"):
        gt.ones(3)[gt.tensor(5)].item()


@pytest.mark.parametrize("count", [2, 7])
def test_a_mask_with_another_count_of_values(count):
    x = gt.zeros(2, 3)
    words = rf"value tensor of shape \[{count}\] cannot be broadcast to indexing result of shape \[6\]"
    with pytest.raises(RuntimeError, match=words):
        x[x == 0] = gt.ones(count)
        x.tolist()
