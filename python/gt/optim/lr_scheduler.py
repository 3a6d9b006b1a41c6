"""Learning rates over time. Each scheduler writes the rates of its optimizer's groups when `step()` is called."""

import math
import warnings
from bisect import bisect_right
from collections import Counter

from gt.optim.optimizer import Optimizer

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]


def _checked(optimizer):
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
    return optimizer


class LRScheduler:
    """The base: `get_lr()` gives the rate of each group after `last_epoch` steps."""

    # True while `step` asks for the rates, for schedulers that refuse to be asked otherwise.
    _get_lr_called_within_step = False

    def __init__(self, optimizer, last_epoch=-1):
        self.optimizer = _checked(optimizer)
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise KeyError(f"param 'initial_lr' is not specified in param_groups[{i}] when resuming an optimizer")
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._start()

    def _start(self):
        self._first_step()

    def _first_step(self):
        """Writes the rates that the schedule starts, or goes on, with."""
        self._initial, self._step_count = True, 0
        self.step()
        self._initial = False

    def _undo(self):
        """Takes back the first step."""
        self.last_epoch -= 1

    def _groups(self):
        return self.optimizer.param_groups

    def _rates(self):
        return [group["lr"] for group in self._groups()]

    def get_lr(self):
        raise NotImplementedError

    def get_last_lr(self):
        """The rates written last, one per group."""
        return self._last_lr

    def step(self, epoch=None):
        """Goes on to the next rate, or to the one after `epoch` steps."""
        if self._step_count == 1 and not getattr(self.optimizer, "_stepped", True):
            warnings.warn(
                "Detected call of `lr_scheduler.step()` before `optimizer.step()`: the first value of the learning "
                "rate schedule is skipped. Call `optimizer.step()` before `lr_scheduler.step()`.",
                stacklevel=2,
            )
        self._step_count += 1
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._get_lr_called_within_step = True
        try:
            closed = epoch is not None and hasattr(self, "_closed_form")
            rates = self._closed_form() if closed else self.get_lr()
        finally:
            self._get_lr_called_within_step = False
        self._write(rates)

    def _write(self, rates):
        for group, rate in zip(self._groups(), rates):
            group["lr"] = rate
        self._last_lr = self._rates()

    def state_dict(self):
        """All but the optimizer, as plain data."""
        return {name: value for name, value in self.__dict__.items() if name != "optimizer"}

    def load_state_dict(self, state_dict):
        """Puts back what `state_dict` gave."""
        self.__dict__.update(state_dict)


_LRScheduler = LRScheduler


class _Functions(LRScheduler):
    """Schedulers by functions of the step: one for all groups, or one each. Functions are not saved, objects are."""

    def __init__(self, optimizer, lr_lambda, last_epoch=-1):
        count = len(optimizer.param_groups)
        self.lr_lambdas = list(lr_lambda) if isinstance(lr_lambda, (list, tuple)) else [lr_lambda] * count
        if len(self.lr_lambdas) != count:
            raise ValueError(f"Expected {count} lr_lambdas, but got {len(self.lr_lambdas)}")
        super().__init__(optimizer, last_epoch)

    def state_dict(self):
        state = super().state_dict()
        state["lr_lambdas"] = [None if _is_function(f) else dict(f.__dict__) for f in self.lr_lambdas]
        return state

    def load_state_dict(self, state_dict):
        functions = state_dict["lr_lambdas"]
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "lr_lambdas"})
        for own, saved in zip(self.lr_lambdas, functions):
            if saved is not None:
                own.__dict__.update(saved)


def _is_function(f):
    return hasattr(f, "__code__") or not hasattr(f, "__dict__")


class LambdaLR(_Functions):
    """The initial rate times a function of the step."""

    def get_lr(self):
        return [base * f(self.last_epoch) for base, f in zip(self.base_lrs, self.lr_lambdas)]


class MultiplicativeLR(_Functions):
    """Each rate times a function of the step."""

    def get_lr(self):
        if self._initial:
            return self._rates()
        return [rate * f(self.last_epoch) for rate, f in zip(self._rates(), self.lr_lambdas)]


