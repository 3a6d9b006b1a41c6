"""What the spine must reach: recording cost, messages, latency, start-up, bandwidth and raw CPU speed.

Every ratio is measured in one run on one machine, against PyTorch where it is importable. Usage:

    python benchmarks/spine.py [--only NAME ...] [--json FILE]
"""

import argparse
import subprocess
import sys
import time

import common
import numpy as np
from common import best, torch

import gt


def recording(report):
    """`a + b` on 10x10 from Python, timed before synchronising, and the backward pass per node."""
    n = 2000

    def loop(lib, grad, sync):
        a = lib.ones(10, 10, requires_grad=grad)
        b = lib.ones(10, 10)
        keep = []
        start = time.perf_counter()
        for _ in range(n):
            keep.append(a + b)
        took = time.perf_counter() - start
        del keep
        sync()
        return took / n * 1e6

    def chain(lib, sync):
        a = lib.ones(10, 10, requires_grad=True)
        x = a
        for _ in range(n):
            x = x + a
        loss = x.sum()
        start = time.perf_counter()
        loss.backward()
        took = time.perf_counter() - start
        sync()
        return took / n * 1e6

    for grad in (False, True):
        ours = best(lambda grad=grad: loop(gt, grad, gt.synchronize), 9)
        name = "a + b recorded" + (" with gradients" if grad else "")
        if torch:
            theirs = best(lambda grad=grad: loop(torch, grad, lambda: None), 9)
            report.add(name, ours / theirs, "x", 0.6, note=f"{ours:.2f} us against {theirs:.2f} us")
        else:
            report.add(name, ours, "us")
    ours = best(lambda: chain(gt, gt.synchronize), 9)
    if torch:
        theirs = best(lambda: chain(torch, lambda: None), 9)
        report.add("backward per node", ours / theirs, "x", 0.2, note=f"{ours:.2f} us against {theirs:.2f} us")
    else:
        report.add("backward per node", ours, "us")


def training(kind, steps):
    """Runs an MLP loop; gives the counters after each of the first five steps, and those at its end."""
    gt.manual_seed(0)
    model = gt.nn.Sequential(gt.nn.Linear(32, 64), gt.nn.ReLU(), gt.nn.Linear(64, 10))
    optimizer = gt.nn.SGD(model.parameters(), lr=0.1)
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(16, 32)).astype("f4"), rng.integers(0, 10, 16)) for _ in range(steps)]
    stats = []
    for x, y in data:
        x, y = gt.from_numpy(x), gt.from_numpy(y)
        hidden = model(x)
        if kind == "dropout":
            hidden = gt.nn.functional.dropout(hidden, 0.5)
        loss = gt.nn.cross_entropy_loss(hidden, y)
        if kind == "by hand":
            for p in model.parameters():
                p.grad = None
            loss.backward()
            with gt.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
        else:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if kind != "never looks":
            loss.item()
        if len(stats) < 5:
            stats.append(gt.debug.get_worker_stats())
    gt.synchronize()
    return stats, gt.debug.get_worker_stats()


def messages(report):
    """Control messages of a chain and of training loops, and misses of the plan cache."""
    before = gt.debug.get_worker_stats()["messages"]
    x = gt.ones(10, 10)
    for _ in range(10_000):
        x = x + 1
    x.sum().item()
    after = gt.debug.get_worker_stats()["messages"]
    report.add("messages of 10,000 chained ops and one item()", after - before, "messages", 20)
    for kind in ("optimizer", "by hand", "dropout", "never looks"):
        steps = 100
        seen, end = training(kind, steps)
        # The model and the first steps have messages of their own.
        total = (end["messages"] - seen[-1]["messages"]) / (steps - len(seen))
        report.add(f"messages per MLP step, {kind}", total, "messages", 4)
        if kind == "never looks":
            # Looking at counters cuts the stream: a second loop must find all that the first one left.
            _, again = training(kind, 60)
            misses = again["compilation"]["misses"] - end["compilation"]["misses"]
        else:
            misses = end["compilation"]["misses"] - seen[3]["compilation"]["misses"]
        report.add(f"plan misses later on, {kind}", misses, "misses", 0)


def latency(report):
    """`.item()` of a ready scalar, in-process and over TCP."""

    def item(n=2000):
        x = gt.ones(())
        x.item()
        start = time.perf_counter()
        for _ in range(n):
            x.item()
        return (time.perf_counter() - start) / n * 1e6

    report.add("item() in-process", best(item, 5), "us", 40)
    with common.cluster(1) as addr, common.session(addr):
        report.add("item() over TCP loopback", best(item, 5), "us", 100)


def start_up(report):
    """From process start over the import to the first printed result."""

    def run(code):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - start

    ours = best(lambda: run("import gt; print(gt.tensor([1., 2.]) + 1)"), 5)
    if torch:
        theirs = best(lambda: run("import torch; print(torch.tensor([1., 2.]) + 1)"), 5)
        report.add("import to first result", ours / theirs, "x", 1 / 3, note=f"{ours:.2f} s against {theirs:.2f} s")
    else:
        report.add("import to first result", ours, "s")


