"""What watching costs a training loop of Qwen3-tiny: `top`, `trace` and the dashboard together, and the log.

    python benchmarks/overhead.py [--cycles N] [--seconds S] [--json overhead.json]

Two systems of server and worker stand side by side, one of them watched: `top` draws in a terminal, `trace` captures,
and the dashboard is asked as its page asks it. A client of each trains in turns of `--seconds`, and a third client,
which keeps the instruction log, takes its turns on the system that nobody watches. Whoever watches stands still
(SIGSTOP) outside the turns of the watched system, so that the others' turns are free of it. After half of the cycles
the two systems change their parts, so that what tells them apart by chance cancels out.

A cycle compares neighbouring turns. Before and after every turn both processors run a fixed piece of work: turns
between which the machine changed its speed (a virtual one often has two, for seconds each) are not compared, nor are
turns in which other processes used the processors. No step of a turn is left out: a stall that watching causes counts.
The middle of all cycles is shown with its 95% interval (bootstrap), and beside it what all processes together used of
the processors per step, which depends less on how they happen to be scheduled.
"""

import argparse
import contextlib
import hashlib
import itertools
import json
import math
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from common import Report
from training import token_batches

ROOT = pathlib.Path(__file__).resolve().parents[1]
# The part of the processors that others may use in a turn.
QUIET = 0.03
# Turns whose fixed pieces of work took times that differ by more are not compared.
STEADY = 1.08
# Seconds between the questions of the dashboard's page.
PAGE = 0.7
TICK = os.sysconf("SC_CLK_TCK")


def child(address):
    """Trains for as many seconds as each line says that it reads; prints how many steps, and how long they took."""
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
    batches = itertools.cycle(token_batches(SIZES["tiny"].vocab_size, 2, 128))

    def step():
        inputs, targets = (gt.from_numpy(part) for part in next(batches))
        loss = model.loss(inputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    for _ in range(100):
        step()
    print("ready", flush=True)
    for line in sys.stdin:
        seconds, steps, start = float(line), 0, time.perf_counter()
        while time.perf_counter() < start + seconds:
            step()
            steps += 1
        print(steps, time.perf_counter() - start, flush=True)


def page(http):
    """Asks what the dashboard's page asks, as often."""


    def get(path):
        with urllib.request.urlopen(f"http://localhost:{http}{path}", timeout=10) as answer:
            return json.load(answer)

    print("ready", flush=True)
    last = since = 0
    while True:
        last = get(f"/api/state?since={last}").get("now", {}).get("t", 0)
        since = get(f"/api/timeline?since={since}")["next"]
        time.sleep(PAGE)


def used(processes):
    """Seconds of the processors that each of some processes has used, with those that it has started."""
    ticks, parents = {}, {}
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text().rsplit(") ", 1)[1].split()
                ticks[int(folder.name)], parents[int(folder.name)] = sum(map(int, fields[11:15])), int(fields[1])
    sums = {}
    for name, process in processes.items():
        own = {process.pid}
        while more := {child for child, parent in parents.items() if parent in own} - own:
            own |= more
        sums[name] = sum(ticks.get(one, 0) for one in own) / TICK
    everyone = sum(map(int, pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:4])) / TICK
    return everyone, sums


class Spin:
    """A fixed piece of work on every processor at once: how fast the machine is now."""

    def __init__(self):
        self.data = bytes(4 << 20)
        self.threads = ThreadPoolExecutor(os.cpu_count())

    def seconds(self):
        start = time.perf_counter()
        list(self.threads.map(lambda _: hashlib.sha1(self.data).digest(), range(os.cpu_count())))
        return time.perf_counter() - start


class Client:
    """A process that trains when told."""

    def __init__(self, system, env=None):
        self.system = system
        command = [sys.executable, __file__, "--child", "--address", f"localhost:{system.port}"]
        self.process = start(command, stdin=subprocess.PIPE, env={**os.environ, **(env or {})})
        ready(self.process)

    def turn(self, seconds):
        """Trains for a while: seconds per step, and seconds of the processors per step by process."""
        processes = {"client": self.process, **self.system.processes, "benchmark": Own}
        all_before, before = used(processes)
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        steps, took = map(float, self.process.stdout.readline().split())
        all_after, after = used(processes)
        # The benchmark is the parent of all, so that what it has used is what they have.
        others = (all_after - all_before) - (after.pop("benchmark") - before.pop("benchmark"))
        return Turn(took / steps, {k: (after[k] - before[k]) / steps for k in after}, others / took / os.cpu_count())

    def end(self):
        self.process.stdin.close()
        self.process.wait(20)


class Own:
    pid = os.getpid()


class Turn:
    """What was measured in a turn."""

    def __init__(self, step, processors, others):
        self.step, self.processors, self.others = step, processors, others
        # How long the fixed piece of work took around it.
        self.speed = self.steady = None

    def around(self, before, after):
        self.speed, self.steady = (before + after) / 2, near(before, after)

    def compares(self, other):
        quiet = max(self.others, other.others) < QUIET
        return quiet and self.steady and other.steady and near(self.speed, other.speed)


def near(a, b):
    return max(a, b) < STEADY * min(a, b)


def start(command, **options):
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


def ready(process):
    assert process.stdout.readline() == "ready\n", "a process of the benchmark did not start"


