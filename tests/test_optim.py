"""Optimizers' whole life, learning-rate schedulers and gradient clipping, against PyTorch."""

import math

import numpy as np
import pytest
from helpers import check, draw, needs_torch, ours, theirs, torch

import gt
from gt.optim import lr_scheduler as schedulers

SIDES = [(gt, ours)] + ([(torch, theirs)] if torch is not None else [])


def quadratic(library, make, optimizer, steps=5, start=(3, 2)):
    """Trains two parameters with what `optimizer(library, params)` gives; the optimizer and the parameters."""
    params = [make(draw(start, "float64"), grad=True), make(draw((2,), "float64", seed=1), grad=True)]
    made = optimizer(library, params)
    run(made, params, steps)
    return made, params


def run(optimizer, params, steps, seed=1):
    for step in range(steps):
        loss = ((params[0] @ params[1]) ** 2).sum() * (step + seed)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


OPTIMIZERS = {
    "sgd": lambda T, p: T.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda T, p: T.optim.Adam(p, lr=0.1, amsgrad=True),
    "adamw": lambda T, p: T.optim.AdamW(p, lr=0.1, weight_decay=0.1),
    "groups": lambda T, p: T.optim.AdamW(
        [{"params": p[:1], "lr": 0.2}, {"params": p[1:], "weight_decay": 0.5}], lr=0.1
    ),
    "named": lambda T, p: T.optim.SGD([("a", p[0]), ("b", p[1])], lr=0.05, momentum=0.5),
    "rmsprop": lambda T, p: T.optim.RMSprop(p, lr=0.05, momentum=0.5, centered=True, weight_decay=0.1),
    "adagrad": lambda T, p: T.optim.Adagrad(p, lr=0.1, lr_decay=0.1, initial_accumulator_value=0.2),
    "adadelta": lambda T, p: T.optim.Adadelta(p, rho=0.8, weight_decay=0.1),
    "adamax": lambda T, p: T.optim.Adamax(p, lr=0.05, maximize=True),
    "nadam": lambda T, p: T.optim.NAdam(p, lr=0.05, weight_decay=0.1, decoupled_weight_decay=True),
    "radam": lambda T, p: T.optim.RAdam(p, lr=0.05, betas=(0.8, 0.9)),
    "rprop": lambda T, p: T.optim.Rprop(p, lr=0.02, step_sizes=(1e-3, 0.2)),
    "asgd": lambda T, p: T.optim.ASGD(p, lr=0.01, lambd=0.1, t0=2, weight_decay=0.1),
    "adafactor": lambda T, p: T.optim.Adafactor(p, lr=0.1, weight_decay=0.1),
    "decoupled": lambda T, p: T.optim.Adam(p, lr=0.1, weight_decay=0.3, decoupled_weight_decay=True),
}


@needs_torch
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_state_goes_between_gt_and_pytorch(kind):
    make = OPTIMIZERS[kind]
    (mine, params), (right, right_params) = (quadratic(library, m, make) for library, m in SIDES)
    check(params, right_params)
    state, right_state = mine.state_dict(), right.state_dict()
    assert [set(g) for g in state["param_groups"]] == [set(g) for g in right_state["param_groups"]]
    assert [g["params"] for g in state["param_groups"]] == [g["params"] for g in right_state["param_groups"]]
    assert {i: set(s) for i, s in state["state"].items()} == {i: set(s) for i, s in right_state["state"].items()}
    assert repr(mine).splitlines()[:2] == repr(right).splitlines()[:2]
    # PyTorch's state into GT, and on from there.
    again = make(gt, params)
    again.load_state_dict(right_state)
    run(again, params, 3)
    run(right, right_params, 3)
    check(params, right_params)
    # GT's state into PyTorch.
    converted = again.state_dict()
    for values in converted["state"].values():
        for name, value in values.items():
            if isinstance(value, gt.Tensor):
                values[name] = torch.from_numpy(value.numpy().copy())
    back = make(torch, right_params)
    back.load_state_dict(converted)
    run(again, params, 2)
    run(back, right_params, 2)
    check(params, right_params)


