"""Real processes: servers, workers and clients that come, fail and go."""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

import gt

pytestmark = pytest.mark.local_only


def gt_program(*args, **options):
    command = [sys.executable, "-m", "gt", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


def wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("waited in vain")


def workers_of(session):
    with session:
        return gt.debug.get_worker_stats()["workers"]


def test_tensors_spread_over_workers_move_when_they_meet(start_system, run_python):
    system = start_system(workers=3)
    done = run_python(
        f"""
import gt, numpy as np
gt.connect("localhost:{system.port}")
rng = np.random.default_rng(0)
arrays = [rng.normal(size=(300, 300)).astype("f4") for _ in range(6)]
tensors = []
for a in arrays:
    t = gt.from_numpy(a) + 1
    gt.synchronize()
    tensors.append(t)
total = tensors[0]
for t in tensors[1:]:
    total = total @ t * 0.05
want = arrays[0] + 1
for a in arrays[1:]:
    want = want @ (a + 1) * np.float32(0.05)
np.testing.assert_allclose(total.numpy(), want, rtol=1e-2, atol=1e-2)
stats = gt.debug.get_worker_stats()
print(stats["moves"], sum(w["programs"] > 0 for w in stats["workers"]))
""",
        env={"GT_PLACEMENT": "spread"},
    )
    moves, busy = map(int, done.stdout.split())
    assert moves > 0 and busy > 1


def test_a_killed_worker_is_an_error_and_the_session_goes_on(start_system):
    system = start_system(workers=0)
    first = system.add_worker("first")
    with gt.open_session(system.address) as session:
        x = gt.ones(3) + 1
        assert x.tolist() == [2, 2, 2]
        first.kill()
        first.wait()
        system.add_worker("second")
        wait_for(lambda: [w["name"] for w in workers_of(session)] == ["second"])
        with pytest.raises(ConnectionError, match="first"):
            (x + 1).tolist()
        assert (gt.ones(3) + 2).tolist() == [3, 3, 3]
    session.close()


def test_what_is_lost_with_a_worker_is_told_once(start_system):
    system = start_system(workers=0)
    first = system.add_worker("first")
    with gt.open_session(system.address) as session:
        model = gt.nn.Linear(4, 4)
        optimizer = gt.optim.AdamW(model.parameters())

        def step():
            loss = model(gt.ones(2, 4)).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        step()
        gt.synchronize()
        first.kill()
        first.wait()
        system.add_worker("second")
        wait_for(lambda: [w["name"] for w in workers_of(session)] == ["second"])
        # Several programs, each of which fails for want of the parameters.
        with pytest.raises(ConnectionError, match="first"):
            losses = [step() for _ in range(5)]
            losses[0].item()
        for _ in range(20):
            assert (gt.ones(3) + 2).tolist() == [3, 3, 3]
    session.close()


AT_IT = """
import gt

gt.connect("localhost:{port}")
gt.register_config("split", gt.SignalConfig(preset="fsdp"))
net = gt.nn.Sequential(*[gt.nn.Linear(96, 96) for _ in range(4)])
optimizer = gt.optim.AdamW(net.parameters())
for step in range(10**6):
    with gt.signal.context("split"):
        loss = net(gt.randn(32, 96)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
    if step == 3:
        print("at it", flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_ends_when_told_to_in_the_middle_of_a_collective(start_system, how):
    for _ in range(3):
        system = start_system(workers=0)
        workers = [system.add_worker(f"w{i}") for i in range(2)]
        system.wait(2)
        script = AT_IT.format(port=system.port)
        client = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert client.stdout.readline() == "at it\n"
            workers[0].send_signal(how)
            workers[0].wait(20)
            # The client is told that a part of its tensors is gone.
            assert client.wait(20) != 0 and "w0" in client.stderr.read()
        finally:
            client.kill()
            client.wait()


def test_a_vanished_client_leaves_nothing_behind(start_system, tmp_path):
    system = start_system(workers=1)
    script = tmp_path / "client.py"
    script.write_text(
        f"import gt, time\ngt.connect('{system.address}')\nx = gt.ones(1000, 1000)\nx.sum().item()\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    client = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert client.stdout.readline().strip() == "ready"
    with gt.open_session(system.address) as session:
        assert workers_of(session)[0]["bytes_in_use"] >= 4_000_000
        client.send_signal(signal.SIGKILL)
        client.wait()
        wait_for(lambda: workers_of(session)[0]["bytes_in_use"] < 4_000_000)
    session.close()


def test_a_worker_may_start_before_its_server(start_system):
    with_port = start_system(workers=0)
    port = with_port.port
    with_port.stop()
    worker = subprocess.Popen(
        [sys.executable, "-m", "gt.worker", "-p", str(port), "--name", "early"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert "gt worker early: " in worker.stdout.readline()
        time.sleep(0.5)
        server = subprocess.Popen([sys.executable, "-m", "gt.server", "-p", str(port)], stdout=subprocess.PIPE)
        try:
            server.stdout.readline()
            with gt.open_session(f"localhost:{port}") as session:
                assert (gt.ones(2) + 1).tolist() == [2, 2]
            session.close()
        finally:
            server.send_signal(signal.SIGINT)
            assert server.wait(20) == 0
    finally:
        worker.send_signal(signal.SIGINT)
        assert worker.wait(20) == 0


def test_a_token_is_asked_for(start_system, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("open sesame\n")
    refused = gt_program("server", "-p", "0", "--host", "0.0.0.0")
    assert refused.returncode == 1 and "--token-file" in refused.stderr
    system = start_system(workers=0, server_args=["--token-file", str(secret)])
    system.add_worker("trusted", "--token-file", str(secret))
    with pytest.raises(ConnectionError, match="token"):
        gt.open_session(system.address, token="wrong")
    with gt.open_session(system.address, token="open sesame") as session:
        assert gt.ones(2).tolist() == [1, 1]
    session.close()


def test_no_workers_and_no_server_say_what_to_do(start_system):
    with pytest.raises(ConnectionError, match="gt server"):
        gt.open_session("localhost:1")
    system = start_system(workers=0)
    with gt.open_session(system.address) as session, pytest.raises(ConnectionError, match="gt worker"):
        gt.ones(2).tolist()
    system.add_worker("late")
    wait_for(lambda: workers_of(session))
    session.close()


def start_client(address, code, **options):
    """A client process that has looked at a first value; it goes on with `code`."""
    start = f"import gt\nimport numpy as np\ngt.connect({address!r})\ngt.ones(2).tolist()\nprint('ready', flush=True)\n"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    client = subprocess.Popen([sys.executable, "-c", start + code], **pipes, **options)
    assert client.stdout.readline().strip() == "ready"
    return client


TRAINING = """
w = gt.from_numpy(np.ones((64, 64), "f4"))
while True:
    for _ in range(10):
        w = w @ w * (1 / 64)
    assert w.sum().item() == 4096
"""


def test_a_killed_server_is_noticed_at_once_and_workers_find_the_next(start_system):
    system = start_system(workers=1)
    server = system.processes[0]
    client = start_client(system.address, TRAINING)
    server.kill()
    server.wait()
    _, errors = client.communicate(timeout=20)
    assert client.returncode == 1 and "gt server -p" in errors
    assert errors.count("lost") == 1, errors
    system._port(system.start("gt.server", ["-p", str(system.port)], stdout=subprocess.PIPE))
    with gt.open_session(system.address) as session:
        assert (gt.ones(2) + 1).tolist() == [2, 2]
    session.close()


def test_who_lost_a_server_connects_again_and_ends_well(start_system):
    system = start_system(workers=1)
    script = f"""
import gt
gt.connect("localhost:{system.port}")
kept = gt.ones(2) + 1
print(kept.tolist(), flush=True)
input()
try:
    (gt.ones(2) + 1).tolist()
except ConnectionError:
    gt.connect("localhost:{system.port}")
print((gt.ones(2) + 1).tolist(), flush=True)
input()
"""
    command = [sys.executable, "-c", script]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    client = subprocess.Popen(command, text=True, **pipes)
    server = system.processes[0]
    for _ in range(2):
        assert client.stdout.readline() == "[2.0, 2.0]\n"
        server.kill()
        server.wait()
        server = system.start("gt.server", ["-p", str(system.port)], stdout=subprocess.PIPE)
        system._port(server)
        print(file=client.stdin, flush=True)
    _, errors = client.communicate(timeout=20)
    assert client.returncode == 0 and errors == ""


def test_stopped_processes_go_on_where_they_were(start_system):
    system = start_system(workers=1)
    client = start_client(system.address, TRAINING)
    for process in (system.processes[0], system.processes[1], client):
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.5)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.2)
    assert client.poll() is None
    client.send_signal(signal.SIGINT)
    _, errors = client.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors and "Assertion" not in errors


def test_a_client_is_told_what_it_waits_for_once(start_system):
    system = start_system(workers=2)
    script = f"""
import gt
gt.connect("localhost:{system.port}")
gt.register_config("split", gt.SignalConfig(preset="fsdp"))
with gt.signal.context("split"):
    while True:
        gt.randn(64, 64).square().sum().item()
"""
    for frozen, said in ((1, "worker w0"), (0, f"the server at localhost:{system.port}")):
        client = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
        time.sleep(3)
        process = system.processes[frozen]
        process.send_signal(signal.SIGSTOP)
        try:
            first = client.stderr.readline()
        finally:
            process.send_signal(signal.SIGCONT)
        assert said in first and "silent" in first or "does not answer" in first, first
        assert "is back" in client.stderr.readline()
        assert client.poll() is None
        client.kill()
        assert client.stderr.read() == ""


def test_uploads_to_a_stopped_server_stay_bounded_and_obey_ctrl_c(start_system):
    system = start_system(workers=1)
    client = start_client(system.address, "a = np.ones(1 << 26, 'f4')\nwhile True:\n    x = gt.from_numpy(a)\n")
    server = system.processes[0]
    server.send_signal(signal.SIGSTOP)
    try:
        time.sleep(2)
        client.send_signal(signal.SIGINT)
        _, errors = client.communicate(timeout=20)
        assert "KeyboardInterrupt" in errors
    finally:
        server.send_signal(signal.SIGCONT)


def test_many_small_arrays_fit_one_program(start_system):
    system = start_system(workers=1)
    with gt.open_session(system.address) as session:
        parts = [gt.from_numpy(np.full((120, 120), i, "f4")) for i in range(1500)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        assert total[0, 0].item() == sum(range(1500))
    session.close()


def relayed(system, script):
    """Starts a client whose network namespace keeps it from the worker, but not from the server's unix socket."""
    script = f"import gt, numpy as np\ngt.connect({system.address!r})\n{script}"
    command = ["unshare", "-n", sys.executable, "-c", script]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def peak_memory(process):
    with open(f"/proc/{process.pid}/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))


@pytest.fixture
def start_apart(start_system, tmp_path):
    if subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode:
        pytest.skip("network namespaces are not allowed here")
    return lambda workers=1: start_system(workers=workers, unix=str(tmp_path / "gt.sock"))


def test_a_client_without_a_direct_road_is_relayed(start_apart):
    system = start_apart()
    client = relayed(
        system,
        """
a = np.arange(1_000_000, dtype="f4")
np.testing.assert_array_equal((gt.from_numpy(a) + 1).numpy(), a + 1)
parts = [gt.from_numpy(np.full(20_000, i, "f4")) for i in range(400)]
total = parts[0]
for part in parts[1:]:
    total = total + part
assert total[0].item() == sum(range(400))
many = [gt.from_numpy(np.full(400_000, i, "f4")) for i in range(50)]
assert [part[-1].item() for part in many] == list(range(50))
print((gt.ones(2) + 1).tolist())
""",
    )
    output, errors = client.communicate(timeout=60)
    assert client.returncode == 0 and output == "[2.0, 2.0]\n", errors
    assert system.processes[1].poll() is None


def test_split_values_are_relayed_piece_by_piece(start_apart):
    system = start_apart(workers=3)
    client = relayed(
        system,
        """
import time
while len(gt.workers()) < 3:
    time.sleep(0.02)
gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0, 1, 2])))
a = np.arange(3_000_000, dtype="f4").reshape(1000, 3000)
with gt.signal.context("rows"):
    x = gt.from_numpy(a) * 2
    y = x + 1
np.testing.assert_array_equal(y.numpy(), a * 2 + 1)
np.testing.assert_array_equal(x[:7, :5].numpy(), a[:7, :5] * 2)
print("whole")
""",
    )
    output, errors = client.communicate(timeout=60)
    assert client.returncode == 0 and output == "whole\n", errors


def test_large_arrays_are_relayed_within_bounds(start_apart):
    """Two clients at once, 200 MiB each way: the server holds a few pieces of them and goes on serving others."""
    system = start_apart()
    server = system.processes[0]
    before = peak_memory(server)
    script = """
a = np.arange(50 << 20, dtype="f4") % {0}
np.testing.assert_array_equal((gt.from_numpy(a) + 1).numpy(), a + 1)
print("whole")
"""
    clients = [relayed(system, script.format(1000 + i)) for i in range(2)]
    with gt.open_session(system.address) as session:
        slowest = 0
        while any(client.poll() is None for client in clients):
            start = time.monotonic()
            assert (gt.ones(2) + 1).tolist() == [2, 2]
            slowest = max(slowest, time.monotonic() - start)
            time.sleep(0.02)
    session.close()
    for client in clients:
        output, errors = client.communicate(timeout=10)
        assert client.returncode == 0 and output == "whole\n", errors
    assert peak_memory(server) - before < 100 << 20
    assert slowest < 5


def test_a_stopped_worker_bounds_what_is_relayed(start_apart):
    """A worker that reads nothing for a while holds its client back; the server does not take the rest."""
    system = start_apart()
    server, worker = system.processes[:2]
    client = relayed(
        system,
        """
gt.ones(1).tolist()
print("ready", flush=True)
a = np.arange(50 << 20, dtype="f4")
np.testing.assert_array_equal((gt.from_numpy(a) + 1).numpy(), a + 1)
print("whole")
""",
    )
    try:
        assert client.stdout.readline() == "ready\n"
        before = peak_memory(server)
        worker.send_signal(signal.SIGSTOP)
        time.sleep(3)
        assert client.poll() is None
        assert peak_memory(server) - before < 50 << 20
    finally:
        worker.send_signal(signal.SIGCONT)
    output, errors = client.communicate(timeout=60)
    assert client.returncode == 0 and output == "whole\n", errors


def test_garbage_and_half_a_hello_harm_nobody(start_system):
    system = start_system(workers=1)
    server = f"/proc/{system.processes[0].pid}"
    with gt.open_session(system.address) as session:
        assert (gt.ones(2) + 1).tolist() == [2, 2]
        before = len(os.listdir(f"{server}/fd")), len(os.listdir(f"{server}/task"))
        sockets = [socket.create_connection(("127.0.0.1", system.port)) for _ in range(40)]
        rng = np.random.default_rng(0)
        for i, each in enumerate(sockets):
            each.sendall(b"GTnp"[:i] if i < 5 else rng.bytes(100 * i))
        assert (gt.ones(2) + 2).tolist() == [3, 3]
        for each in sockets:
            each.close()
        wait_for(lambda: (len(os.listdir(f"{server}/fd")), len(os.listdir(f"{server}/task"))) == before)
    session.close()


def test_a_child_leaves_its_parents_session_alone(start_system, run_python):
    system = start_system(workers=1)
    done = run_python(
        f"""
import gt, os, warnings
# Python 3.12 warns of any fork of a process with threads.
warnings.simplefilter("ignore", DeprecationWarning)
gt.connect({system.address!r})
x = gt.ones(3) + 1
x.tolist()
child = os.fork()
if child == 0:
    try:
        x.tolist()
    except RuntimeError as error:
        assert "fork" in str(error)
    raise SystemExit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), (x + 1).tolist())
"""
    )
    assert done.stdout == "0 [3.0, 3.0, 3.0]\n" and done.stderr == ""


def test_too_large_a_tensor_names_the_sizes(start_system):
    system = start_system(workers=1)
    with gt.open_session(system.address) as session:
        with pytest.raises(MemoryError, match="out of memory on worker w0: .* GB more needed"):
            huge = gt.zeros(1_000_000, 1_000_000) + 1
            huge[0, 0].item()
        assert (gt.ones(2) + 1).tolist() == [2, 2]
    session.close()


LINE = re.compile(
    r"^\s*\d+\.\d+s \| #\d+ \| [A-Z_]+ \| (CLIENT|WORKER|SERVER|DISPATCHER)\b.* \| \w+ \| [\d.]+[KMG]?B \|"
)


def test_instruction_log(run_python, tmp_path):
    log = tmp_path / "gt.log"
    run_python(
        "import gt\nx = gt.ones(4)\nfor i in range(3):\n    print((x * 2 + i).sum().item())\n",
        env={"GT_INSTRUCTION_LOG": str(log)},
    )
    lines = log.read_text().splitlines()
    messages = [line for line in lines if not line.startswith("    ")]
    assert all(LINE.match(line) for line in messages), messages
    events = {line.split(" | ")[2] for line in messages}
    assert {"CONNECT", "RECV", "WORKER_SEND", "WORKER_RECV", "SEND", "COMPILE"} <= events
    assert any("TENSOR[" in line and ":= MUL" in line for line in lines)


def test_saved_programs_run_again(tmp_path):
    path = tmp_path / "program.gt"
    x = gt.tensor(np.random.default_rng(0).normal(size=(8, 8)).astype("f4"))
    y = (x @ x).softmax(1).sum(0)
    gt.debug.save_program(path)
    y.tolist()
    for backend in ("cpu", "reference"):
        done = gt_program("replay", str(path), "--backend", backend, "--text")
        assert done.returncode == 0, done.stderr
        assert "equal up to rounding" in done.stdout and "MATMUL" in done.stdout
    path.write_bytes(path.read_bytes()[:40])
    assert gt_program("replay", str(path)).returncode == 1


def test_a_saved_program_that_is_damaged_is_refused(tmp_path):
    path = tmp_path / "program.gt"
    y = gt.tensor(np.arange(64, dtype="f4")).exp().sum()
    gt.debug.save_program(path)
    assert np.isfinite(y.item())
    whole = bytearray(path.read_bytes())
    for place in (len(whole) - 3, len(whole) // 2, 12):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        done = gt_program("replay", str(path))
        assert done.returncode != 0 and "is damaged" in done.stderr, (place, done)
    path.write_bytes(whole[:15])
    assert "ends early" in gt_program("replay", str(path)).stderr


@pytest.mark.parametrize("name", ["GT_VERBOSE", "GT_DEBUG_WORKER", "GT_AUTO_SHARD", "GT_INSTRUCTION_LOG_FULL"])
def test_switches_that_cannot_be_meant_are_errors(run_python, name):
    done = run_python("import gt\ngt.ones(1)\n", env={name: "2.5"}, check=False)
    assert f"ValueError: {name}: expected 0 or 1, got " in done.stderr
    for program in (["worker", "-p", "1"], ["server", "-p", "0"]):
        done = gt_program(*program, env={**os.environ, name: "2.5"})
        assert done.returncode != 0 and f"{name}: expected 0 or 1" in done.stderr


def test_debug_switches_speak_and_are_silent_otherwise(run_python):
    script = "import gt\nprint((gt.ones(3) + 1).sum().item())\n"
    assert run_python(script).stderr == ""
    for switch, words in {
        "GT_VERBOSE": "inside this process",
        "GT_DEBUG_CLIENT": "gt client:",
        "GT_DEBUG_DISPATCHER": "gt dispatcher:",
        "GT_DEBUG_WORKER": "gt worker:",
        "GT_DEBUG_COMPILE": "gt compile:",
    }.items():
        assert words in run_python(script, env={switch: "1"}).stderr, switch
    assert run_python(script, env={"GT_SYNC": "1"}).stdout == "6.0\n"


def test_debug_switches_of_a_client_are_answered_by_the_server(start_system, run_python):
    system = start_system(workers=1)
    script = f"import gt\ngt.connect('localhost:{system.port}')\nprint((gt.ones(SIZE) + 1).sum().item())\n"
    assert run_python(script.replace("SIZE", "9")).stderr == ""
    for switch, words in {
        "GT_VERBOSE": "connected to",
        "GT_DEBUG_CLIENT": "gt client: program",
        "GT_DEBUG_DISPATCHER": "gt dispatcher:",
        "GT_DEBUG_WORKER": "gt worker: session",
        "GT_DEBUG_COMPILE": "gt compile: plan",
    }.items():
        # Another size for each, so that each makes a plan.
        done = run_python(script.replace("SIZE", str(len(switch))), env={switch: "1"})
        assert words in done.stderr and float(done.stdout) == 2 * len(switch), (switch, done.stderr)
        others = {"gt client", "gt dispatcher", "gt worker", "gt compile"} - {words.split(":")[0]}
        assert not any(other in done.stderr for other in others), done.stderr


def test_the_readme_runs(run_python, start_system):
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with open(os.path.join(root, "README.md")) as file:
        snippets = re.findall(r"```python\n(.*?)```", file.read(), re.S)
    assert len(snippets) >= 3
    system = start_system(workers=2)
    for snippet in snippets:
        run_python(snippet.replace("localhost:12345", system.address))


ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EXAMPLES = sorted(name for name in os.listdir(os.path.join(ROOT, "examples")) if re.match(r"\d\d_.*\.py$", name))


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(run_python, name):
    with open(os.path.join(ROOT, "examples", name)) as file:
        assert run_python(file.read()).stdout
