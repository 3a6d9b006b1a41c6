"""Padding as modules: each is `F.pad` with its settings kept."""

from gt.nn import functional as F
from gt.nn.module import Module


def _both(padding, rank):
    """Elements before and after each spatial dimension, the last one first."""
    return (padding,) * (2 * rank) if isinstance(padding, int) else tuple(padding)


class _Pad(Module):
    _rank, _mode = 1, "constant"
    # The numbers of dimensions an input may have; of a constant any.
    _ranks: tuple = ()

    def __init__(self, padding):
        super().__init__()
        self.padding = _both(padding, self._rank)

    def forward(self, input):
        if self._ranks and input.dim() not in self._ranks:
            wanted = " or ".join(f"{rank}D" for rank in self._ranks)
            raise ValueError(f"expected {wanted} input (got {input.dim()}D input)")
        return F.pad(input, self.padding, self._mode)

    def extra_repr(self):
        return f"{self.padding}"


class ConstantPad1d(_Pad):
    """A number around one dimension."""

    def __init__(self, padding, value):
        super().__init__(padding)
        self.value = value

    def forward(self, input):
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self):
        return f"padding={self.padding}, value={self.value}"


class ConstantPad2d(ConstantPad1d):
    """A number around images."""

    _rank = 2


class ConstantPad3d(ConstantPad1d):
    """A number around volumes."""

    _rank = 3


class ZeroPad1d(ConstantPad1d):
    """Zeros around one dimension."""

    def __init__(self, padding):
        super().__init__(padding, 0.0)

    def extra_repr(self):
        return f"{self.padding}"


class ZeroPad2d(ZeroPad1d):
    """Zeros around images."""

    _rank = 2


class ZeroPad3d(ZeroPad1d):
    """Zeros around volumes."""

    _rank = 3


class ReflectionPad1d(_Pad):
    """What a mirror at the edge shows, around one dimension."""

    _mode, _ranks = "reflect", (2, 3)


class ReflectionPad2d(_Pad):
    """What mirrors at the edges show, around images."""

    _rank, _mode, _ranks = 2, "reflect", (3, 4)


class ReflectionPad3d(_Pad):
    """What mirrors at the edges show, around volumes."""

    _rank, _mode, _ranks = 3, "reflect", (4, 5)


class ReplicationPad1d(_Pad):
    """The elements at the edge, around one dimension."""

    _mode, _ranks = "replicate", (2, 3)


class ReplicationPad2d(_Pad):
    """The elements at the edges, around images."""

    _rank, _mode, _ranks = 2, "replicate", (3, 4)


class ReplicationPad3d(_Pad):
    """The elements at the edges, around volumes."""

    _rank, _mode, _ranks = 3, "replicate", (4, 5)


class CircularPad1d(_Pad):
    """The elements of the other end, around one dimension."""

    _mode, _ranks = "circular", (2, 3)


class CircularPad2d(_Pad):
    """The elements of the other ends, around images."""

    _rank, _mode, _ranks = 2, "circular", (3, 4)


class CircularPad3d(_Pad):
    """The elements of the other ends, around volumes."""

    _rank, _mode, _ranks = 3, "circular", (4, 5)
