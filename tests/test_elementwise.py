"""Elementwise functions over dtypes, shapes and broadcasting."""

import numpy as np
import pytest
from helpers import DTYPES, FLOATS, INTS, check, draw, needs_torch, ours, theirs, torch

import gt

erf = np.vectorize(__import__("math").erf, otypes=[float])
sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731

# name, NumPy's meaning, interval of inputs
UNARY = [
    ("neg", np.negative, (-3, 3)),
    ("abs", np.abs, (-3, 3)),
    ("sign", np.sign, (-3, 3)),
    ("exp", np.exp, (-3, 3)),
    ("expm1", np.expm1, (-3, 3)),
    ("exp2", np.exp2, (-3, 3)),
    ("log", np.log, (0.2, 4)),
    ("log2", np.log2, (0.2, 4)),
    ("log10", np.log10, (0.2, 4)),
    ("log1p", np.log1p, (-0.5, 4)),
    ("sqrt", np.sqrt, (0.2, 4)),
    ("rsqrt", lambda x: 1 / np.sqrt(x), (0.3, 4)),
    ("reciprocal", np.reciprocal, (0.3, 4)),
    ("square", np.square, (-3, 3)),
    ("sin", np.sin, (-4, 4)),
    ("cos", np.cos, (-4, 4)),
    ("tan", np.tan, (-1, 1)),
    ("sinh", np.sinh, (-2, 2)),
    ("cosh", np.cosh, (-2, 2)),
    ("tanh", np.tanh, (-2, 2)),
    ("sigmoid", sigmoid, (-4, 4)),
    ("relu", lambda x: np.maximum(x, 0), (-3, 3)),
    ("gelu", lambda x: x * 0.5 * (1 + erf(x / np.sqrt(2))), (-3, 3)),
    ("silu", lambda x: x * sigmoid(x), (-3, 3)),
    ("erf", erf, (-2, 2)),
    ("floor", np.floor, (-3, 3)),
    ("ceil", np.ceil, (-3, 3)),
    ("round", np.round, (-3, 3)),
    ("trunc", np.trunc, (-3, 3)),
    ("isnan", np.isnan, (-3, 3)),
    ("isfinite", np.isfinite, (-3, 3)),
    ("isinf", np.isinf, (-3, 3)),
    ("logical_not", np.logical_not, (-3, 3)),
]
SHAPES = [(), (5,), (2, 3), (0, 4), (2, 1, 3, 2)]
JUMPS = {"sign", "floor", "ceil", "round", "trunc", "isnan", "isfinite", "isinf", "logical_not"}


def call(library, op, x):
    if op in ("gelu", "silu") and library is torch:
        return getattr(torch.nn.functional, op)(x)
    return getattr(x, op)()


@pytest.mark.parametrize("op, meaning, domain", UNARY, ids=[u[0] for u in UNARY])
def test_unary_against_numpy(op, meaning, domain):
    for shape in SHAPES:
        x = draw(shape, "float64", *domain)
        check(call(gt, op, ours(x)), np.asarray(meaning(x)))
        x32 = x.astype("float32")
        check(call(gt, op, ours(x32)), np.asarray(meaning(x)), (2e-5, 1e-5), dtype=False)
        check(getattr(gt, op)(ours(x)), np.asarray(meaning(x)))


@needs_torch
@pytest.mark.parametrize("op, meaning, domain", UNARY, ids=[u[0] for u in UNARY])
@pytest.mark.parametrize("dtype", DTYPES)
def test_unary_against_torch(op, meaning, domain, dtype):
    if dtype == "bool" and op in ("sign", "square"):
        pytest.skip("GT computes in integers")
    x = draw((3, 4), dtype, *domain)
    grad = dtype in ("float32", "float64") and op not in JUMPS
    mine, right = ours(x, dtype, grad), theirs(x, dtype, grad)
    try:
        expected = call(torch, op, right)
    except (RuntimeError, NotImplementedError, TypeError):
        if op in ("gelu", "silu", "relu", "neg", "sign", "abs"):
            return  # integers and bools where PyTorch has no kernel
        with pytest.raises((RuntimeError, TypeError)):
            call(gt, op, mine)
        return
    check(call(gt, op, mine), expected)
    if grad:
        seed = draw((3, 4), dtype, seed=9)
        call(gt, op, mine).backward(ours(seed))
        expected.backward(theirs(seed))
        check(mine.grad, right.grad)


