"""What the sharding benchmarks share: cases, measuring, the machine's own scaling, tables.

Scaling is judged against what the machine allows: as many independent processes as there are workers, pinned to the
same cores or GPUs, do the same products on their parts of the batch at the same time and never talk to one another.
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
SQUARES = [4096, 8192, 16384]
BATCHES = [(8192, 4096, 4096), (16384, 4096, 4096), (32768, 2048, 2048)]
MLPS = [(4096, (4096, 4096, 4096, 4096)), (8192, (4096, 8192, 4096, 2048)), (16384, (2048, 4096, 4096, 1024))]
TITLES = {
    "square": "Square Matrix Multiplications",
    "batch": "Large Batch Matrix Multiplications",
    "mlp": "MLP Forward Passes",
    "qwen3": "Data-parallel Qwen3-small Training Step",
}
# The part of the machine's own scaling that has to be reached.
GOALS = {"batch": 0.93, "mlp": 0.88, "qwen3": 0.80}


@dataclasses.dataclass
class Case:
    """One row: its kind, the rows of its input, and the sizes of its layers."""

    kind: str
    rows: int
    sizes: tuple

    @property
    def name(self):
        if self.kind == "square":
            return f"{self.rows}x{self.rows}"
        if self.kind == "batch":
            return f"({self.rows},{self.sizes[0]})@({self.sizes[0]},{self.sizes[1]})"
        if self.kind == "mlp":
            return f"{self.rows} x " + "-".join(map(str, self.sizes))
        return f"{self.rows} x {self.sizes[0]} tokens"

    @property
    def flops(self):
        pairs = zip(self.sizes, self.sizes[1:], strict=False)
        return 0 if self.kind == "qwen3" else sum(2 * self.rows * a * b for a, b in pairs)


def cases(quick=False, scale=1.0, kinds=TITLES):
    """The rows of the tables. `scale` makes them smaller, for CPUs; `quick` takes the first of each."""

    def sized(n):
        return max(64, int(n * scale) // 64 * 64)

    squares = [Case("square", sized(n), (sized(n), sized(n))) for n in SQUARES]
    batches = [Case("batch", sized(m), (sized(k), sized(n))) for m, k, n in BATCHES]
    mlps = [Case("mlp", sized(m), tuple(map(sized, sizes))) for m, sizes in MLPS]
    qwen3 = [Case("qwen3", 8, (512,))]
    rows = [squares, batches, mlps] if quick else [squares, batches, mlps, qwen3]
    chosen = [row for group in rows for row in (group[:1] if quick else group)]
    return [row for row in chosen if row.kind in kinds]


# One process: the same work on a whole system, or on a part of the rows alone.


def work(gt, case, iterations, part=0, parts=1):
    """A function of the iteration that does the work and gives what has to stay alive."""
    rows = case.rows * (part + 1) // parts - case.rows * part // parts
    gt.manual_seed(part)
    if case.kind == "qwen3":
        return training(gt, rows, case.sizes[0])
    weights = [gt.randn(a, b) * 0.02 for a, b in zip(case.sizes, case.sizes[1:], strict=False)]
    inputs = [gt.randn(rows, case.sizes[0]) for _ in range(iterations)]
    gt.synchronize()

    def step(i):
        y = inputs[i % len(inputs)] @ weights[0]
        for w in weights[1:]:
            y = y.relu() @ w
        return y

    return step


def training(gt, batch, length):
    """One step of training per iteration."""
    sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "examples/qwen3")]
    import framework
    import numpy as np

    framework.choose(False)
    import weights

    model = weights.fresh("small", None)
    optimizer = gt.optim.AdamW(model.parameters(), lr=1e-3)
    rng = np.random.default_rng(0)

    def step(_):
        ids = gt.from_numpy(rng.integers(0, model.config.vocab_size, (batch, length)))
        loss = model.loss(ids, ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def timed(gt, step, i, download):
    start = time.perf_counter()
    kept = step(i)
    if download:
        kept.numpy()
    else:
        gt.synchronize()
    return time.perf_counter() - start


WARMUP = 2
# A row is measured for as many seconds at least, on the system and on the machine alone, fewer with --quick: cores that
# were idle take a while to reach their speed, and those of a host that others use change it.
SETTLED = 4.0
QUICK = 0.5
# A turn ends after so many seconds, however many iterations that were.
LONGEST = 1.0
# How often the two take turns at least.
TURNS = 5


def child():
    """A process of its own that does one case, or one part of it, whenever it is told to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", type=json.loads)
    parser.add_argument("--iterations", type=int)
    parser.add_argument("--download", action="store_true")
    parser.add_argument("--address", help="a running system; without it the process is its own")
    parser.add_argument("--workers", type=int, help="use only the first so many")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--cores", type=json.loads)
    args = parser.parse_args()
    if args.cores:
        os.sched_setaffinity(0, args.cores)
    import gt

    case = Case(args.case["kind"], args.case["rows"], tuple(args.case["sizes"]))
    if args.address:
        gt.connect(args.address)
    inside = contextlib.nullcontext()
    if args.workers is not None:
        name = f"first_{args.workers}"
        gt.register_config(name, gt.SignalConfig(workers=list(range(args.workers))))
        inside = gt.signal.context(name)
    with inside:
        step = work(gt, case, args.iterations + WARMUP, args.part, args.parts)
        print("ready", flush=True)
        for i, _ in enumerate(sys.stdin):
            print(timed(gt, step, i, args.download), flush=True)


