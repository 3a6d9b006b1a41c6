"""Programs over several workers: the answer is that of one, whatever is split."""

import os
import subprocess
import sys

import numpy as np
import pytest

import gt

pytestmark = pytest.mark.local_only

SPLIT = {"GT_AUTO_SHARD": "1", "GT_SHARD_MIN": "0"}

TRAIN = """
import sys
import numpy as np
import gt
import gt.nn as nn

gt.gpu_workers(int(sys.argv[1]) if len(sys.argv) > 1 else WORKERS)
gt.manual_seed(0)
model = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 5))
optimizer = gt.optim.AdamW(model.parameters(), lr=1e-2)
rng = np.random.RandomState(0)
for step in range(6):
    x = gt.tensor(rng.randn(37, 13).astype("float32"))
    y = gt.tensor(rng.randint(0, 5, 37))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.6f}")
gt.synchronize()
used = [w["programs"] for w in gt.debug.get_worker_stats()["workers"]]
print("used", sum(n > 3 for n in used))
"""


def losses(done):
    *values, used = done.stdout.split("\n")[:-1]
    return np.array([float(v) for v in values]), int(used.split()[1])


def test_training_gives_the_losses_of_one_worker(run_python):
    alone, used = losses(run_python(TRAIN.replace("WORKERS", "1")))
    assert used == 1
    for workers in (2, 3, 8):
        split, used = losses(run_python(TRAIN.replace("WORKERS", str(workers)), env=SPLIT))
        assert used == workers
        np.testing.assert_allclose(split, alone, rtol=1e-5)


def test_a_step_on_72_workers(run_python):
    alone, _ = losses(run_python(TRAIN.replace("WORKERS", "1")))
    split, used = losses(run_python(TRAIN.replace("WORKERS", "72"), env=SPLIT, timeout=110))
    assert used == 72
    np.testing.assert_allclose(split, alone, rtol=1e-5)


def test_random_numbers_do_not_depend_on_workers(run_python):
    script = """
import gt
gt.gpu_workers(WORKERS)
gt.manual_seed(5)
for x in (gt.rand(13, 3), gt.randint(0, 100, (1001,)), gt.rand(7, dtype=gt.float64), gt.rand(5, 5, 5).half()):
    print((x * 1).tolist())
print([round(v, 5) for v in gt.randn(101).tolist()])
"""
    alone = run_python(script.replace("WORKERS", "1")).stdout
    for workers in (2, 3):
        assert run_python(script.replace("WORKERS", str(workers)), env=SPLIT).stdout == alone


def test_workers_come_and_go(run_python):
    run_python(
        """
import gt
gt.gpu_workers(2)
x = gt.arange(1000).float() * 2
assert x.sum().item() == 999000
gt.gpu_workers(4)
y = x + 1
assert y.sum().item() == 1000000 and x.sum().item() == 999000
rows = gt.workers()
assert len(rows) == 4 and all(row["memory"] > 0 and row["device"] for row in rows), rows
gt.synchronize()
assert sum(w["programs"] > 0 for w in gt.debug.get_worker_stats()["workers"]) == 4
gt.gpu_workers(1)
try:
    y.sum().item()
except ConnectionError as e:
    assert "lost" in str(e), e
else:
    raise AssertionError("part of it was on a worker that went")
assert (gt.arange(10) * 2).sum().item() == 90
""",
        env=SPLIT,
    )


def test_small_programs_stay_on_one_worker(run_python):
    run_python(
        """
import gt
gt.gpu_workers(3)
for i in range(5):
    assert (gt.ones(10) * i).sum().item() == 10 * i
assert sum(w["programs"] > 0 for w in gt.debug.get_worker_stats()["workers"]) == 1
# As much as is worth dividing on a device of this kind.
cuda = gt.debug.get_worker_stats()["workers"][0]["backend"] == "cuda"
rows, inner = (8192, 4096) if cuda else (1200, 700)
x = gt.randn(rows, inner) @ gt.randn(inner, rows)
x.sum().item()
gt.synchronize()
assert sum(w["programs"] > 0 for w in gt.debug.get_worker_stats()["workers"]) == 3
""",
        env={"GT_AUTO_SHARD": "1", "GT_SHARD_MIN": ""},
    )


FORWARD = """
import numpy as np
import gt

gt.gpu_workers(3)
gt.manual_seed(0)
weights = gt.randn(1500, 700) * 1.0
w = weights.numpy()
held = []
for step in range(4):
    x = gt.randn(1200, 1500)
    y = x @ weights
    assert np.allclose(y.numpy(), x.numpy() @ w, atol=1e-2)
    del x, y
    gt.synchronize()
    held.append(min(worker["bytes_in_use"] for worker in gt.workers()))
weights = weights * 2.0
assert np.allclose(weights.numpy(), w * 2)
print(*(bytes >= w.nbytes for bytes in held))
"""


