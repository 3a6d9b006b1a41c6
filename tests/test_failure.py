"""Failures on the worker (C5): the root cause, the user's line, and nothing lost beside it."""

import numpy as np
import pytest

import gt


def bad_read(x):
    return x[gt.tensor([1, 10])]


def test_bad_index_names_the_cause_and_the_line():
    x = gt.arange(5)
    y = bad_read(x)
    with pytest.raises(IndexError, match="out of bounds") as error:
        y.numpy()
    assert "test_failure.py" in str(error.value)


def test_what_was_recorded_beside_a_mistake_is_not_lost():
    x = gt.arange(5) * 2
    y = bad_read(x)
    z = x + 1
    with pytest.raises(IndexError):
        y.tolist()
    assert x.tolist() == [0, 2, 4, 6, 8]
    assert z.tolist() == [1, 3, 5, 7, 9]


def test_dependents_carry_the_root_cause():
    y = bad_read(gt.arange(5)).float() * 3
    with pytest.raises(IndexError, match="index 10"):
        y.sum().item()
    with pytest.raises(IndexError, match="index 10"):
        y.sum().item()


def test_written_tensors_go_back():
    x = gt.zeros(4)
    gt.synchronize()
    x[0] = 5.0
    x[gt.tensor([9])] = 1.0
    with pytest.raises(IndexError):
        x.numpy()
    np.testing.assert_array_equal(x.numpy(), np.zeros(4))
    x += 1
    np.testing.assert_array_equal(x.numpy(), np.ones(4))


def test_integer_division_by_zero():
    with pytest.raises((ZeroDivisionError, RuntimeError), match="[Zz]ero"):
        (gt.tensor([1, 2]) // gt.tensor([1, 0])).tolist()
    assert (gt.ones(2) / 0).tolist() == [float("inf")] * 2


def test_the_session_goes_on():
    for _ in range(3):
        with pytest.raises(IndexError):
            bad_read(gt.arange(5)).tolist()
        assert (gt.ones(3) + 1).tolist() == [2, 2, 2]


@pytest.mark.local_only
def test_sums_of_more_than_fits_fail_alone(run_python):
    # The elements are never made, but what their sum needs on the way is more than a worker has.
    script = """
import gt
for make in (gt.zeros, gt.arange):
    try:
        make(10**14).sum().item()
        print("no error")
    except gt.OutOfMemoryError:
        print(gt.ones(3).sum().item())
"""
    assert run_python(script, env={"GT_BACKEND": "cpu"}).stdout.split() == ["3.0", "3.0"]
