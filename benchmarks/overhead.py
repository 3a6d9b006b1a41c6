"""What watching costs a training loop of Qwen3-tiny: `top`, `trace` and the dashboard together, and the log.

    python benchmarks/overhead.py [--cycles N] [--seconds S] [--json overhead.json]

Two systems of server and worker stand side by side, one of them watched: `top` draws in a terminal, `trace` captures,
and the dashboard is asked as its page asks it. Clients train in turns of `--seconds`: one of the system that nobody
watches before and after each turn of the others, which are one of the watched system and one that keeps the instruction
log. Whoever watches stands still (SIGSTOP) outside the turns of the watched system, so that the others' turns are free
of it. After half of the cycles the two systems change their parts, so that what tells them apart by chance cancels out.

A turn is compared with the two plain ones around it. Where these differ by more than a little the machine was not the
same (a virtual one often has two speeds, for seconds each), and the turn is left out, as are turns in which other
processes used the processors. No step of a turn is left out: a stall that watching causes counts. The middle of all
turns is shown with its 95% interval (bootstrap), and beside it what all processes together used of the processors per
step, which depends less on how they happen to be scheduled.
"""

import argparse
import contextlib
import fcntl
import itertools
import json
import math
import os
import pathlib
import pty
import random
import re
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import urllib.request

from common import Report
from training import token_batches

ROOT = pathlib.Path(__file__).resolve().parents[1]
# The part of the processors that others may use in a turn.
QUIET = 0.05
# Plain turns that differ by more tell that the machine changed between them.
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
    """What was measured in a turn: seconds per step, those of the processors by process, and what others used."""

    def __init__(self, step, processors, others):
        self.step, self.processors, self.others = step, processors, others
        # The plain turns before and after it.
        self.plain = []

    def compares(self):
        before, after = (turn.step for turn in self.plain)
        quiet = all(turn.others < QUIET for turn in (self, *self.plain))
        return quiet and max(before, after) < STEADY * min(before, after)

    def ratio(self):
        return self.step / statistics.mean(turn.step for turn in self.plain)


def start(command, **options):
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


def in_terminal(command):
    """Starts a process in a terminal of its own, whose picture nobody looks at."""
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, start_new_session=True)
    os.close(its)

    def drain():
        with contextlib.suppress(OSError), os.fdopen(mine, "rb", 0) as screen:
            while screen.read(1 << 16):
                pass

    threading.Thread(target=drain, daemon=True).start()
    return process


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
        trace = [sys.executable, "-m", "gt", "trace", "-s", "3600", "-p", self.port, "--dir", self.folder]
        asks = start([sys.executable, __file__, "--page", self.http])
        self.watchers = {
            "top": in_terminal([sys.executable, "-m", "gt", "top", "-p", self.port]),
            "trace": subprocess.Popen(trace, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL),
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
            process.send_signal(signal.SIGSTOP if stop else signal.SIGCONT)

    def end(self):
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            process.wait(20)


def turn(client, seconds):
    """A turn of a client, under the eyes of those who watch its system."""
    client.system.still(False)
    measured = client.turn(seconds)
    client.system.still(True)
    return measured


def half(plain, others, seconds, cycles):
    """Turns of each of the others, with plain ones before and after each."""
    found = {name: [] for name in others}
    for client in (plain, *others.values()):
        turn(client, seconds)
    before = turn(plain, seconds)
    for _ in range(cycles):
        for name, client in others.items():
            measured = turn(client, seconds)
            after = turn(plain, seconds)
            measured.plain, before = [before, after], after
            found[name].append(measured)
    return found


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
    """A row: turns of one kind against the plain ones around them."""
    turns = [half[name] for half in halves]
    kept = [[turn for turn in half if turn.compares()] for half in turns]
    counts = f"{sum(map(len, kept))} of {sum(map(len, turns))} turns"
    if not all(kept):
        print(f"   {what}: {counts} can be compared: the machine is not steady enough")
        return None
    logs = [[math.log(turn.ratio()) for turn in half] for half in kept]
    low, high = map(percent, interval(logs))
    ours = [turn for half in kept for turn in half]
    plain = [turn for one in ours for turn in one.plain]
    used_by, used_plain = processors(ours), processors(plain)
    more = (sum(used_by.values()) / sum(used_plain.values()) - 1) * 100
    steps = [statistics.median(turn.step for turn in some) * 1e3 for some in (ours, plain)]
    note = f"95%: {low:.2f} to {high:.2f}; {steps[0]:.2f} against {steps[1]:.2f} ms; processors {more:+.1f}%; {counts}"
    report.add(what, percent(middle(logs)), "%", goal=goal, note=note)
    found = [[percent(log) for log in half] for half in logs]
    return dict(percent=found, ours=used_by, plain=used_plain, more=more)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=32)
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
    report = Report("what watching costs")
    halves = []
    with contextlib.ExitStack() as stack:
        systems = [System(stack), System(stack)]
        log = {"GT_INSTRUCTION_LOG": f"{systems[0].folder}/gt.log"}
        for watched, alone in (systems, systems[::-1]):
            plain = Client(alone)
            others = {"watched": Client(watched), "logged": Client(alone, log)}
            watched.watch()
            halves.append(half(plain, others, args.seconds, max(args.cycles // 2, 1)))
            watched.unwatch()
            for client in (plain, *others.values()):
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
