"""What belongs to no other room: data loading, and gradients for less memory."""

from gt.utils import checkpoint, data

__all__ = ["checkpoint", "data", "dlpack"]


def __getattr__(name):
    # It needs what `gt` makes after this.
    if name == "dlpack":
        from importlib import import_module

        return import_module("gt.utils.dlpack")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
