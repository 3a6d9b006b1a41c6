"""Names that PyTorch programs use for what means little here, or lies elsewhere."""

from gt import _gt
from gt._gt import Tensor

__all__ = [
    "BFloat16Tensor",
    "BoolTensor",
    "ByteTensor",
    "CharTensor",
    "DoubleTensor",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "ShortTensor",
    "are_deterministic_algorithms_enabled",
    "adjoint",
    "can_cast",
    "channels_last",
    "channels_last_3d",
    "conj",
    "conj_physical",
    "contiguous_format",
    "get_num_interop_threads",
    "get_num_threads",
    "imag",
    "initial_seed",
    "is_complex",
    "is_inference",
    "is_signed",
    "preserve_format",
    "real",
    "resolve_conj",
    "resolve_neg",
    "seed",
    "set_default_tensor_type",
    "set_flush_denormal",
    "set_num_interop_threads",
    "set_num_threads",
    "set_warn_always",
    "strided",
    "typename",
    "use_deterministic_algorithms",
]


class _Word:
    """A name that is given and compared, and nothing else."""

    def __init__(self, name):
        self._name = name

    def __repr__(self):
        return f"gt.{self._name}"


strided = _Word("strided")
preserve_format = _Word("preserve_format")
contiguous_format = _Word("contiguous_format")
channels_last, channels_last_3d = _Word("channels_last"), _Word("channels_last_3d")


class _Typed(type):
    """The class of `gt.FloatTensor` and its kin: tensors of one type. Called with sizes or data, it makes one."""

    dtype: object

    def __call__(cls, *data):
        if len(data) == 1 and not isinstance(data[0], int):
            return _gt.tensor(data[0], dtype=cls.dtype)
        return _gt.zeros(*data or (0,), dtype=cls.dtype)

    def __instancecheck__(cls, value):
        return isinstance(value, Tensor) and value.dtype == cls.dtype

    def __repr__(cls):
        return f"gt.{cls.__name__}"


def _of_type(name, dtype):
    return _Typed(name, (), {"dtype": dtype, "__module__": "gt"})


BoolTensor, ByteTensor = _of_type("BoolTensor", _gt.bool), _of_type("ByteTensor", _gt.uint8)
CharTensor, ShortTensor = _of_type("CharTensor", _gt.int8), _of_type("ShortTensor", _gt.int16)
IntTensor, LongTensor = _of_type("IntTensor", _gt.int32), _of_type("LongTensor", _gt.int64)
HalfTensor, BFloat16Tensor = _of_type("HalfTensor", _gt.float16), _of_type("BFloat16Tensor", _gt.bfloat16)
FloatTensor, DoubleTensor = _of_type("FloatTensor", _gt.float32), _of_type("DoubleTensor", _gt.float64)
_TYPED = {
    t.__name__: t
    for t in (
        *(BoolTensor, ByteTensor, CharTensor, ShortTensor, IntTensor, LongTensor),
        *(HalfTensor, BFloat16Tensor, FloatTensor, DoubleTensor),
    )
}
_type = Tensor.type


def _said_type(what):
    """The dtype that `gt.FloatTensor`, `"torch.FloatTensor"` and their kin mean; others as they are."""
    if isinstance(what, _Typed):
        return what.dtype
    found = _TYPED.get(what.rpartition(".")[2]) if isinstance(what, str) else None
    return what if found is None else found.dtype


def type_(self, dtype=None):
    """The name of the tensor's type, or the tensor in another type."""
    return _type(self) if dtype is None else _type(self, _said_type(dtype))


def set_default_tensor_type(t):
    """Sets the type of floating-point tensors made without one, by the class of tensors of that type."""
    _gt.set_default_dtype(_said_type(t))


def _kind(dtype):
    return 2 if dtype.is_floating_point else 0 if dtype == _gt.bool else 1


def can_cast(from_, to):
    """Whether results of one type may be written into tensors of another."""
    return _kind(from_) <= _kind(to)


def is_complex(input):
    return False


def real(input):
    """The tensor itself, which has no imaginary part."""
    return input


conj = conj_physical = resolve_conj = resolve_neg = real


def imag(input):
    """Refused, as PyTorch refuses it for real numbers."""
    raise TypeError("imag is not implemented for tensors with non-complex dtypes.")


