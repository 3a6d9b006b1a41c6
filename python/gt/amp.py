"""Mixed precision: products in a narrow type while parameters stay float32, and a scale that keeps small gradients of
float16 from becoming zero."""

import functools
import math
import warnings

from gt import _gt
from gt._gt import Tensor
from gt.autograd.grad_mode import _Mode, no_grad

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "is_autocast_available"]

# The type products are taken in unless one is given.
_DEFAULTS = {"cuda": "float16", "cpu": "bfloat16"}


def is_autocast_available(device_type):
    """True if `autocast` takes this kind of device."""
    return device_type in _DEFAULTS


def is_autocast_enabled(device_type=None):
    """True inside `autocast`, of that kind of device if one is given."""
    dtype, careful = _gt._get_autocast()
    return dtype is not None and (device_type is None or careful == (_known(device_type) == "cuda"))


def get_autocast_dtype(device_type):
    """The type that `autocast` takes products in for that kind of device, now or unless told otherwise."""
    now = _gt._get_autocast()[0] if is_autocast_enabled(_known(device_type)) else None
    return now or getattr(_gt, _DEFAULTS[device_type])


def _known(device_type):
    if not isinstance(device_type, str):
        raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")
    if device_type not in _DEFAULTS:
        raise RuntimeError(f"autocast: expected the device type 'cuda' or 'cpu', got {device_type!r}")
    return device_type


class autocast(_Mode):
    """Inside it, products of float32 operands are taken in a narrow type: matrix products, linear layers, convolutions
    and attention. Losses are taken in float32; so are sums, powers, exponentials, logarithms, layer norm and softmax
    for `"cuda"`. The kind of device chooses the rules and nothing else, and the innermost one counts. `cache_enabled`
    is taken and changes nothing: casts that occur twice are done once in any case."""

    def __init__(self, device_type, dtype=None, enabled=True, cache_enabled=None):
        self.device, self._enabled = _known(device_type), bool(enabled)
        self.fast_dtype = dtype if dtype is not None else getattr(_gt, _DEFAULTS[device_type])
        if self._enabled and self.fast_dtype not in (_gt.float16, _gt.bfloat16):
            warnings.warn(
                f"autocast: expected dtype gt.float16 or gt.bfloat16, got {self.fast_dtype}; nothing will be cast",
                stacklevel=2,
            )
            self._enabled = False
        self._before = []

    def _clone(self):
        return autocast(self.device, self.fast_dtype, self._enabled)

    def __enter__(self):
        dtype = self.fast_dtype if self._enabled else None
        self._before.append(_gt._set_autocast(dtype, self.device == "cuda"))
        return self

    def __exit__(self, *error):
        _gt._set_autocast(*self._before.pop())
        return False


def custom_fwd(fwd=None, *, device_type=None, cast_inputs=None):
    """Decorates the `forward` of a `gt.autograd.Function`. With `cast_inputs` its floating-point arguments are cast
    and `autocast` is off inside; its `backward`, under `custom_bwd`, casts as it does."""
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @functools.wraps(fwd)
    def called(ctx, *args, **kwargs):
        kind = device_type or "cuda"
        ctx._autocast = is_autocast_enabled(kind), get_autocast_dtype(kind)
        if cast_inputs is None or not ctx._autocast[0]:
            return fwd(ctx, *args, **kwargs)
        ctx._autocast = False, None
        with autocast(kind, enabled=False):
            return fwd(ctx, *_cast(args, cast_inputs), **_cast(kwargs, cast_inputs))

    return called


def custom_bwd(bwd=None, *, device_type=None):
    """Decorates a `backward`: it runs under the `autocast` that its `forward` ran under."""
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def called(ctx, *args, **kwargs):
        enabled, dtype = ctx._autocast
        with autocast(device_type or "cuda", dtype=dtype, enabled=enabled):
            return bwd(ctx, *args, **kwargs)

    return called


def _cast(value, dtype):
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() and value.dtype is not _gt.float64 else value
    if isinstance(value, dict):
        return {key: _cast(v, dtype) for key, v in value.items()}
    return type(value)(_cast(v, dtype) for v in value) if isinstance(value, (list, tuple)) else value


