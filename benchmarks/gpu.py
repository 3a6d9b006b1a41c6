"""What one GPU must reach: GT on its CUDA worker against PyTorch on the same device, in one run.

Training steps are whole: upload, forward, backward, update and `loss.item()`. Every measurement is a process of its
own; the sides take turns, and the best of the medians counts. Usage:

    python benchmarks/gpu.py [ROW ...] [--rounds N] [--compile] [--json FILE] [--stats]

`--compile` adds torch.compile in its default and its reduce-overhead mode.
"""

import argparse
import contextlib
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import common
import training
from training import token_batches, train

# In the child: one workload on one side.


class Side(training.Side):
    """A framework on the GPU: `gt`, `torch`, `compiled` or `reduced` (torch.compile and its mode), `cudnn` (PyTorch's
    attention by cuDNN)."""

    # Kernels are compiled while others run; what is measured is what comes after.
    warm_seconds = 6.0

    def __init__(self, name):
        self.mode = name
        super().__init__("gt" if name == "gt" else "torch")
        if name == "gt":
            # A worker of its own process takes a while to come.
            begin = time.perf_counter()
            while not self.lib.cuda.is_available() and "GT_SERVER" in os.environ and time.perf_counter() - begin < 20:
                time.sleep(0.2)
            if not self.lib.cuda.is_available():
                raise SystemExit("gpu: GT sees no CUDA device; `gt doctor` says why")
        else:
            self.lib.set_default_device("cuda")

    def sync(self):
        if self.name == "torch":
            self.lib.cuda.synchronize()
        else:
            self.lib.synchronize()

    def attention_kernels(self):
        """Where attention runs by whose kernels the mode says."""
        if self.mode != "cudnn":
            return contextlib.nullcontext()
        from torch.nn.attention import SDPBackend, sdpa_kernel

        return sdpa_kernel(SDPBackend.CUDNN_ATTENTION)

    def whole(self, model, loss):
        """The loss of a batch, compiled where the mode says so."""
        if self.mode == "compiled":
            return self.lib.compile(loss)
        if self.mode == "reduced":
            return self.lib.compile(loss, mode="reduce-overhead")
        return loss


class Uploading:
    """PyTorch's `from_numpy` with the way to the device, so that both sides upload alike."""

    def __init__(self, lib):
        self.lib = lib

    def __getattr__(self, name):
        return getattr(self.lib, name)

    def from_numpy(self, array):
        return self.lib.from_numpy(array).to("cuda", non_blocking=True)


def training_steps(side, model, optimizer, loss, batches, steps, warmup):
    """Whole steps, and the memory they took at most."""
    if side.name == "torch":
        plain, side.lib = side.lib, Uploading(side.lib)
    found = train(side, model, optimizer, side.whole(model, loss), batches, steps, warmup)
    side.lib = plain if side.name == "torch" else side.lib
    found["memory"] = side.lib.cuda.max_memory_allocated()
    return found


def qwen3_config(size):
    from config import SIZES, Config

    if size == "small":
        return Config(
            vocab_size=32_000,
            hidden_size=512,
            intermediate_size=1536,
            num_hidden_layers=8,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=64,
            max_position_embeddings=2048,
            tie_word_embeddings=False,
        )
    config = SIZES[size]
    config.tie_word_embeddings = False
    config.max_position_embeddings = min(config.max_position_embeddings, 2048)
    return config


def qwen3(side, size, dtype, batch, length, steps, warmup):
    side.example("qwen3")
    config = qwen3_config(size)
    from model import Qwen3

    model = Qwen3(config)
    if dtype != "float32":
        model = model.to(getattr(side.lib, dtype))
    optimizer = side.lib.optim.AdamW(model.parameters(), lr=3e-4)
    batches = token_batches(config.vocab_size, batch, length)
    found = training_steps(side, model, optimizer, lambda m, x, y: m.loss(x, y), batches, steps, warmup)
    return found, model


def digest(model):
    """A fingerprint of the trained weights, for runs that must agree bit for bit."""
    weights = hashlib.sha256()
    for name, value in model.state_dict().items():
        weights.update(name.encode())
        weights.update(value.float().cpu().numpy().tobytes())
    return weights.hexdigest()[:16]


def qwen3_tiny(side):
    return qwen3(side, "tiny", "float32", 2, 128, 200, 50)[0]


def qwen3_fixed(side):
    """So many steps and no more, so that two runs do the same."""
    side.warm_seconds = 0.0
    found, model = qwen3(side, "tiny", "float32", 2, 128, 300, 0)
    return dict(found, digest=digest(model))


