"""Making tensors, and what they are."""

import copy
import pickle

import numpy as np
import pytest
from helpers import DTYPES, check, needs_torch, torch

import gt

CASES = {
    "list": lambda T: T.tensor([[1, 2], [3, 4]]),
    "floats": lambda T: T.tensor([1.5, 2]),
    "bools": lambda T: T.tensor([True, False]),
    "mixed": lambda T: T.tensor([True, 2, 3.5]),
    "number": lambda T: T.tensor(7),
    "tuple": lambda T: T.tensor((1, 2)),
    "empty": lambda T: T.tensor([]),
    "empty nested": lambda T: T.tensor([[], []]),
    "numpy": lambda T: T.tensor(np.arange(6.0).reshape(2, 3)),
    "numpy int32": lambda T: T.tensor(np.arange(6, dtype="int32")),
    "numpy strided": lambda T: T.from_numpy(np.arange(12.0).reshape(3, 4)[:, 1:3].copy()),
    "numpy 0-d": lambda T: T.tensor(np.float64(2.5)),
    "as_tensor": lambda T: T.as_tensor(np.ones(3, dtype="float16")),
    "dtype": lambda T: T.tensor([1, 2], dtype=T.float16),
    "zeros": lambda T: T.zeros(2, 3),
    "zeros tuple": lambda T: T.zeros((2, 3), dtype=T.int64),
    "zeros size": lambda T: T.zeros(T.Size([4])),
    "zeros 0-d": lambda T: T.zeros(()),
    "ones": lambda T: T.ones([2], dtype=T.bool),
    "full": lambda T: T.full((2, 2), 3),
    "full float": lambda T: T.full((2,), 1.5),
    "full bool": lambda T: T.full((2,), True),
    "arange": lambda T: T.arange(5),
    "arange start": lambda T: T.arange(1, 10, 3),
    "arange float": lambda T: T.arange(0, 1, 0.3),
    "arange back": lambda T: T.arange(5, 0, -2),
    "arange dtype": lambda T: T.arange(3, dtype=T.float32),
    "linspace": lambda T: T.linspace(-1, 1, 5),
    "eye": lambda T: T.eye(3),
    "eye rect": lambda T: T.eye(2, 4, dtype=T.int32),
    "zeros_like": lambda T: T.zeros_like(T.ones(2, 3, dtype=T.int8)),
    "ones_like": lambda T: T.ones_like(T.zeros(2), dtype=T.float64),
    "full_like": lambda T: T.full_like(T.zeros(2), 4),
    "new_zeros": lambda T: T.ones(2, dtype=T.float64).new_zeros(3),
    "new_tensor": lambda T: T.ones(2, dtype=T.float64).new_tensor([1, 2]),
    "tensor of tensors": lambda T: T.tensor([T.tensor(1.0), T.tensor(2.0)]),
    "tril": lambda T: T.tril(T.ones(3, 3, dtype=T.bool)),
}


@needs_torch
@pytest.mark.parametrize("kind", CASES)
def test_against_torch(kind):
    check(CASES[kind](gt), CASES[kind](torch))


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_there_and_back(dtype):
    if dtype == "bfloat16":
        t = gt.ones(3, dtype=dtype)
        with pytest.raises(TypeError, match="float"):
            t.numpy()
        assert t.float().numpy().tolist() == [1, 1, 1]
        return
    for shape in ((), (3,), (2, 3), (0, 2), (300, 301)):
        x = (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 7).astype(dtype)
        for array in (x, np.asfortranarray(x), x[::-1] if shape else x):
            back = gt.from_numpy(array).numpy()
            assert back.dtype == array.dtype and back.shape == array.shape
            np.testing.assert_array_equal(back, array)
            assert (back.flags.writeable and back.flags.owndata) or back.base is not None