class Side:
    """Processes that do a case together: one on a running system, or one per device alone."""

    def __init__(self, case, iterations, download):
        self.case, self.processes, self.times = case, [], []
        row = json.dumps(dataclasses.asdict(case))
        self.line = [sys.executable, __file__, "--case", row, "--iterations", str(iterations)]
        self.line += ["--download"] if download else []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.stdin.close()
            process.kill()
            process.wait()
            process.stdout.close()

    def start(self, options, env):
        pipe = subprocess.PIPE
        process = subprocess.Popen(self.line + options, stdin=pipe, stdout=pipe, text=True, env=env)
        self.processes.append(process)

    def said(self, process):
        line = process.stdout.readline().strip()
        if not line:
            raise SystemExit(f"{self.case.name}: the measurement failed, see above")
        return line

    def warm_up(self):
        for process in self.processes:
            assert self.said(process) == "ready"
        for _ in range(WARMUP):
            self.once()

    def once(self):
        for process in self.processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        return max(float(self.said(process)) for process in self.processes)

    def turn(self, iterations):
        begin, times = time.perf_counter(), []
        while len(times) < iterations and time.perf_counter() - begin < LONGEST:
            times.append(self.once())
        self.times.append(min(times))


def measure(case, address, workers, alone, iterations, download, settled=SETTLED):
    """Seconds of a case on a running system, and of processes of their own on the devices `alone` (None without any).

    The two take turns, and what counts is how they compare in neighbouring turns, whatever the machine does:
    the first is the median of its turns, the second that over the median of the ratios.
    """
    with contextlib.ExitStack() as stack:
        sides = [stack.enter_context(Side(case, iterations, download)) for _ in range(2 if alone else 1)]
        options = ["--address", address] + (["--workers", str(workers)] if workers is not None else [])
        sides[0].start(options, {**os.environ, "GT_AUTO_SHARD": "1"})
        for i, device in enumerate(alone or []):
            options = ["--part", str(i), "--parts", str(len(alone))]
            options += ["--cores", json.dumps(device.cores)] if device.cores else []
            env = {**os.environ, **device.env}
            env.pop("GT_SERVER", None)
            env.pop("GT_AUTO_SHARD", None)
            sides[1].start(options, env)
        for side in sides:
            side.warm_up()
        begin = time.perf_counter()
        while len(sides[0].times) < TURNS or time.perf_counter() - begin < settled * len(sides):
            for side in sides:
                side.turn(iterations)
        seconds = statistics.median(sides[0].times)
        if not alone:
            return seconds, None
        pairs = zip(sides[0].times, sides[1].times, strict=True)
        return seconds, seconds / statistics.median(ours / bare for ours, bare in pairs)


# Devices and systems.


@dataclasses.dataclass
class Device:
    """What one worker runs on: a GPU, or cores of its own."""

    env: dict
    cores: list


