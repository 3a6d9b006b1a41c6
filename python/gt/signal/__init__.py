"""Signals: names in a program that a configuration turns into layouts over workers.

with gt.signal.context("layer_1", backward="layer_1_back"):
    y = model(x)            # tensors and computations in here lie as the signal says
w = gt.signal.tensor(w, name="weights")
"""

import inspect
from contextlib import ContextDecorator

from gt._gt import Tensor, _signal_enter, _signal_exit, _signal_name, _signal_tensor
from gt.signal.config import (
    Config,
    ShardConfig,
    SignalConfig,
    get_config,
    get_signal_config,
    load_config,
    register_config,
)
from gt.signal.modules import apply, signals

__all__ = [
    "Config",
    "ShardConfig",
    "SignalConfig",
    "apply",
    "context",
    "current",
    "enter",
    "exit",
    "get_config",
    "get_signal_config",
    "load_config",
    "register_config",
    "tensor",
]


class context(ContextDecorator):
    """What is made inside lies as the signal says, and its backward pass as `backward` says (by default what the
    configuration says, else the same). The innermost context counts. A name without a configuration does nothing."""

    def __init__(self, name, backward=None):
        self.name = name
        self.backward = backward

    def __call__(self, function):
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            raise TypeError("signal.context: what runs in pieces leaves it at once: use `with` inside of it")
        return super().__call__(function)

    def __enter__(self):
        depth = signals.depth()
        enter(self.name, self.backward)
        signals.begun.append(depth)
        return self

    def __exit__(self, kind, *error):
        depth = signals.begun.pop()
        try:
            if kind is None:
                exit(self.name)
        finally:
            # What was entered inside and not left is left now, whatever went wrong.
            while signals.depth() > depth:
                exit()
        return False


def enter(name, backward=None):
    """Enters the context of a signal on this thread, until `exit`."""
    _check_name("enter", name)
    if backward is not None:
        _check_name("enter", backward)
    _signal_enter(name, backward)
    signals.entered(name)


def exit(name=None):
    """Leaves the innermost context of this thread; with a name, it must be that one."""
    if name is not None:
        _check_name("exit", name)
    _signal_exit(name)
    signals.left()


def current():
    """The name of the innermost context of this thread, or None."""
    return _signal_name()


def tensor(t, name):
    """The same tensor lying as the signal says; gradients pass through. The tensor given stays as it is."""
    if not isinstance(t, Tensor):
        raise TypeError(f"signal.tensor: expected a tensor, got {type(t).__name__}")
    _check_name("tensor", name)
    return _signal_tensor(t, name)


def _check_name(function, name):
    if not isinstance(name, str):
        raise TypeError(f"signal.{function}: expected the name of a signal, got {type(name).__name__}")