# operator, and whether it makes sense for floats only
BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "pow": lambda a, b: a**b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}
PAIRS = [((), ()), ((3,), ()), ((2, 3), (3,)), ((2, 1, 3), (4, 1)), ((0, 3), (1, 3)), ((1,), (5,))]


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_binary_against_numpy(op, dtype):
    if op in ("and", "or", "xor") and dtype == "float64":
        pytest.skip("bits of integers only")
    for sa, sb in PAIRS:
        a, b = draw(sa, dtype, 1, 4), draw(sb, dtype, 1, 3, seed=1)
        check(BINARY[op](ours(a), ours(b)), np.asarray(BINARY[op](a, b)), (1e-6, 1e-6), dtype=False)


@needs_torch
@pytest.mark.parametrize("op", BINARY)
def test_binary_types_against_torch(op):
    for da in DTYPES:
        for db in DTYPES:
            a, b = draw((2, 3), da, 1, 4), draw((3,), db, 1, 3, seed=1)
            try:
                right = BINARY[op](theirs(a, da), theirs(b, db))
            except (RuntimeError, TypeError, NotImplementedError):
                if "bool" not in (da, db):
                    with pytest.raises((RuntimeError, TypeError)):
                        BINARY[op](ours(a, da), ours(b, db)).tolist()
                continue
            tolerance = (4e-2, 2e-2) if "bfloat16" in (da, db) or "float16" in (da, db) else (1e-4, 1e-4)
            check(BINARY[op](ours(a, da), ours(b, db)), right, tolerance)


@needs_torch
@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("number", [2, 1.5, True], ids=str)
@pytest.mark.parametrize("shape", [(2, 3), ()], ids=str)
def test_numbers_against_torch(op, number, shape):
    for dtype in DTYPES:
        if dtype == "bool" and op == "pow" and number is True:
            continue  # PyTorch gives bool, GT an integer
        x = draw(shape, dtype, 1, 3)
        for flip in (False, True):
            f = (lambda t: BINARY[op](number, t)) if flip else (lambda t: BINARY[op](t, number))
            try:
                right = f(theirs(x, dtype))
            except (RuntimeError, TypeError, NotImplementedError):
                if dtype != "bool" and number is not True:
                    with pytest.raises((RuntimeError, TypeError)):
                        f(ours(x, dtype)).tolist()
                continue
            check(f(ours(x, dtype)), right, (4e-2, 2e-2) if dtype in ("float16", "bfloat16") else (1e-4, 1e-4))


@needs_torch
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "pow", "mod"])
def test_binary_gradients(op):
    for sa, sb in PAIRS:
        a, b = draw(sa, "float64", 0.5, 3), draw(sb, "float64", 0.5, 3, seed=1)
        pairs = [(ours(a, grad=True), ours(b, grad=True), gt), (theirs(a, grad=True), theirs(b, grad=True), torch)]
        for x, y, _ in pairs:
            (BINARY[op](x, y) ** 2).sum().backward()
        check(pairs[0][0].grad, pairs[1][0].grad)
        check(pairs[0][1].grad, pairs[1][1].grad)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_inplace_operators(dtype):
    for op, change in {"add": "+=", "sub": "-=", "mul": "*=", "floordiv": "//=", "mod": "%="}.items():
        a, b = draw((2, 3), dtype, 1, 5), draw((3,), dtype, 1, 3)
        scope = {"x": ours(a), "y": ours(b)}
        before = scope["x"]
        exec(f"x {change} y", scope)
        assert scope["x"] is before
        check(scope["x"], np.asarray(BINARY[op](a, b)).astype(dtype))


def test_numpy_scalars_mix():
    x = gt.tensor([1.0, 2.0])
    for number in (np.float32(2), np.float64(2), np.int64(2), np.array(2.0)):
        assert isinstance(number * x, gt.Tensor)
        check(x * number, np.array([2, 4], dtype="float32"))
        check(number * x, np.array([2, 4], dtype="float32"))