def gpu_count():
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    except FileNotFoundError:
        return 0
    return len(re.findall("^GPU", done.stdout, re.M))


@functools.cache
def tell_once(what):
    print(what)


def devices(kind, count, threads):
    """`count` devices of a kind, in order."""
    if kind == "gpu":
        there = gpu_count()
        if count > there:
            raise SystemExit(f"--gpus {count}: this machine has {there} GPUs; --workers cpu uses its cores instead")
        return [Device({"CUDA_VISIBLE_DEVICES": str(i)}, []) for i in range(count)]
    cores = sorted(os.sched_getaffinity(0))
    if count * threads > len(cores):
        tell_once(
            f"{count} workers with {threads} threads each on {len(cores)} cores: they take turns, and the times "
            "below say nothing of how it scales on as many devices"
        )
    env = {"GT_BACKEND": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    turn = [[cores[(i * threads + j) % len(cores)] for j in range(min(threads, len(cores)))] for i in range(count)]
    return [Device(env, own) for own in turn]


@contextlib.contextmanager
def running(chosen, port):
    """A server and one worker per device, stopped at the end; gives the address."""
    processes = []
    try:
        server = subprocess.Popen(
            [sys.executable, "-m", "gt.server", "-p", str(port)], stdout=subprocess.PIPE, text=True
        )
        processes.append(server)
        found = re.search(r":(\d+)\s*$", server.stdout.readline())
        if not found:
            raise SystemExit(f"the server did not start on port {port}")
        port = found.group(1)
        for i, device in enumerate(chosen):
            line = [sys.executable, "-m", "gt.worker", "--host", "localhost", "-p", port, "--name", f"w{i}"]
            if device.cores:
                line += ["--cores", ",".join(map(str, device.cores))]
            processes.append(subprocess.Popen(line, stdout=subprocess.DEVNULL, env={**os.environ, **device.env}))
        wait = [sys.executable, "-m", "gt", "wait", "--host", "localhost", "-p", port]
        wait += ["--workers", str(len(chosen)), "--timeout", "120"]
        if subprocess.run(wait, stdout=subprocess.DEVNULL).returncode:
            raise SystemExit("the workers did not come")
        yield f"localhost:{port}"
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(timeout=20)
            if process.stdout:
                process.stdout.close()


# Tables.


def show(rows, counts, what, download):
    """Prints the tables and the summary."""
    word = "GPU" if what == "gpu" else "worker"
    names = {n: f"{n} {word}" + ("s" if n > 1 else "") for n in counts}
    print("=" * 100 + "\nPERFORMANCE COMPARISON\n" + "=" * 100)
    print(f"Times are of computing{' and downloading the result' if download else '; no download is included'}.")
    for kind, title in TITLES.items():
        group = [row for row in rows if row["kind"] == kind]
        if not group:
            continue
        width = max(len(row["name"]) for row in group) + 2
        print(f"\n--- {title} ---")
        print(f"{'Shape':<{width}}| " + " | ".join(f"{names[n]:<21}" for n in counts) + "\n" + "-" * 100)
        for row in group:
            cells = []
            for n in counts:
                seconds = row["seconds"][n]
                rate = f"({row['flops'] / seconds / 1e12:6.2f} TF)" if row["flops"] else ""
                cells.append(f"{seconds:9.4f}s {rate:<11}")
            print(f"{row['name']:<{width}}| " + " | ".join(cells))
            line = ["baseline"] + [f"{row['seconds'][counts[0]] / row['seconds'][n]:.2f}x" for n in counts[1:]]
            print(f"{'Speedup:':<{width}}| " + " | ".join(f"{text:<21}" for text in line))
            if row["alone"]:
                line = ["baseline"] + [
                    f"{row['alone'][counts[0]] / row['alone'][n]:.2f}x alone, {row['of_machine'][n]:.2f} of it"
                    for n in counts[1:]
                ]
                print(f"{'Machine:':<{width}}| " + " | ".join(f"{text:<21}" for text in line))
    if len(counts) > 1:
        print("\n" + "=" * 100 + "\nSUMMARY\n" + "=" * 100)
    for n in counts[1:]:
        found = [row["seconds"][counts[0]] / row["seconds"][n] for row in rows]
        print(f"\n{names[n]} vs {names[counts[0]]}:")
        print(f"  Average speedup: {sum(found) / len(found):.2f}x")
        print(f"  Min speedup: {min(found):.2f}x")
        print(f"  Max speedup: {max(found):.2f}x")
        for kind, goal in GOALS.items():
            reached = [row["of_machine"][n] for row in rows if row["kind"] == kind and row["of_machine"]]
            if reached:
                mark = "+" if min(reached) >= goal else "-"
                print(f"  {mark} {TITLES[kind]}: {min(reached):.2f} of the machine's scaling, at least {goal:.2f}")


def finish(rows, counts):
    """Adds to each row which part of the machine's scaling was reached."""
    first = counts[0]
    for row in rows:
        row["of_machine"] = {
            n: (row["seconds"][first] / row["seconds"][n]) / (row["alone"][first] / row["alone"][n])
            for n in counts[1:]
            if row["alone"]
        }


def positive(text, number=int):
    """A number above zero, for options."""
    try:
        value = number(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above zero, got {text!r}")
    return value


def options(doc):
    """The options of both benchmarks."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=positive, nargs="+", default=[1, 8], help="numbers of workers to compare")
    parser.add_argument("--quick", action="store_true", help="3 tests, 3 iterations a turn")
    parser.add_argument("--port", type=int, default=9000, help="port of the server")
    parser.add_argument("--workers", choices=["auto", "gpu", "cpu"], default="auto", help="what the workers run on")
    parser.add_argument("--threads", type=positive, help="threads of each CPU worker; by default the cores are divided")
    parser.add_argument(
        "--scale",
        type=functools.partial(positive, number=float),
        help="factor of all sizes; by default 1, on CPUs 0.5",
    )
    parser.add_argument("--iterations", type=positive, help="runs per turn, of which the fastest counts")
    parser.add_argument("--kinds", nargs="+", choices=list(TITLES), default=list(TITLES), help="which tables")
    parser.add_argument("--download", action="store_true", help="include the download of each result")
    parser.add_argument("--no-baseline", action="store_true", help="do not measure what the machine allows")
    parser.add_argument("--json", help="write the numbers to a file")
    args = parser.parse_args()
    if args.workers == "auto":
        args.workers = "gpu" if gpu_count() else "cpu"
    args.gpus = sorted(set(args.gpus))
    if args.threads is None:
        args.threads = max(1, len(os.sched_getaffinity(0)) // args.gpus[-1])
    args.scale = args.scale or (1.0 if args.workers == "gpu" else 0.5)
    args.iterations = args.iterations or (3 if args.quick else 5)
    return args


def run(args, system_of):
    """Measures all rows for all counts; `system_of(count)` is entered for an address and how many workers to use."""
    chosen = cases(args.quick, args.scale, args.kinds)
    rows = [
        {"kind": c.kind, "name": c.name, "flops": c.flops, "seconds": {}, "alone": {}, "of_machine": {}} for c in chosen
    ]
    for count in args.gpus:
        alone = None if args.no_baseline else devices(args.workers, count, args.threads)
        with system_of(count) as (address, first):
            for row, case in zip(rows, chosen, strict=True):
                seconds, bare = measure(
                    case, address, first, alone, args.iterations, args.download, QUICK if args.quick else SETTLED
                )
                row["seconds"][count] = seconds
                if bare is not None:
                    row["alone"][count] = bare
                print(f"{count} x {row['name']}: {seconds:.4f} s", file=sys.stderr, flush=True)
    finish(rows, args.gpus)
    show(rows, args.gpus, args.workers, args.download)
    if args.json:
        data = dict(
            date=time.strftime("%Y-%m-%d %H:%M:%S"),
            workers=args.workers,
            threads=args.threads if args.workers == "cpu" else None,
            download=args.download,
            counts=args.gpus,
            rows=rows,
        )
        pathlib.Path(args.json).write_text(json.dumps(data, indent=1))
        print(f"\nwritten to {args.json}")


if __name__ == "__main__":
    child()