def bent(library, make, steps, **settings):
    """Walks down a bent valley by L-BFGS; the first loss of each step, what was looked at in all, and where it ends."""
    x = make(np.array([[-1.5, 2.0, 0.5], [1.2, -0.3, 0.9]]), grad=True)
    y = make(np.array([0.3, -0.8]), grad=True)
    optimizer = library.optim.LBFGS([x, y], **settings)

    def closure():
        optimizer.zero_grad()
        z = x.reshape(-1)
        loss = (z[1:] - z[:-1] ** 2).square().sum() + (1 - z).square().sum() * 0.01 + ((y - z[:2]) ** 4).sum()
        loss = -loss if settings.get("maximize") else loss
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(steps)]
    state = optimizer.state_dict()["state"][0]
    return losses, (state["func_evals"], state["n_iter"]), [x, y]


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
@pytest.mark.parametrize("settings", [{}, {"lr": 0.3, "history_size": 3}, {"lr": 0.1, "max_iter": 7}], ids=str)
def test_lbfgs_finds_the_least(search, settings):
    settings = {**settings, "line_search_fn": search}
    losses, looked, ends = bent(gt, ours, 5, **settings)
    assert losses[-1] < losses[0] / 5
    upwards, *_ = bent(gt, ours, 5, **settings, maximize=True)
    np.testing.assert_allclose(upwards, [-loss for loss in losses], rtol=1e-6)
    if torch is not None:
        right_losses, right_looked, right_ends = bent(torch, theirs, 5, **settings)
        assert looked == right_looked
        np.testing.assert_allclose(losses, right_losses, rtol=1e-4, atol=1e-7)
        check(ends, right_ends, (1e-4, 1e-5))


def test_lbfgs_goes_on_from_its_state():
    x = gt.tensor([-1.5, 2.0, 0.5], dtype=gt.float64, requires_grad=True)
    copy = x.detach().clone().requires_grad_()

    def step(optimizer, x):
        def closure():
            optimizer.zero_grad()
            loss = (x[1:] - x[:-1] ** 2).square().sum() + (1 - x).square().sum()
            loss.backward()
            return loss

        return optimizer.step(closure)

    first = gt.optim.LBFGS([x], max_iter=4)
    step(first, x)
    second = gt.optim.LBFGS([copy], max_iter=4)
    second.load_state_dict(first.state_dict())
    copy.data.copy_(x.detach())
    for _ in range(3):
        assert step(first, x).item() == step(second, copy).item()
    with pytest.raises(ValueError, match="parameter groups"):
        gt.optim.LBFGS([{"params": [x]}, {"params": [copy]}])


def test_state_survives_a_file(tmp_path):
    mine, params = quadratic(gt, ours, OPTIMIZERS["groups"])
    gt.save(mine.state_dict(), tmp_path / "state")
    copies = [p.detach().clone().requires_grad_() for p in params]
    again = OPTIMIZERS["groups"](gt, copies)
    again.load_state_dict(gt.load(tmp_path / "state"))
    run(mine, params, 3)
    run(again, copies, 3)
    check(copies, params, (0, 0))


