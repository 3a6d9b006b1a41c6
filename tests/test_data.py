"""Datasets, samplers and loaders, against what PyTorch's do; workers that make host tensors and start nothing."""

import copy
import os
import pickle
import random
import signal
import time
from collections import Counter, namedtuple

import numpy as np
import pytest
from helpers import check

import gt
from gt.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
    get_worker_info,
    random_split,
)


class Squares(Dataset):
    """Arrays, numbers and text, made from the index."""

    def __init__(self, n=20, size=3):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return {"x": np.full((self.size, 2), i * i, dtype="f4"), "i": i, "name": f"item {i}", "y": i / 2}


class Made(Dataset):
    """Host tensors, by whatever is asked for."""

    def __init__(self, make, n=6):
        self.make, self.n = make, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.make(i)


def same_batches(a, b):
    assert len(a) == len(b)
    for x, y in zip(a, b):
        assert x.keys() == y.keys()
        for key in x:
            if isinstance(x[key], gt.Tensor):
                assert x[key].dtype == y[key].dtype
                np.testing.assert_array_equal(x[key].numpy(), y[key].numpy())
            else:
                assert x[key] == y[key]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("size", [3, 40_000])
def test_workers_give_the_same_batches_in_order(workers, size):
    data = Squares(11, size)
    for options in ({"batch_size": 4}, {"batch_size": 4, "drop_last": True}, {"batch_size": 1}):
        alone = list(DataLoader(data, **options))
        assert len(alone) == len(DataLoader(data, **options))
        same_batches(list(DataLoader(data, num_workers=workers, **options)), alone)
    batch = next(iter(DataLoader(data, batch_size=4, num_workers=workers)))
    check(batch["x"], np.stack([data[i]["x"] for i in range(4)]))
    assert batch["i"].dtype is gt.int64 and batch["y"].dtype is gt.float64
    assert batch["name"] == ["item 0", "item 1", "item 2", "item 3"]
    # What arrives are tensors like any others.
    check(batch["x"] * 2 + 1, np.stack([data[i]["x"] for i in range(4)]) * 2 + 1)


def test_shuffle_takes_every_item_once_and_obeys_the_seed():
    def order(seed, **options):
        gt.manual_seed(seed)
        return [
            i for batch in DataLoader(Squares(30), batch_size=7, shuffle=True, **options) for i in batch["i"].tolist()
        ]

    first = order(1)
    assert sorted(first) == list(range(30)) and first != list(range(30))
    assert order(1) == first and order(2) != first
    assert order(1, num_workers=2) == first
    assert order(3, generator=random.Random(5)) == order(4, generator=random.Random(5))
    loader = DataLoader(Squares(30), batch_size=30, shuffle=True)
    assert next(iter(loader))["i"].tolist() != next(iter(loader))["i"].tolist()


def test_samplers():
    assert list(SequentialSampler(range(4))) == [0, 1, 2, 3]
    assert list(BatchSampler(SequentialSampler(range(5)), 2, False)) == [[0, 1], [2, 3], [4]]
    assert list(BatchSampler(SequentialSampler(range(5)), 2, True)) == [[0, 1], [2, 3]]
    drawn = list(RandomSampler(range(3), replacement=True, num_samples=300, generator=7))
    assert set(drawn) == {0, 1, 2} and len(drawn) == 300
    assert sorted(RandomSampler(range(4), num_samples=8, generator=1)) == [0, 0, 1, 1, 2, 2, 3, 3]
    batches = DataLoader(range(6), batch_sampler=[[5, 0], [3]])
    assert [b.tolist() for b in batches] == [[5, 0], [3]]
    with pytest.raises(ValueError, match="mutually exclusive"):
        DataLoader(range(3), sampler=[0], shuffle=True)
    with pytest.raises(ValueError, match="positive integer"):
        DataLoader(range(3), batch_size=0)


