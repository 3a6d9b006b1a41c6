"""What watching costs a training loop of Qwen3-tiny: `top`, `trace` and the dashboard together, and the log.

    python benchmarks/overhead.py [--rounds N] [--steps N] [--json overhead.json]

Server, worker and client are processes. Each round measures the loop without and with, in turns; the middle of the
ratios of neighbours counts, so that a machine which slows down for a while does not. Run it on a quiet machine.
"""

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from common import Report
from training import token_batches

ROOT = pathlib.Path(__file__).resolve().parents[1]


def child(steps, address):
    """Trains; prints the median seconds per step for every line that it reads."""
    sys.path.insert(0, str(ROOT / "examples"))
    sys.path.insert(0, str(ROOT / "examples" / "qwen3"))
    import framework

    framework.choose(False)
    import gt

    gt.connect(address)
    from config import SIZES
    from model import Qwen3

    gt.manual_seed(0)
    model = Qwen3(SIZES["tiny"])
    optimizer = gt.optim.AdamW(model.parameters(), lr=3e-4)
    batches = token_batches(SIZES["tiny"].vocab_size, 2, 128)

    turns = itertools.cycle(batches)

    def step():
        inputs, targets = (gt.from_numpy(part) for part in next(turns))
        loss = model.loss(inputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    for _ in range(10):
        step()
    print("ready", flush=True)
    for _ in sys.stdin:
        times = []
        for _ in range(steps):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        print(statistics.median(times), flush=True)


class Client:
    """A process that trains when told."""

    def __init__(self, steps, address, env=None):
        command = [sys.executable, __file__, "--child", "--steps", str(steps), "--address", address]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
        )
        assert self.process.stdout.readline() == "ready\n", "the training loop did not start"

    def measure(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait(20)


@contextlib.contextmanager
def system():
    """A server with its dashboard and one worker; gives their ports."""
    server = subprocess.Popen(
        [sys.executable, "-m", "gt.server", "-p", "0", "--http", "0"], stdout=subprocess.PIPE, text=True
    )
    port, http = (re.search(r":(\d+)", server.stdout.readline()).group(1) for _ in range(2))
    worker = subprocess.Popen([sys.executable, "-m", "gt.worker", "-p", port], stdout=subprocess.DEVNULL)
    try:
        yield port, http
    finally:
        for process in (worker, server):
            process.terminate()
            process.wait(20)


@contextlib.contextmanager
def watched(port, http):
    """`top`, `trace` and an open dashboard at the same time."""
    over = threading.Event()

    def look():
        while not over.wait(0.7):
            for path in ("/api/state", "/api/timeline"):
                urllib.request.urlopen(f"http://localhost:{http}{path}", timeout=10).read()

    page = threading.Thread(target=look)
    page.start()
    with tempfile.TemporaryDirectory() as folder:
        top = ["script", "-qfc", f"{sys.executable} -m gt top -p {port}", "/dev/null"]
        trace = [sys.executable, "-m", "gt", "trace", "-s", "3600", "-p", port, "--dir", folder]
        tools = [
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for command in (top, trace)
        ]
        time.sleep(1.5)
        try:
            yield
        finally:
            over.set()
            for tool in tools:
                tool.terminate()
                tool.wait(20)
            page.join()
            # The dashboard stops looking closely some seconds after the page is closed.
            time.sleep(6)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", default="overhead.json")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.steps, args.address)
    report = Report("what watching costs")
    with system() as (port, http), tempfile.TemporaryDirectory() as folder:
        address = f"localhost:{port}"
        plain = Client(args.steps, address)
        logged = Client(args.steps, address, {"GT_INSTRUCTION_LOG": f"{folder}/gt.log"})
        seen, log = [], []
        for _ in range(args.rounds):
            before = plain.measure()
            log.append(logged.measure() / plain.measure())
            with watched(port, http):
                during = plain.measure()
            seen.append(during / statistics.mean([before, plain.measure()]))
        plain.end()
        logged.end()
    report.add("top, trace and dashboard together", (statistics.median(seen) - 1) * 100, "%", goal=2)
    report.add("instruction log", (statistics.median(log) - 1) * 100, "%", goal=3)
    report.write(args.json)
    print(json.dumps({"watched": seen, "logged": log}))


if __name__ == "__main__":
    main()
