"""Averages of parameters over a training, against PyTorch."""

import pytest
from helpers import check, draw, needs_torch, torch

import gt

AVERAGES = {
    "mean": lambda S: {},
    "mean in place": lambda S: {"multi_avg_fn": S.get_swa_multi_avg_fn()},
    "forgets": lambda S: {"avg_fn": S.get_ema_avg_fn(0.8)},
    "forgets in place": lambda S: {"multi_avg_fn": S.get_ema_multi_avg_fn(0.9)},
    "own": lambda S: {"avg_fn": lambda mean, now, count: mean + count * now * 0.1},
    "buffers too": lambda S: {"use_buffers": True},
}


def trained(library, options):
    """A small model trained for a few steps, and its average."""
    nn, swa = library.nn, library.optim.swa_utils
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    with library.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(library.tensor(draw(tuple(p.shape), "float32", -0.5, 0.5, seed=i)))
    average = swa.AveragedModel(model, **options(swa))
    optimizer = library.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        model(library.tensor(draw((5, 3), "float32", seed=step))).pow(2).sum().backward()
        optimizer.step()
        average.update_parameters(model)
    return average


def same(mine, right):
    state, expected = mine.state_dict(), right.state_dict()
    assert list(state) == list(expected)
    for name, value in expected.items():
        check(state[name], value)


@needs_torch
@pytest.mark.parametrize("options", AVERAGES.values(), ids=AVERAGES)
def test_averages(options):
    same(trained(gt, options), trained(torch, options))


@needs_torch
def test_norms_are_counted_anew():
    sides = []
    for library in (gt, torch):
        average = trained(library, AVERAGES["mean"]).eval()
        loader = [library.tensor(draw((5, 3), "float32", seed=i)) for i in range(3)]
        library.optim.swa_utils.update_bn([[batch] for batch in loader], average)
        assert not average.training and average.module[1].momentum == 0.1
        sides.append(average)
    same(*sides)


@needs_torch
@pytest.mark.parametrize("epochs", [0, 3, 10])
@pytest.mark.parametrize("strategy", ["cos", "linear"])
def test_rates_go_to_that_of_the_average(epochs, strategy):
    sides = []
    for library in (gt, torch):
        groups = [{"params": [library.ones(1)]}, {"params": [library.ones(1)], "lr": 0.3}]
        optimizer = library.optim.SGD(groups, lr=0.1)
        schedule = library.optim.swa_utils.SWALR(optimizer, 0.05, epochs, strategy)
        rates = [schedule.get_last_lr()]
        for _ in range(6):
            optimizer.step()
            schedule.step()
            rates.append(schedule.get_last_lr())
        sides.append(rates)
    for mine, right in zip(*sides):
        assert mine == pytest.approx(right, rel=1e-12)


def test_what_is_no_average():
    swa = gt.optim.swa_utils
    with pytest.raises(ValueError, match="Invalid decay value 1.5"):
        swa.get_ema_avg_fn(1.5)
    with pytest.raises(AssertionError, match="Only one of"):
        swa.AveragedModel(gt.nn.ReLU(), avg_fn=min, multi_avg_fn=min)
    with pytest.raises(ValueError, match="anneal_strategy"):
        swa.SWALR(gt.optim.SGD([gt.ones(1)]), 0.1, anneal_strategy="steps")
