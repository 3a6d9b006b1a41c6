"""Gradients, second derivatives and a function with a backward pass of its own."""

import gt


class Clip(gt.autograd.Function):
    """Passes values through and gradients between -1 and 1."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-1, 1)


x = gt.tensor([1.0, 2.0, 3.0], requires_grad=True)
y = (x**3).sum()
(first,) = gt.autograd.grad(y, x, create_graph=True)
(second,) = gt.autograd.grad(first.sum(), x)
print("3x^2 =", first.tolist(), " 6x =", second.tolist())

(Clip.apply(x) * 10).sum().backward()
print("clipped:", x.grad.tolist())
