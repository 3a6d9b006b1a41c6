"""CUDA as PyTorch programs ask about it, answered by the workers. Which GPU a tensor lies on is theirs to choose:
devices are carried by tensors and mean nothing for that. Device numbers below count the workers that have a GPU."""

from gt._gt import _reset_peak, _shrink, _stats, synchronize

__all__ = [
    "amp",
    "current_device",
    "device_count",
    "empty_cache",
    "get_device_name",
    "is_available",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "memory_allocated",
    "reset_peak_memory_stats",
    "synchronize",
]


def _gpus():
    return [worker for worker in _stats()["workers"] if worker["backend"] == "cuda"]


def _gpu(device):
    """The worker that a device means: a number, `cuda:1`, a `gt.device`, or nothing for the first."""
    gpus = _gpus()
    if not gpus:
        raise RuntimeError("cuda: no worker of the session has a GPU")
    index = getattr(device, "index", None) if not isinstance(device, (int, str)) else device
    if isinstance(index, str):
        index = int(index.partition(":")[2] or 0)
    index = int(index or 0)
    if not 0 <= index < len(gpus):
        raise RuntimeError(f"cuda: there is no device {index}, expected 0 to {len(gpus) - 1}")
    return gpus[index]


def is_available():
    """True if a worker of the session has a GPU."""
    return bool(_gpus())


def device_count():
    """How many workers of the session have a GPU."""
    return len(_gpus())


def current_device():
    """The default device's number."""
    return 0


def get_device_name(device=None):
    """The name of a worker's GPU."""
    return _gpu(device)["device"].partition(" (cuda:")[0]


def memory_allocated(device=None):
    """Bytes that tensors use on a worker's GPU, those of other sessions included."""
    return _gpu(device)["bytes_in_use"]


def max_memory_allocated(device=None):
    """The most bytes that were in use on a worker's GPU."""
    return _gpu(device)["bytes_peak"]


def reset_peak_memory_stats(device=None):
    """Counts the most memory in use anew, on every worker."""
    _reset_peak()


def empty_cache():
    """Has every worker give back memory that it keeps for speed alone."""
    _shrink()


def manual_seed(seed):
    """Restarts the random numbers."""
    from gt._gt import manual_seed

    manual_seed(seed)


manual_seed_all = manual_seed

from gt.cuda import amp  # noqa: E402
