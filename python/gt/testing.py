"""Comparing results in tests, as PyTorch does."""

from gt import _gt
from gt._gt import Tensor

__all__ = ["assert_close"]

# How near is near enough: of the value, and at least.
_NEAR = {
    _gt.float16: (1e-3, 1e-5),
    _gt.bfloat16: (1.6e-2, 1e-5),
    _gt.float32: (1.3e-6, 1e-5),
    _gt.float64: (1e-7, 1e-7),
}


def _both(actual, expected, check_device, check_dtype, rtol, atol, equal_nan, where):
    if isinstance(expected, dict):
        if not isinstance(actual, dict) or set(actual) != set(expected):
            raise AssertionError(f"The keys of the mappings do not match{where}")
        return [(actual[key], value, f"{where} at {key!r}") for key, value in expected.items()]
    if isinstance(expected, (list, tuple)):
        if len(actual) != len(expected):
            raise AssertionError(f"The length of the sequences mismatch{where}: {len(actual)} != {len(expected)}")
        return [(a, e, f"{where} at {i}") for i, (a, e) in enumerate(zip(actual, expected))]
    return None


def assert_close(
    actual,
    expected,
    *,
    allow_subclasses=True,
    rtol=None,
    atol=None,
    equal_nan=False,
    check_device=True,
    check_dtype=True,
    check_layout=True,
    check_stride=False,
    msg=None,
):
    """Raises an `AssertionError` unless tensors, numbers, or lists and dictionaries of them are nearly equal."""
    if (rtol is None) != (atol is None):
        raise ValueError("rtol and atol must both be specified or both be unspecified")
    options = check_device, check_dtype, rtol, atol, equal_nan
    left = [(actual, expected, "")]
    while left:
        a, e, where = left.pop()
        inner = _both(a, e, *options, where)
        if inner is not None:
            left += inner
        else:
            _one(a, e, *options, where, msg)


def _one(actual, expected, check_device, check_dtype, rtol, atol, equal_nan, where, msg):
    def fail(text):
        if callable(msg):
            text = msg(text)
        raise AssertionError(msg if isinstance(msg, str) else text)

    a, e = (x if isinstance(x, Tensor) else _gt.as_tensor(x) for x in (actual, expected))
    if a.shape != e.shape:
        fail(f"The values for attribute 'shape' do not match{where}: {a.shape} != {e.shape}.")
    if check_dtype and isinstance(actual, Tensor) and isinstance(expected, Tensor) and a.dtype != e.dtype:
        fail(f"The values for attribute 'dtype' do not match{where}: {a.dtype} != {e.dtype}.")
    if check_device and isinstance(actual, Tensor) and isinstance(expected, Tensor) and a.device != e.device:
        fail(f"The values for attribute 'device' do not match{where}: {a.device} != {e.device}.")
    near = [_NEAR.get(t.dtype, (0.0, 0.0)) for t in (a, e)]
    rtol = max(n[0] for n in near) if rtol is None else rtol
    atol = max(n[1] for n in near) if atol is None else atol
    dtype = _gt.promote_types(a.dtype, e.dtype)
    a, e = a.detach().to(dtype), e.detach().to(dtype)
    right = a.isclose(e, rtol, atol, equal_nan)
    if not bool(right.all()):
        wrong, count = int((~right).sum()), right.numel()
        gap = (a.double() - e.double()).abs().max().item()
        kind = "Scalars" if count == 1 and not a.dim() else "Tensor-likes"
        fail(
            f"{kind} are not close{where}!\n\nMismatched elements: {wrong} / {count} ({wrong / count:.1%})\n"
            f"Greatest absolute difference: {gap} (up to {atol} allowed, relative {rtol})"
        )
