"""Starting values of parameters."""

import math

from gt.autograd.grad_mode import no_grad


@no_grad()
def uniform_(tensor, a=0.0, b=1.0, generator=None):
    return tensor.uniform_(a, b, generator=generator)


@no_grad()
def normal_(tensor, mean=0.0, std=1.0, generator=None):
    return tensor.normal_(mean, std, generator=generator)


@no_grad()
def trunc_normal_(tensor, mean=0.0, std=1.0, a=-2.0, b=2.0, generator=None):
    """Normal numbers, drawn again until they lie within [a, b]; waits to know that they do."""
    from gt._gt import where

    if not a < b:
        raise ValueError(f"trunc_normal_: expected a below b, got {a} and {b}")
    tensor.normal_(mean, std, generator=generator)
    for _ in range(64):
        outside = (tensor < a) | (tensor > b)
        if not bool(outside.any()):
            return tensor
        again = tensor.new_empty(tensor.shape).normal_(mean, std, generator=generator)
        tensor.copy_(where(outside, again, tensor))
    # So far from the mean that hardly any draw gets there.
    return tensor.copy_(where(outside, tensor.new_empty(tensor.shape).uniform_(a, b, generator=generator), tensor))


@no_grad()
def orthogonal_(tensor, gain=1.0, generator=None):
    """Rows or columns of length `gain` at right angles to one another; waits for the random matrix they are made of."""
    import numpy as np

    from gt._gt import empty
    from gt._gt import tensor as made

    if tensor.dim() < 2:
        raise ValueError("orthogonal_: only tensors with 2 or more dimensions are supported")
    if tensor.numel() == 0:
        return tensor
    rows, columns = tensor.shape[0], tensor.numel() // tensor.shape[0]
    flat = empty(rows, columns).normal_(generator=generator).double().numpy()
    q, r = np.linalg.qr(flat.T if rows < columns else flat)
    q = q * np.sign(np.diag(r))
    q = q.T if rows < columns else q
    return tensor.copy_((made(np.ascontiguousarray(q)) * gain).to(tensor.dtype).view(tensor.shape))


@no_grad()
def dirac_(tensor, groups=1):
    """Filters that give back their input."""
    if tensor.dim() not in (3, 4, 5):
        raise ValueError(f"dirac_: expected 3, 4 or 5 dimensions, got {tensor.dim()}")
    if tensor.shape[0] % groups:
        raise ValueError("dirac_: dim 0 must be divisible by groups")
    each = tensor.shape[0] // groups
    tensor.zero_()
    centre = tuple(n // 2 for n in tensor.shape[2:])
    for group in range(groups):
        for d in range(min(each, tensor.shape[1])):
            tensor[(group * each + d, d, *centre)] = 1
    return tensor


@no_grad()
def sparse_(tensor, sparsity, std=0.01, generator=None):
    """Normal numbers, with a share of zeros in each column."""
    import math

    from gt._gt import randperm

    if tensor.dim() != 2:
        raise ValueError("sparse_: only tensors with 2 dimensions are supported")
    tensor.normal_(0, std, generator=generator)
    zeros = math.ceil(sparsity * tensor.shape[0])
    for column in range(tensor.shape[1]):
        tensor[randperm(tensor.shape[0], generator=generator)[:zeros], column] = 0
    return tensor


@no_grad()
def constant_(tensor, val):
    return tensor.fill_(val)


@no_grad()
def zeros_(tensor):
    return tensor.zero_()


@no_grad()
def ones_(tensor):
    return tensor.fill_(1.0)


@no_grad()
def eye_(tensor):
    from gt._gt import eye

    return tensor.copy_(eye(*tensor.shape))


def calculate_gain(nonlinearity, param=None):
    """PyTorch's recommended gain for a nonlinearity."""
    if nonlinearity == "tanh":
        return 5.0 / 3
    if nonlinearity == "relu":
        return math.sqrt(2.0)
    if nonlinearity == "leaky_relu":
        return math.sqrt(2.0 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity == "selu":
        return 3.0 / 4
    return 1.0


def _calculate_fan_in_and_fan_out(tensor):
    if tensor.dim() < 2:
        raise ValueError("fan in and fan out can not be computed for a tensor with fewer than 2 dimensions")
    receptive = math.prod(tensor.shape[2:])
    return tensor.shape[1] * receptive, tensor.shape[0] * receptive


def _kaiming_std(tensor, a, mode, nonlinearity):
    fan = _calculate_fan_in_and_fan_out(tensor)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(fan)


def kaiming_uniform_(tensor, a=0.0, mode="fan_in", nonlinearity="leaky_relu", generator=None):
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(tensor, a=0.0, mode="fan_in", nonlinearity="leaky_relu", generator=None):
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), generator)


def xavier_uniform_(tensor, gain=1.0, generator=None):
    bound = gain * math.sqrt(6.0 / sum(_calculate_fan_in_and_fan_out(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor, gain=1.0, generator=None):
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(_calculate_fan_in_and_fan_out(tensor))), generator)
