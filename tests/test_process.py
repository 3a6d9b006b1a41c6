"""Manners of the process: interrupts, forks, threads, long chains, the end. Each in a process of its own."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from helpers import check

import gt

# Seconds of work, also on a GPU.
WORK = """
n, times = (16384, 100) if gt.cuda.is_available() else (1500, 400)
x = gt.randn(n, n)
for _ in range(times):
    x = (x @ x) * 1e-4
"""


def interrupted(tmp_path, script):
    """Runs a script until it says `ready`, interrupts it, and gives its end and how long that took."""
    path = tmp_path / "script.py"
    path.write_text(script)
    env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(gt.__file__))}
    env.pop("GT_SERVER", None)
    process = subprocess.Popen(
        [sys.executable, "-u", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err, time.monotonic() - start


@pytest.mark.local_only
def test_interrupt_ends_a_wait(tmp_path):
    script = f"import gt\n{WORK}print('ready')\nx.sum().item()\nprint('not reached')\n"
    status, out, err, seconds = interrupted(tmp_path, script)
    assert status != 0 and "KeyboardInterrupt" in err and "not reached" not in out
    assert seconds < 5, err


@pytest.mark.local_only
def test_interrupt_ends_the_wait_at_exit(tmp_path):
    status, _, err, seconds = interrupted(tmp_path, f"import gt\n{WORK}print('ready')\n")
    assert status == 130 and "interrupted" in err and "Traceback" not in err, err
    assert seconds < 10, err


@pytest.mark.local_only
def test_interrupt_leaves_a_usable_session(tmp_path):
    script = (
        f"import gt, os\n{WORK}print('ready')\ntry:\n    x.sum().item()\nexcept KeyboardInterrupt:\n"
        "    print('caught', (gt.ones(2) + 1).tolist())\n    os._exit(0)\n"
    )
    status, out, err, _ = interrupted(tmp_path, script)
    assert status == 0 and "caught [2.0, 2.0]" in out, err


def test_a_long_chain_is_dropped_at_once(run_python):
    run_python(
        """
import gt, sys
sys.setrecursionlimit(200)
x = gt.ones(2, requires_grad=True)
y = x
for _ in range(100_000):
    y = y + 1.0
del y
y = x
for _ in range(100_000):
    y = y * 1.0
y.sum().backward()
assert x.grad.tolist() == [1, 1]
views = gt.zeros(4)
for _ in range(20_000):
    views = views.view(2, 2).view(4)
assert views.tolist() == [0] * 4
"""
    )


# The parent's workers sleep when it forks; locks of the child must not meet theirs.
FORKS = [{}, {"GT_AUTO_SHARD": "1", "GT_SHARD_MIN": "0", "GT_WORKERS": "4"}]


@pytest.mark.parametrize("env", FORKS, ids=["one", "several"])
def test_fork_starts_clean(run_python, env):
    run_python(
        """
import gt, os, time
x = gt.ones(3)
assert x.sum().item() == 3
cuda = gt.cuda.is_available()
time.sleep(0.005)
pid = os.fork()
if pid == 0:
    code = 1
    if cuda:  # it stays with the process that started it
        os.environ["GT_BACKEND"] = "cpu"
    try:
        assert (gt.ones(2) * 2).tolist() == [2, 2]
        try:
            (x + 1).tolist()
        except RuntimeError as e:
            code = 0 if "fork" in str(e) else 2
        del x
    finally:
        os._exit(code)
_, status = os.waitpid(pid, 0)
assert status == 0, status
assert (x + 1).tolist() == [2, 2, 2]
""",
        timeout=30,
        env=env,
    )


@pytest.mark.parametrize("env", FORKS, ids=["one", "several"])
def test_multiprocessing_fork(run_python, env):
    run_python(
        """
import gt, multiprocessing as mp, os, time

def work(i):
    if cuda:  # it stays with the process that started it
        os.environ["GT_BACKEND"] = "cpu"
    return (gt.full((2,), float(i)) * 2).tolist()

assert gt.ones(1).item() == 1
cuda = gt.cuda.is_available()
time.sleep(0.005)
with mp.get_context("fork").Pool(2) as pool:
    assert pool.map(work, range(4)) == [[0, 0], [2, 2], [4, 4], [6, 6]]
assert gt.ones(1).item() == 1
""",
        timeout=60,
        env=env,
    )


def test_shutdown_with_live_tensors(run_python):
    done = run_python(
        """
import gt
keep = [gt.randn(10) + i for i in range(100)]
x = gt.ones(3, requires_grad=True)
y = (x * 2).sum()
y.register_hook(lambda g: None)
class Late:
    def __del__(self):
        self.t = None
