"""What tests share: PyTorch where it can be imported, comparison, inputs."""

import importlib.util

import numpy as np

import gt

if importlib.util.find_spec("torch"):
    import torch
else:
    torch = None

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTS = ["uint8", "int8", "int16", "int32", "int64"]
DTYPES = ["bool", *INTS, *FLOATS]
# (relative, absolute): a result is rounded once per instruction, of which a function may have a few.
TOLERANCE = {"float16": (4e-3, 2e-3), "bfloat16": (3e-2, 1e-2), "float32": (2e-5, 1e-5), "float64": (1e-9, 1e-9)}


def values(t):
    """Elements of a tensor of either library, as a NumPy array wide enough to compare."""
    if not isinstance(t, gt.Tensor):
        if torch is not None and isinstance(t, torch.Tensor):
            t = t.detach()
            return (t.double() if t.is_floating_point() else t).numpy()
        return np.asarray(t)
    t = t.detach()
    return (t.double() if t.is_floating_point() else t).numpy()


def name(dtype):
    return str(dtype).split(".")[-1]


def check(mine, right, tolerance=None, dtype=True):
    """Asserts that a result equals the right one: type, shape and elements. Tuples are compared item by item."""
    if isinstance(right, (tuple, list)):
        assert len(mine) == len(right)
        for m, r in zip(mine, right):
            check(m, r, tolerance, dtype)
        return
    if not hasattr(right, "dtype"):
        assert mine == right or (mine != mine and right != right), (mine, right)
        return
    assert tuple(mine.shape) == tuple(right.shape), (mine.shape, right.shape)
    if dtype:
        assert name(mine.dtype) == name(right.dtype), (mine.dtype, right.dtype)
    rtol, atol = tolerance or TOLERANCE.get(name(mine.dtype), (0, 0))
    np.testing.assert_allclose(values(mine), values(right), rtol=rtol, atol=atol)


def draw(shape, dtype, low=-3.0, high=3.0, seed=0):
    """Inputs as a NumPy array; of a type NumPy lacks, values that survive it."""
    rng = np.random.default_rng(seed + sum(shape) + len(dtype))
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype in INTS:
        low = max(low, 0) if dtype == "uint8" else low
        return rng.integers(int(low), max(int(high), int(low) + 1), shape, endpoint=True).astype(dtype)
    array = rng.uniform(low, high, shape)
    if dtype == "bfloat16":
        bits = array.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        return bits.view(np.float32)
    return array.astype(dtype)


def ours(array, dtype=None, grad=False):
    t = gt.tensor(array, dtype=dtype)
    return t.requires_grad_() if grad else t


def theirs(array, dtype=None, grad=False):
    t = torch.tensor(array, dtype=None if dtype is None else getattr(torch, dtype))
    return t.requires_grad_() if grad else t


def flat(result):
    """The parts of a result, however they are packed."""
    if isinstance(result, (tuple, list)):
        return [part for item in result for part in flat(item)]
    return [result]


def compare(case, arrays, tolerance=None):
    """Checks results and gradients of `case(library, *tensors)` against PyTorch's."""
    seen = []
    for library, make in ((gt, ours), (torch, theirs)):
        leaves = [make(a, grad=a.dtype.kind == "f") for a in arrays]
        outs = flat(case(library, *leaves))
        parts = [(o * o + o).sum() * (i + 1) for i, o in enumerate(outs) if getattr(o, "requires_grad", False)]
        if parts:
            sum(parts).backward()
        seen.append((outs, [leaf.grad for leaf in leaves]))
    check(seen[0][0], seen[1][0], tolerance)
    for mine, right in zip(seen[0][1], seen[1][1]):
        # One library may call a gradient zero where the other says there is none.
        if mine is None or right is None:
            assert not any(values(g).any() for g in (mine, right) if g is not None)
        else:
            check(mine, right, tolerance)


needs_torch = __import__("pytest").mark.skipif(torch is None, reason="PyTorch is not installed")


def needs_new_torch(what):
    """Skips what PyTorch does since 2.15 as GT does, and did otherwise before."""
    import pytest

    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 15):
        pytest.skip(f"PyTorch {torch.__version__} differs from 2.15 in {what}")
