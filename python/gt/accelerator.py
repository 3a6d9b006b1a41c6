"""Accelerators as PyTorch programs ask about them, answered by the workers."""

from gt import cuda
from gt._gt import device, synchronize

__all__ = [
    "current_accelerator",
    "current_device_index",
    "device_count",
    "empty_cache",
    "is_available",
    "set_device_index",
    "synchronize",
]

is_available, device_count, empty_cache = cuda.is_available, cuda.device_count, cuda.empty_cache
current_device_index, set_device_index = cuda.current_device, cuda.set_device


def current_accelerator(check_available=False):
    """`gt.device("cuda")` if a worker of the session has a GPU, else nothing."""
    return device("cuda") if cuda.is_available() else None
