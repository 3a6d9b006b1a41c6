"""Tensors that belong to modules."""

from gt._gt import Tensor


class Parameter(Tensor):
    """A tensor that a module counts among its parameters."""

    def __new__(cls, data=None, requires_grad=True):
        self = Tensor.__new__(cls) if data is None else Tensor.__new__(cls, data)
        self.requires_grad = requires_grad
        return self


class Buffer(Tensor):
    """A tensor that a module saves and moves, but does not train."""

    def __new__(cls, data=None, *, persistent=True):
        self = Tensor.__new__(cls) if data is None else Tensor.__new__(cls, data)
        self.persistent = persistent
        return self

    def __repr__(self):
        return repr(self.detach())