def qwen3_small(side):
    return qwen3(side, "small", "bfloat16", 8, 512, 40, 15)[0]


def qwen3_06b(side):
    return qwen3(side, "0.6B", "bfloat16", 8, 1024, 12, 6)[0]


def mlp(side):
    import numpy as np

    nn = side.nn
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = side.lib.optim.SGD(model.parameters(), lr=0.01)
    rng = np.random.default_rng(0)
    batches = [(rng.normal(size=(128, 784)).astype("f4"), rng.integers(0, 10, 128)) for _ in range(8)]
    return training_steps(side, model, optimizer, lambda m, x, y: side.F.cross_entropy(m(x), y), batches, 300, 60)


# Seconds until a device under load has come to its clock and its temperature.
SETTLING = 2.0


def queued(side, make, fn, reps, rounds=6, grad=False):
    """Seconds of one call, many of them queued at once; each has another input, since GT shares equal work.

    The median of what comes after some seconds: a device begins at a clock that it cannot hold under load.
    """
    inputs = [make() for _ in range(reps)]
    side.sync()
    times = []
    begin = time.perf_counter()
    with side.lib.set_grad_enabled(grad):
        while len(times) < rounds or time.perf_counter() - begin < SETTLING + 3:
            start = time.perf_counter()
            keep = [fn(x) for x in inputs]
            side.sync()
            if time.perf_counter() - begin > SETTLING:
                times.append((time.perf_counter() - start) / reps)
            del keep
    return dict(seconds=statistics.median(times), best=min(times))


def matmul(side, n, kind):
    lib = side.lib
    lib.set_float32_matmul_precision("high" if kind == "tf32" else "highest")
    dtype = lib.bfloat16 if kind == "bf16" else lib.float32
    # A queue long enough that the way to the device and back, which is not what is measured, does not count.
    reps = {4096: 256, 8192: 32, 16384: 8}[n]
    w = lib.randn(n, n, dtype=dtype)
    return queued(side, lambda: lib.randn(n, n, dtype=dtype), lambda x: x @ w, reps)


def elementwise(side):
    n = 64 << 20
    return queued(side, lambda: side.lib.randn(n), lambda x: ((2 * x + 1).relu() * x + 0.5).tanh() - x, 16)


def softmax(side):
    return queued(side, lambda: side.lib.randn(8192, 8192), lambda x: x.softmax(-1), 16)


def copy(side):
    """The bound of the two above: reading and writing as many bytes."""
    return queued(side, lambda: side.lib.randn(64 << 20), lambda x: x + 0.0, 16)


# Attention as a layer of Qwen3-0.6B has it: batch, heads, length, size of a head.
ATTENTION = (8, 16, 1024, 128)


def attention(side, backward):
    """Causal attention in bf16, forward alone or with its gradient. `cudnn` is PyTorch with cuDNN's kernels."""
    lib = side.lib

    def make():
        x = [lib.randn(*ATTENTION, dtype=lib.bfloat16) for _ in range(4 if backward else 3)]
        if backward:
            for t in x[:3]:
                t.requires_grad_(True)
        return x

    def forward(x):
        return side.F.scaled_dot_product_attention(x[0], x[1], x[2], is_causal=True)

    def both(x):
        return lib.autograd.grad(forward(x), x[:3], x[3])

    with side.attention_kernels():
        return queued(side, make, both if backward else forward, 32, grad=backward)


def first_step(side):
    """One step of Qwen3-small. GT counts from the start of its process, PyTorch the step alone."""
    found, _ = qwen3(side, "small", "bfloat16", 8, 512, 1, 0)
    if side.name == "gt":
        found["end"] = time.time()
    return found


def steady(side, size, dtype, batch, length, seconds):
    """Steps per second over a stretch of time, so that two clients can be measured together."""
    side.example("qwen3")
    config = qwen3_config(size)
    from model import Qwen3

    lib, model = side.lib, Qwen3(config)
    model = model if dtype == "float32" else model.to(getattr(lib, dtype))
    optimizer = lib.optim.AdamW(model.parameters(), lr=3e-4)
    batches = token_batches(config.vocab_size, batch, length)

    def step(i):
        ids, targets = batches[i % len(batches)]
        value = model.loss(lib.from_numpy(ids), lib.from_numpy(targets))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        value.item()

    begin, i = time.perf_counter(), 0
    while time.perf_counter() - begin < side.warm_seconds:
        step(i)
        i += 1
    # All clients start together, at the next whole multiple of some seconds.
    time.sleep(8 - time.time() % 8)
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        step(steps)
        steps += 1
    return dict(seconds=(time.perf_counter() - start) / steps, steps=steps)


