"""Optimizers: one step is one call into the core, for all parameters."""

from gt._gt import Tensor, _adam_step, _sgd_step
from gt._places import places as _places
from gt.optim import lr_scheduler
from gt.optim.lbfgs import LBFGS
from gt.optim.optimizer import Optimizer
from gt.optim.others import ASGD, Adadelta, Adafactor, Adagrad, Adamax, Muon, NAdam, RAdam, RMSprop, Rprop

__all__ = [
    "ASGD",
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Muon",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "lr_scheduler",
    "swa_utils",
]


def __getattr__(name):
    # It needs modules, which need optimizers.
    if name == "swa_utils":
        from importlib import import_module

        return import_module("gt.optim.swa_utils")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _not_both(foreach, fused):
    if foreach and fused:
        raise RuntimeError("`fused` and `foreach` cannot be `True` together")


def _no_history(differentiable):
    if differentiable:
        raise ValueError("optimizer: differentiable=True is not supported; a step keeps no gradient history")


def _check_rate(lr, foreach, capturable=False):
    """A rate may be a tensor of one element, except where PyTorch's steps over all parameters at once refuse it."""
    if isinstance(lr, Tensor):
        if foreach and not capturable:
            raise ValueError("lr as a Tensor is not supported for capturable=False and foreach=True")
        if lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
    _check("learning rate", lr)


def _check(name, value):
    if not 0.0 <= value:
        raise ValueError(f"Invalid {name}: {value}")


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum."""

    _later = {"nesterov": False, "maximize": False}

    def __init__(
        self,
        params,
        lr=1e-3,
        momentum=0,
        dampening=0,
        weight_decay=0,
        nesterov=False,
        *,
        maximize=False,
        foreach=None,
        differentiable=False,
        fused=None,
    ):
        _no_history(differentiable)
        _not_both(foreach, fused)
        _check_rate(lr, False)
        _check("momentum value", momentum)
        _check("weight_decay value", weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        settings = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "foreach": foreach,
            "differentiable": False,
            "fused": fused,
        }
        super().__init__(params, settings)

    def _step(self, group):
        _sgd_step(
            group["params"],
            self.state,
            group["lr"],
            group["momentum"],
            group["dampening"],
            group["weight_decay"],
            group["nesterov"],
            group["maximize"],
        )


class Adam(Optimizer):
    """Adam."""

    _later = {"amsgrad": False, "maximize": False, "decoupled_weight_decay": False}

    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0,
        amsgrad=False,
        *,
        foreach=None,
        maximize=False,
        capturable=False,
        differentiable=False,
        fused=None,
        decoupled_weight_decay=False,
    ):
        _no_history(differentiable)
        _not_both(foreach, fused)
        _check_rate(lr, foreach, capturable)
        _check("epsilon value", eps)
        _check("weight_decay value", weight_decay)
        for i, beta in enumerate(betas):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"Invalid beta parameter at index {i}: {beta}")
        settings = {
            "lr": lr,
            "betas": tuple(betas),
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": False,
            "fused": fused,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, settings)

    def _step(self, group):
        _adam_step(
            group["params"],
            self.state,
            group["lr"],
            tuple(group["betas"]),
            group["eps"],
            group["weight_decay"],
            group["decoupled_weight_decay"],
            group["amsgrad"],
            group["maximize"],
        )


class AdamW(Adam):
    """Adam with decay of the weights apart from the gradient."""

    _later = {**Adam._later, "decoupled_weight_decay": True}

    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=1e-2,
        amsgrad=False,
        *,
        maximize=False,
        foreach=None,
        capturable=False,
        differentiable=False,
        fused=None,
    ):
        options = {"maximize": maximize, "foreach": foreach, "capturable": capturable, "differentiable": differentiable}
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, **options, fused=fused, decoupled_weight_decay=True
        )

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            group["decoupled_weight_decay"] = True


_places(__name__, dict.fromkeys(("adadelta", "adagrad", "adam", "adamax", "adamw", "rmsprop", "sgd"), __name__))
