"""What PyTorch programs tell its compiler. GT compiles what repeats without being asked."""

__all__ = [
    "allow_in_graph",
    "cudagraph_mark_step_begin",
    "disable",
    "is_compiling",
    "is_dynamo_compiling",
    "is_exporting",
    "reset",
]


def disable(fn=None, recursive=True, *, reason=None):
    """The function as it is, also as a decorator with arguments."""
    return fn if fn is not None else lambda fn: fn


def allow_in_graph(fn):
    return fn


def is_compiling():
    return False


is_dynamo_compiling = is_exporting = is_compiling


def reset():
    """Nothing to forget."""


cudagraph_mark_step_begin = reset
