"""Automatic differentiation."""

from gt._gt import Node, backward, grad
from gt.autograd.function import Function, once_differentiable
from gt.autograd.grad_mode import enable_grad, inference_mode, no_grad, set_grad_enabled
from gt.autograd.gradcheck import gradcheck, gradgradcheck

__all__ = [
    "Function",
    "Node",
    "backward",
    "enable_grad",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "inference_mode",
    "no_grad",
    "once_differentiable",
    "set_grad_enabled",
]
