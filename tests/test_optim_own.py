"""Own optimizers and schedulers, their hooks, and groups that ask for more than the usual: as in PyTorch."""

import warnings

import pytest
from helpers import check, needs_new_torch, needs_torch, torch

import gt

NEWER = ["Rprop", "ASGD", "Adafactor", "LBFGS"]
LIBRARIES = [gt] if torch is None else [gt, torch]
each_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.__name__)


def parameter(library, value=1.0):
    p = library.nn.Parameter(library.ones(1) * value)
    p.grad = library.ones(1)
    return p


def own(library, p, **methods):
    """An optimizer of a user, which writes its own step."""

    def step(self, closure=None, scale=1.0):
        with library.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p -= group["lr"] * scale * p.grad
        return "stepped"

    methods = {"step": step, **methods}
    return type("Own", (library.optim.Optimizer,), methods)([p], {"lr": 1.0})


@each_library
def test_step_hooks_of_own_optimizers(library):
    p, seen = parameter(library), []
    optimizer = own(library, p)
    optimizer.register_step_pre_hook(lambda *args: seen.append(("before", *args)))
    after = optimizer.register_step_post_hook(lambda *args: seen.append(("after", *args)))
    assert optimizer.step(scale=0.5) == "stepped"
    said = (optimizer, (optimizer,), {"scale": 0.5})
    assert seen == [("before", *said), ("after", *said)] and p.item() == 0.5
    optimizer.register_step_pre_hook(lambda self, args, kwargs: (args, {"scale": 0.25}))
    after.remove()
    optimizer.step()
    assert len(seen) == 3 and p.item() == 0.25
    optimizer.register_step_pre_hook(lambda self, args, kwargs: 3)
    with pytest.raises(RuntimeError, match=r"must return None or a tuple of \(new_args, new_kwargs\), but got 3"):
        optimizer.step()


@each_library
def test_step_hooks_get_the_optimizer_and_the_closure(library):
    p, seen = parameter(library), []
    optimizer = library.optim.SGD([p], lr=0.5)
    optimizer.register_step_pre_hook(lambda self, args, kwargs: seen.append((args, kwargs)))

    def closure():
        return 7

    assert optimizer.step(closure) == 7 and optimizer.step(closure=closure) == 7
    assert seen == [((optimizer, closure), {}), ((optimizer,), {"closure": closure})]


