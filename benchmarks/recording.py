"""What recording costs: the client's part of a step, from its first line to the look, and what the look itself records.

    python benchmarks/recording.py [ROW ...] [--steps N] [--json FILE]

Training steps are recorded up to `loss.item()`, and a token of decoding up to its `item()`; the wait for the result is
not counted. The least of many steps is shown, which is what the machine's other work disturbs least, and the middle.
"""

import argparse
import json
import pathlib
import statistics
import time

from training import Side, token_batches


def training(side, model, optimizer, loss, batches):
    """A step up to its look: gives when it was recorded."""
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

    return step


def qwen3(side, config, batch, length):
    side.example("qwen3")
    from model import Qwen3

    model = Qwen3(config)
    optimizer = side.lib.optim.AdamW(model.parameters(), lr=3e-4)
    batches = token_batches(config.vocab_size, batch, length)
    return training(side, model, optimizer, lambda m, x, y: m.loss(x, y), batches)


def tiny(side):
    side.example("qwen3")
    from config import SIZES

    return qwen3(side, SIZES["tiny"], 2, 128)


def deep(side):
    """Eight layers of the tiny model: the instructions of Qwen3-small on the GPU, with little to compute."""
    side.example("qwen3")
    from dataclasses import replace

    from config import SIZES

    return qwen3(side, replace(SIZES["tiny"], num_hidden_layers=8), 1, 8)


def mlp(side):
    import numpy as np

    nn = side.nn
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = side.lib.optim.SGD(model.parameters(), lr=0.01)
    rng = np.random.default_rng(0)
    batches = [(rng.normal(size=(128, 784)).astype("f4"), rng.integers(0, 10, 128)) for _ in range(8)]
    return training(side, model, optimizer, lambda m, x, y: side.F.cross_entropy(m(x), y), batches)


def decoding(side):
    side.example("qwen3")
    from config import SIZES
    from generate import pick
    from model import Qwen3

    lib = side.lib
    model = Qwen3(SIZES["tiny"]).eval()
    state = {}

    def step(i):
        with lib.no_grad():
            if i % 256 == 0:
                state["cache"] = model.new_cache(1, 512)
                state["ids"] = lib.tensor([[1, 2, 3, 4]])
            ids = pick(model(state["ids"], state["cache"], last=True)[:, -1])
            recorded = time.perf_counter()
            ids.item()
            state["ids"] = ids
            return recorded

    return step


ROWS = {"tiny": tiny, "deep": deep, "mlp": mlp, "decoding": decoding}


def measure(side, name, steps):
    step = ROWS[name](side)
    for i in range(30):
        step(i)
    times = []
    for i in range(30, 30 + steps):
        start = time.perf_counter()
        times.append(step(i) - start)
    return dict(least=min(times), median=statistics.median(times))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", default=list(ROWS))
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--json")
    args = parser.parse_args()
    side, found = Side("gt"), {}
    for name in args.rows:
        found[name] = measure(side, name, args.steps)
        least, middle = (found[name][k] * 1e3 for k in ("least", "median"))
        print(f"{name:10} {least:8.3f} ms least {middle:8.3f} ms median", flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