def adjoint(input):
    """The last two dimensions turned."""
    return input.mT


def is_signed(input):
    return input.is_signed()


def is_inference(input):
    """Whether a tensor can have no part in differentiation: GT marks none."""
    return False


def typename(obj):
    """The name of a type with its module."""
    if isinstance(obj, Tensor):
        return obj.type()
    kind = obj if isinstance(obj, type) else type(obj)
    return f"{kind.__module__}.{kind.__qualname__}"


def seed():
    """Restarts the random numbers from a seed that nobody knows, and gives it."""
    return _gt.default_generator.seed()


def initial_seed():
    """The seed of the random numbers."""
    return _gt.default_generator.initial_seed()


def get_num_threads():
    """The threads of the largest worker."""
    return max((worker["threads"] for worker in _gt._stats()["workers"]), default=1)


get_num_interop_threads = get_num_threads


def set_num_interop_threads(num):
    """Taken: the threads are the workers'."""


def set_flush_denormal(mode):
    """False: numbers near zero are kept as they are."""
    return False


def set_warn_always(b):
    """Taken: Python's `warnings` decides what is shown again."""


def set_num_threads(num):
    """Taken with a warning: workers are told how many threads they use, `gt worker --threads N`."""
    if not isinstance(num, int) or num < 1:
        raise RuntimeError(f"set_num_threads: expected a positive integer, got {num!r}")
    import warnings

    warnings.warn(
        "set_num_threads: the threads are the workers', start them with `gt worker --threads N`", stacklevel=2
    )


def use_deterministic_algorithms(mode, *, warn_only=False):
    """Nothing to do: two runs from one seed give the same bits."""


def are_deterministic_algorithms_enabled():
    return True


# Attributes and methods of tensors: each has the answer of a dense tensor that lies with the workers.
PROPERTIES = {
    "is_sparse": False,
    "is_quantized": False,
    "is_meta": False,
    "is_mps": False,
    "is_xpu": False,
    "is_nested": False,
    "is_mkldnn": False,
    "layout": strided,
    "names": None,
}


def _matrix(self):
    if self.dim() not in (0, 2):
        raise RuntimeError(f"tensor.H is only supported on matrices (2-D tensors). Got {self.dim()}-D tensor.")
    return self.mT if self.dim() else self


# Attributes that are a function of the tensor.
DERIVED = {"H": _matrix, "imag": imag, "mH": adjoint, "real": real}


def constant(value):
    """An attribute that is the same for every tensor."""
    return property(lambda self: value)


def _dense(self):
    """The tensor itself, which is dense."""
    return self


def get_device(self):
    """The number of the device, -1 for the CPU."""
    return -1 if self.device.type == "cpu" else self.device.index or 0


def is_pinned(self, device=None):
    return False


def is_shared(self):
    return True


def resize_(self, *sizes):
    """Another size; the first elements stay, and more of them are zero."""
    sizes = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    count = 1
    for size in sizes:
        count *= size
    flat = self.detach().reshape(-1)
    kept = flat[:count] if count <= flat.numel() else _gt.cat([flat, flat.new_zeros(count - flat.numel())])
    return self._become(kept.reshape(sizes).clone())


def set_(self, source):
    """Stands for another tensor's storage from now on."""
    return self._become(source.detach())


def _replaced(name):
    def method(self, *args, **kwargs):
        return self._become(getattr(self, name)(*args, **kwargs))

    method.__name__ = method.__qualname__ = f"{name}_"
    method.__doc__ = f"`{name}`, of the tensor itself."
    return method


METHODS = {
    "type": type_,
    "get_device": get_device,
    "is_inference": is_inference,
    "is_pinned": is_pinned,
    "is_shared": is_shared,
    "pin_memory": _dense,
    "resize_": resize_,
    "adjoint": adjoint,
    "resolve_conj": _dense,
    "resolve_neg": _dense,
    "conj": _dense,
    "conj_physical": _dense,
    "set_": set_,
    "share_memory_": _dense,
    "to_dense": _dense,
    **{f"{name}_": _replaced(name) for name in "squeeze unsqueeze t transpose swapaxes swapdims".split()},
}