def test_a_step_that_goes_on_to_the_one_it_overrides_is_hooked_once():
    class Twice(gt.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            return super().step()

    p, seen = parameter(gt), []
    optimizer = Twice([p], lr=0.25)
    optimizer.register_step_post_hook(lambda *args: seen.append(p.item()))
    optimizer.step()
    optimizer.step()
    assert seen == [0.5, 0.0]


@each_library
def test_hooks_of_the_state(library):
    optimizer = library.optim.SGD([parameter(library)], lr=0.5)
    seen = []
    optimizer.register_state_dict_pre_hook(lambda *args: seen.append(args))
    optimizer.register_state_dict_post_hook(lambda self, state: {**state, "more": 1})
    optimizer.register_state_dict_post_hook(lambda self, state: seen.append(set(state)), prepend=True)
    state = optimizer.state_dict()
    assert seen == [(optimizer,), {"state", "param_groups"}] and state["more"] == 1

    def halved(self, state):
        state["param_groups"] = [{**group, "lr": group["lr"] / 2} for group in state["param_groups"]]
        return state

    optimizer.register_load_state_dict_pre_hook(halved)
    optimizer.register_load_state_dict_post_hook(lambda self: seen.append(self.param_groups[0]["lr"]))
    optimizer.load_state_dict(state)
    assert seen[2:] == [0.25] and state["param_groups"][0]["lr"] == 0.5


@each_library
@pytest.mark.parametrize("kind", ["SGD", "Adam", "RMSprop"])
@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_a_parameter_twice_in_a_group_is_stepped_twice(library, kind):
    twice, other, once = parameter(library), parameter(library), parameter(library)
    optimizer = getattr(library.optim, kind)([twice, other, twice], lr=0.125)
    slow = getattr(library.optim, kind)([once], lr=0.125)
    for _ in range(2):
        optimizer.step()
        slow.step()
    assert other.item() == pytest.approx(once.item()) and other.item() < 1
    slow.step()
    slow.step()
    assert twice.item() == pytest.approx(once.item())


@each_library
@pytest.mark.parametrize("kind", ["Adam", "AdamW", "NAdam", "RAdam", "Adamax"])
def test_betas_of_a_group_may_be_a_list(library, kind):
    p = parameter(library)
    optimizer = getattr(library.optim, kind)([{"params": [p], "betas": [0.5, 0.75]}], lr=0.5)
    optimizer.step()
    assert p.item() < 1


@each_library
def test_own_schedulers_may_ask_who_calls(library):
    class Halving(library.optim.lr_scheduler.LRScheduler):
        def get_lr(self):
            if not self._get_lr_called_within_step:
                raise RuntimeError("outside")
            return [base / self._step_count for base in self.base_lrs]

    optimizer = library.optim.SGD([parameter(library)], lr=1.0)
    schedule = Halving(optimizer)
    optimizer.step()
    schedule.step()
    assert schedule.get_last_lr() == [0.5] and schedule.state_dict()["_step_count"] == 2
    with pytest.raises(RuntimeError, match="outside"):
        schedule.get_lr()


@each_library
def test_a_schedule_before_the_first_step_warns(library):
    for make in (lambda p: library.optim.SGD([p], lr=1.0), lambda p: own(library, p)):
        p = parameter(library)
        optimizer = make(p)
        schedule = library.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        with pytest.warns(UserWarning, match=r"`lr_scheduler.step\(\)` before `optimizer.step\(\)`"):
            schedule.step()
        optimizer = make(p)
        schedule = library.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            schedule.step()
            schedule.step()


@each_library
def test_a_loss_that_broadcasts_warns(library):
    with pytest.warns(UserWarning, match=r"target size \(.*3\].*\) that is different to the input size"):
        library.nn.functional.mse_loss(library.ones(3, 1), library.ones(3))


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
@pytest.mark.parametrize(
    "kind", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", *NEWER]
)
def test_optimizers_print_as_torch_prints(kind):
    if kind == "LBFGS":
        needs_new_torch("its settings")
    mine, right = (getattr(library.optim, kind)([parameter(library)]) for library in (gt, torch))
    assert repr(mine) == repr(right)


@each_library
def test_unknown_settings_name_their_optimizer(library):
    with pytest.raises(TypeError, match=r"AdamW.__init__\(\) got an unexpected keyword argument 'foo'"):
        library.optim.AdamW([parameter(library)], foo=1)


@each_library
def test_rates_as_tensors_have_one_element(library):
    p = parameter(library)
    for optimizer in (library.optim.SGD, library.optim.Adam, library.optim.AdamW):
        with pytest.raises(ValueError, match="must be 1-element"):
            optimizer([p], lr=library.ones(2))
    with pytest.raises(ValueError, match="foreach=True"):
        library.optim.AdamW([p], lr=library.ones(()), foreach=True)


@each_library
def test_groups_are_printed_apart(library):
    optimizer = library.optim.SGD([{"params": [parameter(library)]}, {"params": [parameter(library)], "lr": 0.5}])
    assert "\n    weight_decay: 0\n\nParameter Group 1\n" in repr(optimizer)


@each_library
def test_schedulers_refuse_what_they_cannot_do(library):
    schedulers, optimizer = library.optim.lr_scheduler, library.optim.SGD([parameter(library)], lr=0.1)
    for make in (
        lambda: schedulers.CosineAnnealingLR(3, 5),
        lambda: schedulers.OneCycleLR(3, 0.5, 10),
        lambda: schedulers.CyclicLR(3, 0.1, 0.5),
        lambda: schedulers.ReduceLROnPlateau(3),
    ):
        with pytest.raises(TypeError, match="int is not an Optimizer"):
            make()
    with pytest.raises(ValueError, match="between 0 and 1 pct_start"):
        schedulers.OneCycleLR(optimizer, 0.5, 10, pct_start=2.0)
    for steps in (0, -3, 2.5):
        with pytest.raises(ValueError, match="positive integer total_steps"):
            schedulers.OneCycleLR(optimizer, 0.5, steps)
    with pytest.raises(ValueError, match="expected 1 min_lrs, got 2"):
        schedulers.ReduceLROnPlateau(optimizer, min_lr=[1, 2])


@needs_torch
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_keeps_a_rate_that_is_a_tensor(search):
    seen = []
    for T in (gt, torch):
        x = T.tensor([1.5, -0.5], dtype=T.float64, requires_grad=True)
        rate = T.tensor(0.1, dtype=T.float64)
        optimizer = T.optim.LBFGS([x], lr=rate, max_iter=3, line_search_fn=search)

        def closure(x=x, optimizer=optimizer):
            optimizer.zero_grad()
            loss = ((x - 3) ** 2 * (x.detach() * 0 + 1)).sum() + x.sin().sum()
            loss.backward()
            return loss

        for _ in range(4):
            optimizer.step(closure)
        seen.append([x.detach(), rate])
    check(*seen)


def test_a_line_search_over_what_is_flat():
    x = gt.tensor([1e200], dtype=gt.float64, requires_grad=True)
    optimizer = gt.optim.LBFGS([x], maximize=True, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = (x**2).sum()
        loss.backward()
        return loss

    # It has no maximum: whatever is found, nothing is divided by zero.
    optimizer.step(closure)


@each_library
def test_names_of_all_parameters_or_of_none(library):
    a, b = parameter(library), parameter(library)
    with pytest.raises(ValueError, match="names are missing"):
        library.optim.SGD([("a", a), b], lr=0.1)
    for first, second in (([("a", a)], [b]), ([a], [("b", b)])):
        optimizer = library.optim.SGD(first, lr=0.1)
        with pytest.raises(ValueError, match="groups should be with/without names"):
            optimizer.add_param_group({"params": second})
    optimizer = library.optim.SGD([("a", a)], lr=0.1)
    optimizer.add_param_group({"params": [("b", b)]})
    assert [g["param_names"] for g in optimizer.param_groups] == [["a"], ["b"]]