class System:
    """A server with its dashboard and one worker, and whoever watches them."""

    def __init__(self, stack):
        server = start([sys.executable, "-m", "gt.server", "-p", "0", "--http", "0"])
        self.port, self.http = (re.search(r":(\d+)", server.stdout.readline()).group(1) for _ in range(2))
        command = [sys.executable, "-m", "gt.worker", "-p", self.port]
        worker = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.processes = {"server": server, "worker": worker}
        self.folder = stack.enter_context(tempfile.TemporaryDirectory())
        self.watchers = {}
        stack.callback(self.end)

    def watch(self):
        """`top`, `trace` and an open page begin to watch."""
        quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # `script` is the terminal that `top` draws in.
        top = ["script", "-qfc", f"exec {sys.executable} -m gt top -p {self.port}", "/dev/null"]
        trace = [sys.executable, "-m", "gt", "trace", "-s", "3600", "-p", self.port, "--dir", self.folder]
        asks = start([sys.executable, __file__, "--page", self.http])
        self.watchers = {
            "top": subprocess.Popen(top, start_new_session=True, **quiet),
            "trace": subprocess.Popen(trace, start_new_session=True, **quiet),
            "page": asks,
        }
        ready(asks)
        time.sleep(1.5)
        self.processes.update(self.watchers)

    def unwatch(self):
        self.still(False)
        for name, process in self.watchers.items():
            process.terminate()
            process.wait(20)
            del self.processes[name]
        self.watchers = {}
        # The server takes nobody to look once the page has been silent for three seconds.
        time.sleep(3.5)

    def still(self, stop):
        """Whoever watches stands still, or goes on."""
        for process in self.watchers.values():
            for one in family(process.pid):
                os.kill(one, signal.SIGSTOP if stop else signal.SIGCONT)

    def end(self):
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            process.wait(20)


def family(pid):
    """A process and those that it has started."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *itertools.chain.from_iterable(family(int(child)) for child in children)]


def cycle(clients, seconds, spin):
    """A turn of every client, in any order."""
    order = random.sample(list(clients), len(clients))
    turns, before = {}, spin.seconds()
    for what in order:
        client = clients[what]
        client.system.still(False)
        turns[what] = client.turn(seconds)
        client.system.still(True)
        after = spin.seconds()
        turns[what].around(before, after)
        before = after
    return turns


def percent(log):
    return (math.exp(log) - 1) * 100


def middle(halves):
    """The middle of each half, and the middle between them."""
    return statistics.mean(map(statistics.median, halves))


def interval(halves, rounds=2000):
    """The 95% interval of the middle."""
    pick = random.Random(0)
    found = sorted(middle([pick.choices(half, k=len(half)) for half in halves]) for _ in range(rounds))
    return found[int(rounds * 0.025)], found[int(rounds * 0.975)]


def processors(turns):
    """Microseconds of the processors per step, by process."""
    return {name: statistics.mean(t.processors[name] for t in turns) * 1e6 for name in turns[0].processors}


def compare(report, name, what, halves, goal):
    """A row: turns of one kind against the plain ones of their cycles."""
    pairs = [[(turns[name], turns["plain"]) for turns in half] for half in halves]
    kept = [[(a, b) for a, b in half if a.compares(b)] for half in pairs]
    counts = sum(map(len, kept)), sum(map(len, pairs))
    if not all(kept):
        print(f"   {what}: {counts[0]} of {counts[1]} cycles can be compared: the machine is not steady enough")
        return None
    ratios = [[math.log(a.step / b.step) for a, b in half] for half in kept]
    low, high = map(percent, interval(ratios))
    ours, plain = (processors([pair[i] for half in kept for pair in half]) for i in (0, 1))
    more = (sum(ours.values()) / sum(plain.values()) - 1) * 100
    steps = [statistics.median(pair[i].step for half in kept for pair in half) * 1e3 for i in (0, 1)]
    note = f"95%: {low:.2f} to {high:.2f}; {steps[0]:.2f} against {steps[1]:.2f} ms; processors {more:+.1f}%;"
    note += f" {counts[0]} of {counts[1]} cycles"
    report.add(what, percent(middle(ratios)), "%", goal=goal, note=note)
    return dict(percent=[[percent(r) for r in half] for half in ratios], ours=ours, plain=plain, more=more)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=PAGE, help="of a turn")
    parser.add_argument("--json", default="overhead.json")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--page", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.address)
    if args.page:
        return page(args.page)
    report, spin = Report("what watching costs"), Spin()
    halves = []
    with contextlib.ExitStack() as stack:
        systems = [System(stack), System(stack)]
        log = {"GT_INSTRUCTION_LOG": f"{systems[0].folder}/gt.log"}
        for watched, alone in (systems, systems[::-1]):
            clients = {"watched": Client(watched), "plain": Client(alone), "logged": Client(alone, log)}
            watched.watch()
            cycle(clients, args.seconds, spin)
            halves.append([cycle(clients, args.seconds, spin) for _ in range(max(args.cycles // 2, 1))])
            watched.unwatch()
            for client in clients.values():
                client.end()
    found = dict(
        watched=compare(report, "watched", "top, trace and dashboard together", halves, goal=2),
        logged=compare(report, "logged", "instruction log", halves, goal=3),
    )
    for name, one in found.items():
        for side in ("plain", "ours") if one else ():
            texts = (f"{who} {us:.0f}" for who, us in one[side].items())
            print(f"   {name if side == 'ours' else 'plain':<8} us of the processors per step: {', '.join(texts)}")
    report.write(args.json)
    with open(args.json) as file:
        data = json.load(file)
    with open(args.json, "w") as file:
        json.dump({**data, "found": found}, file, indent=1)


if __name__ == "__main__":
    main()
