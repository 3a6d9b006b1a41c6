"""Weights that are computed from others, and sequences of different lengths: as in PyTorch."""

import copy
import pickle

import numpy as np
import pytest
from helpers import check, draw, needs_torch, torch

import gt

LIBRARIES = [gt] if torch is None else [gt, torch]
each_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.__name__)


def symmetric(library):
    """What makes a matrix symmetric, and knows the way back."""

    class Symmetric(library.nn.Module):
        def forward(self, x):
            return x.triu() + x.triu(1).t()

        def right_inverse(self, a):
            return a.triu()

    return Symmetric()


def double(library):
    class Double(library.nn.Module):
        def forward(self, x):
            return x * 2

    return Double()


def linear(library, rows=3, columns=3):
    module = library.nn.Linear(columns, rows)
    module.load_state_dict(
        {"weight": library.tensor(draw((rows, columns), "float32")), "bias": library.tensor(draw((rows,), "float32"))}
    )
    return module


@each_library
def test_a_computed_weight_lives_as_others_do(library):
    parametrize, module = library.nn.utils.parametrize, linear(library)
    parametrize.register_parametrization(module, "weight", symmetric(library))
    right = np.triu(draw((3, 3), "float32"))
    right = right + np.triu(right, 1).T
    np.testing.assert_array_equal(module.weight.detach().numpy(), right)
    assert list(module.state_dict()) == ["bias", "parametrizations.weight.original"]
    assert type(module).__name__ == "ParametrizedLinear" and isinstance(module, library.nn.Linear)
    assert parametrize.type_before_parametrizations(module) is library.nn.Linear
    assert parametrize.is_parametrized(module, "weight") and not parametrize.is_parametrized(module, "bias")
    assert "(parametrizations): ModuleDict(\n    (weight): ParametrizationList(" in repr(module)
    other = copy.deepcopy(module)
    module.weight = library.ones(3, 3)
    np.testing.assert_array_equal(module.parametrizations.weight.original.detach().numpy(), np.triu(np.ones((3, 3))))
    np.testing.assert_array_equal(module.weight.detach().numpy(), np.ones((3, 3)))
    np.testing.assert_array_equal(other.weight.detach().numpy(), right)
    other.load_state_dict(module.state_dict())
    np.testing.assert_array_equal(other.weight.detach().numpy(), np.ones((3, 3)))
    with pytest.raises(RuntimeError, match="only supported through state_dict"):
        pickle.dumps(module)
    parametrize.remove_parametrizations(module, "weight")
    assert type(module) is library.nn.Linear and sorted(module.state_dict()) == ["bias", "weight"]
    np.testing.assert_array_equal(module.weight.detach().numpy(), np.ones((3, 3)))


@each_library
def test_the_original_is_trained(library):
    module = linear(library)
    optimizer = library.optim.SGD(module.parameters(), lr=0.5)
    library.nn.utils.parametrize.register_parametrization(module, "weight", double(library))
    module(library.ones(1, 3)).sum().backward()
    optimizer.step()
    np.testing.assert_allclose(module.weight.detach().numpy(), 2 * (draw((3, 3), "float32") - 1), rtol=1e-6)


@each_library
def test_parametrizations_follow_one_another(library):
    parametrize, module = library.nn.utils.parametrize, linear(library)
    for _ in range(2):
        parametrize.register_parametrization(module, "weight", double(library))
    parametrize.register_parametrization(module, "bias", double(library))
    np.testing.assert_array_equal(module.weight.detach().numpy(), 4 * draw((3, 3), "float32"))
    with parametrize.cached():
        assert module.weight is module.weight
    assert module.weight is not module.weight
    parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)
    np.testing.assert_array_equal(module.weight.detach().numpy(), draw((3, 3), "float32"))
    np.testing.assert_array_equal(module.bias.detach().numpy(), 2 * draw((3,), "float32"))


@each_library
def test_what_cannot_be_a_parametrization(library):
    class Gives(library.nn.Module):
        def __init__(self, change):
            super().__init__()
            self.change = change

        def forward(self, x):
            return self.change(x)

    parametrize = library.nn.utils.parametrize
    for change, words in [
        (lambda x: x[0], "may not change the shape"),
        (lambda x: x.double(), "may not change the dtype"),
        (lambda x: 3, "must return a tensor"),
    ]:
        module = linear(library)
        with pytest.raises(ValueError, match=words):
            parametrize.register_parametrization(module, "weight", Gives(change))
    with pytest.raises(ValueError, match="does not have a parameter"):
        parametrize.register_parametrization(linear(library), "foo", double(library))
    with pytest.raises(ValueError, match="does not have a parametrization"):
        parametrize.remove_parametrizations(linear(library), "weight")


@needs_torch
@pytest.mark.parametrize("dim", [0, 1, None])
def test_weight_norm(dim):
    mine, right = linear(gt, 4, 3), linear(torch, 4, 3)
    for library, module in ((gt, mine), (torch, right)):
        library.nn.utils.parametrizations.weight_norm(module, dim=dim)
        module(library.tensor(draw((2, 3), "float32"))).pow(2).sum().backward()
    assert list(mine.state_dict()) == list(right.state_dict())
    for p, q in zip(mine.parameters(), right.parameters()):
        check(p, q)
        check(p.grad, q.grad)
    mine.parametrizations.weight.original0.data.mul_(2)
    np.testing.assert_allclose(mine.weight.detach().numpy(), 2 * draw((4, 3), "float32"), rtol=1e-5)


@each_library
def test_sequences_are_filled_up(library):
    rnn = library.nn.utils.rnn
    arrays = [draw((n, 2), "float32", seed=n) for n in (2, 4, 1)]
    sequences = [library.tensor(a).requires_grad_() for a in arrays]
    for side in ("right", "left"):
        right = np.full((3, 4, 2), -1, np.float32)
        for row, a in zip(right, arrays):
            row[slice(len(a)) if side == "right" else slice(4 - len(a), 4)] = a
        padded = rnn.pad_sequence(sequences, True, -1.0, side)
        np.testing.assert_array_equal(padded.detach().numpy(), right)
        across = rnn.pad_sequence(sequences, padding_value=-1.0, padding_side=side)
        np.testing.assert_array_equal(across.detach().numpy(), right.swapaxes(0, 1))
    again = rnn.unpad_sequence(rnn.pad_sequence(sequences), library.tensor([2, 4, 1]))
    for a, t in zip(arrays, again):
        np.testing.assert_array_equal(t.detach().numpy(), a)
    rnn.pad_sequence(sequences).pow(2).sum().backward()
    np.testing.assert_allclose(sequences[0].grad.numpy(), 2 * arrays[0], rtol=1e-6)
    for wrong in ([], 3, [library.ones(2, 3), library.ones(2, 4)]):
        with pytest.raises(RuntimeError):
            rnn.pad_sequence(wrong)
