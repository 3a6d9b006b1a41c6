"""What PyTorch programs call by name: functions with `input=` and `out=`, generators, default types, odd corners."""

import numpy as np
import pytest
from helpers import check, draw

import gt
from gt import nn


def test_functions_take_their_first_argument_by_name():
    x = gt.tensor([[3.0, 1.0], [2.0, 4.0]])
    assert gt.sum(input=x, dim=0).tolist() == [5.0, 5.0]
    assert gt.max(input=x, dim=1).values.tolist() == [3.0, 4.0]
    assert gt.mm(input=x, mat2=gt.eye(2)).tolist() == x.tolist()
    assert gt.split(tensor=x, split_size_or_sections=1)[1].tolist() == [[2.0, 4.0]]
    assert gt.permute(x, dims=(1, 0)).tolist() == x.permute(dims=(1, 0)).tolist() == [[3.0, 2.0], [1.0, 4.0]]
    assert x.view(size=(4,)).shape == x.reshape(shape=(4,)).shape == (4,)
    assert nn.functional.gelu(input=gt.zeros(2)).tolist() == [0.0, 0.0]
    assert nn.Linear(2, 3)(input=x).shape == (2, 3)
    with pytest.raises(TypeError, match="argument 'input'"):
        gt.exp(2.0)
    with pytest.raises(TypeError, match="given twice"):
        x.reshape(4, shape=(4,))


def test_results_go_where_out_says():
    x, out = gt.tensor([1.0, 2.0]), gt.zeros(2)
    alias = out.view(2)
    assert gt.add(x, 1, out=out) is out
    assert alias.tolist() == [2.0, 3.0]
    gt.exp(x, out=out)
    check(out, np.exp(np.array([1, 2], dtype=np.float32)), dtype=False)
    gt.cat([x, x], out=out)
    assert out.tolist() == [1.0, 2.0, 1.0, 2.0]
    values, places = gt.empty(0), gt.empty(0, dtype=gt.int64)
    gt.max(gt.tensor([[1.0, 5.0]]), 1, out=(values, places))
    assert values.tolist() == [5.0] and places.tolist() == [1]
    with pytest.raises(RuntimeError, match="automatic differentiation"):
        gt.mul(x.requires_grad_(), 2, out=gt.zeros(2))
    with pytest.raises(RuntimeError, match="can't be cast"):
        gt.exp(x.detach(), out=gt.zeros(2, dtype=gt.int64))
    assert gt.can_cast(gt.int8, gt.uint8) and not gt.can_cast(gt.int8, gt.bool)
    narrow = gt.zeros(2, dtype=gt.int32)
    assert gt.add(gt.tensor([3, 4]), 1, out=narrow).tolist() == [4, 5] and narrow.dtype == gt.int32


def test_functions_that_write():
    x = gt.tensor([-1.0, 2.0])
    assert gt.relu_(x) is x and x.tolist() == [0.0, 2.0]


def test_generators_draw_apart_from_the_session():
    gt.manual_seed(1)
    right = gt.rand(3)
    g = gt.Generator().manual_seed(5)
    gt.manual_seed(1)
    draws = [gt.rand(4, generator=g), gt.randn(4, generator=g), gt.randperm(6, generator=g)]
    draws += [gt.randint(0, 99, (5,), generator=g), gt.multinomial(gt.ones(9), 4, generator=g)]
    draws += [gt.empty(3).normal_(generator=g), gt.bernoulli(gt.full((20,), 0.5), generator=g)]
    assert gt.rand(3).tolist() == right.tolist()
    g.manual_seed(5)
    again = [gt.rand(4, generator=g), gt.randn(4, generator=g), gt.randperm(6, generator=g)]
    again += [gt.randint(0, 99, (5,), generator=g), gt.multinomial(gt.ones(9), 4, generator=g)]
    again += [gt.empty(3).normal_(generator=g), gt.bernoulli(gt.full((20,), 0.5), generator=g)]
    for a, b in zip(draws, again):
        assert a.tolist() == b.tolist()
    state = g.get_state()
    one = gt.rand(2, generator=g).tolist()
    assert gt.rand(2, generator=g).tolist() != one
    assert gt.rand(2, generator=g.set_state(state)).tolist() == one
    assert g.initial_seed() == 5 and gt.Generator().initial_seed() == gt.Generator().initial_seed()
    with pytest.raises(TypeError):
        gt.rand(2, generator=3)


def test_the_session_has_a_generator():
    assert gt.manual_seed(7).initial_seed() == gt.initial_seed() == 7
    first = gt.rand(2).tolist()
    gt.default_generator.manual_seed(7)
    assert gt.rand(2, generator=gt.default_generator).tolist() == first
    with gt.random.fork_rng():
        gt.manual_seed(9)
        gt.rand(3)
    after = gt.rand(2).tolist()
    gt.manual_seed(7)
    gt.rand(2)
    assert gt.rand(2).tolist() == after
    assert gt.seed() != gt.seed()