late = Late()
late.t = gt.ones(3) * 2
import builtins
builtins.kept_beyond_the_module = keep
print("done")
"""
    )
    assert done.stdout == "done\n" and done.stderr == ""


def test_unseen_failure_at_exit(run_python):
    done = run_python("import gt\nx = gt.ones(3)[gt.tensor([5])]\nprint('end')\n", check=False)
    assert done.returncode != 0 and done.stdout == "end\n"
    assert "index 5" in done.stderr and "script.py:2" in done.stderr


@pytest.mark.parametrize(
    ("end", "status"), [("", 1), ("sys.exit()", 1), ("sys.exit(7)", 7), ("raise SystemExit(3)", 3)]
)
def test_a_status_of_the_programs_own_stays_whatever_was_not_looked_at(run_python, end, status):
    script = f"import sys, gt\nx = gt.ones(3)[gt.tensor([5])]\nprint('end')\n{end}\n"
    done = run_python(script, check=False)
    assert (done.returncode, done.stdout) == (status, "end\n")
    assert "nobody looked" in done.stderr and "index 5" in done.stderr


# Waits longer than a turn of Python's threads, so that others run meanwhile.
SYNC = """
import sys, threading
import gt
sys.setswitchinterval(1e-5)

def together(*works):
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    [t.start() for t in threads]
    [t.join(30) for t in threads]
    assert not any(t.is_alive() for t in threads), "they wait for one another"
"""


def test_threads_write_parts_of_one_tensor_op_by_op(run_python):
    done = run_python(
        SYNC
        + """
whole = gt.zeros(8, 200_000)
total = gt.zeros(200_000)
def add(k):
    for _ in range(10):
        whole[k].add_(1)
        total.add_(1)
together(*(lambda k=k: add(k) for k in range(8)))
print(whole[:, 0].tolist() == [10] * 8, total[0].item())
""",
        env={"GT_SYNC": "1"},
    )
    assert done.stdout == "True 80.0\n"


def test_threads_read_one_view_and_add_to_one_gradient_op_by_op(run_python):
    done = run_python(
        SYNC
        + """
base = gt.zeros(500_000)
view = base[10:400_000]
def read():
    for _ in range(10):
        view + 1
        base.add_(1)
w = gt.ones(500_000, requires_grad=True)
def train():
    for _ in range(10):
        (w * 2).sum().backward()
        w.grad
together(*[read] * 3)
together(*[train] * 3)
print(base[0].item(), w.grad[0].item())
""",
        env={"GT_SYNC": "1"},
    )
    assert done.stdout == "30.0 60.0\n"


def test_errors_name_the_line(run_python):
    done = run_python("import gt\nx = gt.ones(3)\ni = gt.tensor([5])\n\ny = x[i]\nz = y + 1\nz.tolist()\n", check=False)
    assert done.returncode == 1 and "script.py:5" in done.stderr


def test_threads_record_their_own_streams():
    results, errors = {}, []
    shared = gt.arange(4).float()

    def work(i):
        try:
            with gt.no_grad():
                x = shared * i
                for _ in range(50):
                    x = x + 1
                results[i] = x.tolist()
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not errors
    for i in range(8):
        assert results[i] == [k * i + 50 for k in range(4)]
    assert gt.is_grad_enabled()


FIRST = """
import threading
import gt

go, done = threading.Barrier(6), []

def work():
    go.wait()
    layer = gt.nn.Linear(13, 29)
    done.append(layer(gt.ones(3, 13)).sum().item())

threads = [threading.Thread(target=work) for _ in range(6)]
for t in threads:
    t.start()
for t in threads:
    t.join()
assert len(done) == 6
"""


def test_the_first_operations_of_a_process_may_be_those_of_several_threads(run_python):
    # Each process has one such moment only, and not every one of them had threads meet.
    for _ in range(10):
        run_python(FIRST, timeout=30)


IMPORTS = """
import sys
import threading
import gt

uses = [lambda: gt.load_config, lambda: gt.signal, lambda: gt.nn, lambda: gt.SignalConfig, lambda: gt.optim]
go, done = threading.Barrier(len(uses)), []

def work(use):
    go.wait()
    done.append(use())

sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=work, args=(use,)) for use in uses]
for t in threads:
    t.start()
for t in threads:
    t.join()