def test_datasets():
    xs, ys = gt.arange(12).reshape(6, 2), gt.arange(6)
    data = TensorDataset(xs, ys)
    assert len(data) == 6 and data[2][0].tolist() == [4, 5] and data[-1][1].item() == 5
    with pytest.raises(ValueError, match="first dimension"):
        TensorDataset(gt.ones(2), gt.ones(3))
    both = ConcatDataset([data, Subset(data, [5, 0])])
    assert [both[i][1].item() for i in range(len(both))] == [0, 1, 2, 3, 4, 5, 5, 0]
    parts = random_split(range(10), [0.5, 0.3, 0.2], generator=3)
    assert [len(p) for p in parts] == [5, 3, 2]
    assert Counter(x for p in parts for x in p) == Counter(range(10))
    with pytest.raises(ValueError, match="does not equal"):
        random_split(range(10), [3, 3])
    # The parent's tensors, by workers.
    for workers in (0, 2):
        loader = DataLoader(both, batch_size=3, num_workers=workers)
        batches = [(x.tolist(), y.tolist()) for x, y in loader]
        assert batches[0] == ([[0, 1], [2, 3], [4, 5]], [0, 1, 2]) and batches[2][1] == [5, 0]


def test_collate():
    Point = namedtuple("Point", "x y")
    got = default_collate([Point(1, [gt.ones(2), 1.5]), Point(2, [gt.zeros(2), 2.5])])
    assert isinstance(got, Point) and got.x.tolist() == [1, 2]
    assert got.y[0].tolist() == [[1, 1], [0, 0]] and got.y[1].dtype is gt.float64
    with pytest.raises(TypeError, match="collate_fn"):
        default_collate([object()])
    with pytest.raises(RuntimeError, match="equal size"):
        default_collate([[1], [1, 2]])
    assert list(DataLoader(range(3), batch_size=2, collate_fn=tuple)) == [(0, 1), (2,)]
    assert [x for x in DataLoader(range(3), batch_size=None)] == [0, 1, 2]


def _host_tensors(i):
    assert get_worker_info().num_workers == 2 and get_worker_info().id in (0, 1)
    x = gt.stack([gt.zeros(2, 3), gt.ones(2, 3), gt.full((2, 3), float(i))])
    assert x.shape == (3, 2, 3) and x[2, 1].tolist() == [i] * 3
    pair = gt.cat([x[0, :, 1:], x[-1, :, 1:]], 0)
    picked = pair[gt.tensor([0, 2])]
    made = gt.tensor([[1, 2]], dtype=gt.float64), gt.from_numpy(np.arange(3, dtype="i2")), gt.arange(4)
    half = gt.tensor([1.5, 2.5], dtype=gt.bfloat16)
    again = pickle.loads(pickle.dumps(half))
    assert again.tolist() == [1.5, 2.5] and again.dtype is gt.bfloat16
    return [pair, picked, *made, half]


def _threads_of_gt():
    names = [open(f"/proc/self/task/{t}/comm").read().strip() for t in os.listdir("/proc/self/task")]
    return [name for name in names if name.startswith("gt-")]


def _counts_threads(i):
    gt.stack([gt.ones(300, 300), gt.zeros(300, 300)])[0].tolist()
    return len(_threads_of_gt())


def test_a_worker_makes_host_tensors_and_starts_nothing():
    gt.ones(2).tolist()
    out = list(DataLoader(Made(_host_tensors), batch_size=None, num_workers=2))
    for i, (pair, picked, doubles, shorts, longs, half) in enumerate(out):
        assert pair.tolist() == [[0, 0]] * 2 + [[i, i]] * 2 and picked.tolist() == [[0, 0], [i, i]]
        assert doubles.dtype is gt.float64 and doubles.tolist() == [[1, 2]]
        assert shorts.dtype is gt.int16 and longs.tolist() == [0, 1, 2, 3]
        assert (half + 1).tolist() == [2.5, 3.5] and half.dtype is gt.bfloat16
    counts = [n for n in DataLoader(Made(_counts_threads), batch_size=None, num_workers=1)]
    assert counts == [0] * 6


