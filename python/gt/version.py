"""Versions, as PyTorch programs ask for them."""

from gt import __version__

__all__ = ["__version__", "cuda", "hip"]

# GT is not built for one version of either: its workers load what is on their machine.
cuda: str | None = None
hip: str | None = None