class StepLR(LRScheduler):
    """The rate times `gamma` every `step_size` steps."""

    def __init__(self, optimizer, step_size, gamma=0.1, last_epoch=-1):
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        if self.last_epoch == 0 or self.last_epoch % self.step_size:
            return self._rates()
        return [rate * self.gamma for rate in self._rates()]

    def _closed_form(self):
        return [base * self.gamma ** (self.last_epoch // self.step_size) for base in self.base_lrs]


class MultiStepLR(LRScheduler):
    """The rate times `gamma` at each of the given steps."""

    def __init__(self, optimizer, milestones, gamma=0.1, last_epoch=-1):
        self.milestones, self.gamma = dict(Counter(milestones)), gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        times = self.milestones.get(self.last_epoch, 0)
        return [rate * self.gamma**times if times else rate for rate in self._rates()]

    def _closed_form(self):
        passed = bisect_right(sorted(Counter(self.milestones).elements()), self.last_epoch)
        return [base * self.gamma**passed for base in self.base_lrs]


class ConstantLR(LRScheduler):
    """The rate times `factor` until `total_iters` steps are done."""

    def __init__(self, optimizer, factor=1.0 / 3, total_iters=5, last_epoch=-1):
        if not 0 <= factor <= 1:
            raise ValueError("Constant multiplicative factor expected to be between 0 and 1.")
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        if self.last_epoch == 0:
            return [rate * self.factor for rate in self._rates()]
        if self.last_epoch != self.total_iters:
            return self._rates()
        return [rate * (1.0 / self.factor) for rate in self._rates()]

    def _closed_form(self):
        late = self.last_epoch >= self.total_iters
        return [base * (late + (not late) * self.factor) for base in self.base_lrs]


class LinearLR(LRScheduler):
    """A factor that goes in a line from `start_factor` to `end_factor` in `total_iters` steps."""

    def __init__(self, optimizer, start_factor=1.0 / 3, end_factor=1.0, total_iters=5, last_epoch=-1):
        if not 0 < start_factor <= 1:
            raise ValueError("Starting multiplicative factor expected to be greater than 0 and less or equal to 1.")
        if not 0 <= end_factor <= 1:
            raise ValueError("Ending multiplicative factor expected to be between 0 and 1.")
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        if self.last_epoch == 0:
            return [rate * self.start_factor for rate in self._rates()]
        if self._initial or self.last_epoch > self.total_iters:
            return self._rates()
        gap = self.end_factor - self.start_factor
        before = self.total_iters * self.start_factor + (self.last_epoch - 1) * gap
        return [rate * (1.0 + gap / before) for rate in self._rates()]

    def _closed_form(self):
        done = min(self.total_iters, self.last_epoch) / self.total_iters
        return [base * (self.start_factor + (self.end_factor - self.start_factor) * done) for base in self.base_lrs]


class ExponentialLR(LRScheduler):
    """The rate times `gamma` at every step."""

    def __init__(self, optimizer, gamma, last_epoch=-1):
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        return self._rates() if self._initial else [rate * self.gamma for rate in self._rates()]

    def _closed_form(self):
        return [base * self.gamma**self.last_epoch for base in self.base_lrs]


class PolynomialLR(LRScheduler):
    """The rate falls to zero in `total_iters` steps, along a power of what is left."""

    def __init__(self, optimizer, total_iters=5, power=1.0, last_epoch=-1):
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        if self._initial or self.last_epoch > self.total_iters:
            return self._rates()
        left, before = 1 - self.last_epoch / self.total_iters, 1 - (self.last_epoch - 1) / self.total_iters
        return [rate * (left / before) ** self.power for rate in self._rates()]

    def _closed_form(self):
        left = 1 - min(self.total_iters, self.last_epoch) / self.total_iters
        return [base * left**self.power for base in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    """The rate falls from its start to `eta_min` along half a cosine of `T_max` steps."""

    def __init__(self, optimizer, T_max, eta_min=0.0, last_epoch=-1):
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        low, rates = self.eta_min, self._rates()
        if self._initial:
            return rates
        if (self.last_epoch - 1 - self.T_max) % (2 * self.T_max) == 0:
            rise = (1 - math.cos(math.pi / self.T_max)) / 2
            return [rate + (base - low) * rise for rate, base in zip(rates, self.base_lrs)]
        now = 1 + math.cos(math.pi * self.last_epoch / self.T_max)
        before = 1 + math.cos(math.pi * (self.last_epoch - 1) / self.T_max)
        return [now / before * (rate - low) + low for rate in rates]

    def _closed_form(self):
        now = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return [self.eta_min + (base - self.eta_min) * now for base in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Falls along half a cosine and starts again, each time `T_mult` times as long."""

    def __init__(self, optimizer, T_0, T_mult=1, eta_min=0.0, last_epoch=-1):
        if T_0 <= 0 or not isinstance(T_0, int):
            raise ValueError(f"Expected positive integer T_0, but got {T_0}")
        if T_mult < 1 or not isinstance(T_mult, int):
            raise ValueError(f"Expected integer T_mult >= 1, but got {T_mult}")
        self.T_0, self.T_i, self.T_mult, self.eta_min, self.T_cur = T_0, T_0, T_mult, eta_min, last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        now = (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
        return [self.eta_min + (base - self.eta_min) * now for base in self.base_lrs]

    def step(self, epoch=None):
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        if epoch is None:
            self.last_epoch += 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur -= self.T_i
                self.T_i *= self.T_mult
        else:
            if epoch < 0:
                raise ValueError(f"Expected non-negative epoch, but got {epoch}")
            self.last_epoch, self.T_cur, self.T_i = math.floor(epoch), epoch, self.T_0
            while self.T_cur >= self.T_i:
                self.T_cur -= self.T_i
                self.T_i *= self.T_mult
        self._write(self.get_lr())


class OneCycleLR(LRScheduler):
    """Up to `max_lr` and down again, far below the start, in `total_steps` steps; momentum goes the other way."""

    def __init__(
        self,
        optimizer,
        max_lr,
        total_steps=None,
        epochs=None,
        steps_per_epoch=None,
        pct_start=0.3,
        anneal_strategy="cos",
        cycle_momentum=True,
        base_momentum=0.85,
        max_momentum=0.95,
        div_factor=25.0,
        final_div_factor=1e4,
        three_phase=False,
        last_epoch=-1,
    ):
        _checked(optimizer)
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")
            total_steps = epochs * steps_per_epoch
        if not isinstance(total_steps, int) or total_steps <= 0:
            raise ValueError(f"Expected positive integer total_steps, but got {total_steps}")
        if not 0 <= pct_start <= 1:
            raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
        self.total_steps, self.anneal_strategy, self.cycle_momentum = total_steps, anneal_strategy, cycle_momentum
        up = float(pct_start * total_steps) - 1
        low, high = ("max_momentum", "base_momentum")
        self.phases = [(up, "initial_lr", "max_lr", low, high)]
        if three_phase:
            self.phases.append((float(2 * pct_start * total_steps) - 2, "max_lr", "initial_lr", high, low))
            self.phases.append((total_steps - 1, "initial_lr", "min_lr", low, low))
        else:
            self.phases.append((total_steps - 1, "max_lr", "min_lr", high, low))
        if last_epoch == -1:
            count = len(optimizer.param_groups)
            tops = list(max_lr) if isinstance(max_lr, (list, tuple)) else [max_lr] * count
            for group, top in zip(optimizer.param_groups, tops):
                group["initial_lr"], group["max_lr"] = top / div_factor, top
                group["min_lr"] = group["initial_lr"] / final_div_factor
                if cycle_momentum:
                    group["max_momentum"], group["base_momentum"] = max_momentum, base_momentum
        if cycle_momentum and not any(name in optimizer.defaults for name in ("momentum", "betas")):
            raise ValueError("optimizer must support momentum or beta1 with `cycle_momentum` option enabled")
        super().__init__(optimizer, last_epoch)

    def _between(self, start, end, done):
        if self.anneal_strategy == "linear":
            return (end - start) * done + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * done) + 1)

    def get_lr(self):
        step = self.last_epoch
        if step > self.total_steps:
            raise ValueError(f"Tried to step {step} times. The specified number of total steps is {self.total_steps}")
        rates = []
        for group in self._groups():
            begin = 0.0
            for i, (end, lr_from, lr_to, momentum_from, momentum_to) in enumerate(self.phases):
                if step <= end or i == len(self.phases) - 1:
                    done = (step - begin) / (end - begin)
                    rates.append(self._between(group[lr_from], group[lr_to], done))
                    if self.cycle_momentum:
                        momentum = self._between(group[momentum_from], group[momentum_to], done)
                        if "betas" in group:
                            group["betas"] = (momentum, *group["betas"][1:])
                        else:
                            group["momentum"] = momentum
                    break
                begin = end
        return rates


class CyclicLR(LRScheduler):
    """From `base_lr` up to `max_lr` and back, over and over; the height may shrink, momentum goes the other way."""

    def __init__(
        self,
        optimizer,
        base_lr,
        max_lr,
        step_size_up=2000,
        step_size_down=None,
        mode="triangular",
        gamma=1.0,
        scale_fn=None,
        scale_mode="cycle",
        cycle_momentum=True,
        base_momentum=0.8,
        max_momentum=0.9,
        last_epoch=-1,
    ):
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ValueError("mode is invalid and scale_fn is None")
        count = len(_checked(optimizer).param_groups)
        self.max_lrs, low = _each(max_lr, count), _each(base_lr, count)
        if last_epoch == -1:
            for group, rate in zip(optimizer.param_groups, low):
                group["lr"] = rate
                # The first rate is where the cycle starts, whatever the optimizer began with.
                group["initial_lr"] = rate
        down = step_size_up if step_size_down is None else step_size_down
        self.total_size = float(step_size_up + down)
        self.step_ratio = step_size_up / self.total_size
        self.mode, self.gamma = mode, gamma
        self._scale_fn = scale_fn
        self._per_step = scale_mode == "iterations" if scale_fn is not None else mode == "exp_range"
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            if not any(name in optimizer.defaults for name in ("momentum", "betas")):
                raise ValueError("optimizer must support momentum or beta1 with `cycle_momentum` option enabled")
            self.base_momentums, self.max_momentums = _each(base_momentum, count), _each(max_momentum, count)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = low

    def state_dict(self):
        state = super().state_dict()
        own = state.pop("_scale_fn")
        state["_scale_fn_custom"] = None if own is None or _is_function(own) else dict(own.__dict__)
        return state

    def load_state_dict(self, state_dict):
        saved = state_dict.get("_scale_fn_custom")
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "_scale_fn_custom"})
        if saved is not None:
            self._scale_fn.__dict__.update(saved)

    def _height(self, x):
        if self._scale_fn is not None:
            return self._scale_fn(x)
        return {"triangular": 1.0, "triangular2": 1 / 2.0 ** (x - 1), "exp_range": self.gamma**x}[self.mode]

    def get_lr(self):
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        place = 1.0 + self.last_epoch / self.total_size - cycle
        up = place <= self.step_ratio
        share = place / self.step_ratio if up else (place - 1) / (self.step_ratio - 1)
        scale = share * self._height(self.last_epoch if self._per_step else cycle)
        if self.cycle_momentum:
            for group, low, high in zip(self._groups(), self.base_momentums, self.max_momentums):
                momentum = high - (high - low) * scale
                if "betas" in group:
                    group["betas"] = (momentum, *group["betas"][1:])
                else:
                    group["momentum"] = momentum
        return [low + (high - low) * scale for low, high in zip(self.base_lrs, self.max_lrs)]


def _each(value, count):
    values = list(value) if isinstance(value, (list, tuple)) else [value] * count
    if len(values) != count:
        raise ValueError(f"expected {count} values, one for each group, got {len(values)}")
    return values


class SequentialLR(LRScheduler):
    """One scheduler after the other, changing at the given steps."""

    def __init__(self, optimizer, schedulers, milestones, last_epoch=-1):
        schedulers = list(schedulers)
        if not schedulers:
            raise ValueError("SequentialLR expects at least one scheduler, but got no scheduler.")
        for i, scheduler in enumerate(schedulers):
            if scheduler.optimizer is not optimizer:
                raise ValueError(f"SequentialLR expects all schedulers to belong to one optimizer, but {i} does not")
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                f"SequentialLR expects {len(schedulers) - 1} milestones for {len(schedulers)} schedulers, "
                f"but got {len(milestones)}"
            )
        self._schedulers, self._milestones = schedulers, list(milestones)
        super().__init__(optimizer, last_epoch)

    def _start(self):
        # Making the schedulers has moved the rates: start over, with the first of them alone.
        self.last_epoch += 1
        for group in self._groups():
            group["lr"] = group["initial_lr"]
        self._undo_all()
        first = self._schedulers[bisect_right(self._milestones, 0)]
        first._first_step()
        self._last_lr = first.get_last_lr()

    def _undo_all(self):
        for scheduler in self._schedulers:
            scheduler._undo()

    def _undo(self):
        # As in PyTorch, the count of an inner sequence itself goes on, so it changes one step early.
        self._undo_all()

    def step(self):
        self.last_epoch += 1
        now = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[now]
        if now > 0 and self._milestones[now - 1] == self.last_epoch:
            scheduler.step(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()

    def state_dict(self):
        state = {k: v for k, v in self.__dict__.items() if k not in ("optimizer", "_schedulers")}
        state["_schedulers"] = [scheduler.state_dict() for scheduler in self._schedulers]
        return state

    def load_state_dict(self, state_dict):
        self.__dict__.update({k: v for k, v in state_dict.items() if k != "_schedulers"})
        for scheduler, state in zip(self._schedulers, state_dict["_schedulers"]):
            scheduler.load_state_dict(state)


class ChainedScheduler(SequentialLR):
    """Several schedulers, all of them at every step."""

    def __init__(self, schedulers, optimizer=None):
        self._schedulers = list(schedulers)
        if not self._schedulers:
            raise ValueError("ChainedScheduler expects at least one scheduler to be chained, but got no scheduler.")
        self.optimizer = optimizer or self._schedulers[0].optimizer
        for i, scheduler in enumerate(self._schedulers):
            if scheduler.optimizer is not self.optimizer:
                raise ValueError(
                    f"ChainedScheduler expects all schedulers to belong to one optimizer, but {i} does not"
                )
        self._last_lr = self._rates()

    def step(self):
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = self._rates()


class ReduceLROnPlateau(LRScheduler):
    """The rate times `factor` when a number has not got better for more than `patience` steps."""

    def __init__(
        self,
        optimizer,
        mode="min",
        factor=0.1,
        patience=10,
        threshold=1e-4,
        threshold_mode="rel",
        cooldown=0,
        min_lr=0.0,
        eps=1e-8,
    ):
        if factor >= 1.0:
            raise ValueError("Factor should be < 1.0.")
        if mode not in ("min", "max"):
            raise ValueError(f"mode {mode} is unknown!")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold mode {threshold_mode} is unknown!")
        self.optimizer = _checked(optimizer)
        count = len(optimizer.param_groups)
        if isinstance(min_lr, (list, tuple)) and len(min_lr) != count:
            raise ValueError(f"expected {count} min_lrs, got {len(min_lr)}")
        self.min_lrs = list(min_lr) if isinstance(min_lr, (list, tuple)) else [min_lr] * count
        self.mode, self.factor, self.patience, self.cooldown, self.eps = mode, factor, patience, cooldown, eps
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0
        self._last_lr = self._rates()

    def is_better(self, value, best):
        """Whether a number is better than the best one by more than the threshold."""
        if self.mode == "min":
            return value < (best * (1 - self.threshold) if self.threshold_mode == "rel" else best - self.threshold)
        return value > (best * (1 + self.threshold) if self.threshold_mode == "rel" else best + self.threshold)

    def step(self, metrics, epoch=None):
        value = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self.is_better(value, self.best):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            lowered = [max(rate * self.factor, low) for rate, low in zip(self._rates(), self.min_lrs)]
            self._write([new if old - new > self.eps else old for old, new in zip(self._rates(), lowered)])
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = self._rates()
