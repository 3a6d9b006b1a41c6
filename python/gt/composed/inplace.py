"""Functions under their names with `_`: the result is written back."""

from gt._gt import Tensor

_NAMES = (
    "absolute addmm addmv addr addbmm baddbmm clip cosh cumprod divide exp2 fmod frac greater greater_equal less "
    "less_equal log10 log2 logical_and logical_not logical_or logical_xor logit nan_to_num negative not_equal sinc "
    "sinh square subtract tan true_divide xlogy copysign deg2rad rad2deg heaviside hypot ldexp fix float_power sgn "
    "asinh acosh atanh arcsinh arccosh arctanh bitwise_left_shift bitwise_right_shift scatter_reduce threshold "
    "digamma erfc erfinv gcd index_reduce lcm lgamma mvlgamma polygamma put renorm"
)


def _written_back(name):
    def method(self, *args, **kwargs):
        # A clone costs nothing, and what it saves for the backward pass is not what is written here.
        return self.copy_(getattr(self.clone(), name)(*args, **kwargs))

    method.__name__ = method.__qualname__ = f"{name}_"
    method.__doc__ = f"`{name}`, written back."
    return method


METHODS = {f"{name}_": _written_back(name) for name in _NAMES.split() if not hasattr(Tensor, f"{name}_")}


def scatter_(self, dim, index, src=None, *, value=None, reduce=None):
    """Writes elements, or a number, at the indices; with `reduce`, adds or multiplies them there."""
    if reduce is None:
        return self._scatter_(dim, index, value if src is None else src)
    if reduce not in ("add", "multiply"):
        raise RuntimeError(f"scatter_: expected reduce to be add or multiply, got {reduce!r}")
    return self.copy_(self.clone().scatter(dim, index, src, value=value, reduce=reduce))


_core_index_put_ = Tensor.index_put_


def index_put_(self, indices, values, accumulate=False):
    """Writes values at the indices, of which there is a tensor for each dimension; or adds them there."""
    return _core_index_put_(self, tuple(indices), values, accumulate)


def _drawn(draw):
    """An in-place draw of numbers that are a function of uniform ones."""

    def method(self, *args, generator=None, **kwargs):
        from gt.autograd.grad_mode import no_grad

        with no_grad():
            return self.copy_(draw(self, generator, *args, **kwargs))

    method.__name__ = method.__qualname__ = draw.__name__
    method.__doc__ = draw.__doc__
    return method


def _positive(name, what, number):
    if not number > 0:
        raise RuntimeError(f"{name}: expected {what} above 0, got {number}")


_core_exponential_ = Tensor.exponential_


def exponential_(self, lambd=1.0, *, generator=None):
    """Waiting times at a rate."""
    _positive("exponential_", "lambd", lambd)
    return _core_exponential_(self, lambd, generator=generator)


def _uniform(self, generator):
    import gt

    return gt.empty(self.shape, dtype=gt.float64).uniform_(generator=generator)


@_drawn
def geometric_(self, generator, p):
    """How many trials of probability `p` the first success takes."""
    import math

    if not 0 < p < 1:
        raise RuntimeError(f"geometric_: expected p between 0 and 1, got {p}")
    return ((-_uniform(self, generator)).log1p() / math.log1p(-p)).ceil().clamp(min=1)


@_drawn
def log_normal_(self, generator, mean=1.0, std=2.0):
    """Numbers whose logarithms are normal."""
    import gt

    _positive("log_normal_", "std", std)
    return gt.empty(self.shape, dtype=gt.float64).normal_(mean, std, generator=generator).exp()


@_drawn
def cauchy_(self, generator, median=0.0, sigma=1.0):
    """Numbers of the Cauchy distribution."""
    import math

    _positive("cauchy_", "sigma", sigma)
    return (math.pi * (_uniform(self, generator) - 0.5)).tan() * sigma + median


METHODS.update(
    scatter_=scatter_,
    index_put_=index_put_,
    exponential_=exponential_,
    geometric_=geometric_,
    log_normal_=log_normal_,
    cauchy_=cauchy_,
)

# Python's assignments that write here.
OPERATORS = {"__ilshift__": METHODS["bitwise_left_shift_"], "__irshift__": METHODS["bitwise_right_shift_"]}
