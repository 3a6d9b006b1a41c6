"""Code whose shapes and paths change: GT compiling, GT op by op (GT_AUTO_COMPILE=0) and PyTorch, in turns.

Nothing is warmed up beyond the framework itself: what a new shape costs is what is measured. Usage:

    python benchmarks/dynamic.py [ROW ...] [--rounds N] [--json FILE]
"""

import argparse
import json
import sys
import time

import numpy as np
import training


def looped(side, step, steps):
    """Seconds of all steps together and of the slowest of the second half."""
    side.lib.ones(4).add(1).sum().item()
    before, times = side.stats(), []
    for i in range(steps):
        start = time.perf_counter()
        step(i)
        times.append(time.perf_counter() - start)
    after = side.stats()
    misses = after.get("plan misses", 0) - before.get("plan misses", 0)
    return dict(seconds=sum(times), worst=max(times[steps // 2 :]), misses=misses)


def small_net(side, inputs, hidden, outputs):
    nn = side.nn
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def growing(side):
    """A sequence that grows by one row each step and attends to itself."""
    lib, rng = side.lib, np.random.default_rng(0)
    rows = rng.normal(size=(400, 1, 64)).astype("f4")
    weight = lib.from_numpy(rng.normal(size=(64, 64)).astype("f4") / 8)
    state = {"x": lib.from_numpy(rows[0])}

    def step(i):
        with lib.no_grad():
            x = lib.cat([state["x"], lib.from_numpy(rows[i])])
            scores = ((x[-1:] @ weight) @ x.T / 8).softmax(-1)
            (scores @ x).tanh().sum().item()
            state["x"] = x

    return looped(side, step, 400)


def decoding(side):
    """Tokens of Qwen3-tiny with a cache; every position is new."""
    side.example("qwen3")
    from config import SIZES
    from generate import generate
    from model import Qwen3

    model = Qwen3(SIZES["tiny"]).eval()
    prompt = side.lib.from_numpy(np.random.default_rng(0).integers(0, 1000, (1, 16)))
    tokens = generate(model, prompt, 400)
    return looped(side, lambda i: next(tokens), 400)


def lengths(side):
    """Training Qwen3-tiny on batches of random length."""
    side.example("qwen3")
    from config import SIZES
    from model import Qwen3

    lib, rng = side.lib, np.random.default_rng(0)
    model = Qwen3(SIZES["tiny"])
    optimizer = lib.optim.AdamW(model.parameters(), lr=3e-4)
    batches = [rng.integers(0, 1000, (2, rng.integers(16, 160))) for _ in range(150)]

    def step(i):
        ids = batches[i]
        loss = model.loss(lib.from_numpy(ids[:, :-1].copy()), lib.from_numpy(ids[:, 1:].copy()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    return looped(side, step, 150)


def branches(side):
    """A path through layers that depends on the values seen."""
    lib, rng = side.lib, np.random.default_rng(0)
    nets = [small_net(side, 64, 64, 64) for _ in range(4)]
    inputs = rng.normal(size=(300, 32, 64)).astype("f4")

    def step(i):
        x = lib.from_numpy(inputs[i])
        for _ in range(6):
            y = nets[int(abs(x.sum().item()) * 1e3) % 4](x)
            x = y.relu() if y.mean().item() > 0 else (x + y).tanh()
        x.sum().item()

    with lib.no_grad():
        return looped(side, step, 300)


def last_batch(side):
    """Epochs of five full batches and a smaller last one, which shrinks from epoch to epoch."""
    lib, rng = side.lib, np.random.default_rng(0)
    net = small_net(side, 256, 256, 10)
    optimizer = lib.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    inputs = rng.normal(size=(128, 256)).astype("f4")
    targets = rng.integers(0, 10, 128)

    def step(i):
        epoch, batch = divmod(i, 6)
        n = 128 if batch < 5 else 127 - epoch % 120
        loss = side.F.cross_entropy(net(lib.from_numpy(inputs[:n])), lib.from_numpy(targets[:n]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    return looped(side, step, 360)


def never_twice(side):
    """Random chains of elementwise work and products, none like another."""
    lib, rng = side.lib, np.random.default_rng(0)
    inputs = rng.normal(size=(300, 96, 96)).astype("f4")
    choices = rng.integers(0, 6, (300, 20))

    def step(i):
        x = lib.from_numpy(inputs[i])
        for pick in choices[i]:
            if pick == 0:
                x = x * 0.5 + 1
            elif pick == 1:
                x = x.tanh()
            elif pick == 2:
                x = x - x.mean(1, keepdim=True)
            elif pick == 3:
                x = x.relu()
            elif pick == 4:
                x = (x @ x.T) * 0.01
            else:
                x = x.softmax(-1)
        x.sum().item()

    with lib.no_grad():
        return looped(side, step, 300)


WORK = dict(
    growing=(growing, "a sequence that grows"),
    decoding=(decoding, "decoding, every length new"),
    lengths=(lengths, "training on random lengths"),
    branches=(branches, "branches that depend on data"),
    last_batch=(last_batch, "a last batch that shrinks"),
    never_twice=(never_twice, "programs that never come back"),
)


def row(report, name, what, rounds):
    sides = {"gt": ("gt", {}), "plain": ("gt", {"GT_AUTO_COMPILE": "0"})}
    if common.torch:
        sides["torch"] = ("torch", {})
    found = {key: [] for key in sides}
    for _ in range(rounds):
        for key, (side, env) in sides.items():
            found[key].append(training.child(name, side, script=__file__, **env))
    best = {key: min(runs, key=lambda f: f["seconds"]) for key, runs in found.items()}
    ours, plain = best["gt"], best["plain"]
    note = f"{ours['seconds'] * 1e3:.0f} against {plain['seconds'] * 1e3:.0f} ms, {ours['misses']} plans made"
    note += f", slowest step {ours['worst'] * 1e3:.1f} ms"
    # Equal within what two runs of the same program differ by.
    report.add(f"{what}, of op by op", ours["seconds"] / plain["seconds"], "x", 1.05, note=note)
    if common.torch:
        theirs = best["torch"]
        note = f"{ours['seconds'] * 1e3:.0f} against {theirs['seconds'] * 1e3:.0f} ms"
        report.add(f"{what}, of PyTorch", ours["seconds"] / theirs["seconds"], "x", note=note)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"among {', '.join(WORK)}; all if absent")
    parser.add_argument("--rounds", type=int, default=3, help="processes per side and row")
    parser.add_argument("--json", default="dynamic.json", help="where to write the results")
    args = parser.parse_args()
    unknown = [name for name in args.rows if name not in WORK]
    if unknown:
        parser.error(f"unknown rows {', '.join(unknown)}; known are {', '.join(WORK)}")
    report = common.Report("dynamic")
    for name in args.rows or WORK:
        row(report, name, WORK[name][1], args.rounds)
    report.write(args.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(WORK[sys.argv[2]][0](training.Side(sys.argv[3]))))
    else:
        import common

        main()
