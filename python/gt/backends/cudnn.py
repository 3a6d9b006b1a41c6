"""Switches of cuDNN. Two runs from one seed give the same bits, and what repeats is tuned without being asked: nothing
to switch."""

__all__ = ["allow_tf32", "benchmark", "deterministic", "enabled", "is_available", "version"]

benchmark, deterministic, enabled, allow_tf32 = False, True, True, False


def is_available():
    return False


def version():
    return None
