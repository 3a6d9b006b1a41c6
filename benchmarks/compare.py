"""GT beside PyTorch: operations small and large, and training steps, in one table of ratios.

    python compare.py [--quick] [--threads N] [--json compare.json] [--plot compare.svg]

Each row is measured in turns, the best of several rounds counts, and every iteration gets another input, since equal
work is shared. A ratio below 1 means that GT is faster. Without PyTorch only GT's times are shown.
"""

import argparse
import json
import os
import statistics
import time

from common import torch
from plot import bars

import gt

SIZES = {"small": 64, "middle": 512, "large": 1536}


def operations(lib, size):
    """Name -> a function that computes something on a tensor of size x size."""
    softmax = getattr(lib.nn.functional, "softmax", None)
    return {
        "add": lambda x: x + x,
        "gelu": lambda x: lib.nn.functional.gelu(x),
        "chain of ten": lambda x: (((x * 2 + 1).relu() - x) * x).exp().log1p().tanh() * 3 + x,
        "softmax": lambda x: softmax(x, dim=-1),
        "sum": lambda x: x.sum(0),
        "matmul": lambda x: x @ x,
        "linear and relu": lambda x: lib.nn.functional.relu(x @ x + x),
    }


def time_operation(lib, op, size, repeat):
    """Seconds of one call, with its result looked at."""
    inputs = [lib.randn(size, size) for _ in range(repeat)]
    if lib is gt:
        gt.synchronize()
    start = time.perf_counter()
    results = [op(x) for x in inputs]
    if lib is gt:
        gt.synchronize()
    took = (time.perf_counter() - start) / repeat
    del results
    return took


def trainer(lib, width):
    """A function that makes one training step of a perceptron, and looks at its loss."""
    nn = lib.nn
    model = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
    optimizer = lib.optim.AdamW(model.parameters(), lr=1e-3)

    def step():
        x = lib.randn(128, width)
        loss = ((model(x) - x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def time_training(step, repeat):
    start = time.perf_counter()
    for _ in range(repeat):
        step()
    return (time.perf_counter() - start) / repeat


def rounds(measure, libs, count):
    """The best time of each library, measured in turns."""
    times = {name: [] for name in libs}
    for _ in range(count):
        for name, lib in libs.items():
            times[name].append(measure(lib))
    return {name: min(found) for name, found in times.items()}


def measure_all(libs, quick):
    count, repeat = (3, 5) if quick else (7, 20)
    for label, size in SIZES.items():
        for name in operations(gt, size):
            few = max(2, repeat // 4) if label == "large" else repeat
            yield (
                f"{name} {size}x{size}",
                rounds(
                    lambda lib, name=name, size=size, few=few: time_operation(
                        lib, operations(lib, size)[name], size, few
                    ),
                    libs,
                    count,
                ),
            )
    for width in (64, 512):
        steps = {name: trainer(lib, width) for name, lib in libs.items()}
        for step in steps.values():
            time_training(step, 5)
        by_lib = {id(lib): steps[name] for name, lib in libs.items()}
        yield (
            f"training step, width {width}",
            rounds(lambda lib, by_lib=by_lib: time_training(by_lib[id(lib)], repeat), libs, count),
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of PyTorch")
    parser.add_argument("--json", default="compare.json")
    parser.add_argument("--plot", default="compare.svg")
    args = parser.parse_args()
    libs = {"gt": gt}
    if torch is not None:
        torch.set_num_threads(args.threads)
        libs["torch"] = torch
    print(f"{'':34} {'GT':>12} {'PyTorch':>12} {'ratio':>8}")
    rows = []
    for what, times in measure_all(libs, args.quick):
        ratio = times["gt"] / times["torch"] if "torch" in times else None
        rows.append({"what": what, "gt": times["gt"], "torch": times.get("torch"), "ratio": ratio})
        theirs = f"{times['torch'] * 1e6:9.1f} us" if "torch" in times else "-"
        print(
            f"{what:34} {times['gt'] * 1e6:9.1f} us {theirs:>12} {'-' if ratio is None else f'{ratio:.2f}':>8}",
            flush=True,
        )
    ratios = [row["ratio"] for row in rows if row["ratio"]]
    if ratios:
        print(f"{'middle ratio':34} {'':12} {'':12} {statistics.median(ratios):8.2f}")
        bars(
            args.plot,
            "GT's time / PyTorch's time (below 1: GT is faster)",
            [(r["what"], r["ratio"]) for r in rows],
            line=1.0,
        )
    with open(args.json, "w") as file:
        json.dump({"date": time.strftime("%Y-%m-%d %H:%M:%S"), "rows": rows}, file, indent=1)
    print(f"written to {args.json}" + (f" and {args.plot}" if ratios else ""))


if __name__ == "__main__":
    main()
