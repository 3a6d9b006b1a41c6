"""What the benchmarks share: timing, a table of ratios, JSON, servers in the background."""

import contextlib
import json
import os
import platform
import re
import subprocess
import sys
import time

torch = None
# A process that measures GT alone does not load PyTorch, which takes seconds.
if os.environ.get("BENCHMARK_SIDE") != "gt":
    with contextlib.suppress(ImportError):
        import torch


def best(fn, repeat=5):
    """Seconds of the fastest of several runs of `fn`, which returns the seconds it measured or None."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        took = fn()
        times.append(time.perf_counter() - start if took is None else took)
    return min(times)


class Report:
    """Rows of (what, measured, goal), printed as a table and written as JSON."""

    def __init__(self, title):
        self.title = title
        self.rows = []
        self.load = os.getloadavg()[0]
        if self.load > 0.7:
            print(f"the machine is busy (load {self.load:.1f}): ratios mean little until it is not\n")

    def add(self, what, value, unit, goal=None, at_most=True, note=""):
        """Adds a row. `goal` is judged with `at_most` (smaller is better) or not."""
        ok = None if goal is None else (value <= goal if at_most else value >= goal)
        self.rows.append(dict(what=what, value=value, unit=unit, goal=goal, at_most=at_most, ok=ok, note=note))
        goal_text = "" if goal is None else f"{'at most' if at_most else 'at least'} {goal:g} {unit}"
        mark = {None: " ", True: "+", False: "-"}[ok]
        print(f" {mark} {what:<58} {value:>10.3f} {unit:<8} {goal_text:<22} {note}", flush=True)

    def write(self, path):
        """Writes the rows with date and machine."""
        data = dict(
            title=self.title,
            date=time.strftime("%Y-%m-%d %H:%M:%S"),
            machine=f"{platform.machine()} {platform.processor()} python {platform.python_version()}",
            torch=getattr(torch, "__version__", None),
            load_before=self.load,
            rows=self.rows,
        )
        with open(path, "w") as file:
            json.dump(data, file, indent=1)
        print(f"\nwritten to {path}")


@contextlib.contextmanager
def cluster(workers=1, threads=None):
    """A server and workers as processes of their own; gives the server's address."""
    server = subprocess.Popen(
        [sys.executable, "-m", "gt.server", "-p", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    procs = [server]
    try:
        line = server.stdout.readline()
        port = re.search(r":(\d+)", line).group(1)
        for i in range(workers):
            cmd = [sys.executable, "-m", "gt.worker", "--host", "localhost", "-p", port, "--name", f"w{i}"]
            if threads:
                cmd += ["--threads", str(threads)]
            procs.append(subprocess.Popen(cmd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        wait_for_workers(f"localhost:{port}", workers)
        yield f"localhost:{port}"
    finally:
        for proc in reversed(procs):
            proc.terminate()
        for proc in procs:
            proc.wait(timeout=20)


def wait_for_workers(addr, count, timeout=60):
    """Waits until so many workers have joined a server, by a process that asks it."""
    ask = "import gt, sys; gt.connect(sys.argv[1]); print(len(gt.debug.get_worker_stats()['workers']))"
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        done = subprocess.run([sys.executable, "-c", ask, addr], capture_output=True, text=True, timeout=timeout)
        if done.stdout.strip() == str(count):
            return
        time.sleep(0.2)
    raise RuntimeError(f"{count} workers have not joined {addr} in {timeout} s: {done.stderr[-500:]}")


@contextlib.contextmanager
def session(addr):
    """A session with a server that ends with the block."""
    import gt

    with gt.open_session(addr) as opened:
        yield opened
    opened.close()
