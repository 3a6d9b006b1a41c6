"""What training must reach: whole steps of real models against eager PyTorch, with upload and `loss.item()`.

Every measurement is a process of its own; GT and PyTorch take turns, and the best of the medians counts. Usage:

    python benchmarks/training.py [ROW ...] [--rounds N] [--json FILE] [--stats]

PyTorch gets an allocator that keeps its memory (the `MALLOC_*` settings below); GT runs without.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

THREADS = 2
ROOT = pathlib.Path(__file__).resolve().parents[1]
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "MALLOC_TOP_PAD_": "1073741824",
}


# In the child: one workload on one framework.


class Side:
    """One framework, as the workloads see it."""

    # Warm-up lasts at least this long where there is any.
    warm_seconds = 0.0

    def __init__(self, name):
        self.name = name
        sys.path.insert(0, str(ROOT / "examples"))
        import framework

        framework.choose(name == "torch")
        self.lib, self.nn, self.F = framework.lib, framework.nn, framework.F
        self.lib.manual_seed(0)
        if name == "torch":
            self.lib.set_num_threads(THREADS)

    def sync(self):
        """Waits until all is done."""
        if self.name != "torch":
            self.lib.synchronize()

    def stats(self):
        """Counters of GT's session and worker, flat."""
        if self.name == "torch":
            return {}
        stats = self.lib.debug.get_worker_stats()
        flat = {k: v for k, v in stats.items() if isinstance(v, (int, float))}
        flat.update({f"plan {k}": v for k, v in stats["compilation"].items() if isinstance(v, (int, float))})
        for worker in stats["workers"]:
            for key, value in worker.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    flat[f"worker {key}"] = flat.get(f"worker {key}", 0) + value
        return flat

    def example(self, folder):
        """Makes the modules of an example importable."""
        sys.path.insert(0, str(ROOT / "examples" / folder))


def measure(side, step, steps, warmup):
    """Runs `step(i)`, which ends by looking at its result and gives the seconds it recorded before that."""
    begin, i = time.perf_counter(), 0
    while i < warmup or (warmup and time.perf_counter() - begin < side.warm_seconds):
        step(i)
        i += 1
    before = side.stats()
    times, recorded = [], []
    for i in range(warmup, warmup + steps):
        start = time.perf_counter()
        recorded.append(step(i) - start)
        times.append(time.perf_counter() - start)
    after = side.stats()
    gone = {k: (after[k] - before.get(k, 0)) / steps for k in after if after[k] != before.get(k, 0)}
    return dict(seconds=statistics.median(times), recorded=statistics.median(recorded), best=min(times), stats=gone)


def train(side, model, optimizer, loss, batches, steps, warmup):
    """Whole training steps: upload, forward, backward, update, look."""
    lib = side.lib

    def step(i):
        ids, targets = batches[i % len(batches)]
        value = loss(model, lib.from_numpy(ids), lib.from_numpy(targets))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        recorded = time.perf_counter()
        value.item()
        return recorded

    return measure(side, step, steps, warmup)


def token_batches(vocab, batch, length, count=8):
    import numpy as np

    rng = np.random.default_rng(0)
    draws = [rng.integers(0, vocab, (batch, length + 1)) for _ in range(count)]
    return [(d[:, :-1].copy(), d[:, 1:].copy()) for d in draws]


def qwen3(side, size, batch, length, steps, warmup):
    side.example("qwen3")
    from config import SIZES
    from model import Qwen3

    model = Qwen3(SIZES[size])
    optimizer = side.lib.optim.AdamW(model.parameters(), lr=3e-4)
    batches = token_batches(SIZES[size].vocab_size, batch, length)
    return train(side, model, optimizer, lambda m, x, y: m.loss(x, y), batches, steps, warmup)


def qwen3_tiny(side):
    return qwen3(side, "tiny", 2, 128, 150, 30)


def qwen3_256(side):
    return qwen3(side, "small", 4, 128, 20, 5)


def mlp(side):
    import numpy as np

    nn = side.nn
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = side.lib.optim.SGD(model.parameters(), lr=0.01)
    rng = np.random.default_rng(0)
    batches = [(rng.normal(size=(128, 784)).astype("f4"), rng.integers(0, 10, 128)) for _ in range(8)]
    found = train(side, model, optimizer, lambda m, x, y: side.F.cross_entropy(m(x), y), batches, 200, 30)
    found["gemm"] = gemm_rate(side)
    return found


