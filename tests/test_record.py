"""Recording what was recorded before: a loop's programs are followed, its backward passes taken over, and none of that
shows in results, errors or lines. The same loop with something new in front of every step is recorded in full each
time, and its results are equal bit for bit."""

import numpy as np
import pytest

import gt
from gt import nn

F = nn.functional
STEPS = 9


def spoil(i):
    """Makes the program of step `i` one that never came before, in no other size either."""
    x = gt.zeros(3)
    for _ in range(i):
        x = x + 1
    return x


def network(seed=0, dropout=0.0):
    gt.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(dropout), nn.LayerNorm(8), nn.Linear(8, 4))


def batch(i):
    rng = np.random.default_rng(i)
    return gt.from_numpy(rng.normal(size=(5, 6)).astype("f4")), gt.from_numpy(rng.integers(0, 4, 5))


def train(anew, optimizer="AdamW", dropout=0.0, look=True, at=None):
    """Losses and parameters; `at(i, net, loss)` does something between forward and backward of step `i`."""
    net = network(dropout=dropout)
    steps = getattr(gt.optim, optimizer)(net.parameters(), lr=0.05)
    schedule = gt.optim.lr_scheduler.CosineAnnealingLR(steps, T_max=STEPS)
    losses = []
    for i in range(STEPS):
        fresh = spoil(i) if anew else None
        x, y = batch(i)
        loss = F.cross_entropy(net(x), y)
        steps.zero_grad()
        if at is not None:
            loss = at(i, net, loss)
        loss.backward()
        steps.step()
        schedule.step()
        losses.append(loss.item() if look else loss.detach())
        del fresh
    losses = losses if look else [loss.item() for loss in losses]
    return losses, [p.detach().numpy().copy() for p in net.parameters()]


def assert_same(**how):
    (losses, params), (expected, others) = train(False, **how), train(True, **how)
    assert losses == expected
    for p, q in zip(params, others):
        np.testing.assert_array_equal(p, q)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
@pytest.mark.parametrize("look", [True, False])
def test_training(optimizer, look):
    assert_same(optimizer=optimizer, look=look)


def test_random_numbers_stay_fresh():
    assert_same(dropout=0.5)
    losses, _ = train(False, dropout=0.5)
    assert len(set(losses)) == STEPS


def scaled(i, net, loss):
    return loss * (1.0 + i)


def branching(i, net, loss):
    return loss + net[0].weight.square().sum() if i == 6 else loss


def accumulating(i, net, loss):
    if i == 6:
        F.cross_entropy(net(batch(100)[0]), batch(100)[1]).backward()
    return loss


def hooked(i, net, loss):
    if i == 6:
        net[0].weight.register_hook(lambda g: g * 3)
        net[4].bias.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(2))
    return loss


def frozen(i, net, loss):
    if i == 5:
        net[0].weight.requires_grad_(False)
    return loss


kept = []


def keeping(i, net, loss):
    if i in (5, 6):
        kept.append(net[0].weight * 2)
    return loss


@pytest.mark.parametrize("at", [scaled, branching, accumulating, hooked, frozen, keeping])
def test_what_differs_is_seen(at):
    assert_same(at=at)


def test_graphs_that_differ_in_what_is_tracked():
    def run(anew):
        out = []
        a, b = gt.ones(3, requires_grad=True), gt.full((3,), 2.0, requires_grad=True)
        for i in range(8):
            fresh = spoil(i) if anew else None
            # The same instructions, but gradients flow to one, the other, or both.
            x = a.detach() if i % 4 == 1 else a
            y = b.detach() if i % 4 == 3 else b
            (x * y * (x + y)).sum().backward()
            out.append([None if t.grad is None else t.grad.tolist() for t in (a, b)])
            a.grad = b.grad = None
            del fresh
        return out

    assert run(False) == run(True)