def test_unknown_operands():
    x = gt.ones(2)
    assert (x == None) is False  # noqa: E711
    assert (x != "a") is True
    for f in (lambda: x + "a", lambda: [] + x, lambda: x < "a", lambda: x @ 2):
        with pytest.raises(TypeError):
            f()


CLAMPS = [(0.5, None), (None, 1.0), (-1, 1), (1.0, -1.0)]


@pytest.mark.parametrize("bounds", CLAMPS, ids=str)
def test_clamp(bounds):
    low, high = bounds
    for dtype in ("float32", "int32"):
        if dtype == "int32" and any(isinstance(b, float) for b in bounds):
            continue
        x = draw((4, 5), dtype)
        right = np.minimum(np.maximum(x, -np.inf if low is None else low), np.inf if high is None else high)
        check(ours(x).clamp(low, high), right.astype(dtype))
        check(ours(x).clamp_(min=low, max=high), right.astype(dtype))


def test_where_minimum_maximum():
    a, b = draw((2, 3), "float32"), draw((3,), "float32", seed=1)
    check(gt.where(ours(a) > 0, ours(a), ours(b)), np.where(a > 0, a, b))
    check(gt.where(ours(a) > 0, 1.0, 0.0), np.where(a > 0, 1, 0).astype("float32"))
    check(gt.where(ours(a) > 0, ours(a), 0), np.where(a > 0, a, 0))
    check(gt.maximum(ours(a), ours(b)), np.maximum(a, b))
    check(gt.minimum(ours(a), ours(b)), np.minimum(a, b))
    check(gt.where(ours(a) > 0), np.where(a > 0))


def test_casts_wrap_and_truncate():
    x = np.array([-1.7, 0.0, 0.4, 2.9, 130.0])
    check(ours(x).long(), x.astype("int64"))
    check(ours(x).bool(), x != 0)
    check(gt.tensor([300, -1]).to("uint8"), np.array([44, 255], dtype="uint8"))
    for dtype in FLOATS + INTS:
        assert str(ours(x).to(dtype).dtype) == f"gt.{dtype}"
        assert ours(x).to(getattr(gt, dtype)).dtype is getattr(gt, dtype)


def test_bounds_beyond_the_range_of_a_type():
    x = gt.tensor([0, 3, 200], dtype=gt.uint8)
    assert x.clamp(-1, 2).tolist() == [0, 2, 2]
    assert x.clamp(1, 1000).tolist() == [1, 3, 200]
    with pytest.raises(RuntimeError, match="range"):
        x.clamp(max=-1)


def test_numbers_that_a_type_cannot_hold_are_refused():
    x = gt.ones(2, dtype=gt.int8)
    mask = gt.tensor([True, False])
    for write in (lambda v: x.fill_(v), lambda v: gt.full((2,), v, dtype=gt.int8), lambda v: x.masked_fill(mask, v)):
        for number in (300, -129, float("inf"), 1e9):
            with pytest.raises(RuntimeError, match="without overflow"):
                write(number)
        assert write(1.5).tolist()[0] == 1
    assert gt.full((1,), -1, dtype=gt.uint8).tolist() == [255]


def test_bools():
    mask = gt.tensor([True, False])
    for difference in (lambda: mask - 1, lambda: 1 - mask, lambda: gt.ones(2) - mask, lambda: mask.sub(mask, alpha=2)):
        with pytest.raises(RuntimeError, match="bool"):
            difference()
    assert mask.square().dtype == gt.int64
    assert mask.sign().tolist() == [True, False]
    assert mask.add(mask, alpha=2).dtype == gt.bool


def test_alpha_counts_in_the_type_of_the_result():
    check(gt.ones(2).add(gt.tensor([1, 3]), alpha=0.5), np.array([1.5, 2.5], dtype="float32"))
    assert gt.ones(2, dtype=gt.uint8).add(gt.tensor([True, False]), alpha=2).dtype == gt.uint8
    with pytest.raises(RuntimeError, match="alpha"):
        gt.ones(2, dtype=gt.int64).add(1, alpha=0.5)