def mlp_flops():
    """Arithmetic of a step: forward, gradients of all weights, and of all inputs but the first."""
    layers = [(784, 512), (512, 512), (512, 10)]
    products = [2 * 128 * i * o for i, o in layers]
    return 3 * sum(products) - products[0]


def gemm_rate(side, n=1024, reps=10):
    """Floating-point operations per second of a square matrix product."""
    lib = side.lib
    xs = [lib.randn(n, n) for _ in range(reps)]
    w = lib.randn(n, n)
    times = []
    for _ in range(4):
        w = w + 1.0
        side.sync()
        start = time.perf_counter()
        keep = [x @ w for x in xs]
        side.sync()
        times.append((time.perf_counter() - start) / reps)
        del keep
    return 2 * n**3 / min(times)


def chargpt(side):
    side.example("chargpt")
    from model import CharGPT, Config

    model = CharGPT(Config(vocab_size=96))
    optimizer = side.lib.optim.AdamW(model.parameters(), lr=1e-3)
    return train(side, model, optimizer, lambda m, x, y: m.loss(x, y), token_batches(96, 16, 128), 20, 5)


def map_over(side, shape, fn, rounds=40, warmup=40):
    """One function of one large tensor; each call has another input, since GT shares equal work. Within the warm-up a
    worker finds out how large results are written best."""
    inputs = [side.lib.randn(*shape) for _ in range(3)]
    side.sync()

    def step(i):
        out = fn(inputs[i % 3])
        recorded = time.perf_counter()
        side.sync()
        del out
        return recorded

    with side.lib.no_grad():
        return measure(side, step, rounds, warmup)


def elementwise(side):
    return map_over(side, (10_000_000,), lambda x: ((2 * x + 1).relu() * x + 0.5).tanh() - x)


def softmax(side):
    return map_over(side, (8192, 1024), lambda x: x.softmax(-1))


def layer_norm(side):
    weight, bias = side.lib.ones(1024), side.lib.zeros(1024)
    return map_over(side, (8192, 1024), lambda x: side.F.layer_norm(x, (1024,), weight, bias))


def gelu(side):
    return map_over(side, (8192, 1024), lambda x: side.F.gelu(x))


def decoding(side):
    import numpy as np

    side.example("qwen3")
    from config import SIZES
    from generate import generate
    from model import Qwen3

    model = Qwen3(SIZES["tiny"]).eval()
    prompts = np.random.default_rng(0).integers(0, 1000, (16, 1, 16))

    def step(i):
        for _ in generate(model, side.lib.from_numpy(prompts[i % 16]), 256):
            pass
        return time.perf_counter()

    return measure(side, step, 3, 1)


def first_step(side):
    """One step of Qwen3-tiny; the parent reads the clock at its end."""
    return {**qwen3(side, "tiny", 2, 128, 1, 0), "end": time.time()}


def memory_of(side):
    """Peak memory of training steps, less what was there before the model."""
    side.lib.ones(4).add(1).sum().item()
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    qwen3(side, "small", 4, 128, 5, 3)
    return dict(bytes=resident("VmHWM") - before)


def resident(field):
    """Bytes of a memory field of this process."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


WORK = dict(
    qwen3_tiny=qwen3_tiny,
    qwen3_256=qwen3_256,
    mlp=mlp,
    chargpt=chargpt,
    elementwise=elementwise,
    softmax=softmax,
    layer_norm=layer_norm,
    gelu=gelu,
    decoding=decoding,
    first_step=first_step,
    memory=memory_of,
)


# In the parent: processes that take turns, and the table.


def child(name, side, keep_memory=True, script=__file__, **env):
    """Runs one workload on one side in a process of its own; gives what it found."""
    env = {"OMP_NUM_THREADS": str(THREADS), "MKL_NUM_THREADS": str(THREADS), **os.environ, **env}
    env["BENCHMARK_SIDE"] = side
    if side == "torch" and keep_memory:
        env.update(KEEP_MEMORY)
    start = time.time()
    command = [sys.executable, script, "--child", name, side]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{name} on {side} failed:\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    found["said"] = done.stderr
    if "end" in found:
        found["seconds"] = found["end"] - start
    return found


def turns(name, sides, rounds, key="seconds", **options):
    """Both sides in turn, `rounds` times; for each the run with the smallest value."""
    found = {side: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            found[side].append(child(name, side, **options))
    return [min(found[side], key=lambda f: f[key]) for side in sides]


def explain(ours):
    """Where GT's time goes, as far as its counters say."""
    print(f"     recorded in {ours['recorded'] * 1e3:.2f} of {ours['seconds'] * 1e3:.2f} ms; per step:")
    for key, value in sorted(ours["stats"].items()):
        print(f"       {key:<32} {value:.6g}")