assert len(done) == len(uses)
"""


def test_threads_may_be_the_first_to_use_what_is_imported_late(run_python):
    for _ in range(20):
        run_python(IMPORTS, timeout=30)


def test_values_pass_between_threads():
    box = {}

    def make():
        box["x"] = gt.ones(3) * 7  # not looked at: still in that thread's stream

    thread = threading.Thread(target=make)
    thread.start()
    thread.join(60)
    check(box["x"] + 1, np.full(3, 8, dtype="float32"))


def test_waiting_releases_the_gil():
    ticks = []
    stop = threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    x = gt.randn(1000, 1000)
    start = time.monotonic()
    for _ in range(20):
        x = (x @ x) * 1e-3
    x.sum().item()
    end = time.monotonic()
    stop.set()
    thread.join(10)
    during = [t for t in ticks if start <= t <= end]
    assert len(during) >= min(3, int((end - start) / 0.02))


def test_import_is_light(run_python):
    run_python(
        "import sys\nbefore = set(sys.modules)\nimport gt\n"
        "heavy = {'numpy', 'typing', 'dataclasses', 'inspect', 'asyncio', 'torch'} & (set(sys.modules) - before)\n"
        "assert not heavy - {'typing'}, heavy\n"
    )


@pytest.mark.local_only
def test_workers_inside_the_process(run_python):
    run_python(
        """
import gt
gt.gpu_workers(3)
assert (gt.ones(4) * 2).sum().item() == 8
assert len(gt.debug.get_worker_stats()["workers"]) == 3
gt.gpu_workers(1)
assert len(gt.debug.get_worker_stats()["workers"]) == 1
assert (gt.ones(4) * 2).sum().item() == 8
try:
    gt.connect("localhost:1")
except ConnectionError as e:
    assert "gt.server" in str(e) or "refused" in str(e), e
else:
    raise AssertionError
"""
    )


@pytest.mark.local_only
def test_server_and_workers(start_system, run_python):
    system = start_system(workers=2)
    run_python(
        f"""
import gt
session = gt.connect("localhost:{system.port}")
try:
    gt.connect("localhost:{system.port}")
except RuntimeError as e:
    assert "already connected" in str(e) and "disconnect" in str(e)
else:
    raise AssertionError
assert (gt.ones(3) + 1).tolist() == [2, 2, 2]
big = gt.randn(512, 512)
assert abs((big @ big.T).diagonal().mean().item() - 512) < 100
import numpy as np
array = np.random.randn(1000, 1000).astype("float32")
np.testing.assert_array_equal(gt.from_numpy(array).numpy(), array)
with gt.open_session("localhost:{system.port}") as other:
    x = gt.ones(2)
try:
    x + gt.ones(2)
except RuntimeError as e:
    assert "session" in str(e)
else:
    raise AssertionError
gt.disconnect()
""",
        timeout=60,
    )
    env = {"GT_TEST": "1"}
    done = run_python(
        f"import os\nos.environ['GT_SERVER'] = 'localhost:{system.port}'\nimport gt\n"
        "print((gt.ones(2) * 3).tolist(), gt.current_session().peer)\n",
        env=env,
    )
    assert "[3.0, 3.0]" in done.stdout and str(system.port) in done.stdout


def test_debug_tools(tmp_path, capsys):
    x = gt.ones(2, requires_grad=True)
    y = (x * 2).exp()
    names = [name for name, _ in gt.debug.get_tape(y)]
    assert names[-2:] == ["MulBackward0", "ExpBackward0"]
    assert any("EXP" in line for line in gt.debug.get_tape())
    gt.debug.print_tape(y)
    gt.debug.print_tape()
    assert "ExpBackward0" in capsys.readouterr().out
    gt.debug.save_program(tmp_path / "program.gt")
    assert (tmp_path / "program.gt").stat().st_size > 20
    y.tolist()
    stats = gt.debug.get_worker_stats()
    assert stats["programs"] > 0 and stats["workers"][0]["instructions"] > 0
    gt.debug.print_worker_stats()
    assert "programs" in capsys.readouterr().out


@pytest.mark.local_only
@pytest.mark.parametrize("variable", ["GT_DEBUG_COMPILE", "GT_DEBUG_WORKER", "GT_DEBUG_DISPATCHER", "GT_VERBOSE"])
def test_goes_on_when_nobody_reads_what_it_says(tmp_path, variable):
    """As with `python train.py 2>&1 | head`, once `head` has seen enough."""
    path = tmp_path / "script.py"
    path.write_text("import gt\nx = gt.arange(5.0)\nfor _ in range(9):\n    x = x + 1\nprint(x.sum().item())\n")
    env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(gt.__file__)), variable: "1"}
    env.pop("GT_SERVER", None)
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as broken:
        done = subprocess.run(
            [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=broken, text=True, env=env, timeout=60
        )
    assert done.stdout == "55.0\n" and done.returncode == 0
