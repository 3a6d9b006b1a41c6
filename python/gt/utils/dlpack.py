"""`torch.utils.dlpack`."""

from gt import from_dlpack

__all__ = ["from_dlpack", "to_dlpack"]


def to_dlpack(tensor):
    """A capsule of a copy of the tensor."""
    return tensor.__dlpack__()
