"""Switches of the backends, under PyTorch's names."""

from types import SimpleNamespace

from gt.backends import cuda

__all__ = ["cuda", "cudnn", "mps"]

# Two runs from one seed give the same bits, and what repeats is tuned without being asked: nothing to switch.
cudnn = SimpleNamespace(benchmark=False, deterministic=True, enabled=True, allow_tf32=False, is_available=lambda: False)
mps = SimpleNamespace(is_available=lambda: False, is_built=lambda: False)
