"""Functions under their names with `_`: the result is written back."""

from gt._gt import Tensor

_NAMES = (
    "absolute addmm addmv addr addbmm baddbmm clip cosh cumprod divide exp2 fmod frac greater greater_equal less "
    "less_equal log10 log2 logical_and logical_not logical_or logical_xor logit nan_to_num negative not_equal sinc "
    "sinh square subtract tan true_divide xlogy copysign deg2rad rad2deg heaviside hypot ldexp fix float_power sgn"
)


def _written_back(name):
    def method(self, *args, **kwargs):
        # A clone costs nothing, and what it saves for the backward pass is not what is written here.
        return self.copy_(getattr(self.clone(), name)(*args, **kwargs))

    method.__name__ = method.__qualname__ = f"{name}_"
    method.__doc__ = f"`{name}`, written back."
    return method


METHODS = {f"{name}_": _written_back(name) for name in _NAMES.split() if not hasattr(Tensor, f"{name}_")}