def _narrow(*tensors):
    """Operands of something made of products, in the type that `autocast` asks for."""
    dtype = _gt._get_autocast()[0]
    if dtype is None:
        return tensors
    fits = [t is None or not t.is_floating_point() or t.dtype is _gt.float64 for t in tensors]
    return tuple(t if fit else t.to(dtype) for t, fit in zip(tensors, fits))


class GradScaler:
    """Multiplies a loss so that its gradients fit into float16, takes that out again before the optimizer's step, and
    leaves the step out if a gradient is infinite or NaN; then the scale shrinks, and after many steps without one it
    grows. `device` is taken and changes nothing: gradients lie where they lie."""

    def __init__(
        self,
        device="cuda",
        init_scale=65536.0,
        growth_factor=2.0,
        backoff_factor=0.5,
        growth_interval=2000,
        enabled=True,
    ):
        if enabled and growth_factor <= 1.0:
            raise ValueError(f"GradScaler: expected a growth_factor above 1, got {growth_factor}")
        if enabled and backoff_factor >= 1.0:
            raise ValueError(f"GradScaler: expected a backoff_factor below 1, got {backoff_factor}")
        self._enabled, self._scale, self._growth_tracker = enabled, float(init_scale), 0
        self._growth_factor, self._backoff_factor = growth_factor, backoff_factor
        self._growth_interval = growth_interval
        # What is known of each optimizer until `update`: whether its gradients are finite, and whether it has stepped.
        self._finite, self._stepped = {}, set()

    def is_enabled(self):
        """False if it does nothing."""
        return self._enabled

    def get_scale(self):
        """What losses are multiplied by."""
        return self._scale if self._enabled else 1.0

    def scale(self, outputs):
        """The outputs, tensors in any lists, times the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * self._scale
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(self.scale(each) for each in outputs)
        raise ValueError("outputs must be a Tensor or an iterable of Tensors")

    def unscale_(self, optimizer):
        """Divides the gradients by the scale, as before clipping them; once a step. Waits to know if all are finite."""
        if not self._enabled:
            return
        if id(optimizer) in self._finite:
            done = "step()" if id(optimizer) in self._stepped else "the last update()"
            raise RuntimeError(f"unscale_() has already been called on this optimizer since {done}.")
        params = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if any(p.grad.dtype is _gt.float16 for p in params):
            raise ValueError("Attempting to unscale FP16 gradients.")
        total = None
        with no_grad():
            for p in params:
                p.grad.mul_(1.0 / self._scale)
                # A sum of zeros times what is there is zero unless some of that is infinite or NaN.
                odd = (p.grad * 0.0).sum()
                total = odd if total is None else total + odd
        self._finite[id(optimizer)] = total is None or math.isfinite(total.item())

    def step(self, optimizer, *args, **kwargs):
        """`optimizer.step()`, unless a gradient is infinite or NaN."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        if id(optimizer) in self._stepped:
            raise RuntimeError("step() has already been called since the last update().")
        if id(optimizer) not in self._finite:
            self.unscale_(optimizer)
        self._stepped.add(id(optimizer))
        return optimizer.step(*args, **kwargs) if self._finite[id(optimizer)] else None

    def update(self, new_scale=None):
        """Sets the scale for the next step: a given one, or by what was seen in this one."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale = new_scale.item() if isinstance(new_scale, Tensor) else float(new_scale)
        elif not self._finite:
            raise RuntimeError("No inf checks were recorded prior to update.")
        elif not all(self._finite.values()):
            self._scale, self._growth_tracker = self._scale * self._backoff_factor, 0
        else:
            self._growth_tracker += 1
            if self._growth_tracker == self._growth_interval:
                self._scale, self._growth_tracker = self._scale * self._growth_factor, 0
        self._finite, self._stepped = {}, set()

    def get_growth_factor(self):
        """What the scale is multiplied by when it grows."""
        return self._growth_factor

    def get_backoff_factor(self):
        """What the scale is multiplied by when it shrinks."""
        return self._backoff_factor

    def get_growth_interval(self):
        """Steps with finite gradients after which the scale grows."""
        return self._growth_interval

    def state_dict(self):
        """What `load_state_dict` takes."""
        if not self._enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state_dict):
        """Goes on from a state."""
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler."
            )
        self._scale = float(state_dict["scale"])
        self._growth_factor = state_dict["growth_factor"]
        self._backoff_factor = state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
        self._growth_tracker = state_dict["_growth_tracker"]
