"""What belongs to no other room: data loading, and gradients for less memory."""

from gt.utils import checkpoint, data

__all__ = ["checkpoint", "data"]
