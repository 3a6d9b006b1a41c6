"""What watching costs a training loop of Qwen3-tiny: `top`, `trace` and the dashboard together, and the log.

    python benchmarks/overhead.py [--rounds N] [--seconds S] [--json overhead.json]

Server, worker and client are processes. A round measures the loop without, with, with and without, so that a machine
that slows down or speeds up meanwhile favours neither; its result is the time of a step with, over that without. Steps
are not picked: a stall that watching causes counts. The middle of all rounds is reported, with the range of its middle
half; where that is wide, the machine was not quiet.
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


def child(address):
    """Trains for as many seconds as each line says that it reads, and prints the seconds per step."""
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

    for _ in range(30):
        step()
    print("ready", flush=True)
    for line in sys.stdin:
        seconds, steps, start = float(line), 0, time.perf_counter()
        while time.perf_counter() < start + seconds:
            step()
            steps += 1
        print((time.perf_counter() - start) / steps, flush=True)


class Client:
    """A process that trains when told."""

    def __init__(self, address, env=None):
        command = [sys.executable, __file__, "--child", "--address", address]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
        )
        assert self.process.stdout.readline() == "ready\n", "the training loop did not start"

    def measure(self, seconds):
        self.process.stdin.write(f"{seconds}\n")
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
            time.sleep(3.5)


def there_and_back(seconds, without, with_):
    """A round: the time of a step with something, over that without."""
    before, one = without.measure(seconds), with_.measure(seconds)
    other, after = with_.measure(seconds), without.measure(seconds)
    return (one + other) / (before + after)


def watched_round(client, seconds, port, http):
    """The same where the one client is watched for a while."""
    before = client.measure(seconds)
    with watched(port, http):
        during = client.measure(seconds) + client.measure(seconds)
    return during / (before + client.measure(seconds))


def add(report, what, ratios, goal):
    """The middle of the rounds in percent, and the range of their middle half."""
    percent = sorted((ratio - 1) * 100 for ratio in ratios)
    half = f"{len(ratios)} rounds"
    if len(ratios) > 1:
        low, _, high = statistics.quantiles(percent, n=4, method="inclusive")
        half += f", the middle half between {low:.2f} and {high:.2f}%"
    report.add(what, statistics.median(percent), "%", goal=goal, note=half)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each of the four parts of a round")
    parser.add_argument("--json", default="overhead.json")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.address)
    report = Report("what watching costs")
    with system() as (port, http), tempfile.TemporaryDirectory() as folder:
        address = f"localhost:{port}"
        plain = Client(address)
        logged = Client(address, {"GT_INSTRUCTION_LOG": f"{folder}/gt.log"})
        seen, log = [], []
        for _ in range(args.rounds):
            seen.append(watched_round(plain, args.seconds, port, http))
            log.append(there_and_back(args.seconds, plain, logged))
        plain.end()
        logged.end()
    add(report, "top, trace and dashboard together", seen, goal=2)
    add(report, "instruction log", log, goal=3)
    report.write(args.json)
    print(json.dumps({"watched": seen, "logged": log}))


if __name__ == "__main__":
    main()
