"""Failures on the worker (C5): the root cause, the user's line, and nothing lost beside it."""

import threading
import time

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


def test_a_tensor_goes_back_to_what_its_program_made_of_it_before():
    x = gt.zeros(4)
    x += 1
    x[gt.tensor([9])] = 5.0
    with pytest.raises(IndexError, match="index 9"):
        x.tolist()
    assert x.tolist() == [1, 1, 1, 1]
    y = gt.zeros(2)
    y += 1
    bad = bad_read(gt.arange(5))
    y += 1
    with pytest.raises(IndexError):
        bad.tolist()
    assert y.tolist() == [2, 2]


def train(targets, look):
    """Losses of steps on these targets, of which some are bad; None for a step that was told to be."""
    gt.manual_seed(0)
    net = gt.nn.Sequential(gt.nn.Linear(4, 8), gt.nn.Linear(8, 4))
    optimizer = gt.optim.SGD(net.parameters(), lr=0.1)
    told = []
    for i in range(len(targets)):
        try:
            loss = gt.nn.functional.cross_entropy(net(gt.ones(2, 4)), gt.tensor(targets[i]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if look:
                loss.item()
        except IndexError as error:
            assert "index 9" in str(error)
            told.append(i)
    return net, told


def test_a_bad_first_step_leaves_the_weights_as_they_were():
    net, told = train([[0, 9]], look=True)
    assert told == [0]
    right, _ = train([], look=True)
    for p, q in zip(net.parameters(), right.parameters(), strict=True):
        assert p.detach().tolist() == q.detach().tolist()
    net, told = train([[0, 9], [0, 1], [3, 1]], look=True)
    right, _ = train([[0, 1], [3, 1]], look=True)
    assert told == [0]
    for p, q in zip(net.parameters(), right.parameters(), strict=True):
        np.testing.assert_array_equal(p.detach().numpy(), q.detach().numpy())


def test_a_bad_step_that_nobody_looks_at_is_told_once():
    for bad in range(6):
        net, told = train([[0, 9 if i == bad else 1] for i in range(40)], look=False)
        try:
            gt.synchronize()
        except IndexError:
            told.append(40)
        assert len(told) == 1
        assert (gt.ones(2) + 1).tolist() == [2, 2]
        assert all(np.isfinite(p.detach().numpy()).all() for p in net.parameters())


def test_each_mistake_is_told_for_itself():
    a = gt.ones(3)[gt.tensor([5])]
    b = gt.ones(4)[gt.tensor([6])] + 1
    c = gt.ones(2) + 1
    with pytest.raises(IndexError, match="index 5 .* size 3"):
        a.tolist()
    with pytest.raises(IndexError, match="index 6 .* size 4"):
        b.tolist()
    assert c.tolist() == [2, 2], "it has nothing to do with the mistakes"


def test_a_smaller_batch_fits_after_one_that_did_not():
    gt.manual_seed(0)
    net = gt.nn.Linear(100, 1)
    kept = gt.rand(5)
    optimizer = gt.optim.SGD(net.parameters(), lr=0.1)
    size, told = 10**11, []
    while size:
        try:
            loss = net(gt.rand(size, 100)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
            break
        except gt.OutOfMemoryError as error:
            told.append(str(error))
            size //= 10**9
    assert len(told) == 1 and size == 100
    assert " of f32[" in told[0] and "test_failure.py" in told[0]
    assert 0 < loss.item() < 1 and len(kept.tolist()) == 5


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


@pytest.mark.parametrize("again", range(5))
def test_a_mistake_is_told_to_the_thread_that_made_it(again):
    heard, stop = {}, threading.Event()

    def work(size):
        try:
            bad = gt.ones(size)[gt.tensor([size])] if size else None
            while not stop.is_set():
                x = gt.ones(4)
                for _ in range(8):
                    x = x * 0.5 + 1
                x.tolist()
        except IndexError as error:
            heard[size] = str(error)
        del bad

    threads = [threading.Thread(target=work, args=(size,)) for size in (0, 0, 5, 7)]
    [thread.start() for thread in threads]
    # This one goes on, too, and hears of none of it.
    for _ in range(200):
        assert (gt.ones(2) + 1).tolist() == [2, 2]
        if len(heard) == 2:
            break
        time.sleep(0.01)
    stop.set()
    [thread.join() for thread in threads]
    assert "index 5" in heard.pop(5) and "index 7" in heard.pop(7) and not heard


@pytest.mark.parametrize("look", [gt.synchronize, None])
def test_a_mistake_of_a_thread_that_has_ended_is_not_lost(look):
    kept = []
    thread = threading.Thread(target=lambda: kept.append(gt.ones(6)[gt.tensor([6])] + 1))
    thread.start()
    thread.join()
    with pytest.raises(IndexError, match="index 6"):
        (look or kept[0].tolist)()
    # It was told: nobody hears of it again.
    gt.synchronize()