def bandwidth(report):
    """256 MiB to a worker process and back, against two plain copies."""
    array = np.random.default_rng(0).random(64 << 20, dtype="f4")
    out = np.empty_like(array)

    def copies():
        np.copyto(out, array)
        np.copyto(out, array)

    def there_and_back():
        t = gt.from_numpy(array)
        got = t.numpy()
        assert got[-1] == array[-1]

    plain = best(copies, 5)
    with common.cluster(1) as addr, common.session(addr):
        there_and_back()
        ours = best(there_and_back, 5)
    report.add("256 MiB there and back, of two copies' speed", plain / ours, "x", 0.5, at_most=False)


def arithmetic(report):
    """Matrix products and elementwise work against PyTorch with the same threads."""
    for n in (512, 1024, 2048, 4096):
        reps = max(1, int(2e10 / (2 * n**3)))

        def run(lib, sync, n=n, reps=reps):
            xs = [lib.randn(n, n) for _ in range(2)]
            w = lib.randn(n, n)
            sync()
            start = time.perf_counter()
            keep = [xs[i % 2] @ (w + float(i)) for i in range(reps)]
            sync()
            took = time.perf_counter() - start
            del keep
            return took / reps

        ours = best(lambda run=run: run(gt, gt.synchronize), 4)
        if torch:
            theirs = best(lambda run=run: run(torch, lambda: None), 4)
            note = f"{2 * n**3 / ours / 1e9:.0f} against {2 * n**3 / theirs / 1e9:.0f} GFLOP/s"
            report.add(f"matmul {n}, of PyTorch's speed", theirs / ours, "x", 0.95, at_most=False, note=note)
    for name, fn in (
        ("x + y", lambda x, y: x + y),
        ("x * 2 + y", lambda x, y: x * 2 + y),
        ("relu", lambda x, y: x.relu()),
        ("exp", lambda x, y: x.exp()),
        ("tanh", lambda x, y: x.tanh()),
    ):

        def run(lib, sync, fn=fn):
            xs = [lib.randn(10_000_000) for _ in range(3)]
            y = lib.randn(10_000_000)
            sync()
            start = time.perf_counter()
            for x in xs:
                z = fn(x, y)
                sync()
                del z
            return (time.perf_counter() - start) / 3

        ours = best(lambda run=run: run(gt, gt.synchronize), 5)
        if torch:
            theirs = best(lambda run=run: run(torch, lambda: None), 5)
            note = f"{ours * 1e3:.2f} against {theirs * 1e3:.2f} ms"
            report.add(f"{name} on 10M, of PyTorch's speed", theirs / ours, "x", 0.9, at_most=False, note=note)


def rows(report):
    """`obs[i] = row` in a loop over a 100 MB buffer, against the same over a 1 MB one."""

    def run(n):
        obs = gt.zeros(n, 256)
        row = gt.ones(256)
        gt.synchronize()
        start = time.perf_counter()
        for i in range(500):
            obs[i] = row
        gt.synchronize()
        return (time.perf_counter() - start) / 500 * 1e6

    small, big = best(lambda: run(1_000), 4), best(lambda: run(100_000), 4)
    report.add("obs[i] = row: 100 MB against 1 MB", big / small, "x", 3.0, note=f"{big:.1f} us and {small:.1f} us")


CLIENT = """
import sys
import numpy as np
import gt

seed = int(sys.argv[2])
rng = np.random.default_rng(seed)
gt.connect(sys.argv[1])
wrong = 0
for program in range(200):
    a = rng.normal(size=(rng.integers(1, 40), 16)).astype("f4")
    b = rng.normal(size=(16, rng.integers(1, 40))).astype("f4")
    x, y = gt.from_numpy(a), gt.from_numpy(b)
    for _ in range(rng.integers(1, 6)):
        pick = rng.integers(0, 4)
        if pick == 0:
            x, a = x * 0.5 + 1, a * np.float32(0.5) + 1
        elif pick == 1:
            x, a = x.tanh(), np.tanh(a)
        elif pick == 2:
            x, a = x - x.mean(1, keepdim=True), a - a.mean(1, keepdims=True)
        else:
            x, a = x.relu(), np.maximum(a, 0)
    wrong += not np.allclose((x @ y).numpy(), a @ b, rtol=1e-3, atol=1e-4)
print(wrong)
"""


def many_clients(report):
    """Ten clients in ten processes, 200 random programs each, on one server with four workers."""
    with common.cluster(4, threads=1) as addr:
        start = time.perf_counter()
        procs = [
            subprocess.Popen([sys.executable, "-c", CLIENT, addr, str(i)], stdout=subprocess.PIPE, text=True)
            for i in range(10)
        ]
        wrong = sum(int(p.communicate(timeout=300)[0] or 200) for p in procs)
        took = time.perf_counter() - start
        report.add("ten clients, 2,000 programs: wrong results", wrong, "wrong", 0, note=f"{took:.1f} s")
        with common.session(addr):
            held = sum(w["bytes_in_use"] for w in gt.debug.get_worker_stats()["workers"])
        report.add("bytes held by the workers afterwards", held, "bytes", 0)


ALL = dict(
    recording=recording,
    messages=messages,
    latency=latency,
    start_up=start_up,
    bandwidth=bandwidth,
    arithmetic=arithmetic,
    rows=rows,
    many_clients=many_clients,
)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(ALL), help="run only these")
    parser.add_argument("--json", default="spine.json", help="where to write the results")
    args = parser.parse_args()
    report = common.Report("spine")
    for name in args.only or ALL:
        ALL[name](report)
    report.write(args.json)


if __name__ == "__main__":
    main()
