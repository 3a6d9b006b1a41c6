"""Elements to and from other libraries by DLPack. They lie with the workers, so either way is a copy, by NumPy's."""

from gt import _gt
from gt._gt import Tensor

__all__ = ["from_dlpack"]

_CPU = (1, 0)


def from_dlpack(ext_tensor):
    """A tensor with the elements of another library's tensor or array."""
    if isinstance(ext_tensor, Tensor):
        return ext_tensor.detach()
    if not hasattr(ext_tensor, "__dlpack__"):
        raise TypeError(f"from_dlpack: expected an object with __dlpack__, got {type(ext_tensor).__name__}")
    import numpy as np

    return _gt.from_numpy(np.from_dlpack(ext_tensor))


def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
    if self.requires_grad:
        raise BufferError("__dlpack__: a tensor that requires grad is not given away, use tensor.detach()")
    if copy is False:
        raise BufferError("__dlpack__: the elements lie with the workers, they are given as a copy only")
    if dl_device not in (None, _CPU):
        raise BufferError(f"__dlpack__: elements are given on the CPU, (1, 0), not on {dl_device}")
    return self.numpy().__dlpack__()


def __dlpack_device__(self):
    return _CPU


METHODS = {"__dlpack__": __dlpack__, "__dlpack_device__": __dlpack_device__}
