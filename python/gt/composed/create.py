"""Functions that make tensors."""

import math

from gt import _gt
from gt._gt import Tensor
from gt.composed.info import iinfo

__all__ = [
    "bartlett_window",
    "blackman_window",
    "fill",
    "hamming_window",
    "hann_window",
    "logspace",
    "normal",
    "randint_like",
    "range",
    "scalar_tensor",
]


def multinomial(self, num_samples, replacement=False, *, generator=None):
    """Indices drawn with the given weights."""
    return _gt.multinomial(self, num_samples, replacement, generator=generator)


def bernoulli(self, p=None, *, generator=None):
    """Zeros and ones, ones with the given probabilities."""
    if p is not None and not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli: expected p between 0 and 1, got {p}")
    return _gt.bernoulli(self if p is None else _gt.full_like(self, p), generator=generator)


def fill(input, value):
    """A number in the shape of a tensor."""
    return _gt.zeros_like(input).fill_(value)


def range(start=0, end=None, step=1, *, dtype=None, device=None, requires_grad=False):
    """Numbers from `start` to `end`, both included; `arange` leaves out the end."""
    start, end = (0, start) if end is None else (start, end)
    count = int((end - start) / step) + 1
    if count < 1:
        raise RuntimeError(f"range: expected bounds that go along the step, got {start}, {end} and {step}")
    out = start + step * _gt.arange(count, dtype=dtype or _gt.get_default_dtype(), device=device)
    return out.requires_grad_() if requires_grad else out


def new(self, *data):
    """A tensor of the same type, of these sizes or with this data."""
    if len(data) == 1 and not isinstance(data[0], int):
        return self.new_tensor(data[0])
    return self.new_zeros(*data or (0,))


def logspace(start, end, steps, base=10.0, *, dtype=None, device=None, requires_grad=False):
    """`base` to the power of `steps` numbers from `start` to `end`."""
    # Powers are taken in double precision: an error of the exponent would grow with it.
    if dtype is not None and not dtype.is_floating_point:
        # The ends are integers before anything lies between them.
        start, end = int(start), int(end)
    powers = _gt.pow(float(base), _gt.linspace(start, end, steps, dtype=_gt.float64))
    out = powers.to(dtype or _gt.float32)
    out = out if device is None else out.to(device)
    return out.requires_grad_() if requires_grad else out


def normal(
    mean,
    std=1.0,
    size=None,
    *,
    generator=None,
    dtype=None,
    layout=None,
    device=None,
    pin_memory=False,
    requires_grad=False,
):
    """Normal random numbers with the given means and deviations."""
    if not isinstance(std, Tensor) and not std >= 0:
        raise RuntimeError(f"normal: expected std to be 0 or more, got {std}")
    if size is not None:
        out = _gt.randn(size, dtype=dtype, device=device, generator=generator) * std + mean
        return out.requires_grad_() if requires_grad else out
    if isinstance(mean, Tensor) and isinstance(std, Tensor):
        mean, std = _gt.broadcast_tensors(mean, std)
    like = mean if isinstance(mean, Tensor) else std
    return _gt.randn(like.shape, dtype=like.dtype, generator=generator) * std + mean


def randint_like(input, low, high=None, *, generator=None, dtype=None, device=None):
    """Random integers from `low` up to, not including, `high`, in the shape of `input`."""
    low, high = (0, low) if high is None else (low, high)
    dtype = dtype or input.dtype
    if not dtype.is_floating_point and dtype != _gt.bool:
        limits = iinfo(dtype)
        if low < limits.min or high - 1 > limits.max:
            raise RuntimeError(f"randint_like: expected numbers that {dtype} has, got {low} up to {high - 1}")
    return _gt.randint(low, high, input.shape, device=device, generator=generator).to(dtype)


def scalar_tensor(s, *, dtype=None, layout=None, device=None, pin_memory=False, requires_grad=False):
    """A tensor with one number and no dimensions."""
    return _gt.full((), s, dtype=dtype or _gt.get_default_dtype(), device=device, requires_grad=requires_grad)


def _window(name, length, periodic, options, shape):
    """A function of numbers from 0 to 1 in a window's length; a periodic one goes on where it began."""
    dtype, device = options.pop("dtype", None), options.pop("device", None)
    requires_grad = options.pop("requires_grad", False)
    options.pop("layout", None)
    if options:
        raise TypeError(f"{name}() got an unexpected keyword argument '{next(iter(options))}'")
    if length < 0:
        raise RuntimeError(f"{name} requires non-negative window_length, got window_length={length}")
    dtype = dtype or _gt.get_default_dtype()
    if not dtype.is_floating_point:
        raise RuntimeError(f"{name} expects floating point dtypes, got: {dtype}")
    steps = length if periodic else length - 1
    made = shape(_gt.arange(length, dtype=_gt.float64) / steps) if length > 1 else _gt.ones(length)
    made = made.to(dtype)
    made = made if device is None else made.to(device)
    return made.requires_grad_() if requires_grad else made


def hann_window(window_length, periodic=True, **options):
    """A raised cosine."""
    return hamming_window(window_length, periodic, 0.5, 0.5, **options)


def hamming_window(window_length, periodic=True, alpha=0.54, beta=0.46, **options):
    """`alpha` less `beta` times a cosine."""
    turn = 2 * math.pi
    return _window("hamming_window", window_length, periodic, options, lambda x: alpha - beta * (x * turn).cos())


def blackman_window(window_length, periodic=True, **options):
    """A sum of two cosines that is nearly zero at its ends."""
    turn = 2 * math.pi

    def shape(x):
        return 0.42 - 0.5 * (x * turn).cos() + 0.08 * (x * (2 * turn)).cos()

    return _window("blackman_window", window_length, periodic, options, shape)


def bartlett_window(window_length, periodic=True, **options):
    """A triangle."""
    return _window("bartlett_window", window_length, periodic, options, lambda x: 1 - (2 * x - 1).abs())
