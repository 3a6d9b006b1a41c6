"""CUDA as PyTorch programs ask about it: devices are carried by tensors and mean nothing for where they lie."""

from gt._gt import _stats, synchronize

__all__ = ["current_device", "device_count", "empty_cache", "is_available", "manual_seed_all", "synchronize"]


def _gpus():
    return sum(worker["backend"] == "cuda" for worker in _stats()["workers"])


def is_available():
    """True if a worker of the session has a GPU."""
    return _gpus() > 0


def device_count():
    """How many workers of the session have a GPU."""
    return _gpus()


def current_device():
    """The default device's number."""
    return 0


def empty_cache():
    """Nothing to do: workers give memory back by themselves."""


def manual_seed_all(seed):
    """Restarts the random numbers."""
    from gt._gt import manual_seed

    manual_seed(seed)