def test_bytes_are_taken_before_from_numpy_returns():
    for n in (10, 200_000):
        x = np.ones(n, dtype="float32")
        t = gt.from_numpy(x)
        x[:] = 5
        assert t.sum().item() == n


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bfloat16"])
def test_dlpack_there_and_back(dtype):
    for shape in ((), (3,), (2, 3), (0, 2)):
        x = (np.arange(np.prod(shape, dtype=int)) % 7).reshape(shape).astype(dtype)
        check(gt.from_dlpack(x.T), x.T)
        given = np.from_dlpack(gt.tensor(x).T)
        assert given.dtype == x.dtype
        np.testing.assert_array_equal(given, x.T)
        if torch is not None:
            check(gt.from_dlpack(torch.tensor(x)), x)
            check(torch.from_dlpack(gt.tensor(x)), x)


def test_dlpack_gives_a_copy_of_what_it_can():
    x = gt.ones(2)
    y = gt.from_dlpack(x)
    y[0] = 5
    assert x.tolist() == [5, 1] and x.__dlpack_device__() == (1, 0)
    given = np.from_dlpack(x)
    x.zero_()
    assert given.tolist() == [5, 1]
    for bad in (
        lambda: np.from_dlpack(gt.ones(2, requires_grad=True)),
        lambda: x.__dlpack__(copy=False),
        lambda: x.__dlpack__(dl_device=(2, 0)),
    ):
        with pytest.raises(BufferError, match="__dlpack__"):
            bad()
    with pytest.raises(TypeError, match="from_dlpack"):
        gt.from_dlpack([1, 2])


def test_habits_of_the_prototype():
    assert gt.tensor([1, 2, 3], requires_grad=True).dtype is gt.float32
    assert gt.tensor([1, 2, 3]).dtype is gt.int64
    c = gt.tensor([1, 2, 3, 4]) + gt.tensor([5, 6, 7, 8])
    assert c.data.numpy().tolist() == [6, 8, 10, 12]
    from gt.client import nn
    from gt.client.tensor import from_numpy, randn, zeros

    assert nn.Linear is gt.nn.Linear
    assert from_numpy(np.ones(2)).shape == (2,) and randn(2, 3).shape == (2, 3) and zeros(2).tolist() == [0, 0]


def test_what_a_tensor_is():
    x = gt.zeros(2, 3, dtype="float64", device="cuda:1")
    assert x.shape == (2, 3) and x.shape.numel() == 6 and isinstance(x.shape, gt.Size) and x.size() == x.shape
    assert x.size(-1) == 3 and x.ndim == x.dim() == 2 and x.numel() == 6 and len(x) == 2
    assert x.dtype is gt.float64 and x.element_size() == 8 and x.nbytes == 48 and x.is_floating_point()
    assert x.stride() == (3, 1) and x.T.stride() == (1, 3) and x.is_contiguous() and not x.T.is_contiguous()
    assert str(x.device) == "cuda:1" and x.device == gt.device("cuda:1") == gt.device("cuda", 1)
    assert (x + gt.ones(3)).device == x.device and x.cpu().device.type == "cpu" and x.is_cuda
    assert gt.ones(2).to("cuda").device == gt.device("cuda:0") and gt.ones(2).cuda().is_cuda
    assert x.to(gt.float64) is x and x.double() is x and x.float().dtype == gt.float32
    assert x.type() == "gt.DoubleTensor" and x.type_as(gt.ones(1)).dtype is gt.float32
    assert x.to(gt.ones(1, dtype=gt.int32)).dtype is gt.int32 and x.to("cpu", gt.half).dtype is gt.float16
    assert gt.float is gt.float32 and gt.long is gt.int64 and gt.half is gt.float16 and gt.double is gt.float64
    assert gt.ones(1, dtype=float).dtype is gt.ones(1).to(float).dtype is gt.float64
    for dtype in ("float32", np.float32, np.dtype("float32"), gt.float32):
        assert gt.ones(1, dtype=dtype).dtype is gt.float32
    assert gt.ones(1, dtype=int).dtype is gt.int64 and gt.ones(1, dtype=bool).dtype is gt.bool
    assert hash(x) == hash(x) and len({x, x.T}) == 2
    assert gt.promote_types(gt.int32, gt.float16) is gt.float16
    assert gt.is_tensor(x) and not gt.is_tensor(1)