def against_torch(report, args, name, what, goal):
    """A row: GT's time as a part of PyTorch's."""
    if not common.torch:
        ours = min((child(name, "gt") for _ in range(args.rounds)), key=lambda f: f["seconds"])
        report.add(what, ours["seconds"] * 1e3, "ms")
    else:
        ours, theirs = turns(name, ("gt", "torch"), args.rounds)
        note = f"{ours['seconds'] * 1e3:.2f} against {theirs['seconds'] * 1e3:.2f} ms"
        if "gemm" in ours:
            bound = 1.15 * mlp_flops() / ours["gemm"] / theirs["seconds"]
            note += f"; 1.15 of its arithmetic at {ours['gemm'] / 1e9:.0f} GFLOP/s is {bound:.2f} x"
            goal = max(goal, bound)
        if name not in ("decoding", "first_step"):
            note += f"; recorded in {ours['recorded'] * 1e3:.2f}"
        report.add(what, ours["seconds"] / theirs["seconds"], "x", goal, note=note)
    if args.stats:
        explain(ours)


def over_tcp(report, args, name, what, goal):
    """A row: GT with server and worker as processes, as a part of GT inside one process."""
    found = {"tcp": [], "gt": []}
    with common.cluster(1, threads=THREADS) as addr:
        for _ in range(args.rounds):
            found["tcp"].append(child("qwen3_tiny", "gt", GT_SERVER=addr))
            found["gt"].append(child("qwen3_tiny", "gt"))
    tcp, local = (min(runs, key=lambda f: f["seconds"]) for runs in (found["tcp"], found["gt"]))
    note = f"{tcp['seconds'] * 1e3:.2f} against {local['seconds'] * 1e3:.2f} ms"
    report.add(what, tcp["seconds"] / local["seconds"], "x", goal, note=note)
    if args.stats:
        explain(tcp)


def peak_memory(report, args, name, what, goal):
    """A row: memory of the 256-wide step, with the system's allocator as it is."""
    sides = ("gt", "torch") if common.torch else ("gt",)
    found = turns(name, sides, 2, key="bytes", keep_memory=False)
    sizes = [f["bytes"] / 2**20 for f in found]
    if len(sizes) == 1:
        report.add(what, sizes[0], "MiB")
    else:
        report.add(what, sizes[0] / sizes[1], "x", goal, note=f"{sizes[0]:.0f} against {sizes[1]:.0f} MiB")


# name: (how it is measured, what it is called, goal)
ROWS = dict(
    qwen3_tiny=(against_torch, "Qwen3-tiny, batch 2 x 128, AdamW", 0.40),
    qwen3_256=(against_torch, "Qwen3 256 wide, 4 layers, batch 4 x 128, AdamW", 0.70),
    mlp=(against_torch, "MLP 784-512-512-10, batch 128, SGD", 0.85),
    chargpt=(against_torch, "char-GPT, batch 16 x 128, AdamW", 0.6),
    elementwise=(against_torch, "((2x+1).relu()*x+0.5).tanh()-x on 10M", 0.40),
    softmax=(against_torch, "softmax on 8192 x 1024", 0.6),
    layer_norm=(against_torch, "layer norm on 8192 x 1024", 0.6),
    gelu=(against_torch, "gelu on 8192 x 1024", 0.8),
    decoding=(against_torch, "decoding 256 tokens with a cache, Qwen3-tiny", 0.5),
    tcp=(over_tcp, "Qwen3-tiny over TCP, of GT in-process", 1.05),
    first_step=(against_torch, "process start to the end of the first step", 0.4),
    memory=(peak_memory, "peak memory of the 256-wide step", 0.8),
)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"among {', '.join(ROWS)}; all if absent")
    parser.add_argument("--rounds", type=int, default=3, help="processes per side and row")
    parser.add_argument("--json", default="training.json", help="where to write the results")
    parser.add_argument("--stats", action="store_true", help="print where GT's time goes")
    args = parser.parse_args()
    unknown = [row for row in args.rows if row not in ROWS]
    if unknown:
        parser.error(f"unknown rows {', '.join(unknown)}; known are {', '.join(ROWS)}")
    report = common.Report("training")
    for name in args.rows or ROWS:
        how, what, goal = ROWS[name]
        how(report, args, name, what, goal)
    report.write(args.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(WORK[sys.argv[2]](Side(sys.argv[3]))))
    else:
        import common

        main()
