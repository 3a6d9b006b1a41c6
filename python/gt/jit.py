"""Scripting and tracing, which give back what they are given: GT runs Python as it is."""

__all__ = [
    "Final",
    "export",
    "fork",
    "freeze",
    "ignore",
    "is_scripting",
    "is_tracing",
    "optimize_for_inference",
    "script",
    "script_if_tracing",
    "trace",
    "unused",
    "wait",
]

from typing import Final


def script(obj, *args, **kwargs):
    """The function or module itself."""
    return obj


def trace(func, example_inputs=None, *args, **kwargs):
    """The function or module itself."""
    return func


def ignore(drop=False, **kwargs):
    """The function itself, also as a decorator with arguments."""
    return drop if callable(drop) else lambda fn: fn


def export(fn):
    return fn


unused = script_if_tracing = export
freeze = optimize_for_inference = script


def is_scripting():
    return False


is_tracing = is_scripting


def fork(func, *args, **kwargs):
    """The result, for `wait`: operations do not wait for one another anyway."""
    return func(*args, **kwargs)


def wait(future):
    return future