def test_the_default_type_is_chosen():
    gt.set_default_dtype(gt.float64)
    try:
        made = [gt.ones(2), gt.tensor([1.5]), gt.tensor([1, 2]) * 1.5, gt.arange(0, 1, 0.5), gt.tensor([4]).sqrt()]
        made += [nn.Linear(2, 2).weight, gt.tensor([1]) / 2, gt.rand(2), gt.linspace(0, 1, 3), gt.Tensor([1])]
        assert {str(t.dtype) for t in made} == {"gt.float64"}
        assert gt.get_default_dtype() == gt.float64
        assert str(gt.ones(1)) == "tensor([1.])" and "float32" in str(gt.ones(1, dtype=gt.float32))
    finally:
        gt.set_default_dtype(gt.float32)
    assert gt.ones(2).dtype == gt.float32
    with pytest.raises(TypeError, match="floating-point"):
        gt.set_default_dtype(gt.int64)


def test_errors_of_indices_are_both_kinds():
    x = gt.zeros(3, 4)
    for kind in (IndexError, RuntimeError, gt.OutOfBoundsError):
        with pytest.raises(kind):
            gt.gather(x, 1, gt.tensor([[7]])).tolist()
        with pytest.raises(kind):
            x[5]
    with pytest.raises(ValueError, match="one element"):
        float(x)


def test_arrays_are_operands():
    x, y = gt.ones(3), np.array([1.0, 2.0, 3.0], dtype=np.float32)
    for sum_ in (x + y, y + x):
        assert isinstance(sum_, gt.Tensor) and sum_.tolist() == [2.0, 3.0, 4.0]
    assert (x < y).tolist() == [False, True, True]
    x += y
    assert x.tolist() == [2.0, 3.0, 4.0]


def test_indices_of_other_kinds():
    x = gt.tensor(draw((3, 4), "float32"))
    right = x.numpy()
    assert x[range(2)].tolist() == right[[0, 1]].tolist()
    assert x[[[0, 1], [1, 2]]].tolist() == right[[0, 1], [1, 2]].tolist()
    assert x[..., ..., 0].tolist() == right[:, 0].tolist()
    assert [r.tolist() for r in reversed(gt.arange(3))] == [2, 1, 0]


def test_floor_division_is_exact():
    a = np.array([1.0, 6.0, -6.0, 0.3, 2.4, -7.5, 1e9], dtype=np.float32)
    b = np.array([0.1, 0.2, 0.2, 0.1, 0.8, 2.5, 3.0], dtype=np.float32)
    assert (gt.tensor(a) // gt.tensor(b)).tolist() == (a // b).tolist()
    assert gt.tensor(1.0).div(0.1, rounding_mode="floor").item() == 9.0
    inf = float("inf")
    assert (gt.tensor([1.5, -1.5]) // inf).tolist() == [0.0, -1.0]
    assert (gt.tensor([inf]) // 2).isnan().all()


def test_a_tensor_stands_for_another():
    x = gt.arange(6.0).view(2, 3)
    assert x.t_() is x and x.shape == (3, 2) and x[0].tolist() == [0.0, 3.0]
    assert x.unsqueeze_(0).shape == (1, 3, 2) and x.squeeze_().shape == (3, 2)
    y = gt.ones(2, requires_grad=True)
    z = (y * 3).unsqueeze_(0)
    z.sum().backward()
    assert y.grad.tolist() == [3.0, 3.0]
    with pytest.raises(RuntimeError, match="leaf"):
        y.unsqueeze_(0)
    w = gt.zeros(2, 3)
    row = w[0]
    w.data = gt.ones(5)
    assert w.tolist() == [1.0] * 5 and row.tolist() == [0.0] * 3
    w[0] = 4
    assert w.tolist() == [4.0, 1, 1, 1, 1]
    assert w.resize_(2, 2).tolist() == [[4.0, 1.0], [1.0, 1.0]]
    with pytest.raises(RuntimeError, match="no operation made"):
        (y * 2).data = gt.ones(3)


def test_storage_is_told_apart():
    x = gt.zeros(4, 4)
    assert x.data_ptr() == x.view(16).data_ptr() != x.clone().data_ptr()
    assert x[1:].data_ptr() == x.data_ptr() + 16
    assert x.layout is gt.strided and not x.is_sparse and x.get_device() == -1


def test_old_constructors():
    assert gt.Tensor(2, 3).shape == (2, 3) and gt.Tensor([1, 2]).tolist() == [1.0, 2.0]
    assert gt.LongTensor([1, 2]).dtype == gt.int64 and gt.FloatTensor(2).shape == (2,)
    assert gt.Tensor(gt.zeros(2, 5).shape).shape == (2, 5)
    assert gt.arange(end=3).tolist() == [0, 1, 2]
