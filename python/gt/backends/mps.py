"""Apple's GPUs, which GT does not use."""

__all__ = ["is_available", "is_built"]


def is_available():
    return False


is_built = is_available
