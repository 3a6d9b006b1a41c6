"""Switches of the backends, under PyTorch's names."""

from gt.backends import cuda, cudnn, mps
from gt.backends.absent import mkl, mkldnn, openmp

__all__ = ["cuda", "cudnn", "mkl", "mkldnn", "mps", "openmp"]