def test_written_storage_is_an_error_in_a_known_loop():
    w = gt.ones(3, requires_grad=True)
    for i in range(6):
        x = gt.full((3,), 2.0) + 0
        y = (w * x).sum()
        if i == 5:
            x.add_(1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.backward()
            break
        y.backward()
        assert w.grad.tolist() == [2.0, 2.0, 2.0]
        w.grad = None


def test_a_second_pass_is_an_error_in_a_known_loop():
    w = gt.ones(3, requires_grad=True)
    for _ in range(6):
        y = (w * w).sum()
        y.backward()
        assert w.grad.tolist() == [2.0, 2.0, 2.0]
        with pytest.raises(RuntimeError, match="a second time"):
            y.backward()
        w.grad = None


def test_inputs_that_change_places():
    a, b = gt.ones(3), gt.full((3,), 5.0)
    seen = []
    for i in range(8):
        x, y = (a, b) if i < 6 else (b, a) if i == 6 else (a, a)
        seen.append((x - y * 2).tolist()[0])
    assert seen == [-9.0] * 6 + [3.0, -1.0]


def test_sizes_and_types_that_change():
    for i in range(8):
        n = 3 if i < 6 else 4
        x = gt.ones(n, dtype=gt.float64 if i == 7 else gt.float32)
        y = (x * 2 + 1).sum()
        assert y.item() == 3 * n and y.dtype == x.dtype


def test_lines_are_those_of_this_time():
    table = gt.arange(4)

    def first(index):
        return table[index] + 1

    def second(index):
        return table[index] + 1

    for _ in range(5):
        assert first(gt.tensor([1, 2])).tolist() == [2, 3]
    line = second.__code__.co_firstlineno + 1
    with pytest.raises(IndexError, match=f"test_record.py:{line}"):
        second(gt.tensor([1, 9])).tolist()
    assert first(gt.tensor([1, 2])).tolist() == [2, 3]


def test_leaves_that_share_a_gradient():
    a, b = gt.ones(3, requires_grad=True), gt.ones(3, requires_grad=True)
    for i in range(8):
        ((a + b) * 3.0).sum().backward()
        a.grad = None
        filler = [gt.full((3,), float(k)) + i for k in range(4)]
        gt.synchronize()
        assert b.grad.tolist() == [3.0, 3.0, 3.0]
        b.grad = None
        del filler


def test_programs_that_differ_in_the_shape_of_an_input_alone():
    """A reshape gives the same from inputs of many shapes: a program that turns out to be another one than it began
    like must not become one whose input has another shape."""

    def total(op, *shape):
        x = gt.ones(*shape)
        gt.synchronize()
        return op(x.reshape(-1)).sum().item()

    def double(x):
        return x * 2

    def add(x):
        return x + 1

    for _ in range(3):
        assert total(double, 1, 6) == 12.0
        assert total(add, 1, 1, 6) == 12.0
    assert total(add, 1, 6) == 12.0


def decode(lengths, spoiled=False, heads=2, width=8):
    """Steps that read a growing part of a buffer, as decoding with a cache does; gives what each comes to."""
    gt.manual_seed(3)
    weight = gt.randn(width, width)
    cache = gt.zeros(1, heads, 64, width)
    x = gt.randn(1, heads, 1, width)
    out = []
    with gt.no_grad():
        for i, n in enumerate(lengths):
            if spoiled:
                spoil(i + 1)
            y = (x @ weight).tanh()
            cache[:, :, n : n + 1] = y
            seen = cache[:, :, : n + 1]
            x = gt.nn.functional.scaled_dot_product_attention(y, seen, seen) @ weight + 0.25 * y
            for _ in range(12):
                x = (x * 1.01).tanh() + y
            out.append(x.sum().item())
    return out


def test_a_program_is_followed_in_other_sizes():
    """Each step has another length than all before; lengths that come back are known."""
    lengths = [*range(40), *range(40)]
    followed = decode(lengths)
    before = gt.debug.get_worker_stats()["compilation"]
    assert decode(lengths) == followed
    after = gt.debug.get_worker_stats()["compilation"]
    assert after["misses"] == before["misses"]
    assert decode(lengths, spoiled=True) == followed


def test_shapes_that_change_within_a_followed_program():
    """Sizes that come back and sizes that do not, with gradients, views and numbers that change."""
    rng = np.random.default_rng(0)
    weight = gt.from_numpy(rng.normal(size=(6, 6)).astype("f4")).requires_grad_()
    for i in range(24):
        n = [5, 7, 5, 3, 9, 5, 4, 7][i % 8]
        x = rng.normal(size=(n, 6)).astype("f4")
        weight.grad = None
        y = (gt.from_numpy(x) @ weight).tanh() * (0.1 * i)
        z = y[: n - 1].reshape(-1)[1:] + 0.5
        z.sum().backward()
        w = weight.detach().numpy()
        t = np.tanh(x @ w)
        want = (t * np.float32(0.1 * i))[: n - 1].reshape(-1)[1:] + np.float32(0.5)
        np.testing.assert_allclose(z.detach().numpy(), want, rtol=1e-5, atol=1e-6)
        g = np.full((n, 6), 0.1 * i, "f4")
        g[n - 1] = 0
        g[0, 0] = 0
        np.testing.assert_allclose(weight.grad.numpy(), x.T @ (g * (1 - t * t)), rtol=1e-4, atol=1e-5)
