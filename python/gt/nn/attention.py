"""Choosing how attention is computed, as PyTorch programs do: GT chooses itself."""

import enum
from contextlib import contextmanager

__all__ = ["SDPBackend", "sdpa_kernel"]


class SDPBackend(enum.IntEnum):
    """PyTorch's ways to compute attention."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


@contextmanager
def sdpa_kernel(backends, set_priority=False):
    """Changes nothing: what a plan takes is the compiler's choice, and results agree up to rounding."""
    for backend in [backends] if isinstance(backends, SDPBackend) else list(backends):
        if not isinstance(backend, SDPBackend):
            raise TypeError(f"sdpa_kernel: expected SDPBackend or a list of them, got {type(backend).__name__}")
    yield {}