def _filled(i):
    x = gt.tensor([float(i), 1.0, 2.0])
    padded = gt.nn.utils.rnn.pad_sequence([x, x[:2]], batch_first=True, padding_value=-1.0)
    board = gt.zeros(2, 3)
    board[0, 1:] = x[:2]
    board[1] = 5
    x[0] = 9
    return padded, x.flip(0), board, gt.nn.functional.pad(x, (1, 0))


def test_a_worker_pads_and_writes():
    for i, batch in enumerate(DataLoader(Made(_filled), batch_size=None, num_workers=2)):
        padded, flipped, board, wider = (t.tolist() for t in batch)
        assert padded == [[i, 1, 2], [i, 1, -1]] and flipped == [2, 1, 9] and wider == [0, 9, 1, 2]
        assert board == [[0, i, 1], [5, 5, 5]]


parents = None


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda i: gt.ones(2) + 1, "add: a data-loader worker makes host tensors only"),
        (lambda i: gt.ones(2, 2) @ gt.ones(2, 2), "matmul: a data-loader worker"),
        (lambda i: gt.connect("localhost:1"), "connect: a data-loader worker"),
        (lambda i: parents[0].item(), "made before fork"),
    ],
)
def test_anything_else_is_a_clear_error(make, text):
    global parents
    parents = gt.ones(3) * 2
    with pytest.raises(RuntimeError, match=text) as caught:
        list(DataLoader(Made(make), batch_size=2, num_workers=1))
    assert "DataLoader worker process 0" in str(caught.value) and "test_data.py" in str(caught.value)
    parents = None


def _fails(i):
    if i == 3:
        raise KeyError("no such thing")
    return i


def test_an_error_is_raised_again_here():
    loader = DataLoader(Made(_fails), batch_size=2, num_workers=2)
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1]
    with pytest.raises(KeyError, match="no such thing") as caught:
        next(batches)
    assert "in _fails" in str(caught.value)
    with pytest.raises(ValueError, match="bad start"):
        list(DataLoader(Made(_fails), num_workers=1, worker_init_fn=_bad_start))


def _bad_start(worker):
    raise ValueError(f"bad start of {worker}")


def _dies(i):
    if i == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return i


def _sleeps(i):
    time.sleep(60)


def test_a_killed_worker_and_a_slow_one_are_noticed():
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="killed by signal 9"):
        list(DataLoader(Made(_dies), num_workers=2))
    with pytest.raises(RuntimeError, match="timed out"):
        list(DataLoader(Made(_sleeps), num_workers=1, timeout=0.3))
    assert time.monotonic() - start < 30


def test_persistent_workers_stay():
    loader = DataLoader(Made(lambda i: os.getpid()), num_workers=2, persistent_workers=True, batch_size=None)
    first = set(loader)
    assert len(first) == 2 and set(loader) == first
    # A pass that is left early does not disturb the next.
    next(iter(loader))
    assert set(loader) == first
    other = DataLoader(Made(lambda i: os.getpid()), num_workers=2, batch_size=None)
    assert set(other).isdisjoint(set(other))


