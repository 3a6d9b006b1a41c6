"""Forms of arguments, kinds of inputs and corners of shapes that PyTorch's own samples have, against PyTorch."""

import numpy as np
import pytest
from helpers import check, compare, draw, flat, needs_new_torch, needs_torch, ours, theirs, torch

import gt

INF, NAN = float("inf"), float("nan")
BYTES = [[3, 200, 7], [255, 0, 9]]


def reduced(T, dtype):
    """Every way to join what is scattered, of one type."""
    kinds = ("amax", "amin") if dtype == T.bool else ("sum", "prod", "mean", "amax", "amin")
    x, src = T.tensor(BYTES).to(dtype), T.tensor([[1, 7, 2], [250, 4, 3]]).to(dtype)
    index = T.tensor([[0, 0, 2], [1, 1, 1]])
    out = [x.scatter_reduce(1, index, src, kind, include_self=own) for kind in kinds for own in (True, False)]
    lone = [T.tensor(5).to(dtype).scatter_reduce(0, T.tensor(0), T.tensor(3).to(dtype), k) for k in kinds]
    rows = [] if dtype == T.bool else [x.index_reduce(0, T.tensor([1, 1]), src, k) for k in kinds if k != "sum"]
    return out + lone + rows


# Expressions over a library T.
CASES = {
    **{
        f"scatter_reduce {dtype}": lambda T, dtype=dtype: reduced(T, getattr(T, dtype))
        for dtype in ("uint8", "int8", "int64", "float32", "bool")
    },
    "scatter of no dimensions": lambda T: (
        T.tensor(2.0).scatter(0, T.tensor(0), T.tensor(3.0), reduce="multiply"),
        T.tensor(2.0).index_reduce(0, T.tensor([0]), T.tensor(3.0), "prod"),
    ),
    "pools of integers": lambda T: (
        T.nn.functional.max_pool2d(-T.arange(1, 17, dtype=T.int32).view(1, 4, 4), 3, 2, 1),
        T.nn.functional.max_pool1d(-T.arange(1, 9).view(1, 8), 2, 2, 1, return_indices=True),
    ),
    "pools of one size for all": lambda T: (
        T.nn.functional.avg_pool2d(T.arange(16.0).view(1, 4, 4), (2,), (), (0,)),
        T.nn.functional.avg_pool2d(T.arange(16.0).view(1, 4, 4), (3, 3), (1, 1), (1,), True, False, 2),
        T.nn.functional.max_pool2d(T.arange(16.0).view(1, 4, 4), (2,), (), (0,)),
        T.nn.functional.adaptive_avg_pool2d(T.arange(16.0).view(1, 4, 4), (2,) * 2),
    ),
    "averages of integers": lambda T: (
        T.nn.functional.avg_pool2d(T.arange(-8, 8).view(1, 4, 4), 3, 1),
        T.nn.functional.avg_pool1d(T.arange(8).view(1, 8), 3, 2, 1),
    ),
    "bytes that hold": lambda T: (
        T.tensor(5, dtype=T.uint8).all(dim=()),
        T.tensor([0, 3], dtype=T.uint8).any(dim=()),
    ),
    "margins of a number": lambda T: (
        T.nn.functional.multi_margin_loss(T.tensor(0.5), T.tensor(0)),
        T.nn.functional.multi_margin_loss(T.tensor([0.5, 0.2]), T.tensor([1]), reduction="none"),
        T.nn.functional.multilabel_margin_loss(T.tensor(0.5), T.tensor(0)),
        T.nn.functional.gaussian_nll_loss(T.ones(4, 3), T.zeros(4, 3), T.full((1, 3), 0.5)),
    ),
    "clipped integers": lambda T: (
        T.nn.functional.relu6(T.tensor([-3, 4, 9])),
        T.nn.functional.hardtanh(T.tensor([-3, 0, 9], dtype=T.int8)),
        T.nn.functional.hardtanh(T.tensor([-3, 0, 9]), -1.5, 2.5),
    ),
    "var_mean": lambda T: (*T.var_mean(T.arange(6.0).view(2, 3), False), *T.std_mean(T.arange(6.0), True)),
    "quantiles of a number": lambda T: (
        T.tensor(3.0).quantile(0.5, dim=0),
        T.tensor(3.0).quantile(T.tensor([0.1, 0.9]), dim=0, keepdim=True),
        T.tensor(3.0).nanquantile(0.5, dim=0, keepdim=True),
    ),
    "steps between integers": lambda T: (
        T.linspace(4.3, -3, 10, dtype=T.int64),
        T.linspace(0, 10, 7, dtype=T.int32),
        T.logspace(1, 3.9, 4, dtype=T.int64),
        T.logspace(2, 1.2, 4, 5.0, dtype=T.int64),
    ),
    "masked_scatter of a larger mask": lambda T: T.zeros(3).masked_scatter(
        T.tensor([[True, False, True], [False, True, True]]), T.arange(6.0)
    ),
    "places from the end": lambda T: T.take_along_dim(T.arange(6).view(2, 3), T.tensor([[-1], [-3]]), 1),
    "statistics of integers": lambda T: (
        T.cov(T.tensor([[1, 2, 4], [3, 3, 1]])),
        T.corrcoef(T.tensor([[1, 2, 4], [3, 3, 1]])),
    ),
    "products of integers": lambda T: (
        T.addbmm(T.ones(2, 2, dtype=T.int32), T.ones(3, 2, 2, dtype=T.int32), T.ones(3, 2, 2, dtype=T.int32)),
        T.addbmm(T.ones(0, 2), T.ones(3, 0, 2), T.ones(3, 2, 2)),
        T.addbmm(T.ones(1, 2), T.ones(3, 2, 0), T.ones(3, 0, 2)),
        T.addbmm(T.full((2,), NAN), T.ones(3, 2, 4), T.ones(3, 4, 2), beta=0, alpha=2),
        T.addr(T.tensor([[True, False], [False, False]]), T.tensor([False, True]), T.tensor([False, True])),
        T.tensordot(T.ones(1, 1, 1, dtype=T.int32), T.tensor([[[1, 2]], [[3, 4]]]).int(), dims=([0, 1], [2, 0])),
    ),
    "negative powers of matrices": lambda T: T.linalg.matrix_power(T.tensor([[2.0, 1.0], [1.0, 3.0]]), -3),
    "nuclear norms": lambda T: (
        T.norm(T.arange(6.0).view(2, 3), "nuc"),
        T.arange(12.0).view(2, 2, 3).norm("nuc", dim=(0, 2), keepdim=True),
    ),
    "unravel_index": lambda T: T.unravel_index(T.tensor([5, 7], dtype=T.uint8), (1000, 4)),
    "unfold of a number": lambda T: T.tensor(3.0).unfold(0, 1, 1),
    "differences": lambda T: (T.arange(4.0).diff(0), T.tensor([1.0, 4, 9]).diff(0, prepend=T.zeros(2))),
    "slopes": lambda T: T.gradient(T.tensor([1.0, 4, 9, 16]), spacing=None),
    "histograms": lambda T: (
        *T.histogram(T.tensor([0.0, 1.0, 1.9, 2.0, 5.0]), 4),
        *T.tensor([0.0, 1.0, 1.9, 2.0, 5.0]).histogram(4, range=(0.0, 2.0), density=True),
        *T.histogram(T.tensor([0.0, 1.0, 3.0]), T.tensor([0.0, 1.0, 3.0]), weight=T.tensor([1.0, 2.0, 4.0])),
    ),
    "strided": lambda T: (
        T.as_strided(T.arange(10), (4, 3), (2, 1)),
        T.arange(10).as_strided((2, 2), (1, 1), 3),
    ),
    "losses of linear maps": lambda T: (
        T.nn.functional.cross_entropy(T.arange(6.0).view(2, 3) @ T.ones(3, 4).triu(), T.tensor([0, 3]))
        if not hasattr(T.nn.functional, "linear_cross_entropy")
        else T.nn.functional.linear_cross_entropy(
            T.arange(6.0).view(2, 3), T.ones(3, 4).triu().T, T.tensor([0, 3]), linear_bias=T.zeros(4)
        )
    ),
    "prelu of a number": lambda T: T.nn.functional.prelu(T.tensor(-2.0), T.tensor([0.25])),
    "group_norm of nothing": lambda T: T.nn.functional.group_norm(T.zeros(0, 4, 2), 2, T.ones(4), T.zeros(4)),
    "hinge of other targets": lambda T: T.nn.functional.hinge_embedding_loss(
        T.tensor([0.5, -2.0, 3.0]), T.tensor([1, -1, 5]), reduction="none"
    ),
    "hypot": lambda T: (
        T.hypot(T.tensor([INF, 3e4], dtype=T.float16), T.tensor([NAN, 3e4], dtype=T.float16)),
        T.hypot(T.tensor([3e38, -INF]), T.tensor([3e38, NAN])),
    ),
    "cosines of angles": lambda T: T.nn.functional.cosine_embedding_loss(
        T.tensor([[1, 2], [3, 4]]), T.tensor([[2, 1], [3, 4]]), T.tensor([1, -1])
    ),
    "channels kept": lambda T: T.nn.functional.feature_alpha_dropout(T.arange(3.0), 0.5, False),
    "conversions": lambda T: (
        T.ones(2).half(memory_format=T.preserve_format),
        T.ones(2).long(memory_format=T.contiguous_format),
        T.tensor([1.234, -5.6789]).round_(decimals=2),
    ),
    "new tensors": lambda T: (
        T.ones(1, dtype=T.float64).new_zeros((2, 3), device="cpu"),
        T.ones(1).new_ones(2, 3, dtype=T.int32, device="cpu", requires_grad=False),
        T.ones(1).new_zeros(size=(2,), layout=T.strided),
        T.ones(1).new_full((2,), 7.0, device="cpu", requires_grad=True),
        T.ones(1).new_tensor([1, 2], device="cpu"),
        T.scalar_tensor(3, requires_grad=True),
    ),
    "ranks of attention": lambda T: T.nn.functional.scaled_dot_product_attention(
        T.arange(12.0).view(2, 2, 3) / 9, T.arange(24.0).view(2, 2, 2, 3) / 9, T.arange(24.0).view(2, 2, 2, 3)
    ),
    "out": lambda T: [
        make(out=T.zeros(2, 2, dtype=T.float64))
        for make in (
            lambda out: T.hypot(T.ones(2, 2), T.ones(2, 2), out=out),
            lambda out: T.linalg.inv(T.eye(2, dtype=T.float64), out=out),
            lambda out: T.column_stack([T.ones(2), T.zeros(2)], out=out),
            lambda out: T.xlogy(T.ones(2, 2), 2.0, out=out),
        )
    ],
}