def test_groups_and_hooks():
    a, b = gt.ones(2, requires_grad=True), gt.ones(2, requires_grad=True)
    optimizer = gt.optim.SGD([a], lr=1.0)
    optimizer.add_param_group({"params": b, "lr": 0.5})
    assert [g["lr"] for g in optimizer.param_groups] == [1.0, 0.5]
    seen = []
    optimizer.register_step_pre_hook(lambda *args: seen.append("before"))
    handle = optimizer.register_step_post_hook(lambda *args: seen.append("after"))

    def closure():
        optimizer.zero_grad()
        loss = (a + b).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4.0
    assert a.tolist() == [0, 0] and b.tolist() == [0.5, 0.5] and seen == ["before", "after"]
    handle.remove()
    optimizer.step()
    assert seen == ["before", "after", "before"]
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": [a]})
    with pytest.raises(ValueError, match="non-leaf"):
        optimizer.add_param_group({"params": [a * 2]})
    with pytest.raises(TypeError, match="no order"):
        optimizer.add_param_group({"params": {gt.ones(1)}})
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict(gt.optim.SGD([gt.ones(1)], lr=1.0).state_dict())


@pytest.mark.parametrize("lr", [0.1, 0.3])
def test_changing_the_rate_needs_no_new_plan(lr):
    p = gt.ones(4, requires_grad=True)
    optimizer = gt.optim.SGD([p], lr=1.0)
    value = np.ones(4)
    for rate in (1.0, lr, lr / 2):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        (p * 2).sum().backward()
        optimizer.step()
        value -= rate * 2
    np.testing.assert_allclose(p.detach().numpy(), value, rtol=1e-6)


SCHEDULERS = {
    "lambda": lambda S, o: S.LambdaLR(o, lambda e: 0.9**e),
    "lambdas": lambda S, o: S.LambdaLR(o, [lambda e: 1 / (e + 1), lambda e: e]),
    "multiplicative": lambda S, o: S.MultiplicativeLR(o, lambda e: 0.9 + e / 100),
    "step": lambda S, o: S.StepLR(o, 4, gamma=0.5),
    "multistep": lambda S, o: S.MultiStepLR(o, [3, 7, 7, 12], gamma=0.5),
    "constant": lambda S, o: S.ConstantLR(o, 0.25, total_iters=6),
    "linear": lambda S, o: S.LinearLR(o, 0.1, 0.9, total_iters=9),
    "exponential": lambda S, o: S.ExponentialLR(o, 0.8),
    "polynomial": lambda S, o: S.PolynomialLR(o, total_iters=11, power=2.0),
    "cosine": lambda S, o: S.CosineAnnealingLR(o, 7, eta_min=0.01),
    "restarts": lambda S, o: S.CosineAnnealingWarmRestarts(o, 3, T_mult=2, eta_min=0.01),
    "cyclic": lambda S, o: S.CyclicLR(o, 0.01, [0.1, 0.3], step_size_up=3, step_size_down=5, mode="triangular2"),
    "cyclic, shrinking": lambda S, o: S.CyclicLR(o, 0.01, 0.1, step_size_up=4, mode="exp_range", gamma=0.9),
    "one cycle": lambda S, o: S.OneCycleLR(o, [0.5, 1.0], total_steps=30),
    "one cycle, three": lambda S, o: S.OneCycleLR(o, 0.5, total_steps=30, three_phase=True, anneal_strategy="linear"),
    "sequential": lambda S, o: S.SequentialLR(
        o, [S.LinearLR(o, 0.1, total_iters=4), S.CosineAnnealingLR(o, 10), S.ConstantLR(o, 0.1)], [4, 12]
    ),
    "nested": lambda S, o: S.SequentialLR(
        o, [S.SequentialLR(o, [S.ConstantLR(o, 0.5, 3), S.StepLR(o, 2)], [5]), S.ExponentialLR(o, 0.9)], [9]
    ),
    "chained": lambda S, o: S.ChainedScheduler([S.ConstantLR(o, 0.1, 5), S.ExponentialLR(o, 0.9)]),
}


def optimizer_of(library):
    a, b = library.ones(1, requires_grad=True), library.ones(1, requires_grad=True)
    return library.optim.SGD([{"params": [a]}, {"params": [b], "lr": 0.7}], lr=0.3, momentum=0.9)


def rates(optimizer):
    return [(g["lr"], g["momentum"]) for g in optimizer.param_groups]