def steady_tiny(side):
    return steady(side, "tiny", "float32", 2, 128, 4)


def steady_06b(side):
    return steady(side, "0.6B", "bfloat16", 8, 1024, 6)


WORK = dict(
    qwen3_tiny=qwen3_tiny,
    qwen3_fixed=qwen3_fixed,
    qwen3_small=qwen3_small,
    qwen3_06b=qwen3_06b,
    mlp=mlp,
    elementwise=elementwise,
    softmax=softmax,
    copy=copy,
    first_step=first_step,
    steady_tiny=steady_tiny,
    steady_06b=steady_06b,
    attention_forward=lambda side: attention(side, False),
    attention_backward=lambda side: attention(side, True),
)
for size in (4096, 8192, 16384):
    for kind in ("f32", "tf32", "bf16"):
        WORK[f"matmul_{size}_{kind}"] = lambda side, size=size, kind=kind: matmul(side, size, kind)


# In the parent: processes that take turns, and the table.


def child(name, side, **env):
    return training.child(name, side, keep_memory=False, script=__file__, **env)


def turns(name, sides, rounds):
    """Each side in turn, `rounds` times; for each the run with the smallest time."""
    found = {side: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            found[side].append(child(name, side))
    return {side: min(runs, key=lambda f: f["seconds"]) for side, runs in found.items()}


def sides_of(args):
    return ["gt", "torch"] + (["compiled", "reduced"] if args.compile else []) if common.torch else ["gt"]


def in_words(found, side):
    text = f"{side} {found[side]['seconds'] * 1e3:.3f} ms"
    memory = found[side].get("memory")
    return text + (f" {memory / 2**30:.1f} GiB" if memory and memory > 2**30 else "")


def steps_row(report, args, name, what, goal):
    """A row in milliseconds, with the other sides beside."""
    found = turns(name, sides_of(args), args.rounds)
    note = ", ".join(in_words(found, side) for side in found)
    report.add(what, found["gt"]["seconds"] * 1e3, "ms", goal, note=note)
    if args.stats and "recorded" in found["gt"]:
        training.explain(found["gt"])


def memory_row(report, args, name, what, goal):
    """As `steps_row`, and a row for the memory."""
    found = turns(name, sides_of(args), args.rounds)
    note = ", ".join(in_words(found, side) for side in found)
    report.add(what, found["gt"]["seconds"] * 1e3, "ms", goal, note=note)
    report.add(f"{what}: memory", found["gt"]["memory"] / 2**30, "GiB", 30)


def first_row(report, args, name, what, goal):
    """As `steps_row`, with no kernels on disk from earlier runs; `--stats` tells where GT's time goes."""
    found = {}
    for side in sides_of(args):
        for _ in range(args.rounds):
            with tempfile.TemporaryDirectory() as folder:
                env = dict(GT_KERNEL_CACHE=folder, TORCHINDUCTOR_CACHE_DIR=folder, TRITON_CACHE_DIR=folder)
                once = child(name, side, GT_VERBOSE=str(int(args.stats)), **env)
            found[side] = min(found.get(side, once), once, key=lambda f: f["seconds"])
    note = ", ".join(in_words(found, side) for side in found)
    report.add(what, found["gt"]["seconds"] * 1e3, "ms", goal, note=note)
    if args.stats:
        print(found["gt"]["said"])


def attention_row(report, args, name, what, goal):
    """A row in milliseconds, with PyTorch's own choice of kernels and cuDNN's beside."""
    found = turns(name, ["gt", "torch", "cudnn"] if common.torch else ["gt"], args.rounds)
    note = ", ".join(in_words(found, side) for side in found)
    report.add(what, found["gt"]["seconds"] * 1e3, "ms", goal, note=note)


def ratio_row(report, args, name, what, goal):
    """A row as a part of PyTorch's time, with the rate."""
    found = turns(name, [s for s in sides_of(args) if s in ("gt", "torch")], args.rounds)
    rate = 2 * int(name.split("_")[1]) ** 3 / 1e12
    note = ", ".join(f"{side} {rate / f['seconds']:.0f} TFLOP/s" for side, f in found.items())
    theirs = found.get("torch", found["gt"])["seconds"]
    report.add(what, found["gt"]["seconds"] / theirs, "x", goal if common.torch else None, note=note)


def apart_row(report, args, name, what, goal):
    """Separate server and worker processes over loopback against everything in one process, in turns. Processes differ
    from each other by more than what is looked for, workers too, so each side has as many of both."""
    del goal
    far, near = [], []
    for _ in range(max(3, args.rounds)):
        with common.cluster(1) as addr:
            far.append(child(name, "gt", GT_SERVER=addr))
        near.append(child(name, "gt"))
    far, near = (min(side, key=lambda f: f["seconds"]) for side in (far, near))
    goal = max(1.05 * near["seconds"], near["seconds"] + 80e-6) * 1e3
    report.add(what, far["seconds"] * 1e3, "ms", goal, note=f"in one process {near['seconds'] * 1e3:.3f} ms")


def together_row(report, args, name, what, goal):
    """Two clients at once, as a part of what one reaches alone on the same server."""
    with common.cluster(1) as addr:
        alone = child(name, "gt", GT_SERVER=addr)["seconds"]
        found = [None, None]

        def run(i):
            found[i] = child(name, "gt", GT_SERVER=addr)["seconds"]

        threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    both = sum(alone / seconds for seconds in found)
    note = f"alone {alone * 1e3:.3f} ms, together {found[0] * 1e3:.3f} and {found[1] * 1e3:.3f} ms"
    report.add(what, both, "x", goal, at_most=False, note=note)


def same_row(report, args, name, what, goal):
    """Two runs from one seed: 0 if their weights agree bit for bit."""
    digests = [child(name, "gt")["digest"] for _ in range(2)]
    report.add(what, float(digests[0] != digests[1]), "differ", goal, note=" ".join(digests))


# name: (how it is measured, workload, what it is called, goal)
ROWS = dict(
    qwen3_tiny=(steps_row, "qwen3_tiny", "Qwen3-tiny f32, batch 2 x 128", 1.0),
    qwen3_small=(steps_row, "qwen3_small", "Qwen3-small bf16, batch 8 x 512", 6.0),
    qwen3_06b=(memory_row, "qwen3_06b", "Qwen3-0.6B bf16, batch 8 x 1024", 87.0),
    mlp=(steps_row, "mlp", "MLP 784-512-512-10, batch 128, SGD", 0.22),
    copy=(steps_row, "copy", "x + 0 on 64M f32", None),
    elementwise=(steps_row, "elementwise", "((2x+1).relu()*x+0.5).tanh()-x on 64M f32", 0.16),
    softmax=(steps_row, "softmax", "softmax of 8192 x 8192 f32", 0.17),
    attention_forward=(attention_row, "attention_forward", "attention 8x16x1024x128 causal bf16", None),
    attention_backward=(attention_row, "attention_backward", "the same with its gradient", None),
    first_step=(first_row, "first_step", "first step of Qwen3-small, from process start", 5000),
    apart=(apart_row, "qwen3_tiny", "Qwen3-tiny, server and worker apart", None),
    same=(same_row, "qwen3_fixed", "two runs of Qwen3-tiny from one seed", 0),
    two_tiny=(together_row, "steady_tiny", "two clients training Qwen3-tiny, of one alone", 1.2),
    two_06b=(together_row, "steady_06b", "two clients training Qwen3-0.6B, of one alone", 0.97),
)
for size in (4096, 8192, 16384):
    for kind in ("f32", "tf32", "bf16"):
        name = f"matmul_{size}_{kind}"
        ROWS[name] = (ratio_row, name, f"matmul {size} {kind}, of PyTorch's time", 1.02)


def device_name():
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.strip()
    except OSError:
        return "no nvidia-smi"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"among {', '.join(ROWS)}; all if absent")
    parser.add_argument("--rounds", type=int, default=2, help="processes per side and row")
    parser.add_argument("--compile", action="store_true", help="measure torch.compile too")
    parser.add_argument("--json", default="gpu.json", help="where to write the results")
    parser.add_argument("--stats", action="store_true", help="print where GT's time goes")
    args = parser.parse_args()
    unknown = [row for row in args.rows if row not in ROWS]
    if unknown:
        parser.error(f"unknown rows {', '.join(unknown)}; known are {', '.join(ROWS)}")
    print(f"{device_name()}, {os.cpu_count()} cores, PyTorch {getattr(common.torch, '__version__', 'absent')}\n")
    report = common.Report("gpu")
    for name in args.rows or ROWS:
        how, work, what, goal = ROWS[name]
        try:
            how(report, args, work, what, goal)
        except Exception as error:  # one row that fails must not lose the others
            print(f" ! {what:<58} {str(error)[-1500:]}", flush=True)
    report.write(args.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(WORK[sys.argv[2]](Side(sys.argv[3]))))
    else:
        main()
