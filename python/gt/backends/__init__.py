"""Switches of the backends, under PyTorch's names."""

from gt.backends import cuda

__all__ = ["cuda"]