def test_weights_that_are_read_again_and_again_stay_whole(run_python):
    done = run_python(FORWARD, env={"GT_AUTO_SHARD": "1", "GT_BACKEND": "cpu"})
    # Where cores are many, the first product may already want all of them whole.
    assert done.stdout.split()[1:] == ["True", "True", "True"], done.stdout


def test_a_wrong_threshold_is_told(run_python):
    done = run_python("import gt; gt.ones(2).sum().item()", check=False, env={**SPLIT, "GT_SHARD_MIN": "lots"})
    assert done.returncode != 0 and "GT_SHARD_MIN: expected" in done.stderr


@pytest.mark.parametrize("unix", [False, True])
def test_worker_processes_split_too(run_python, start_system, tmp_path, unix):
    system = start_system(3, unix=str(tmp_path / "gt.sock") if unix else None)
    wait = "while len(gt.workers()) < 3:\n    pass\n"
    script = f"import gt\ngt.connect({system.address!r})\n{wait}" + TRAIN.replace(
        "gt.gpu_workers(int(sys.argv[1]) if len(sys.argv) > 1 else WORKERS)", ""
    )
    alone, _ = losses(run_python(TRAIN.replace("WORKERS", "1")))
    split, used = losses(run_python(script, env=SPLIT))
    assert used == 3
    np.testing.assert_allclose(split, alone, rtol=1e-5)


def test_a_worker_that_dies_is_an_error_in_seconds(run_python, start_system):
    system = start_system(3)
    run_python(
        f"""
import gt, os, signal, time
gt.connect({system.address!r})
while len(gt.workers()) < 3:
    time.sleep(0.05)
x = gt.randn(2000, 500)
(x * 2).sum().item()
os.kill({system.processes[-1].pid}, signal.SIGKILL)
start = time.monotonic()
try:
    for _ in range(200):
        x = x * 1.01
        x.sum().item()
except ConnectionError as e:
    assert "lost" in str(e) or "cannot be reached" in str(e), e
else:
    raise AssertionError("a part of x was on the worker that died")
assert time.monotonic() - start < 20
assert (gt.ones(1000) * 2).sum().item() == 2000
""",
        env=SPLIT,
    )


def test_workers_that_each_have_all_cores_are_used(run_python, start_system):
    # On CPUs: for a GPU the product is too small to be split.
    system = start_system()
    for name in ("w0", "w1"):
        system.add_worker(name, "--backend", "cpu")
    system.wait(2)
    run_python(
        f"""
import gt
gt.connect({system.address!r})
x = gt.randn(3000, 1500) @ gt.randn(1500, 1500)
x.sum().item()
gt.synchronize()
workers = gt.debug.get_worker_stats()["workers"]
assert all(w["programs"] and w["bytes_in_use"] for w in workers), workers
""",
        env={"GT_AUTO_SHARD": "1", "GT_SHARD_MIN": ""},
    )


SESSION = """
import random, time
import gt, numpy as np
gt.connect(ADDRESS)
draw, numbers = random.Random(SEED), np.random.RandomState(SEED)
for i in range(6):
    workers = draw.sample(range(4), draw.randint(1, 4))
    shard = gt.ShardConfig(axis=draw.choice([0, 1]), workers=workers)
    gt.register_config(f"s{i}", gt.SignalConfig(shard=shard))
end = time.monotonic() + 6
while time.monotonic() < end:
    a = numbers.randn(draw.choice([3, 17, 301]), 33).astype("f4")
    b = numbers.randn(33, draw.choice([2, 9, 50])).astype("f4")
    with gt.signal.context(f"s{draw.randrange(6)}"):
        x = gt.tensor(a)
    with gt.signal.context(f"s{draw.randrange(6)}"):
        y = gt.tensor(b)
    with gt.signal.context(f"s{draw.randrange(6)}"):
        z = x @ y
        s = z.sum(0)
    np.testing.assert_allclose(s.numpy(), (a.astype("f8") @ b).sum(0), rtol=1e-3, atol=1e-2)
    np.testing.assert_allclose(z.numpy(), a @ b, rtol=1e-3, atol=1e-3)
"""


def test_sessions_on_overlapping_workers_do_not_disturb_each_other(start_system, tmp_path):
    system = start_system(4)
    env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(gt.__file__))}
    sessions = []
    for seed in range(3):
        script = tmp_path / f"session{seed}.py"
        script.write_text(SESSION.replace("SEED", str(seed)).replace("ADDRESS", repr(system.address)))
        sessions.append(subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE, text=True, env=env))
    for session in sessions:
        _, told = session.communicate(timeout=100)
        assert session.returncode == 0, told