@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", SCHEDULERS)
def test_schedulers_against_torch(kind):
    mine, right = optimizer_of(gt), optimizer_of(torch)
    a = SCHEDULERS[kind](schedulers, mine)
    b = SCHEDULERS[kind](torch.optim.lr_scheduler, right)
    for _ in range(29):
        np.testing.assert_allclose(rates(mine), rates(right), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(a.get_last_lr(), b.get_last_lr(), rtol=1e-9, atol=1e-12)
        a.step()
        b.step()


RESUMED = {
    "lambda": lambda S, o: S.LambdaLR(o, lambda e: 0.9**e, last_epoch=5),
    "multiplicative": lambda S, o: S.MultiplicativeLR(o, lambda e: 0.9, last_epoch=5),
    "step": lambda S, o: S.StepLR(o, 3, last_epoch=5),
    "step, between": lambda S, o: S.StepLR(o, 4, last_epoch=5),
    "multistep": lambda S, o: S.MultiStepLR(o, [6, 9], last_epoch=5),
    "constant": lambda S, o: S.ConstantLR(o, 0.25, 6, last_epoch=5),
    "linear": lambda S, o: S.LinearLR(o, 0.1, 0.9, 9, last_epoch=5),
    "exponential": lambda S, o: S.ExponentialLR(o, 0.8, last_epoch=5),
    "polynomial": lambda S, o: S.PolynomialLR(o, 11, 2.0, last_epoch=5),
    "cosine": lambda S, o: S.CosineAnnealingLR(o, 7, 0.01, last_epoch=5),
}


@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", RESUMED)
def test_resumed_schedulers_against_torch(kind):
    mine, right = optimizer_of(gt), optimizer_of(torch)
    for optimizer in (mine, right):
        for group in optimizer.param_groups:
            group["initial_lr"] = 1.0
    a = RESUMED[kind](schedulers, mine)
    b = RESUMED[kind](torch.optim.lr_scheduler, right)
    for _ in range(9):
        np.testing.assert_allclose(rates(mine), rates(right), rtol=1e-9, atol=1e-12)
        a.step()
        b.step()


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_scheduler_state_round_trip(kind, tmp_path):
    optimizer, other = optimizer_of(gt), optimizer_of(gt)
    scheduler, again = SCHEDULERS[kind](schedulers, optimizer), SCHEDULERS[kind](schedulers, other)
    for _ in range(6):
        scheduler.step()
    gt.save({"schedule": scheduler.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state")
    state = gt.load(tmp_path / "state")
    other.load_state_dict(state["optimizer"])
    again.load_state_dict(state["schedule"])
    for _ in range(10):
        scheduler.step()
        again.step()
        assert rates(optimizer) == rates(other)


@needs_torch
@pytest.mark.parametrize("kind", [kind for kind in SCHEDULERS if kind.startswith("cyclic")])
def test_cyclic_state_goes_to_torch_and_back(kind):
    mine, right = optimizer_of(gt), optimizer_of(torch)
    a, b = SCHEDULERS[kind](schedulers, mine), SCHEDULERS[kind](torch.optim.lr_scheduler, right)
    for _ in range(5):
        mine.step()
        a.step()
    b.load_state_dict(a.state_dict())
    a.load_state_dict(b.state_dict())
    for _ in range(4):
        a.step()
        right.step()
        b.step()
        np.testing.assert_allclose(rates(mine), rates(right), rtol=1e-12)


class Half:
    """A height that is an object with state."""

    def __init__(self, by):
        self.by = by

    def __call__(self, x):
        return self.by


def test_a_cyclic_height_that_is_an_object_is_saved():
    a = schedulers.CyclicLR(optimizer_of(gt), 0.01, 0.1, scale_fn=Half(0.5))
    b = schedulers.CyclicLR(optimizer_of(gt), 0.01, 0.1, scale_fn=Half(0.1))
    b.load_state_dict(a.state_dict())
    assert a.state_dict()["_scale_fn_custom"] == {"by": 0.5} and b._scale_fn.by == 0.5


@needs_torch
@pytest.mark.parametrize(
    "settings", [{}, {"nesterov": False, "weight_decay": 0.3}, {"adjust_lr_fn": "match_rms_adamw"}]
)
@pytest.mark.parametrize("shape", [(4, 7), (7, 4)])
def test_muon_against_torch(settings, shape):
    rng, seen = np.random.default_rng(0), []
    start, grads = rng.standard_normal(shape), rng.standard_normal((6, *shape))
    for T in (gt, torch):
        p = T.nn.Parameter(T.from_numpy(start.copy()).float())
        optimizer = T.optim.Muon([p], lr=0.02, **settings)
        for grad in grads:
            p.grad = T.from_numpy(grad).float()
            optimizer.step()
        state = optimizer.state_dict()
        seen.append([p.detach(), state["state"][0]["momentum_buffer"], list(state["param_groups"][0])])
    # The iteration runs in bfloat16.
    check(*seen, (2e-3, 2e-3))
    with pytest.raises(ValueError, match="2D parameters"):
        gt.optim.Muon([gt.nn.Parameter(gt.ones(3))])


@needs_torch
@pytest.mark.parametrize("mode,threshold_mode", [("min", "rel"), ("max", "abs")])
def test_plateau_against_torch(mode, threshold_mode):
    mine, right = optimizer_of(gt), optimizer_of(torch)
    options = dict(mode=mode, threshold_mode=threshold_mode, patience=2, cooldown=1, factor=0.5, min_lr=[0.01, 0.1])
    a = schedulers.ReduceLROnPlateau(mine, **options)
    b = torch.optim.lr_scheduler.ReduceLROnPlateau(right, **options)
    for value in np.random.default_rng(0).normal(size=60):
        a.step(value)
        b.step(value)
        assert rates(mine) == rates(right)
    assert mine.param_groups[0]["lr"] < 0.3


def test_cosine_against_its_formula():
    optimizer = optimizer_of(gt)
    scheduler = schedulers.CosineAnnealingLR(optimizer, 10, eta_min=0.1)
    for step in range(10):
        right = 0.1 + (0.3 - 0.1) * (1 + math.cos(math.pi * step / 10)) / 2
        assert optimizer.param_groups[0]["lr"] == pytest.approx(right)
        scheduler.step()


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clip_grad_norm(norm_type, max_norm):
    grads = [draw((3, 4), "float64"), draw((5,), "float64", seed=1)]
    params = [gt.zeros(*g.shape, dtype="float64", requires_grad=True) for g in grads]
    for p, g in zip(params, grads):
        p.grad = gt.from_numpy(g)
    flat = np.concatenate([g.ravel() for g in grads])
    right = np.linalg.norm(flat, norm_type)
    norm = gt.nn.utils.clip_grad_norm_(iter(params), max_norm, norm_type, foreach=True)
    assert norm.item() == pytest.approx(right)
    scale = min(1.0, max_norm / (right + 1e-6))
    check([p.grad for p in params], [g * scale for g in grads])
    assert gt.nn.utils.get_total_norm([gt.from_numpy(g) for g in grads], norm_type).item() == pytest.approx(right)


def test_clip_of_nothing_and_of_infinity():
    p = gt.zeros(2, requires_grad=True)
    assert gt.nn.utils.clip_grad_norm_([p], 1.0).item() == 0
    p.grad = gt.tensor([math.inf, 1.0])
    with pytest.raises(RuntimeError, match="non-finite"):
        gt.nn.utils.clip_grad_norm_([p], 1.0, error_if_nonfinite=True)
    assert p.grad[1].item() == 1.0
    assert gt.nn.utils.clip_grad_norm_(p, 1.0).item() == math.inf
    gt.nn.utils.clip_grad_value_(p, 0.5)