@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CASES)
def test_as_pytorch(kind):
    check(flat(CASES[kind](gt)), flat(CASES[kind](torch)))


GRADIENTS = {
    "prelu at zero": (lambda T, x: T.nn.functional.prelu(x * 0, T.tensor(0.25).double()), [(3,)]),
    "fmax of no numbers": (
        lambda T, x: T.fmax(x, x.detach() * NAN) + T.fmin(x * NAN, x.detach() * NAN).nan_to_num(),
        [(3,)],
    ),
    "cosine_similarity": (lambda T, x: T.nn.functional.cosine_similarity(x[:1], x[:, :1], -2), [(3, 3, 2)]),
    "cosine of numbers": (lambda T, x: T.nn.functional.cosine_similarity(x[0], x[1], 0), [(2,)]),
    "masked_scatter": (lambda T, x, y: x.masked_scatter(y > 0, y), [(3,), (2, 3)]),
    "tensordot": (lambda T, x, y: T.tensordot(x, y, dims=([0, 1], [2, 0])), [(1, 1, 3), (2, 1, 2)]),
    "norm": (lambda T, x: (x.norm("nuc"), x.norm("nuc", dim=(0, 1), keepdim=True)), [(3, 2)]),
    "scatter": (lambda T, x, y: x[0, 0].scatter_reduce(0, T.tensor(0), y[0], "amax"), [(2, 2), (2,)]),
    "attention": (lambda T, x, y: T.nn.functional.scaled_dot_product_attention(x, y, y), [(2, 2, 3), (2, 2, 4, 3)]),
}


