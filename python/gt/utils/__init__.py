"""What belongs to no other room: data loading."""

from gt.utils import data

__all__ = ["data"]
