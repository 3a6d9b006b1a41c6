"""Python's `multiprocessing`, with PyTorch's `spawn`."""

from multiprocessing import *  # noqa: F403
from multiprocessing import get_context as _context

__all__ = ["get_all_sharing_strategies", "get_sharing_strategy", "set_sharing_strategy", "spawn"]


def get_sharing_strategy():
    return "file_descriptor"


def get_all_sharing_strategies():
    return {"file_descriptor"}


def set_sharing_strategy(new_strategy):
    """There is one: tensors travel by file descriptors."""
    if new_strategy not in get_all_sharing_strategies() | {"file_system"}:
        raise ValueError(f"set_sharing_strategy: expected 'file_descriptor' or 'file_system', got {new_strategy!r}")


def spawn(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn"):
    """Calls `fn(i, *args)` in `nprocs` new processes; the list of them if nobody is to wait for their ends."""
    context = _context(start_method)
    processes = [context.Process(target=fn, args=(i, *args), daemon=daemon) for i in range(nprocs)]
    for process in processes:
        process.start()
    if not join:
        return processes
    for i, process in enumerate(processes):
        process.join()
        if process.exitcode:
            raise RuntimeError(f"spawn: process {i} ended with exit code {process.exitcode}")
    return None