@needs_torch
@pytest.mark.parametrize("kind", GRADIENTS)
def test_gradients_are_pytorchs(kind):
    case, shapes = GRADIENTS[kind]
    compare(case, [draw(shape, "float64", seed=i) for i, shape in enumerate(shapes)])


# Modules, and the shapes of their inputs; the last input may be an index below 3.
MODULES = {
    "LSTM projects": (lambda nn: nn.LSTM(4, 5, 2, proj_size=3, bidirectional=True), [(6, 2, 4)]),
    "LSTM projects from states": (
        lambda nn: nn.LSTM(4, 5, proj_size=3, batch_first=True),
        [(2, 6, 4), [(1, 2, 3), (1, 2, 5)]],
    ),
    "RNN by position": (lambda nn: nn.RNN(4, 5, 1, "relu", False, True), [(2, 6, 4)]),
    "RNNCell": (lambda nn: nn.RNNCell(4, 5, nonlinearity="relu"), [(2, 4)]),
    "BatchNorm of nothing": (lambda nn: nn.BatchNorm2d(3), [(0, 3, 2, 2)]),
    "LinearCrossEntropyLoss": (lambda nn: nn.LinearCrossEntropyLoss(4, 3, bias=True), [(2, 4), "index"]),
    "LinearCrossEntropyLoss of more": (lambda nn: nn.LinearCrossEntropyLoss(4, 3, out_features=(2,)), [(2, 4), "many"]),
}