class Counting(IterableDataset):
    """Each worker counts its own share."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        info = get_worker_info()
        start, step = (info.id, info.num_workers) if info else (0, 1)
        return iter(range(start, self.n, step))


def test_iterable_datasets():
    assert [b.tolist() for b in DataLoader(Counting(5), batch_size=2)] == [[0, 1], [2, 3], [4]]
    assert [b.tolist() for b in DataLoader(Counting(5), batch_size=2, drop_last=True)] == [[0, 1], [2, 3]]
    got = [x for b in DataLoader(Counting(11), batch_size=2, num_workers=3) for x in b.tolist()]
    assert sorted(got) == list(range(11))


def _seeds(i):
    return [get_worker_info().seed, random.random(), float(np.random.rand()), gt.rand(1)]


def test_workers_are_seeded_apart_and_again_alike():
    def run():
        gt.manual_seed(3)
        return [[s, r, n, t.item()] for s, r, n, t in DataLoader(Made(_seeds, 2), batch_size=None, num_workers=2)]

    a, b = run(), run()
    assert a == b
    assert all(x != y for x, y in zip(a[0], a[1]))


def test_pickle_and_copy():
    x = gt.arange(6).reshape(2, 3).float()[:, 1:]
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        y = pickle.loads(pickle.dumps(x, protocol))
        assert y.tolist() == x.tolist() and y.dtype is x.dtype and not y.requires_grad
    p = gt.nn.Parameter(gt.ones(2, 2))
    for q in (pickle.loads(pickle.dumps(p)), copy.deepcopy(p)):
        assert type(q) is gt.nn.Parameter and q.requires_grad and q.is_leaf and q.tolist() == p.tolist()
    q.data.add_(1)
    assert p.tolist() == [[1, 1], [1, 1]]
    model = gt.nn.Sequential(gt.nn.Linear(3, 4), gt.nn.ReLU(), gt.nn.Linear(4, 1))
    x = gt.randn(5, 3)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert other(x).tolist() == model(x).tolist()
        other(x).sum().backward()
        assert model[0].weight.grad is None


def test_inside_a_worker_of_torch(run_python):
    pytest.importorskip("torch")
    run_python(
        """
import gt, torch
import numpy as np
class D(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i):
        try:
            gt.ones(2) + 1
        except RuntimeError as e:
            assert "data-loader worker" in str(e)
        else:
            raise AssertionError
        return gt.stack([gt.ones(2), gt.full((2,), float(i))]).numpy()
gt.ones(2).tolist()
print([b.tolist() for b in torch.utils.data.DataLoader(D(), num_workers=1)][-1])
""",
        timeout=90,
    )


@pytest.mark.local_only
def test_interrupt_ends_the_loader_and_its_workers(tmp_path):
    from test_process import interrupted

    script = """
import gt, time, sys
from gt.utils.data import DataLoader
class Slow:
    def __len__(self): return 100
    def __getitem__(self, i):
        if i > 4: time.sleep(30)
        return i
loader = iter(DataLoader(Slow(), num_workers=2))
next(loader)
print("pids", [p.pid for p in loader.team.processes], file=sys.stderr, flush=True)
print("ready")
for _ in loader: pass
"""
    status, _, err, seconds = interrupted(tmp_path, script)
    assert status != 0 and "KeyboardInterrupt" in err and seconds < 20, err
    for pid in eval(err.splitlines()[0].removeprefix("pids ")):
        assert not os.path.exists(f"/proc/{pid}"), pid


def test_generators_move_on_from_epoch_to_epoch():
    data = gt.utils.data.TensorDataset(gt.arange(20))

    def epochs(loader):
        return [[int(x) for (batch,) in loader for x in batch] for _ in range(2)]

    g = gt.Generator().manual_seed(4)
    first = epochs(gt.utils.data.DataLoader(data, batch_size=6, shuffle=True, generator=g))
    assert sorted(first[0]) == sorted(first[1]) == list(range(20)) and first[0] != first[1]
    g.manual_seed(4)
    assert epochs(gt.utils.data.DataLoader(data, batch_size=6, shuffle=True, generator=g)) == first


def test_weights_choose_samples():
    sampler = gt.utils.data.WeightedRandomSampler([0.0, 3.0, 1.0], 4000, generator=gt.Generator().manual_seed(1))
    drawn = list(sampler)
    assert len(sampler) == len(drawn) == 4000 and 0 not in drawn
    assert 2800 < drawn.count(1) < 3200
    once = gt.utils.data.WeightedRandomSampler(gt.tensor([1.0, 0.0, 2.0]), 2, replacement=False)
    assert sorted(once) == [0, 2]
    with pytest.raises(ValueError, match="more samples"):
        gt.utils.data.WeightedRandomSampler([1.0, 0.0], 2, replacement=False)
