"""CUDA as PyTorch programs ask about it, answered by the workers. Which GPU a tensor lies on is theirs to choose:
devices are carried by tensors and mean nothing for that. Device numbers below count the workers that have a GPU."""

from types import SimpleNamespace

from gt._gt import OutOfMemoryError, _reset_peak, _shrink, _stats, synchronize

__all__ = [
    "Event",
    "OutOfMemoryError",
    "Stream",
    "amp",
    "current_device",
    "current_stream",
    "default_stream",
    "device_count",
    "empty_cache",
    "get_device_name",
    "get_device_properties",
    "get_rng_state_all",
    "init",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "nvtx",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
    "set_device",
    "set_rng_state_all",
    "stream",
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


def get_device_properties(device=None):
    """The name and the memory of a worker's GPU."""
    return SimpleNamespace(name=get_device_name(device), total_memory=_gpu(device)["memory"])


def memory_allocated(device=None):
    """Bytes that tensors use on a worker's GPU, those of other sessions included; zero where there is no GPU."""
    return _gpu(device)["bytes_in_use"] if _gpus() else 0


def max_memory_allocated(device=None):
    """The most bytes that were in use on a worker's GPU."""
    return _gpu(device)["bytes_peak"] if _gpus() else 0


# What is kept beside that is the worker's own, and no number of the session.
memory_reserved, max_memory_reserved = memory_allocated, max_memory_allocated


def mem_get_info(device=None):
    """Bytes that are free on a worker's GPU, and those there are."""
    gpu = _gpu(device)
    return gpu["memory"] - gpu["bytes_in_use"], gpu["memory"]


def reset_peak_memory_stats(device=None):
    """Counts the most memory in use anew, on every worker."""
    _reset_peak()


reset_max_memory_allocated = reset_peak_memory_stats


def set_device(device):
    """Taken: where tensors lie is the dispatcher's business."""


def is_bf16_supported(including_emulation=True):
    """True: every worker has bfloat16."""
    return True


def is_initialized():
    return is_available()


def init():
    """Nothing to do: workers start when the first operation is recorded."""


def ipc_collect():
    """Nothing to do: no memory of a GPU is shared between processes."""


def empty_cache():
    """Has every worker give back memory that it keeps for speed alone."""
    _shrink()


def manual_seed(seed):
    """Restarts the random numbers."""
    from gt._gt import manual_seed

    manual_seed(seed)


def get_rng_state_all():
    """The state of the random numbers, in a list: there is one for all devices."""
    from gt._gt import get_rng_state

    return [get_rng_state()]


def set_rng_state_all(new_states):
    from gt._gt import set_rng_state

    set_rng_state(new_states[0])


manual_seed_all = manual_seed

from gt.cuda import amp, nvtx  # noqa: E402
from gt.cuda.streams import Event, Stream, current_stream, default_stream, stream  # noqa: E402