@needs_torch
@pytest.mark.parametrize("kind", MODULES)
def test_modules_are_pytorchs(kind):
    make, shapes = MODULES[kind]
    if "LinearCross" in kind and not hasattr(torch.nn, "LinearCrossEntropyLoss"):
        pytest.skip("PyTorch has it since 2.15")
    if "BatchNorm" in kind:
        needs_new_torch("how it prints")
    right, mine = make(torch.nn).double(), make(gt.nn).double()
    assert list(mine.state_dict()) == list(right.state_dict())
    assert repr(mine) == repr(right)
    mine.load_state_dict({name: t.numpy() for name, t in right.state_dict().items()})
    marks = {"index": np.array([0, 2]), "many": np.array([[0, 2], [1, 1]])}

    def given(shape, leaf):
        if isinstance(shape, list):
            return tuple(given(s, leaf) for s in shape)
        return leaf(marks[shape]) if isinstance(shape, str) else leaf(draw(shape, "float64"), grad=True)

    seen = []
    for module, leaf in ((mine, ours), (right, theirs)):
        inputs = [given(shape, leaf) for shape in shapes]
        outs = flat(module(*inputs))
        sum((out * out).sum() for out in outs).backward()
        seen.append([outs, [x.grad for x in flat(inputs) if x.requires_grad], [p.grad for p in module.parameters()]])
        seen[-1].append(list(module.state_dict().values()))
    check(*seen)


@needs_torch
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_means_of_narrow_windows_are_rounded_once(dtype):
    x = draw((2, 3, 9, 9), dtype)
    mine = gt.nn.functional.avg_pool2d(ours(x, getattr(gt, dtype)), 3, 1, 1)
    exact = torch.nn.functional.avg_pool2d(torch.tensor(x.astype(np.float64)), 3, 1, 1)
    right = exact.to(getattr(torch, dtype))
    check(mine, right, tolerance=(1e-2 if dtype == "bfloat16" else 1e-3, 1e-7))


def test_what_halves_cannot_hold_may_stand_between():
    x, large, small = gt.ones(2).half(), gt.tensor([300.0, -300.0]).half(), gt.tensor([1e-7, 1e-7]).half()
    assert gt.addcmul(x, large, large, value=0.01).tolist() == [901.0, 901.0]
    assert x.addcdiv(x, small, value=0.0).tolist() == [1.0, 1.0]
    assert x.clone().addcdiv_(x, small, value=1e-4).isfinite().all()
    assert gt.lerp(large * 200, -large * 200, 0.5).tolist() == [0.0, 0.0]


