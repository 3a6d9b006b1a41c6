"""Tensors under their older name: `from gt.client.tensor import randn, from_numpy, zeros`."""

from gt import *  # noqa: F403
