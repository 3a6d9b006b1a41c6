"""The client under its older name: `from gt.client import nn`."""

from gt import nn
from gt._gt import Session, Tensor, connect, disconnect

__all__ = ["Session", "Tensor", "connect", "disconnect", "nn"]