def test_gradients_of_nothing():
    x = gt.ones(1, 3, requires_grad=True)
    (gt.pdist(x).sum() + gt.combinations(x[0], 4).sum()).backward()
    assert not x.grad.any()


def test_what_comes_out_of_a_pool_may_be_written_to():
    for pool in ("adaptive_avg_pool2d", "adaptive_max_pool2d"):
        x = gt.ones(1, 2, 2)
        getattr(gt.nn.functional, pool)(x, (2, None)).zero_()
        assert x.sum().item() == 4
    x = gt.ones(3)
    x.diff(0).zero_()
    x.to("cpu", gt.float32, False, True).zero_()
    assert x.sum().item() == 3


LIBRARIES = [gt] if torch is None else [gt, torch]


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.__name__)
def test_what_is_refused(library):
    if library is torch:
        needs_new_torch("what it refuses")
    T, F = library, library.nn.functional
    image = T.ones(1, 4, 4)
    for error, bad in (
        (ValueError, lambda: T.cat([])),
        *((RuntimeError, lambda f=f: getattr(T, f)([])) for f in ("hstack", "vstack", "dstack", "column_stack")),
        *(
            (TypeError, lambda f=f: getattr(T, f)(T.ones(3, 2)))
            for f in ("cat", "stack", "hstack", "vstack", "dstack", "column_stack", "row_stack", "concat")
        ),
        (RuntimeError, lambda: T.addbmm(T.ones(2, 2), T.ones(2, 2, 3), T.ones(3, 2, 2))),
        (RuntimeError, lambda: T.meshgrid(T.ones(3, 2), indexing="ij")),
        (RuntimeError, lambda: T.cartesian_prod(T.ones(3, 2))),
        (IndexError, lambda: T.tensor(1.0).roll(0, 0)),
        (RuntimeError, lambda: T.isclose(T.ones(2), T.ones(2), rtol=-1.0)),
        (IndexError, lambda: T.tensor(1.0).unbind()),
        (RuntimeError, lambda: T.hsplit(T.ones(2, 4), 0)),
        (ValueError, lambda: T.nn.GRU(2, 3, proj_size=1)),
        (ValueError, lambda: T.nn.LSTM(2, 3, proj_size=3)),
        (TypeError, lambda: T.hypot(2, T.ones(2))),
        (TypeError, lambda: T.ones(1).new_zeros(2, colour="red")),
        (RuntimeError, lambda: F.max_pool1d(image, 0)),
        (RuntimeError, lambda: F.max_pool1d(image, 2, 0)),
        (RuntimeError, lambda: F.max_pool1d(image, 2, padding=-1)),
        (RuntimeError, lambda: F.avg_pool2d(image, 2, divisor_override=0)),
        (RuntimeError, lambda: F.adaptive_avg_pool2d(T.ones(1, 1, 4, 4), (2, -1))),
        (RuntimeError, lambda: F.adaptive_avg_pool2d(T.ones(4, 4), 2)),
        (RuntimeError, lambda: F.prelu(T.ones(2, 3), T.ones(2))),
        (RuntimeError, lambda: F.softshrink(T.ones(2), -1.0)),
        (RuntimeError, lambda: F.group_norm(T.ones(1, 2, 0), 1)),
        (ValueError, lambda: F.gaussian_nll_loss(T.ones(2, 3), T.ones(2, 3), T.ones(2, 2))),
        (RuntimeError, lambda: T.cov(T.ones(2, 2, 2))),
        (RuntimeError, lambda: T.cov(T.ones(2, 3), fweights=T.ones(2, dtype=T.int64))),
        (IndexError, lambda: T.gradient(T.ones(3, 3), dim=3)),
        (RuntimeError, lambda: T.gradient(T.ones(3, 3), dim=(1, 1))),
        (RuntimeError, lambda: T.zeros(3).masked_scatter_(T.ones(2, 3, dtype=T.bool), T.ones(6))),
    ):
        with pytest.raises(error):
            bad()
