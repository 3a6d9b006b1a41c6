"""`gt.nn` under its older name."""

from gt.nn import *  # noqa: F403
