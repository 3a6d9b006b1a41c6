"""Limits of element types, and what GT does by itself."""

from gt import _gt

# Bits of the fraction, smallest and largest exponent.
_FLOATS = {
    "float16": (10, -14, 15),
    "bfloat16": (7, -126, 127),
    "float32": (23, -126, 127),
    "float64": (52, -1022, 1023),
}
_INTS = {"uint8": (0, 8), "int8": (1, 7), "int16": (1, 15), "int32": (1, 31), "int64": (1, 63)}


class finfo:
    """Limits of a floating-point type."""

    def __init__(self, dtype=None):
        name = (dtype or _gt.float32).name
        if name not in _FLOATS:
            raise TypeError(f"finfo: expected a floating-point type, got {name}; use iinfo for integers")
        fraction, low, high = _FLOATS[name]
        self.dtype, self.bits = name, (dtype or _gt.float32).itemsize * 8
        self.eps = 2.0**-fraction
        self.max = (2 - self.eps) * 2.0**high
        self.min = -self.max
        self.tiny = self.smallest_normal = 2.0**low
        self.resolution = 10.0 ** -int(fraction * 0.30103)

    def __repr__(self):
        return (
            f"finfo(resolution={self.resolution:g}, min={self.min:g}, max={self.max:g}, eps={self.eps:g}, "
            f"smallest_normal={self.smallest_normal:g}, tiny={self.tiny:g}, dtype={self.dtype})"
        )


class iinfo:
    """Limits of an integer type."""

    def __init__(self, dtype):
        if dtype.name not in _INTS:
            raise TypeError(f"iinfo: expected an integer type, got {dtype.name}; use finfo for floating-point ones")
        signed, bits = _INTS[dtype.name]
        self.dtype, self.bits = dtype.name, bits + signed
        self.min, self.max = -signed << bits, (1 << bits) - 1

    def __repr__(self):
        return f"iinfo(min={self.min:g}, max={self.max:g}, dtype={self.dtype})"


def compile(model=None, **options):
    """The model itself: GT compiles what repeats without being asked."""
    return (lambda model: model) if model is None else model
