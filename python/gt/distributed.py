"""`torch.distributed` for programs that ask if it is there: it is not, since one GT process uses all workers. Calls
that need a process group say so."""

import enum

__all__ = [
    "ReduceOp",
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "destroy_process_group",
    "gather",
    "get_backend",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "is_available",
    "is_gloo_available",
    "is_initialized",
    "is_mpi_available",
    "is_nccl_available",
    "is_torchelastic_launched",
    "new_group",
    "reduce",
    "reduce_scatter",
    "scatter",
]


class ReduceOp(enum.Enum):
    """How values of several processes become one."""

    SUM, AVG, PRODUCT, MIN, MAX = range(5)


def is_available():
    """False: programs that ask run as one process, whose work the dispatcher divides."""
    return False


is_initialized = is_torchelastic_launched = is_available
is_nccl_available = is_gloo_available = is_mpi_available = is_available


def init_process_group(*args, **kwargs):
    raise RuntimeError(
        "init_process_group: GT has no process groups; run the program as one process, whose work is divided over all "
        "workers (docs/scaling.md)"
    )


def _no_group(*args, **kwargs):
    raise ValueError(
        "Default process group has not been initialized, and GT has none: guard the call with "
        "`gt.distributed.is_initialized()`"
    )


get_rank = get_world_size = get_backend = new_group = destroy_process_group = _no_group
all_reduce = all_gather = all_gather_object = broadcast = broadcast_object_list = barrier = _no_group
reduce = reduce_scatter = gather = scatter = _no_group
