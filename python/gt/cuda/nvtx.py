"""Marks for NVIDIA's profilers, which see workers and not this process: they change nothing."""

from contextlib import contextmanager

__all__ = ["mark", "range", "range_pop", "range_push"]


def mark(msg):
    """Nothing to do."""


def range_push(msg):
    return 0


def range_pop():
    return 0


@contextmanager
def range(msg, *args, **kwargs):
    yield