def test_looking():
    assert gt.tensor([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]
    assert gt.tensor(2.5).item() == 2.5 and isinstance(gt.tensor(True).item(), bool)
    assert int(gt.tensor(3.7)) == 3 and float(gt.tensor([2])) == 2.0 and bool(gt.tensor(0)) is False
    assert np.asarray(gt.ones(2)).tolist() == [1, 1] and np.array(gt.ones(2), dtype="int32").dtype == np.int32
    assert gt.zeros(0, 2).tolist() == []
    assert round(gt.tensor(2.5).item()) == 2


def test_random_numbers():
    gt.manual_seed(3)
    a = [gt.rand(100), gt.randn(100), gt.randint(0, 10, (100,)), gt.randperm(50), gt.rand(3, dtype="float64")]
    gt.manual_seed(3)
    b = [gt.rand(100), gt.randn(100), gt.randint(0, 10, (100,)), gt.randperm(50), gt.rand(3, dtype="float64")]
    for x, y in zip(a, b):
        np.testing.assert_array_equal(x.numpy(), y.numpy())
    assert not np.array_equal(gt.rand(100).numpy(), gt.rand(100).numpy())
    x = gt.randn(20000).numpy()
    assert abs(x.mean()) < 0.05 and abs(x.std() - 1) < 0.05
    x = gt.rand(20000).numpy()
    assert x.min() >= 0 and x.max() < 1 and abs(x.mean() - 0.5) < 0.02
    x = gt.randint(3, 7, (1000,)).numpy()
    assert set(x.tolist()) == {3, 4, 5, 6}
    assert sorted(gt.randperm(20).tolist()) == list(range(20))
    assert gt.randint(5, size=(2, 2)).shape == (2, 2)
    x = gt.empty(1000).uniform_(2, 3).numpy()
    assert x.min() >= 2 and x.max() < 3
    x = gt.empty(5000).normal_(5, 0.1).numpy()
    assert abs(x.mean() - 5) < 0.02
    state = gt.get_rng_state()
    first = gt.rand(3).tolist()
    gt.set_rng_state(state)
    assert gt.rand(3).tolist() == first


def test_pickle_and_copy():
    for x in (gt.arange(6).reshape(2, 3), gt.ones(2, dtype="bfloat16"), gt.ones(2, requires_grad=True)):
        for y in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
            assert y.dtype is x.dtype and y.requires_grad == x.requires_grad
            check(y, x)
            with gt.no_grad():
                y.zero_()
            assert x.sum().item() != 0
    p = copy.deepcopy(gt.nn.Parameter(gt.ones(2)))
    assert isinstance(p, gt.nn.Parameter) and p.requires_grad
    model = copy.deepcopy(gt.nn.Sequential(gt.nn.Linear(2, 3), gt.nn.ReLU()))
    assert len(list(model.parameters())) == 2
    assert pickle.loads(pickle.dumps(gt.float32)) is gt.float32
    assert pickle.loads(pickle.dumps(gt.device("cuda:1"))) == gt.device("cuda:1")


def test_tensors_of_one_element_in_a_list_are_numbers():
    assert gt.tensor([gt.tensor([1.0]), gt.tensor([2.0])]).tolist() == [1.0, 2.0]
    assert gt.tensor([[gt.tensor([[1]])], [gt.tensor(2)]]).tolist() == [[1], [2]]
    assert gt.tensor([gt.tensor([1, 2]), gt.tensor([3, 4])]).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    "data, dtype, bad",
    [
        ([300, 2], gt.int8, "300"),
        ([[1, 2], [3, 2**40]], gt.int32, "1099511627776"),
        ([-1, 256], gt.uint8, "256"),
        ([1e10], gt.int32, "10000000000"),
        ([1, float("nan")], gt.int64, "NaN"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_in_lists_too(data, dtype, bad):
    with pytest.raises(RuntimeError, match=f"value {bad}.* cannot be converted to type .* without overflow"):
        gt.tensor(data, dtype=dtype)
    if torch is not None:
        with pytest.raises((RuntimeError, ValueError)):
            torch.tensor(data, dtype=getattr(torch, str(dtype).rsplit(".", 1)[-1]))
    # Negative numbers wrap around where there are none, as in PyTorch.
    assert gt.tensor([-1, 2], dtype=gt.uint8).tolist() == [255, 2]
