"""Averages of a model's parameters over the steps of a training."""

import copy
import math

from gt import _gt
from gt._gt import Tensor, tensor
from gt.autograd.grad_mode import no_grad
from gt.nn.module import Module
from gt.nn.norms import _BatchNorm
from gt.optim.lr_scheduler import LRScheduler, _checked, _each

__all__ = [
    "SWALR",
    "AveragedModel",
    "get_ema_avg_fn",
    "get_ema_multi_avg_fn",
    "get_swa_avg_fn",
    "get_swa_multi_avg_fn",
    "update_bn",
]


def _check_decay(decay):
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"Invalid decay value {decay} provided. Please provide a value in [0,1] range.")


def get_ema_avg_fn(decay=0.999):
    """An average that forgets: what it was times `decay`, and the rest of the new value."""
    _check_decay(decay)

    @no_grad()
    def ema_update(ema_param, current_param, num_averaged):
        return decay * ema_param + (1 - decay) * current_param

    return ema_update


def get_ema_multi_avg_fn(decay=0.999):
    """`get_ema_avg_fn` for lists of parameters, in place."""
    _check_decay(decay)

    @no_grad()
    def ema_update(ema_param_list, current_param_list, _):
        for average, current in zip(ema_param_list, current_param_list):
            if average.is_floating_point():
                average.lerp_(current.to(average.dtype), 1 - decay)
            else:
                average.copy_(average * decay + current * (1 - decay))

    return ema_update


def get_swa_avg_fn():
    """The mean of all values so far."""

    @no_grad()
    def swa_update(averaged_param, current_param, num_averaged):
        return averaged_param + (current_param - averaged_param) / (num_averaged + 1)

    return swa_update


def get_swa_multi_avg_fn():
    """`get_swa_avg_fn` for lists of parameters, in place."""
    one = get_swa_avg_fn()

    @no_grad()
    def swa_update(averaged_param_list, current_param_list, num_averaged):
        for average, current in zip(averaged_param_list, current_param_list):
            average.copy_(one(average, current, num_averaged))

    return swa_update


class AveragedModel(Module):
    """A copy of a model whose parameters are averages of those that `update_parameters` is given; the mean of them all
    unless a function says otherwise. Buffers are copied, or averaged too with `use_buffers`."""

    def __init__(self, model, device=None, avg_fn=None, multi_avg_fn=None, use_buffers=False):
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise AssertionError("Only one of avg_fn and multi_avg_fn should be provided")
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", tensor(0))
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def _averaged(self, model):
        return [*model.parameters(), *(model.buffers() if self.use_buffers else ())]

    @no_grad()
    def update_parameters(self, model):
        """Takes the values that a model has now into the averages."""
        averages = [p.detach() for p in self._averaged(self.module)]
        current = [p.detach() for p in self._averaged(model)]
        if self.multi_avg_fn is not None:
            new = [average.clone() for average in averages]
            self.multi_avg_fn(new, current, self.n_averaged)
        else:
            one = self.avg_fn or get_swa_avg_fn()
            new = [one(average, value, self.n_averaged) for average, value in zip(averages, current)]
        # The first values are taken as they are. How many there were is not looked at: nothing waits.
        first = self.n_averaged == 0
        for average, value, mean in zip(averages, current, new):
            average.copy_(_gt.where(first, value.to(mean.dtype), mean))
        if not self.use_buffers:
            for mine, value in zip(self.module.buffers(), model.buffers()):
                mine.detach().copy_(value)
        self.n_averaged += 1


@no_grad()
def update_bn(loader, model, device=None):
    """Computes the running means and variances of a model's batch norms anew, over all batches of a loader."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        return
    momenta, training = [norm.momentum for norm in norms], model.training
    model.train()
    for norm in norms:
        norm.reset_running_stats()
        # All batches count the same.
        norm.momentum = None
    for batch in loader:
        batch = batch[0] if isinstance(batch, (list, tuple)) else batch
        model(batch if device is None or not isinstance(batch, Tensor) else batch.to(device))
    for norm, momentum in zip(norms, momenta):
        norm.momentum = momentum
    model.train(training)


class SWALR(LRScheduler):
    """From the rates that the groups have to `swa_lr`, in `anneal_epochs` steps."""

    def __init__(self, optimizer, swa_lr, anneal_epochs=10, anneal_strategy="cos", last_epoch=-1):
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        groups = _checked(optimizer).param_groups
        for group, rate in zip(groups, _each(swa_lr, len(groups))):
            group["swa_lr"] = rate
        self.anneal_epochs, self.anneal_strategy = anneal_epochs, anneal_strategy
        super().__init__(optimizer, last_epoch)

    def _share(self, step):
        """How much of `swa_lr` is in the rate after so many steps."""
        done = max(0, min(1, step / max(1, self.anneal_epochs)))
        return done if self.anneal_strategy == "linear" else (1 - math.cos(math.pi * done)) / 2

    def get_lr(self):
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now = self._share(step - 1), self._share(step)
        rates = []
        for group in self._groups():
            aim = group["swa_lr"]
            start = aim if before == 1 else (group["lr"] - before * aim) / (1 - before)
            rates.append(aim * now + start * (1 - now))
        return rates
