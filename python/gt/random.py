"""The random numbers of the session, under PyTorch's names in `torch.random`."""

from contextlib import contextmanager

from gt._gt import default_generator, get_rng_state, manual_seed, set_rng_state
from gt.composed.names import initial_seed, seed

__all__ = [
    "default_generator",
    "fork_rng",
    "get_rng_state",
    "initial_seed",
    "manual_seed",
    "seed",
    "set_rng_state",
]


@contextmanager
def fork_rng(devices=None, enabled=True, **options):
    """What is drawn inside leaves the random numbers after it as they were."""
    state = get_rng_state() if enabled else None
    try:
        yield
    finally:
        if state is not None:
            set_rng_state(state)
